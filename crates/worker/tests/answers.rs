//! Operations that ask the driver something, and launches with more than a grid: the driver gets what the program gave,
//! and the program what the driver says.

use crate::common::{
    Answer, CONTEXT, FUNCTION, LEGACY, PTX, Program, STREAM, Worker, load_anew, started, words,
};
use fermata_abi::op::{
    Address, ArrayId, Blob, ContextId, DeviceQuestion, ExecId, FunctionId, ImageRef, Launch,
    LaunchAttribute, LinkInput, LinkJob, ModuleId, Occupancy, Op, Place, Resource, Sampler,
    SharedOf, TENSOR_MAP, Tensor, TensorBox, Texture, TextureId,
};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;
use fermata_graph::{EdgeData, Graph, KernelNode, NodeKind};

const MIB: u64 = 1 << 20;

/// Saves what `worker` holds and goes on with it in another one.
fn move_over(worker: Worker, program: Program) -> (Worker, Program) {
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    (worker, program)
}

fn done(program: &Program, op: &Op<'_>) {
    assert_eq!(program.ask(op), Answer::None, "{op:?}");
}

/// What the library asks goes to the driver as it was given, and its answers and refusals come back.
#[test]
fn occupancy_is_what_the_driver_says() {
    let (_worker, program) = started();
    let ask = |question| {
        program.ask(&Op::Occupancy {
            function: FUNCTION,
            question,
        })
    };
    let blocks = |block| Occupancy::Blocks {
        block,
        shared: 0,
        flags: 0,
    };
    assert!(matches!(ask(blocks(64)), Answer::U64(1..)));
    assert!(matches!(ask(blocks(-1)), Answer::Error(1, _)));
    let best = |shared, limit| Occupancy::BlockSize {
        shared,
        limit,
        flags: 0,
    };
    let any = ask(best(SharedOf::Any(1 << 10), 0));
    assert!(matches!(any, Answer::Pair(1.., 32..)), "{any:?}");
    let sizes = |bytes| SharedOf::Sizes((1..=32).map(|warps| (32 * warps, bytes)).collect());
    assert_eq!(ask(best(sizes(1 << 10), 0)), any);
    // Only blocks of one warp fit.
    let small = SharedOf::Sizes(vec![(32, 0)]);
    assert!(matches!(ask(best(small, 0)), Answer::Pair(1.., 32)));
    let room = |blocks| Occupancy::SharedMemory { blocks, block: 64 };
    let (one, two) = (ask(room(1)), ask(room(2)));
    assert!(
        matches!((&one, &two), (Answer::U64(one), Answer::U64(two)) if one >= two && *two > 0),
        "{one:?} {two:?}"
    );
    assert!(matches!(ask(room(0)), Answer::Error(1, _)));
    let mut value = [0; 64];
    value[..12].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    let across = LaunchAttribute {
        id: cu::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        value: &value,
    };
    let launch = Launch {
        function: FUNCTION,
        grid: [64, 1, 1],
        block: [128, 1, 1],
        shared: 0,
        cooperative: false,
        params: &[],
        attributes: vec![across],
    };
    // A driver without clusters says so.
    for question in [
        Occupancy::Clusters(launch.clone(), LEGACY),
        Occupancy::ClusterSize(launch.clone(), STREAM),
    ] {
        let answer = ask(question);
        let good = matches!(answer, Answer::U64(1..) | Answer::Error(801, _));
        assert!(good, "{answer:?}");
    }
}

/// A kernel that may begin before the one in front of it has ended still runs once, after a restore as well; a driver
/// that has no such edges makes it wait.
#[test]
fn graphs_keep_edges_between_kernels_that_overlap() {
    let (worker, program) = started();
    let device = program.alloc(256);
    let mut graph = Graph::new();
    let add = |by: u32| {
        let mut params = device.to_le_bytes().to_vec();
        params.extend_from_slice(&by.to_le_bytes());
        params.extend_from_slice(&64u32.to_le_bytes());
        NodeKind::Kernel(KernelNode {
            function: FUNCTION,
            context: ContextId::from_raw(0),
            grid: [1, 1, 1],
            block: [64, 1, 1],
            shared_bytes: 0,
            params,
            attributes: Vec::new(),
        })
    };
    let overlapping = EdgeData {
        from_port: cu::CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC as u8,
        to_port: 0,
        kind: cu::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
    };
    let first = graph.add(add(1), &[]).unwrap();
    let second = graph.add(add(10), &[(first, overlapping)]).unwrap();
    graph
        .add(add(100), &[(second, EdgeData::default())])
        .unwrap();
    let graph = postcard::to_stdvec(&graph).unwrap();
    done(
        &program,
        &Op::GraphInstantiate {
            exec: ExecId::from_raw(0x600),
            context: CONTEXT,
            graph: Blob::Inline(&graph),
            flags: 0,
        },
    );
    let run = |program: &Program| {
        let (exec, stream) = (0x600, STREAM);
        program.post(&Op::GraphLaunch {
            exec: ExecId::from_raw(exec),
            stream,
        });
        done(program, &Op::StreamSync { stream });
    };
    run(&program);
    assert_eq!(words(&program.read(device, 256)), [111; 64]);
    let (_worker, program) = move_over(worker, program);
    run(&program);
    assert_eq!(words(&program.read(device, 256)), [222; 64]);
}

