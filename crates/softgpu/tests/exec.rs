//! What surrounds the execution of kernels: limits, stopping, refusals, host memory, many threads.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fermata_softgpu::exec::texture::{Format, Outside, Texture};
use fermata_softgpu::exec::{Fault, Host, Launch, LoadError, Reach, UnlinkedModule};
use support::{Collector, Memory, Params, launch, launch_with, load};

const HEAD: &str = ".version 8.0\n.target sm_75\n.address_size 64\n";

fn spinning() -> support::Loaded {
    load(&format!(
        "{HEAD}.visible .entry spin() {{\nagain:\n bra again;\n}}\n.visible .entry fine() {{ ret; }}"
    ))
}

fn request<'a>(
    stop: &'a AtomicBool,
    host: Arc<dyn Host>,
    params: &'a [u8],
    seconds: u64,
) -> Launch<'a> {
    Launch {
        grid: [8, 1, 1],
        block: [64, 1, 1],
        dynamic_shared: 0,
        params,
        multiprocessors: 4,
        processors: 0xf,
        grid_id: 1,
        limit_seconds: seconds,
        resident: 32,
        cooperative: None,
        block_wait: 0,
        stop,
        host,
    }
}

#[test]
fn an_endless_kernel_ends_at_its_limit_and_the_next_one_runs() {
    let l = spinning();
    let stop = AtomicBool::new(false);
    let result = l.module.launch(
        "spin",
        &request(&stop, Arc::new(Collector::default()), &[], 1),
    );
    assert_eq!(
        result,
        Err(Fault::Timeout {
            kernel: "spin".into(),
            seconds: 1
        })
    );
    launch(&l, "fine", [4, 1, 1], [32, 1, 1], 0, &[]).0.unwrap();
}

/// Every block but the last waits for the last, then adds 1.
fn waiting() -> (support::Loaded, Memory) {
    let l = load(&format!(
        "{HEAD}.visible .entry wait(.param .u64 p) {{
 .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %a;
 ld.param.u64 %a, [p];
 mov.u32 %r0, %ctaid.x; mov.u32 %r1, %nctaid.x; sub.u32 %r1, %r1, 1;
 setp.eq.u32 %p, %r0, %r1; @%p bra last;
again:
 ld.volatile.global.u32 %r2, [%a]; setp.eq.u32 %p, %r2, 0; @%p bra again;
 red.global.add.u32 [%a+4], 1;
 ret;
last:
 st.volatile.global.u32 [%a], 1;
 ret; }}"
    ));
    (l, Memory::of(&[0u32, 0]))
}

#[test]
fn a_block_that_waits_for_a_later_one_gets_on() {
    let (l, memory) = waiting();
    let stop = AtomicBool::new(false);
    let params = Params::default().ptr(&memory).0;
    let mut launch = request(&stop, Arc::new(Collector::default()), &params, 300);
    (launch.grid, launch.block) = ([40, 1, 1], [1, 1, 1]);
    launch.resident = 40;
    l.module.launch("wait", &launch).unwrap();
    assert_eq!(memory.read::<u32>(), [1, 39]);
}

#[test]
fn blocks_that_wait_for_more_than_a_device_runs_at_once_end_with_a_reason() {
    let (l, memory) = waiting();
    let stop = AtomicBool::new(false);
    let params = Params::default().ptr(&memory).0;
    let mut launch = request(&stop, Arc::new(Collector::default()), &params, 300);
    (launch.grid, launch.block) = ([10_000, 1, 1], [1, 1, 1]);
    (launch.resident, launch.block_wait) = (2, 1);
    let fault = l.module.launch("wait", &launch).unwrap_err();
    assert!(
        matches!(fault, Fault::Unbegun { seconds: 1, .. }),
        "{fault}"
    );
    assert!(fault.to_string().contains("kernel `wait`"), "{fault}");
}

/// Counts blocks in the words that the special registers name, and waits for all.
#[test]
fn all_blocks_of_a_cooperative_launch_run_at_once() {
    let l = load(&format!(
        "{HEAD}.visible .entry meet(.param .u64 p) {{
 .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %a<4>;
 ld.param.u64 %a0, [p];
 mov.u32 %r0, %envreg1; mov.u32 %r1, %envreg2; mov.b64 %a1, {{%r1, %r0}};
 bar.sync 0;
 mov.u32 %r2, %tid.x; setp.ne.u32 %p, %r2, 0; @%p bra met;
 mov.u32 %r3, %nctaid.x;
 atom.global.add.u32 %r4, [%a1+4], 1;
again:
 ld.acquire.gpu.global.u32 %r4, [%a1+4]; setp.lt.u32 %p, %r4, %r3; @%p bra again;
met:
 bar.sync 0;
 red.global.add.u32 [%a0], 1;
 ret; }}"
    ));
    let (memory, barrier) = (Memory::of(&[0u32]), Memory::of(&[0u32, 0]));
    let stop = AtomicBool::new(false);
    let params = Params::default().ptr(&memory).0;
    let mut launch = request(&stop, Arc::new(Collector::default()), &params, 300);
    (launch.grid, launch.block) = ([30, 1, 1], [64, 1, 1]);
    launch.cooperative = Some(barrier.address);
    l.module.launch("meet", &launch).unwrap();
    assert_eq!(memory.read::<u32>(), [30 * 64]);
    assert_eq!(barrier.read::<u32>(), [0, 30]);
}

