//! Runs every file of `tests/ptx`: PTX with its expectations in comments. The format is described in
//! `tests/ptx/README.md`.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use fermata_softgpu::exec::Fault;
use fermata_softgpu::exec::texture::{Format, Outside, Texture};
use support::{Memory, Params, launch_with, load};

/// One `//@ run`.
struct Run {
    line: usize,
    kernel: String,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    fault: Option<String>,
    prints: Option<String>,
    args: Vec<Arg>,
}

enum Arg {
    Value(Vec<u8>),
    Image {
        texture: Texture,
        texels: Vec<u8>,
    },
    Buffer {
        ty: String,
        ulp: u64,
        before: Vec<u8>,
        after: Option<Vec<Option<Vec<u8>>>>,
    },
}

fn width(ty: &str) -> usize {
    ty.trim_start_matches(|c: char| c.is_ascii_alphabetic())
        .parse::<usize>()
        .unwrap()
        / 8
}

/// Little-endian bytes of one value; `None` for `?`, which matches anything.
fn value(ty: &str, text: &str) -> Option<Vec<u8>> {
    if text == "?" {
        return None;
    }
    let n = width(ty);
    if text == "nan" {
        // All bits but the sign: a NaN in every format.
        return Some((u128::MAX >> (129 - 8 * n)).to_le_bytes()[..n].to_vec());
    }
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u128::from_str_radix(hex, 16).unwrap_or_else(|_| panic!("bad value {text}"));
        return Some(bits.to_le_bytes()[..n].to_vec());
    }
    Some(match ty {
        "f32" => text
            .parse::<f32>()
            .unwrap_or_else(|_| panic!("bad value {text}"))
            .to_le_bytes()
            .to_vec(),
        "f64" => text
            .parse::<f64>()
            .unwrap_or_else(|_| panic!("bad value {text}"))
            .to_le_bytes()
            .to_vec(),
        _ => text
            .parse::<i128>()
            .unwrap_or_else(|_| panic!("bad value {text}"))
            .to_le_bytes()[..n]
            .to_vec(),
    })
}

/// Values separated by blanks; `v*n` repeats, `a..b` counts up to and including b.
fn values(ty: &str, text: &str) -> Vec<Option<Vec<u8>>> {
    let mut out = Vec::new();
    for word in text.split_whitespace() {
        if let Some((v, n)) = word.split_once('*') {
            out.extend(std::iter::repeat_n(value(ty, v), n.parse().unwrap()));
        } else if let Some((a, b)) = word.split_once("..") {
            let (a, b): (i64, i64) = (a.parse().unwrap(), b.parse().unwrap());
            out.extend((a..=b).map(|v| value(ty, &v.to_string())));
        } else {
            out.push(value(ty, word));
        }
    }
    out
}

fn bytes(list: &[Option<Vec<u8>>]) -> Vec<u8> {
    list.iter()
        .flat_map(|v| v.clone().expect("`?` only in expectations"))
        .collect()
}

fn triple(text: &str) -> [u32; 3] {
    let mut out = [1; 3];
    text.split(',')
        .zip(&mut out)
        .for_each(|(t, o)| *o = t.parse().unwrap());
    out
}

fn parse(text: &str) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(line) = line.strip_prefix("//@ ") else {
            continue;
        };
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "run" {
            let get = |key: &str| {
                rest.split_whitespace()
                    .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
            };
            runs.push(Run {
                line: number + 1,
                kernel: get("kernel").expect("kernel=").to_owned(),
                grid: triple(get("grid").unwrap_or("1")),
                block: triple(get("block").unwrap_or("1")),
                shared: get("shared").map_or(0, |n| n.parse().unwrap()),
                fault: get("fault").map(str::to_owned),
                prints: None,
                args: Vec::new(),
            });
            continue;
        }
        let run = runs.last_mut().expect("`//@ run` first");
        if word == "prints" {
            let text = rest.trim_matches('"').replace("\\n", "\n");
            run.prints = Some(run.prints.take().unwrap_or_default() + &text);
            continue;
        }
        if word == "more" {
            // Goes on with the expectation or the input of the last buffer.
            let Some(Arg::Buffer {
                ty, before, after, ..
            }) = run.args.last_mut()
            else {
                panic!("more of what")
            };
            let list = values(ty, rest);
            match after {
                Some(after) => {
                    before.resize(before.len() + list.len() * width(ty), 0);
                    after.extend(list);
                }
                None => before.extend(bytes(&list)),
            }
            continue;
        }
        let (ty, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        if matches!(word, "texture" | "surface") {
            run.args.push(image(ty, rest));
            continue;
        }
        let (ulp, rest) = match rest.strip_prefix("ulp=") {
            Some(rest) => rest
                .split_once(' ')
                .map(|(n, r)| (n.parse().unwrap(), r))
                .unwrap(),
            None => (0, rest),
        };
        let ty = ty.to_owned();
        run.args.push(match word {
            "arg" => Arg::Value(bytes(&values(&ty, rest))),
            "in" => Arg::Buffer {
                before: bytes(&values(&ty, rest)),
                ty,
                ulp,
                after: None,
            },
            "out" => {
                let after = values(&ty, rest);
                Arg::Buffer {
                    before: vec![0; after.len() * width(&ty)],
                    ty,
                    ulp,
                    after: Some(after),
                }
            }
            "inout" => {
                let (before, after) = rest.split_once("->").expect("->");
                Arg::Buffer {
                    before: bytes(&values(&ty, before)),
                    after: Some(values(&ty, after)),
                    ty,
                    ulp,
                }
            }
            other => panic!("unknown word {other}"),
        });
    }
    runs
}

