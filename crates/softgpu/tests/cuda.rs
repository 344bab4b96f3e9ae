//! Compiles `cuda/kernels.cu` with nvcc, in several ways, and checks each kernel against the host.
//!
//! nvcc is `$FERMATA_NVCC`, else `.deps/cuda/bin/nvcc` in the repository.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use fermata_softgpu::exec::Fault;
use support::{Loaded, Memory, Params, launch, load};

fn nvcc() -> PathBuf {
    match std::env::var_os("FERMATA_NVCC") {
        Some(path) => path.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.deps/cuda/bin/nvcc"),
    }
}

fn compiled(arch: &str, options: &[&str]) -> Loaded {
    let nvcc = nvcc();
    assert!(
        nvcc.exists(),
        "no nvcc at {}: set FERMATA_NVCC, or run `make deps`",
        nvcc.display()
    );
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("kernels.ptx");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/kernels.cu");
    let done = Command::new(nvcc)
        .arg("-ptx")
        .arg(format!("-arch={arch}"))
        .args(options)
        .arg("-o")
        .arg(&out)
        .arg(source)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "nvcc: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    load(&std::fs::read_to_string(out).unwrap())
}

fn run(l: &Loaded, kernel: &str, grid: [u32; 3], block: [u32; 3], shared: u32, p: Params) {
    let (result, _) = launch(l, kernel, grid, block, shared, &p.0);
    result.unwrap_or_else(|e| panic!("{e}"));
}

/// Numbers in [0, 1) that are the same in every run.
fn random(n: usize, mut seed: u32) -> Vec<f32> {
    let mut next = move || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / 16_777_216.0
    };
    (0..n).map(|_| next()).collect()
}

fn close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let same = (g - w).abs() <= tolerance * w.abs().max(1e-3) || g.is_nan() && w.is_nan();
        assert!(same, "{name}[{i}]: {g} instead of {w}");
    }
}

fn heat(l: &Loaded) {
    let n = 37;
    let a = random(n * n, 1);
    let (i, o) = (Memory::of(&a), Memory::of(&vec![0f32; n * n]));
    run(
        l,
        "heat",
        [3, 5, 1],
        [16, 8, 1],
        0,
        Params::default().ptr(&i).ptr(&o).i32(n as i32),
    );
    let mut want = a.clone();
    for y in 1..n - 1 {
        for x in 1..n - 1 {
            let at = |dy: usize, dx: usize| a[(y + dy - 1) * n + x + dx - 1];
            want[y * n + x] =
                at(1, 1) + 0.1 * (at(0, 1) + at(2, 1) + at(1, 0) + at(1, 2) - 4.0 * at(1, 1));
        }
    }
    close("heat", &o.read::<f32>(), &want, 1e-5);
}

fn matmul(l: &Loaded) {
    let n = 48;
    let (a, b) = (random(n * n, 2), random(n * n, 3));
    let (am, bm, cm) = (
        Memory::of(&a),
        Memory::of(&b),
        Memory::of(&vec![0f32; n * n]),
    );
    run(
        l,
        "matmul",
        [3, 3, 1],
        [16, 16, 1],
        0,
        Params::default().ptr(&am).ptr(&bm).ptr(&cm).i32(n as i32),
    );
    let want: Vec<f32> = (0..n * n)
        .map(|i| (0..n).map(|k| a[i / n * n + k] * b[k * n + i % n]).sum())
        .collect();
    close("matmul", &cm.read::<f32>(), &want, 1e-4);
}

fn reduce(l: &Loaded) {
    let n = 10_000;
    let values: Vec<i32> = (0..n).map(|i| i * 7 % 1000 - 300).collect();
    let (i, o) = (Memory::of(&values), Memory::of(&[0i32]));
    run(
        l,
        "reduce",
        [7, 1, 1],
        [256, 1, 1],
        0,
        Params::default().ptr(&i).ptr(&o).i32(n),
    );
    assert_eq!(o.read::<i32>()[0], values.iter().sum::<i32>());
}

fn histogram(l: &Loaded) {
    let values: Vec<u8> = (0..20_000u32).map(|i| (i * i % 251) as u8).collect();
    let mut want = vec![0u32; 256];
    values.iter().for_each(|&v| want[usize::from(v)] += 1);
    let (i, o) = (Memory::of(&values), Memory::of(&[0u32; 256]));
    run(
        l,
        "histogram",
        [5, 1, 1],
        [128, 1, 1],
        1024,
        Params::default().ptr(&i).ptr(&o).i32(20_000),
    );
    assert_eq!(o.read::<u32>(), want);
}