#[test]
fn an_endless_kernel_can_be_stopped_from_outside() {
    let l = spinning();
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            stop.store(true, Ordering::Relaxed);
        });
        let result = l.module.launch(
            "spin",
            &request(&stop, Arc::new(Collector::default()), &[], 600),
        );
        assert_eq!(
            result,
            Err(Fault::Stopped {
                kernel: "spin".into()
            })
        );
    });
}

/// Why the kernel number `index` of a text is refused.
fn refusal(text: &str, index: usize) -> String {
    let module = UnlinkedModule::load(text).unwrap();
    let why = module.kernels()[index].refused.as_deref();
    why.unwrap_or_default().to_owned()
}

#[test]
fn an_unknown_instruction_refuses_the_kernels_that_may_reach_it_and_no_other() {
    let text = format!(
        "{HEAD}.func inner() {{\n .reg .b32 %r<2>;\n tcgen05.fence.all %r0;\n ret;\n}}
.visible .entry direct() {{\n .reg .b32 %r<2>;\n add.sideways.u32 %r0, %r1, 1;\n ret;\n}}
.visible .entry through() {{ call inner; ret; }}
.visible .entry fine(.param .u64 p) {{ .reg .b64 %a; ld.param.u64 %a, [p]; st.global.u32 [%a], 5; ret; }}"
    );
    let l = load(&text);
    let refused = |name: &str| launch(&l, name, [1; 3], [1; 3], 0, &[]).0;
    for (name, what) in [("direct", "sideways"), ("through", "tcgen05.fence.all")] {
        let Err(Fault::Illegal { what: why, .. }) = refused(name) else {
            panic!("`{name}` ran");
        };
        assert!(why.contains(what), "{why}");
    }
    let memory = Memory::of(&[0u32]);
    let params = Params::default().ptr(&memory).0;
    launch(&l, "fine", [1; 3], [1; 3], 0, &params).0.unwrap();
    assert_eq!(memory.read::<u32>(), [5]);
}

#[test]
fn memory_that_kernels_allocate_is_refused_in_words() {
    let text = format!(
        "{HEAD}.extern .func (.param .b64 r) malloc(.param .b64 n);
.visible .entry a() {{ .param .b64 r; .param .b64 n; st.param.b64 [n], 8; call (r), malloc, (n); ret; }}"
    );
    assert!(refusal(&text, 0).contains("memory that a kernel allocates"));
}

#[test]
fn an_unknown_instruction_is_named_at_load() {
    let text = format!(
        "{HEAD}.visible .entry k() {{\n .reg .b32 %r<2>;\n tcgen05.fence.all %r0;\n ret;\n}}"
    );
    assert_eq!(
        refusal(&text, 0),
        "PTX line 6, in `k`: `tcgen05.fence.all %r0` is not supported by the software GPU"
    );
    let unknown_word = format!(
        "{HEAD}.visible .entry k() {{\n .reg .b32 %r<2>;\n add.sideways.u32 %r0, %r1, 1;\n ret;\n}}"
    );
    assert!(refusal(&unknown_word, 0).starts_with("PTX line 6, in `k`: `add.sideways.u32"));
    let no_register = format!("{HEAD}.visible .entry k() {{\n add.u32 %r0, %r0, 1;\n ret;\n}}");
    assert!(
        matches!(UnlinkedModule::load(&no_register).err(), Some(LoadError::Undefined { name }) if name == "%r0")
    );
    let call = format!("{HEAD}.extern .func f ();\n.visible .entry k() {{ call f; ret; }}");
    assert!(
        matches!(UnlinkedModule::load(&call).err(), Some(LoadError::Undefined { name }) if name == "f")
    );
    assert!(matches!(
        UnlinkedModule::load("no PTX").err(),
        Some(LoadError::Syntax { line: 1, .. })
    ));
}