/// What a `texture` or `surface` line says.
fn image(ty: &str, rest: &str) -> Arg {
    let (words, texels) = rest.split_once(':').expect(":");
    let has = |word: &str| words.split_whitespace().any(|w| w == word);
    let get = |key: &str| {
        words
            .split_whitespace()
            .find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
    };
    let bytes_each = width(ty) as u32;
    let format = match ty {
        "f16" => Format::Half,
        "f32" => Format::Float,
        _ if ty.starts_with('s') => Format::Signed(bytes_each),
        _ => Format::Unsigned(bytes_each),
    };
    let shape: Vec<u32> = get("size")
        .expect("size=")
        .split(',')
        .map(|n| n.parse().unwrap())
        .collect();
    let layered = has("layered");
    let mut told = [0; 3];
    if layered && shape.len() == 2 {
        told = [shape[0], 0, shape[1]];
    } else {
        told[..shape.len()].copy_from_slice(&shape);
    }
    let size = told.map(|n| n.max(1));
    let channels = get("channels").map_or(1, |n| n.parse().unwrap());
    let outside = match get("address").unwrap_or("clamp") {
        "wrap" => Outside::Wrap,
        "clamp" => Outside::Clamp,
        "mirror" => Outside::Mirror,
        _ => Outside::Border,
    };
    let mut border = [0.0; 4];
    for (to, text) in border
        .iter_mut()
        .zip(get("border").unwrap_or("").split(','))
    {
        *to = text.parse().unwrap_or(0.0);
    }
    let row = u64::from(size[0] * channels * bytes_each);
    let pitch = get("pitch").map_or(row, |n| n.parse().unwrap());
    let mut padded = Vec::new();
    for line in bytes(&values(ty, texels)).chunks(row as usize) {
        padded.extend(line);
        padded.resize(padded.len() + (pitch - row) as usize, 0);
    }
    let texture = Texture {
        base: 0,
        format,
        channels,
        size,
        told,
        pitch,
        layered,
        outside: [outside; 3],
        linear: get("filter") == Some("linear"),
        normalized: has("normalized"),
        raw: has("raw"),
        border,
        levels: Default::default(),
    };
    let texels = padded;
    Arg::Image { texture, texels }
}

/// Distance of two floats in units in the last place; NaNs are equal.
fn distance(ty: &str, a: &[u8], b: &[u8]) -> u64 {
    fn ordered(bits: u64, width: u32) -> i128 {
        let sign = bits >> (width - 1) & 1 == 1;
        let size = i128::from(bits & !(1u64 << (width - 1)));
        if sign { -size } else { size }
    }
    let load = |v: &[u8]| v.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
    let (a, b) = (load(a), load(b));
    let (width, exponent) = match ty {
        "f64" => (64, 0x7FF0_0000_0000_0000u64),
        "f32" => (32, 0x7F80_0000),
        "bf16" => (16, 0x7F80),
        _ => (16, 0x7C00),
    };
    let nan = |v: u64| v & !(1u64 << (width - 1)) > exponent;
    match (nan(a), nan(b)) {
        (true, true) => 0,
        (false, false) => {
            u64::try_from((ordered(a, width) - ordered(b, width)).unsigned_abs()).unwrap()
        }
        _ => u64::MAX,
    }
}

fn show(ty: &str, v: &[u8]) -> String {
    let bits = v.iter().rev().fold(0u128, |n, &b| n << 8 | u128::from(b));
    match ty {
        "f32" => format!("{bits:#x} ({:e})", f32::from_bits(bits as u32)),
        "f64" => format!("{bits:#x} ({:e})", f64::from_bits(bits as u64)),
        _ => format!("{bits:#x}"),
    }
}