/// A driver that knows no tensor maps says so; one that does makes the same one of the same tensor.
#[test]
fn tensor_maps_are_what_the_driver_makes_of_them() {
    let (_worker, program) = started();
    let address = program.alloc(MIB);
    let tensor = Tensor {
        data_type: cu::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        address: Address::from_raw(address),
        dims: vec![64, 32],
        strides: vec![256],
        steps: vec![1, 1],
        interleave: 0,
        swizzle: 0,
        promotion: 0,
        fill: 0,
    };
    let ask = |tensor: &Tensor, dims: &[u32]| {
        let (tensor, of) = (
            tensor.clone(),
            TensorBox::Tiled {
                dims: dims.to_vec(),
            },
        );
        program.ask(&Op::TensorMap { tensor, of })
    };
    match ask(&tensor, &[16, 8]) {
        Answer::Bytes(map) => {
            assert_eq!(map.len(), TENSOR_MAP);
            assert_eq!(ask(&tensor, &[16, 8]), Answer::Bytes(map));
        }
        Answer::Error(code, _) => assert_eq!(code, cu::CUDA_ERROR_NOT_SUPPORTED),
        other => panic!("{other:?}"),
    }
    // Lists that contradict each other never reach the driver.
    assert!(matches!(ask(&tensor, &[16]), Answer::Error(1, _)));
    let flat = Tensor {
        strides: Vec::new(),
        ..tensor.clone()
    };
    assert!(matches!(ask(&flat, &[16, 8]), Answer::Error(1, _)));
    let none = Tensor {
        dims: Vec::new(),
        ..tensor
    };
    assert!(matches!(ask(&none, &[]), Answer::Error(1, _)));
}

#[test]
fn what_devices_can_do_is_asked_of_the_driver() {
    let (_worker, program) = started();
    let ask = |device, question| program.ask(&Op::DeviceAsk { device, question });
    let operations = vec![cu::CU_ATOMIC_OPERATION_INTEGER_ADD; 3];
    let host = ask(0, DeviceQuestion::HostAtomics { operations });
    assert!(
        matches!(&host, Answer::Bytes(it) if it.len() == 24),
        "{host:?}"
    );
    let width = DeviceQuestion::LinearTextureWidth {
        format: cu::CU_AD_FORMAT_FLOAT,
        channels: 1,
    };
    let width = ask(0, width);
    assert!(
        matches!(&width, Answer::Bytes(it) if it.len() == 8),
        "{width:?}"
    );
    let operations = Vec::new();
    let missing = ask(99, DeviceQuestion::HostAtomics { operations });
    assert!(matches!(missing, Answer::Error(101, _)), "{missing:?}");
}

/// What was linked is an image like any other; a linker's refusal says why.
#[test]
fn linked_images_load_and_refusals_carry_the_log() {
    let (_worker, program) = started();
    let link = |kind, bytes: &[u8]| {
        let input = LinkInput {
            kind,
            name: "input",
            bytes,
            options: Vec::new(),
        };
        let job = LinkJob {
            options: Vec::new(),
            inputs: vec![input],
        };
        let job = postcard::to_stdvec(&job).unwrap();
        program.ask(&Op::Link {
            context: CONTEXT,
            job: Blob::Inline(&job),
        })
    };
    let text = [PTX, b"\0"].concat();
    let Answer::Bytes(image) = link(cu::CU_JIT_INPUT_PTX, &text) else {
        panic!("not linked");
    };
    let (module, function) = (0x8000, 0x8010);
    let loaded = program.ask(&Op::ModuleLoad {
        module: ModuleId::from_raw(module),
        context: CONTEXT,
        image: ImageRef::Blob(Blob::Inline(&image)),
        beside: false,
    });
    assert_eq!(loaded, Answer::None);
    let name = "add";
    let found = program.ask(&Op::FunctionGet {
        function: FunctionId::from_raw(function),
        module: ModuleId::from_raw(module),
        name,
    });
    assert!(matches!(found, Answer::Function(_)), "{found:?}");
    let refused = link(cu::CU_JIT_INPUT_PTX, b".version 7.0 nonsense\0");
    assert!(
        matches!(&refused, Answer::Error(1.., why) if !why.is_empty()),
        "{refused:?}"
    );
    let broken = program.ask(&Op::Link {
        context: CONTEXT,
        job: Blob::Inline(&[0xff; 9]),
    });
    assert!(matches!(broken, Answer::Error(1, _)), "{broken:?}");
}