/// Every instruction of a text that is cut or damaged is refused or accepted, never a panic.
#[test]
fn damaged_text_never_panics() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ptx");
    for name in [
        "memory.ptx",
        "atomics.ptx",
        "warp.ptx",
        "barriers.ptx",
        "gen-shift32.ptx",
    ] {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        let body = text.find(".version").unwrap();
        let mut seed = 12_345u32;
        for _ in 0..60 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let at = body + seed as usize % (text.len() - body);
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = [
                "%p0",
                "u64",
                ".f32",
                "[",
                "99",
                "%rd0",
                ".b16",
                "pred",
                "%r0, %r1,",
            ][seed as usize % 9];
            if text.is_char_boundary(at) {
                let _ = UnlinkedModule::load(&format!(
                    "{}{word}{}",
                    &text[..at],
                    &text[(at + seed as usize % 4).min(text.len())..]
                ));
            }
        }
    }
}

struct Registered {
    range: std::ops::Range<u64>,
}

impl Host for Registered {
    fn reach(&self, address: u64) -> Option<Reach> {
        self.range.contains(&address).then(|| Reach {
            range: self.range.clone(),
            writable: false,
        })
    }

    fn print(&self, _: &[u8]) {}

    fn complain(&self, _: &[u8]) {}
}

#[test]
fn host_memory_is_reached_exactly_as_the_host_allows() {
    let text = format!(
        "{HEAD}.visible .entry copy(.param .u64 to, .param .u64 from) {{
 .reg .b64 %a<2>; .reg .b32 %v;
 ld.param.u64 %a0, [to]; ld.param.u64 %a1, [from];
 ld.global.u32 %v, [%a1]; st.global.u32 [%a0], %v; ret; }}"
    );
    let l = load(&text);
    let mine = Box::new([77u32, 88]);
    let from = mine.as_ptr() as u64;
    let to = Memory::of(&[0u32]);
    let stop = AtomicBool::new(false);
    let run = |to: u64, from: u64| {
        let mut params = to.to_le_bytes().to_vec();
        params.extend(from.to_le_bytes());
        let host = Arc::new(Registered {
            range: mine.as_ptr() as u64..mine.as_ptr() as u64 + 4,
        });
        l.module.launch("copy", &request(&stop, host, &params, 5))
    };
    run(to.address, from).unwrap();
    assert_eq!(to.read::<u32>(), [77]);
    assert!(
        matches!(run(to.address, from + 4), Err(Fault::IllegalAddress { address, .. }) if address == from + 4)
    );
    assert!(
        matches!(run(from, to.address), Err(Fault::IllegalAddress { address, .. }) if address == from)
    );
    assert_eq!(*mine, [77, 88]);
}

/// The texel is read by a helper, whose faults are the kernel's too.
#[test]
fn a_texture_of_memory_that_is_gone_is_a_fault_of_the_kernel() {
    let text = format!(
        "{HEAD}.visible .entry t(.param .u64 t) {{ .reg .b64 %a; .reg .b32 %x; .reg .f32 %f<4>;
 ld.param.u64 %a, [t]; mov.u32 %x, 1; tex.1d.v4.f32.s32 {{%f0, %f1, %f2, %f3}}, [%a, {{%x}}]; ret; }}
.visible .entry fine() {{ ret; }}"
    );
    let l = load(&text);
    let gone = Memory::of(&[1f32; 8]).address;
    let texture = Texture {
        base: gone,
        format: Format::Float,
        channels: 1,
        size: [8, 1, 1],
        told: [8, 0, 0],
        pitch: 32,
        layered: false,
        outside: [Outside::Clamp; 3],
        linear: false,
        normalized: false,
        raw: false,
        border: [0.0; 4],
        levels: Default::default(),
    };
    let textures = vec![Arc::new(texture)];
    for _ in 0..3 {
        let (result, _) = launch_with(
            &l,
            "t",
            [4, 1, 1],
            [64, 1, 1],
            0,
            &0u64.to_le_bytes(),
            textures.clone(),
        );
        assert_eq!(
            result,
            Err(Fault::IllegalAddress {
                kernel: "t".into(),
                address: gone + 4
            })
        );
        launch(&l, "fine", [4, 1, 1], [64, 1, 1], 0, &[]).0.unwrap();
    }
    assert_eq!(Arc::strong_count(&textures[0]), 1);
}