fn nbody(l: &Loaded) {
    let n = 100;
    let b = random(4 * n, 4);
    let (i, o) = (Memory::of(&b), Memory::of(&vec![0f32; 4 * n]));
    run(
        l,
        "nbody",
        [2, 1, 1],
        [64, 1, 1],
        0,
        Params::default().ptr(&i).ptr(&o).i32(n as i32),
    );
    let want: Vec<f32> = (0..n)
        .flat_map(|i| {
            let mut f = [0f64; 4];
            for j in 0..n {
                let d: [f64; 3] =
                    std::array::from_fn(|k| f64::from(b[4 * j + k]) - f64::from(b[4 * i + k]));
                let s = f64::from(b[4 * j + 3])
                    * (d.iter().map(|v| v * v).sum::<f64>() + 1e-3).powf(-1.5);
                (0..3).for_each(|k| f[k] += d[k] * s);
            }
            f.map(|v| v as f32)
        })
        .collect();
    close("nbody", &o.read::<f32>(), &want, 1e-2);
}

fn scan(l: &Loaded) {
    let n = 5000usize;
    let values: Vec<i32> = (0..n as i32).map(|i| i % 13 - 5).collect();
    let (i, o) = (Memory::of(&values), Memory::of(&vec![0i32; n]));
    let (sums, ready) = (Memory::of(&[0i32; 64]), Memory::of(&[0i32; 64]));
    run(
        l,
        "scan",
        [20, 1, 1],
        [256, 1, 1],
        0,
        Params::default()
            .ptr(&i)
            .ptr(&o)
            .ptr(&sums)
            .ptr(&ready)
            .i32(n as i32),
    );
    let want: Vec<i32> = values
        .iter()
        .scan(0, |s, v| {
            *s += v;
            Some(*s)
        })
        .collect();
    assert_eq!(o.read::<i32>(), want);
}

unsafe extern "C" {
    fn erf(x: f64) -> f64;
    fn erff(x: f32) -> f32;
    fn lgamma(x: f64) -> f64;
    fn lgammaf(x: f32) -> f32;
}

fn math(l: &Loaded, fast: bool) {
    let xs: Vec<f64> = [
        0.0, 0.5, -0.5, 1.0, -1.0, 2.75, -3.5, 10.0, 31.4, -20.25, 1e-5, 88.0, 1e5, -123_456.7,
    ]
    .to_vec();
    let (i, o) = (Memory::of(&xs), Memory::of(&vec![0f64; 48 * xs.len()]));
    run(
        l,
        "math",
        [1, 1, 1],
        [32, 1, 1],
        0,
        Params::default().ptr(&i).ptr(&o).i32(xs.len() as i32),
    );
    let got = o.read::<f64>();
    for (row, &x) in xs.iter().enumerate() {
        let f = x as f32;
        // SAFETY: pure functions of the C library.
        let special = unsafe {
            (
                erf(x),
                erff(f),
                lgamma(x.abs() + 0.5),
                lgammaf(f.abs() + 0.5),
            )
        };
        let double = [
            x.sin(),
            x.cos(),
            x.tan(),
            x.exp(),
            (x.abs() + 1e-9).ln(),
            x.abs().powf(1.7),
            x.atan2(2.0),
            (x / 8.0).sinh(),
            x.tanh(),
            special.0,
            special.2,
            x.cbrt(),
            x % 1.3,
            x.hypot(3.0),
            (x / 1e6).asin(),
            x.abs().sqrt(),
            x.floor(),
            x.round_ties_even(),
            (x / 4.0).exp2(),
            (x.abs() + 1.0).log10(),
        ];
        let single = [
            f.sin(),
            f.cos(),
            f.tan(),
            f.exp(),
            (f.abs() + 1e-9).ln(),
            f.abs().powf(1.7),
            f.atan2(2.0),
            (f / 8.0).sinh(),
            f.tanh(),
            special.1,
            special.3,
            f.cbrt(),
            f % 1.3,
            f.hypot(3.0),
            (f / 1e6).asin(),
            f.abs().sqrt(),
            f.floor(),
            f.round_ties_even(),
            (f / 4.0).exp2(),
            (f.abs() + 1.0).log10(),
        ];
        let saturated = f as i32;
        let rest = [
            1.0 / x,
            x / 3.0,
            f64::from(1.0 / f),
            f64::from(f / 3.0),
            (x as i64) as f64,
            f64::from(saturated),
            f64::from(1.0 / f.abs().sqrt()),
            x * 32.0,
        ];
        let want = double.into_iter().chain(single.map(f64::from)).chain(rest);
        for (k, w) in want.enumerate() {
            let g = got[row * 48 + k];
            let is_single = (20..40).contains(&k) || matches!(k, 42 | 43 | 46);
            // The fast variants are only good near 0.
            if fast && is_single && f.abs() > 3.0 {
                continue;
            }
            let tolerance = match (fast, is_single) {
                (true, true) => 1e-3,
                (false, true) => 4e-6,
                _ => 1e-13,
            };
            let same = g == w
                || (g - w).abs() <= tolerance * w.abs().max(1e-6)
                || g.is_nan() && w.is_nan()
                || (!g.is_finite() && w.abs() > 3e38);
            assert!(same, "math({x})[{k}]: {g:e} instead of {w:e}");
        }
    }
}