fn fault_name(fault: &Fault) -> &'static str {
    match fault {
        Fault::IllegalAddress { .. } => "illegal-address",
        Fault::Misaligned { .. } => "misaligned",
        Fault::Trap { .. } => "trap",
        Fault::Assert { .. } => "assert",
        Fault::Illegal { .. } => "illegal",
        Fault::Timeout { .. } => "timeout",
        Fault::Stopped { .. } => "stopped",
        Fault::Deadlock { .. } => "deadlock",
        Fault::Unbegun { .. } => "unbegun",
    }
}

fn check(path: &Path, run: &Run, text: &str, failures: &mut Vec<String>) {
    let place = format!(
        "{}:{} `{}`",
        path.file_name().unwrap().to_string_lossy(),
        run.line,
        run.kernel
    );
    let loaded = load(text);
    let mut params = Params::default();
    let mut buffers = Vec::new();
    let (mut textures, mut images) = (Vec::new(), Vec::new());
    for arg in &run.args {
        match arg {
            Arg::Image { texture, texels } => {
                let memory = Memory::with(texels);
                params.push(&(textures.len() as u64).to_le_bytes());
                textures.push(Arc::new(Texture {
                    base: memory.address,
                    ..texture.clone()
                }));
                images.push(memory);
            }
            Arg::Value(bytes) => params.push(bytes),
            Arg::Buffer {
                ty,
                ulp,
                before,
                after,
            } => {
                let memory = Memory::with(before);
                params.push(&memory.address.to_le_bytes());
                buffers.push((memory, ty, *ulp, after));
            }
        }
    }
    let (result, printed) = launch_with(
        &loaded,
        &run.kernel,
        run.grid,
        run.block,
        run.shared,
        &params.0,
        textures,
    );
    match (&result, &run.fault) {
        (Ok(()), None) => {}
        (Err(fault), Some(name)) if fault_name(fault) == name => {}
        _ => failures.push(format!(
            "{place}: ended with {result:?}, expected {:?}",
            run.fault
        )),
    }
    if let Some(text) = &run.prints
        && *text != String::from_utf8_lossy(&printed)
    {
        failures.push(format!(
            "{place}: printed {:?}, expected {text:?}",
            String::from_utf8_lossy(&printed)
        ));
    }
    for (number, (memory, ty, ulp, after)) in buffers.iter().enumerate() {
        let Some(after) = after else { continue };
        let got = memory.bytes_mut();
        for (index, expected) in after.iter().enumerate() {
            let Some(expected) = expected else { continue };
            let n = width(ty);
            let found = &got[index * n..index * n + n];
            let same = match ty.as_str() {
                "f32" | "f64" | "f16" | "bf16" => match distance(ty, found, expected) {
                    // Zeros of either sign are no distance apart, but only one is right.
                    0 if *ulp == 0 => found == expected.as_slice() || is_nan(ty, found),
                    distance => distance <= *ulp,
                },
                _ => found == expected.as_slice(),
            };
            if !same {
                failures.push(format!(
                    "{place}: buffer {number} element {index} is {}, expected {}",
                    show(ty, found),
                    show(ty, expected)
                ));
            }
        }
    }
}

fn is_nan(ty: &str, v: &[u8]) -> bool {
    let n = v.len();
    let infinity: Vec<u8> = match ty {
        "f64" => f64::INFINITY.to_le_bytes().to_vec(),
        "f32" => f32::INFINITY.to_le_bytes().to_vec(),
        "bf16" => vec![0x80, 0x7F],
        _ => vec![0x00, 0x7C],
    };
    let mut magnitude = v.to_vec();
    magnitude[n - 1] &= 0x7F;
    magnitude.iter().rev().gt(infinity.iter().rev())
}

#[test]
fn every_file() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/ptx");
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    paths.sort();
    let only = std::env::var("FERMATA_FILETEST").unwrap_or_default();
    let mut failures = Vec::new();
    let mut count = 0;
    for path in paths
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "ptx"))
    {
        if !path.to_string_lossy().contains(&only) {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let runs = parse(&text);
        assert!(!runs.is_empty(), "{}: no `//@ run`", path.display());
        for run in &runs {
            check(path, run, &text, &mut failures);
            count += 1;
        }
    }
    assert!(count > 0, "no files in {}", folder.display());
    let shown = failures
        .iter()
        .take(40)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(failures.is_empty(), "{} failures:\n{shown}", failures.len());
}
