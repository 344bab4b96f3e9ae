//! References of modules and arrays with levels: what kernels read by them comes back with the session.

use crate::common::{Answer, CONTEXT, Program, STREAM, Worker, load_anew, started, words};
use fermata_abi::op::{
    Address, ArrayId, Blob, FunctionId, ImageRef, Launch, Mipmap, MipmapId, ModuleId, Op, Place,
    ReferenceSettings, Resource, Sampler, Texture,
};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;

/// Adds what two texture references and a level of a texture object have at column `tid`, writes the sum by a surface
/// reference, and into `out`.
const TEXT: &[u8] = b".version 8.0
.target sm_80
.address_size 64
.global .texref image;
.global .texref line;
.global .surfref canvas;
.visible .entry add(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<6>;
    .reg .f32 %f<12>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [t];
    ld.param.u64 %a1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a2, %r0, 4;
    add.u64 %a1, %a1, %a2;
    cvt.rn.f32.u32 %f4, %r0;
    mov.f32 %f5, 0f00000000;
    mov.f32 %f6, 0f3F800000;
    tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [image, {%f4, %f5}];
    mov.f32 %f7, %f0;
    tex.1d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [line, {%r0}];
    add.f32 %f7, %f7, %f0;
    tex.level.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%a0, {%f5, %f5}], %f6;
    add.f32 %f7, %f7, %f0;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, 0;
    sust.b.2d.b32.trap [canvas, {%r1, %r2}], {%f7};
    st.global.f32 [%a1], %f7;
    ret;
}
";

const MODULE: ModuleId = ModuleId::from_raw(0x8000);
const ADD: FunctionId = FunctionId::from_raw(0x8010);
const IMAGE: ArrayId = ArrayId::from_raw(0x8020);
const CANVAS: ArrayId = ArrayId::from_raw(0x8030);
const MIPMAP: MipmapId = MipmapId::from_raw(0x8040);
const LEVELS: [ArrayId; 2] = [ArrayId::from_raw(0x8050), ArrayId::from_raw(0x8060)];

fn done(program: &Program, op: &Op<'_>) {
    assert_eq!(program.ask(op), Answer::None, "{op:?}");
}

fn move_over(worker: Worker, program: Program) -> (Worker, Program) {
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    (worker, program)
}

fn array(program: &Program, array: ArrayId) {
    let (context, format) = (CONTEXT, cu::CU_AD_FORMAT_FLOAT);
    let create = Op::ArrayCreate {
        array,
        context,
        width: 4,
        height: 2,
        depth: 0,
        format,
        channels: 1,
        flags: cu::CUDA_ARRAY3D_SURFACE_LDST,
    };
    done(program, &create);
}

fn fill(program: &Program, array: ArrayId, texels: &[f32]) {
    let (x, y, z) = (0, 0, 0);
    let bytes: Vec<u8> = texels.iter().flat_map(|it| it.to_le_bytes()).collect();
    let copy = Op::Copy {
        to: Place::Array { array, x, y, z },
        from: Place::Blob(Blob::Inline(&bytes)),
        len: bytes.len() as u64,
        stream: crate::common::LEGACY,
        answered: true,
    };
    done(program, &copy);
}

fn sampler() -> Sampler {
    Sampler {
        address_modes: [cu::CU_TR_ADDRESS_MODE_CLAMP; 3],
        filter: cu::CU_TR_FILTER_MODE_POINT,
        flags: 0,
        anisotropy: 0,
        level_filter: 0,
        levels: [0f32, 0.0, 8.0].map(f32::to_bits),
        border: [0; 4],
    }
}

fn bind(program: &Program, name: &str, resource: Resource, surface: bool) -> u64 {
    let texture = Box::new(Texture {
        resource,
        sampler: (!surface).then(sampler),
        view: None,
    });
    let module = MODULE;
    program.ask_u64(&Op::ReferenceBind {
        module,
        name,
        texture,
    })
}

/// The texture object of the array with levels, memory that a reference shows, and room for results.
struct Scene {
    object: u64,
    line: u64,
    out: u64,
}