fn halves(l: &Loaded) {
    let xs: Vec<f32> = (0..64).map(|i| (i as f32 - 30.0) * 0.37).collect();
    let (i, o) = (Memory::of(&xs), Memory::of(&vec![0f32; 12 * 64]));
    run(
        l,
        "halves",
        [1, 1, 1],
        [64, 1, 1],
        0,
        Params::default().ptr(&i).ptr(&o).i32(64),
    );
    let got = o.read::<f32>();
    let h = |v: f32| half::f16::from_f32(v).to_f32();
    let b = |v: f32| half::bf16::from_f32(v).to_f32();
    for i in 0..64 {
        let (x, y) = (h(xs[i]), h(xs[(i + 1) % 64]));
        let (p, q) = (b(xs[i]), b(xs[(i + 1) % 64]));
        let want = [
            h(x + y),
            h(x * y),
            h(x * y + x),
            h(x / 3.0),
            b(p + q),
            b(p * q),
            b(p * q + p),
            h(x + x),
            h(y * h(y + y)),
            f32::from(u8::from(x < y)),
            x.max(y),
            x.round_ties_even(),
        ];
        for (k, w) in want.into_iter().enumerate() {
            let g = got[i * 12 + k];
            // The hardware's division of halves is within one unit.
            let tolerance = if k == 3 { w.abs() / 1000.0 } else { 0.0 };
            assert!(
                (g - w).abs() <= tolerance,
                "halves({})[{k}]: {g} instead of {w}",
                xs[i]
            );
        }
    }
}

fn calls(l: &Loaded) {
    let o = Memory::of(&[0i32; 20]);
    run(
        l,
        "recursion",
        [1, 1, 1],
        [20, 1, 1],
        0,
        Params::default().ptr(&o),
    );
    let got = o.read::<i32>();
    assert!((2..20).all(|i| got[i] == got[i - 1] + got[i - 2]) && got[1] == 1);
    let o = Memory::of(&[0i32; 32]);
    run(
        l,
        "pointers",
        [1, 1, 1],
        [32, 1, 1],
        0,
        Params::default().ptr(&o).i32(1),
    );
    let want: Vec<i32> = (0..32usize)
        .map(|i| {
            let n = i as i32;
            let first = if (i + 1) & 1 == 0 { 2 * n } else { n * n };
            let area = if i & 1 == 1 { n * n } else { n };
            let mut v: Vec<i32> = (0..10).map(|k| k * n).collect();
            (0..10).for_each(|k| v[k] = v[(k + i) % 10] + k as i32);
            first + area + v[i % 10]
        })
        .collect();
    assert_eq!(o.read::<i32>(), want);
}

fn output(l: &Loaded) {
    let (result, printed) = launch(
        l,
        "print",
        [2, 1, 1],
        [64, 1, 1],
        0,
        &Params::default().i32(-3).0,
    );
    result.unwrap();
    assert_eq!(
        String::from_utf8(printed).unwrap(),
        "-3| 1.50|text|z|1099511627776|7   |ff\nplain\n"
    );
    let (result, printed) = launch(
        l,
        "check",
        [1, 1, 1],
        [1, 1, 1],
        0,
        &Params::default().i32(9).0,
    );
    assert!(matches!(result, Err(Fault::Assert { .. })), "{result:?}");
    let printed = String::from_utf8(printed).unwrap();
    assert!(
        printed.contains("kernels.cu") && printed.contains("Assertion `n < 5` failed."),
        "{printed}"
    );
    launch(
        l,
        "check",
        [1, 1, 1],
        [1, 1, 1],
        0,
        &Params::default().i32(4).0,
    )
    .0
    .unwrap();
}