#[test]
fn a_write_to_a_protected_page_is_a_fault_with_its_address() {
    let text = format!(
        "{HEAD}.visible .entry w(.param .u64 p) {{ .reg .b64 %a; ld.param.u64 %a, [p]; st.global.u32 [%a+16], 5; ret; }}"
    );
    let l = load(&text);
    let memory = Memory::of(&[1u32; 16]);
    let protect = |access| {
        // SAFETY: the page belongs to this test alone.
        unsafe { libc::mprotect(memory.address as *mut _, 4096, access) }
    };
    assert_eq!(protect(libc::PROT_READ), 0);
    let (result, _) = launch(
        &l,
        "w",
        [4, 1, 1],
        [32, 1, 1],
        0,
        &Params::default().ptr(&memory).0,
    );
    assert_eq!(
        result,
        Err(Fault::IllegalAddress {
            kernel: "w".into(),
            address: memory.address + 16
        })
    );
    assert_eq!(memory.read::<u32>(), [1; 16]);
    assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), 0);
    launch(
        &l,
        "w",
        [4, 1, 1],
        [32, 1, 1],
        0,
        &Params::default().ptr(&memory).0,
    )
    .0
    .unwrap();
    assert_eq!(memory.read::<u32>()[4], 5);
}

#[test]
fn many_threads_launch_one_module() {
    let text = format!(
        "{HEAD}.visible .entry count(.param .u64 p) {{ .reg .b64 %a; ld.param.u64 %a, [p];
 bar.sync 0; red.global.add.u32 [%a], 1; bar.sync 0; ret; }}"
    );
    let l = load(&text);
    let memory = Memory::of(&[0u32]);
    let params = Params::default().ptr(&memory).0;
    std::thread::scope(|s| {
        for _ in 0..6 {
            s.spawn(|| {
                for _ in 0..20 {
                    launch(&l, "count", [5, 2, 1], [33, 1, 1], 0, &params)
                        .0
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(memory.read::<u32>(), [6 * 20 * 10 * 33]);
}

fn set_mxcsr(value: u32) {
    // SAFETY: no reserved bit of the register is set.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack)) };
}

#[test]
fn a_kernel_computes_alike_however_the_programs_thread_computes() {
    let l = load(&format!(
        "{HEAD}.visible .entry compute(.param .u64 p) {{
 .reg .f32 %f<8>; .reg .b64 %a;
 ld.param.u64 %a, [p];
 ld.global.f32 %f0, [%a]; add.f32 %f0, %f0, %f0; st.global.f32 [%a], %f0;
 ld.global.f32 %f1, [%a+4]; ld.global.f32 %f2, [%a+8]; ld.global.f32 %f3, [%a+12];
 div.rn.f32 %f4, %f1, %f2; st.global.f32 [%a+4], %f4;
 div.rp.f32 %f5, %f1, %f2; st.global.f32 [%a+8], %f5;
 div.rn.f32 %f6, %f1, %f3; st.global.f32 [%a+12], %f6;
 ret; }}"
    ));
    let memory = Memory::of(&[100, 1f32.to_bits(), 3f32.to_bits(), 0]);
    let params = Params::default().ptr(&memory).0;
    // Subnormal numbers are flushed, results rounded down, and a division by zero is a signal.
    let other = 0x8040 | 1 << 13 | 0x1F80 & !0x200;
    let result = std::thread::scope(|s| {
        let thread = s.spawn(|| {
            set_mxcsr(other);
            let result = launch(&l, "compute", [1; 3], [1; 3], 0, &params).0;
            set_mxcsr(0x1F80);
            result
        });
        thread.join().unwrap()
    });
    result.unwrap();
    let third = (1f32 / 3.0).to_bits();
    let infinity = f32::INFINITY.to_bits();
    assert_eq!(memory.read::<u32>(), [200, third, third, infinity]);
}

#[test]
fn impossible_launches_are_refused() {
    let l = spinning();
    for (grid, block, shared) in [
        ([1, 1, 1], [1025, 1, 1], 0),
        ([0, 1, 1], [1, 1, 1], 0),
        ([1, 1, 1], [1, 1, 1], 2 << 20),
    ] {
        assert!(matches!(
            launch(&l, "fine", grid, block, shared, &[]).0,
            Err(Fault::Illegal { .. })
        ));
    }
    assert!(matches!(
        launch(&l, "missing", [1; 3], [1; 3], 0, &[]).0,
        Err(Fault::Illegal { .. })
    ));
}

#[test]
fn more_threads_than_there_is_room_for_take_turns() {
    let text = format!(
        "{HEAD}.visible .entry one(.param .u64 p) {{ .reg .b64 %a; ld.param.u64 %a, [p]; red.global.add.u32 [%a], 1; ret; }}"
    );
    let l = load(&text);
    let memory = Memory::of(&[0u32]);
    let params = Params::default().ptr(&memory).0;
    std::thread::scope(|s| {
        for _ in 0..300 {
            s.spawn(|| {
                launch(&l, "one", [2, 1, 1], [32, 1, 1], 0, &params)
                    .0
                    .unwrap()
            });
        }
    });
    assert_eq!(memory.read::<u32>(), [300 * 64]);
}