fn set_up(program: &Program) -> Scene {
    let (module, context) = (MODULE, CONTEXT);
    let image = ImageRef::Blob(Blob::Inline(TEXT));
    let beside = false;
    let load = Op::ModuleLoad {
        module,
        context,
        image,
        beside,
    };
    done(program, &load);
    let found = program.ask(&Op::FunctionGet {
        function: ADD,
        module,
        name: "add",
    });
    assert!(matches!(found, Answer::Function(_)), "{found:?}");
    for (name, surface, is) in [
        ("image", false, true),
        ("canvas", true, true),
        ("canvas", false, false),
        ("nothing", false, false),
    ] {
        let got = program.ask(&Op::ReferenceGet {
            module,
            name,
            surface,
        });
        match got {
            Answer::Bytes(bytes) if is => {
                let settings: ReferenceSettings = postcard::from_bytes(&bytes).unwrap();
                assert_eq!(settings.channels, 1);
            }
            Answer::Error(500, _) if !is => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    array(program, IMAGE);
    array(program, CANVAS);
    fill(program, IMAGE, &[1.0, 2.0, 3.0, 4.0]);
    let shape = Mipmap {
        width: 4,
        height: 2,
        depth: 0,
        format: cu::CU_AD_FORMAT_FLOAT,
        channels: 1,
        flags: 0,
        levels: LEVELS.to_vec(),
    };
    let create = Op::MipmapCreate {
        mipmap: MIPMAP,
        context,
        shape,
    };
    done(program, &create);
    fill(program, LEVELS[1], &[1000.0, 2000.0]);
    let line = program.alloc(16);
    let numbers = [10f32, 20.0, 30.0, 40.0];
    let numbers: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
    program.write(line, &numbers);
    bind(program, "image", Resource::Array(IMAGE), false);
    bind(program, "canvas", Resource::Array(CANVAS), true);
    let linear = Resource::Linear {
        address: Address::from_raw(line),
        format: cu::CU_AD_FORMAT_FLOAT,
        channels: 1,
        bytes: 16,
    };
    assert_eq!(bind(program, "line", linear, false), 0);
    let texture = Box::new(Texture {
        resource: Resource::Mipmapped(MIPMAP),
        sampler: Some(sampler()),
        view: None,
    });
    let object = program.ask_u64(&Op::TextureCreate { context, texture });
    let out = program.alloc(16);
    Scene { object, line, out }
}

fn run(program: &Program, scene: &Scene) -> Vec<f32> {
    let params: Vec<u8> = [scene.object, scene.out]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let launch = Launch {
        function: ADD,
        grid: [1, 1, 1],
        block: [4, 1, 1],
        shared: 0,
        cooperative: false,
        params: &params,
        attributes: Vec::new(),
    };
    let stream = STREAM;
    program.post(&Op::Launch { launch, stream });
    done(program, &Op::StreamSync { stream });
    let bytes = program.read(scene.out, 16);
    words(&bytes).into_iter().map(f32::from_bits).collect()
}

#[test]
fn references_and_levels_come_back_as_they_were_bound() {
    let (worker, program) = started();
    let scene = set_up(&program);
    assert_eq!(run(&program, &scene), [1011.0, 1022.0, 1033.0, 1044.0]);
    let (worker, program) = move_over(worker, program);
    assert_eq!(run(&program, &scene), [1011.0, 1022.0, 1033.0, 1044.0]);
    // The surface reference wrote the canvas; bound as the image, it is read.
    bind(&program, "image", Resource::Array(CANVAS), false);
    assert_eq!(run(&program, &scene)[0], 2021.0);
    let (_worker, program) = move_over(worker, program);
    assert_eq!(run(&program, &scene)[0], 3031.0);
}

#[test]
fn a_reference_to_what_is_gone_does_not_keep_a_session_from_coming_back() {
    let (worker, program) = started();
    let scene = set_up(&program);
    done(&program, &Op::ArrayDestroy { array: CANVAS });
    let address = scene.line;
    done(
        &program,
        &Op::MemFree {
            address: Address::from_raw(address),
        },
    );
    let level = program.ask(&Op::ArrayDestroy { array: LEVELS[1] });
    assert!(matches!(level, Answer::Error(1, _)), "{level:?}");
    done(&program, &Op::MipmapDestroy { mipmap: MIPMAP });
    let (worker, program) = move_over(worker, program);
    let lost = program.ask(&Op::ReferenceBind {
        module: MODULE,
        name: "image",
        texture: Box::new(Texture {
            resource: Resource::Array(CANVAS),
            sampler: Some(sampler()),
            view: None,
        }),
    });
    assert!(matches!(lost, Answer::Error(..)), "{lost:?}");
    done(&program, &Op::ModuleUnload { module: MODULE });
    let (_worker, program) = move_over(worker, program);
    let (module, name, surface) = (MODULE, "image", false);
    let gone = program.ask(&Op::ReferenceGet {
        module,
        name,
        surface,
    });
    assert!(matches!(gone, Answer::Error(..)), "{gone:?}");
}