fn spin(l: &Loaded) {
    let (lock, count) = (Memory::of(&[0i32]), Memory::of(&[0i32]));
    run(
        l,
        "spin",
        [4, 1, 1],
        [96, 1, 1],
        0,
        Params::default().ptr(&lock).ptr(&count),
    );
    assert_eq!(count.read::<i32>()[0], 384);
}

fn mixed(l: &Loaded) {
    let v: Vec<i64> = (0..32i64)
        .map(|i| i.wrapping_mul(0x1234_5678_9ABC_DEF1).wrapping_mul(i - 16) ^ 77)
        .collect();
    let (i, o) = (Memory::of(&v), Memory::of(&[0u64; 32]));
    let mut p = Params::default();
    p.push(&1.75f64.to_le_bytes());
    p.push(&11u64.to_le_bytes());
    run(l, "mixed", [1, 1, 1], [32, 1, 1], 0, p.ptr(&o).ptr(&i));
    let ballot: u32 = (0..32)
        .filter(|&k| v[k] & 1 == 1)
        .fold(0, |m, k| m | 1 << k);
    let positive = v.iter().filter(|&&x| x > 0).count() as u64;
    let got = o.read::<u64>();
    for i in 0..32usize {
        let (x, n) = (v[i], i as u64);
        let mut r = 0u64;
        r = r.wrapping_add(u64::from(x.count_ones()) + u64::from(x.leading_zeros()) * 3);
        r = r
            .wrapping_add(
                if x == 0 {
                    0
                } else {
                    u64::from(x.trailing_zeros()) + 1
                } * 7,
            )
            .wrapping_add((x as u64).reverse_bits());
        let high = ((x as u64 as u128 * (x as u64).wrapping_add(12345) as u128) >> 64) as u64;
        r ^= high.wrapping_add(((x as i128 * x.wrapping_sub(1) as i128) >> 64) as u64);
        r = r.wrapping_add((x / (i as i64 + 3) + x % (i as i64 + 7)) as u64);
        r = r.wrapping_add(u64::from(x as u32 / (i as u32 + 1)) + u64::from(x as u16) % (n + 2));
        r ^= (i64::from([0.5f32, 1.5, 2.5, 3.5][i & 3].to_bits() as i32) as u64) << 20;
        let (a, b) = [(1.25, 3.0), (2.5, 4.0)][i & 1];
        r = r.wrapping_add((a * b * 1.75) as u64).wrapping_add(11);
        let bytes = ((n << 32) | u64::from(x as u32)).to_le_bytes();
        let perm = u32::from_le_bytes([bytes[5], bytes[1], bytes[7], bytes[3]]);
        let funnel = (((n << 32 | u64::from(x as u32)) << (i & 31)) >> 32) as u32;
        let sad = (x as i32).abs_diff(i as i32).wrapping_add(3);
        r = r.wrapping_add(u64::from(perm.wrapping_add(funnel).wrapping_add(sad)));
        let same = v.iter().filter(|y| **y & 3 == x & 3).count() as u64;
        r = r.wrapping_add(u64::from(ballot)).wrapping_add(same * 1000);
        if i & 1 == 1 {
            r = r.wrapping_add(16);
        }
        r = r.wrapping_add(positive * 100);
        assert_eq!(got[i], r, "mixed[{i}]");
    }
    let counter = &l.variables.iter().find(|(n, _)| n == "counter").unwrap().1;
    assert_eq!(counter.read::<i32>()[0], 37);
}

fn all(arch: &str, options: &[&str]) {
    let l = compiled(arch, options);
    heat(&l);
    matmul(&l);
    reduce(&l);
    histogram(&l);
    nbody(&l);
    scan(&l);
    math(&l, options.contains(&"-use_fast_math"));
    halves(&l);
    calls(&l);
    output(&l);
    spin(&l);
    mixed(&l);
}

#[test]
fn optimised_for_75() {
    all("compute_75", &["-O3"]);
}

#[test]
fn unoptimised_for_75() {
    all("compute_75", &["-Xcicc", "-O0"]);
}

#[test]
fn optimised_for_90() {
    all("compute_90", &["-O3"]);
}

#[test]
fn for_debugging_on_90() {
    all("compute_90", &["-G"]);
}

#[test]
fn fast_math_for_90() {
    all("compute_90", &["-use_fast_math"]);
}

#[test]
fn untyped_registers_of_100() {
    all("compute_100", &["-O3"]);
}