/// Adds 1 to each texel of the first row of a surface; reads that row by a texture.
const TEXTURES: &[u8] = b".version 8.0
.target sm_80
.address_size 64
.visible .entry bump(.param .u64 s)
{
    .reg .b32 %r<4>;
    .reg .f32 %f<2>;
    .reg .b64 %a<2>;
    ld.param.u64 %a0, [s];
    mov.u32 %r0, %tid.x;
    shl.b32 %r1, %r0, 2;
    mov.u32 %r2, 0;
    suld.b.2d.b32.trap {%f0}, [%a0, {%r1, %r2}];
    add.f32 %f0, %f0, 0f3F800000;
    sust.b.2d.b32.trap [%a0, {%r1, %r2}], {%f0};
    ret;
}
.visible .entry fetch(.param .u64 t, .param .u64 out)
{
    .reg .b32 %r<2>;
    .reg .f32 %f<6>;
    .reg .b64 %a<4>;
    ld.param.u64 %a0, [t];
    ld.param.u64 %a1, [out];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %a2, %r0, 4;
    add.u64 %a1, %a1, %a2;
    cvt.rn.f32.u32 %f4, %r0;
    mov.f32 %f5, 0f00000000;
    tex.2d.v4.f32.f32 {%f0, %f1, %f2, %f3}, [%a0, {%f4, %f5}];
    st.global.f32 [%a1], %f0;
    ret;
}
";

const ARRAY: ArrayId = ArrayId::from_raw(0x8000);
const BUMP: u64 = 0x8010;
const FETCH: u64 = 0x8020;

/// The program goes on with the numbers that it has put into parameters and memory, gaps among them included.
#[test]
fn textures_and_surfaces_come_back_with_their_numbers() {
    let (worker, program) = started();
    let context = CONTEXT;
    done(
        &program,
        &Op::ArrayCreate {
            array: ARRAY,
            context,
            width: 4,
            height: 2,
            depth: 0,
            format: cu::CU_AD_FORMAT_FLOAT,
            channels: 1,
            flags: cu::CUDA_ARRAY3D_SURFACE_LDST,
        },
    );
    let place = Place::Array {
        array: ARRAY,
        x: 0,
        y: 0,
        z: 0,
    };
    let texels: Vec<u8> = [1f32, 2.0, 3.0, 4.0]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    done(
        &program,
        &Op::Copy {
            to: place,
            from: Place::Blob(Blob::Inline(&texels)),
            len: 16,
            stream: LEGACY,
            answered: true,
        },
    );
    let loaded = program.ask(&Op::ModuleLoad {
        module: ModuleId::from_raw(0x8030),
        context,
        image: ImageRef::Blob(Blob::Inline(TEXTURES)),
        beside: false,
    });
    assert!(matches!(loaded, Answer::None), "{loaded:?}");
    for (function, name) in [(BUMP, "bump"), (FETCH, "fetch")] {
        let module = 0x8030;
        let found = program.ask(&Op::FunctionGet {
            function: FunctionId::from_raw(function),
            module: ModuleId::from_raw(module),
            name,
        });
        assert!(matches!(found, Answer::Function(_)), "{found:?}");
    }
    let sampler = Sampler {
        address_modes: [cu::CU_TR_ADDRESS_MODE_CLAMP; 3],
        filter: cu::CU_TR_FILTER_MODE_POINT,
        flags: 0,
        anisotropy: 0,
        level_filter: 0,
        levels: [0; 3],
        border: [0; 4],
    };
    let make = |sampler| {
        let texture = Box::new(Texture {
            resource: Resource::Array(ARRAY),
            sampler,
            view: None,
        });
        program.ask_u64(&Op::TextureCreate { context, texture })
    };
    let gone = make(Some(sampler.clone()));
    let (surface, texture) = (make(None), make(Some(sampler)));
    let destroy = |object, surface| Op::TextureDestroy {
        context,
        object,
        surface,
    };
    done(&program, &destroy(TextureId::from_raw(gone), false));
    let out = program.alloc(16);
    let run = |program: &Program| {
        for (function, params) in [(BUMP, vec![surface]), (FETCH, vec![texture, out])] {
            let params: Vec<u8> = params.iter().flat_map(|it| it.to_le_bytes()).collect();
            let launch = Launch {
                function: FunctionId::from_raw(function),
                grid: [1, 1, 1],
                block: [4, 1, 1],
                shared: 0,
                cooperative: false,
                params: &params,
                attributes: Vec::new(),
            };
            let stream = STREAM;
            program.post(&Op::Launch { launch, stream });
        }
        done(program, &Op::StreamSync { stream: STREAM });
        words(&program.read(out, 16))
            .into_iter()
            .map(f32::from_bits)
            .collect::<Vec<_>>()
    };
    assert_eq!(run(&program), [2.0, 3.0, 4.0, 5.0]);
    let (_worker, program) = move_over(worker, program);
    assert_eq!(run(&program), [3.0, 4.0, 5.0, 6.0]);
    done(&program, &destroy(TextureId::from_raw(surface), true));
    done(&program, &destroy(TextureId::from_raw(texture), false));
    let stale = program.ask(&destroy(TextureId::from_raw(texture), false));
    assert!(matches!(stale, Answer::Error(1, _)), "{stale:?}");
}
