//! The header in C, C++ and CUDA, and that header and library name the same functions.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use common::{command, cuda_program, root, run, tree};

fn compile_and_run(compiler: &str, options: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("api");
    let here = root().join("bindings/c");
    run(Command::new(compiler)
        .args(options)
        .args(["-Wall", "-Wextra", "-Werror", "-pedantic"])
        .arg(format!("-I{}", here.join("include").display()))
        .arg("-o")
        .arg(&program)
        .arg(here.join("tests/api.c"))
        .arg(format!("-L{}", tree().display()))
        .arg("-lfermata"));
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    assert_eq!(run(command(&program).arg(&data)), "fine\n");
}

#[test]
fn every_call_works_in_c() {
    compile_and_run("gcc", &["-std=c11"]);
}

#[test]
fn every_call_works_in_cxx() {
    compile_and_run("g++", &["-std=c++17", "-x", "c++"]);
}

#[test]
fn device_and_managed_pointers_work_in_cuda() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("device");
    cuda_program(&root().join("bindings/c/tests/device.cu"), &program);
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    for part in ["write", "read"] {
        assert_eq!(run(command(&program).arg(&data).arg(part)), "fine\n");
    }
}

#[test]
fn a_program_written_for_fti_restarts_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (here, program) = (root().join("bindings/c"), dir.path().join("fti"));
    for (compiler, language) in [("gcc", "c"), ("g++", "c++")] {
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-x", language])
            .arg(format!("-I{}", here.join("include/fti").display()))
            .arg("-o")
            .arg(&program)
            .arg(here.join("tests/fti.c"))
            .arg(format!("-L{}", tree().display()))
            .arg("-lfermata"));
        let config = dir.path().join("config.fti");
        let text = "[Basic]\nckpt_dir = DIR\nglbl_dir = DIR/global\nhead = 0\nckpt_l1 = 3\n\
                    keep_last_ckpt = 0\ninline_l4 = 1\n[Restart]\nfailure = 0\n";
        let folder = dir.path().join(language).display().to_string();
        std::fs::write(&config, text.replace("DIR", &folder)).unwrap();
        let until = |stop: &str| run(command(&program).arg(&config).arg(stop));
        let want = until("0");
        assert!(want.starts_with("sum "), "{want}");
        assert_eq!(until("37"), "");
        assert_eq!(until("57"), "restart at 30\n");
        // Every second one went to the fourth level.
        assert!(Path::new(&folder).join("global/job").exists());
        assert_eq!(until("0"), format!("restart at 50\n{want}"));
        // It was done, so that nothing is left to restart from.
        assert_eq!(until("0"), want);
    }
}

#[test]
fn every_call_works_in_python() {
    let dir = tempfile::tempdir().unwrap();
    let text = run(python("python.py").arg(dir.path()));
    assert!(text.starts_with("fine "), "{text}");
}

#[test]
fn the_python_package_checkpoints_when_it_is_time() {
    let text = run(python("sdk.py").env_remove("FERMATA_LIBRARY"));
    assert_eq!(text, "fine\n");
}

#[test]
fn a_program_in_python_outlives_a_silent_daemon_and_a_lack_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let text = run(python("program.py").arg(dir.path()));
    assert_eq!(text, "fine\n");
}

#[test]
fn a_program_in_c_outlives_a_silent_daemon_and_a_lack_of_descriptors() {
    in_c_and_cpp("program.c", |program, folder| {
        assert_eq!(run(Command::new(program).arg(folder)), "fine\n");
    });
}

#[test]
fn a_program_in_c_checkpoints_when_it_is_time() {
    in_c_and_cpp("schedule.c", |program, _| {
        assert_eq!(run(&mut Command::new(program)), "fine\n");
    });
}

/// Builds a program of this folder, which needs headers alone, as C and as C++, and calls `check` with it and a folder.
fn in_c_and_cpp(source: &str, check: impl Fn(&Path, &Path)) {
    let (here, dir) = (root().join("bindings/c"), tempfile::tempdir().unwrap());
    for (compiler, language) in [("gcc", "c"), ("g++", "c++")] {
        let folder = dir.path().join(language);
        std::fs::create_dir(&folder).unwrap();
        let program = folder.join("program");
        run(Command::new(compiler)
            .args(["-Wall", "-Wextra", "-Werror", "-x", language])
            .arg(format!("-I{}", here.join("include").display()))
            .arg("-o")
            .arg(&program)
            .arg(here.join("tests").join(source))
            .args(["-x", "none", "-lm"]));
        check(&program, &folder);
    }
}

#[test]
fn ranks_talk_in_python() {
    let dir = tempfile::tempdir().unwrap();
    let one = |rank: usize| {
        run(python("ranks.py")
            .arg(dir.path())
            .args([&rank.to_string(), "3"]))
    };
    let texts: Vec<String> = std::thread::scope(|scope| {
        let one = &one;
        let ranks: Vec<_> = (0..3).map(|rank| scope.spawn(move || one(rank))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    // The last one has gone in the middle.
    assert_eq!(texts, ["fine\n", "fine\n", ""]);
}

/// A program of this folder in Python, with the library under test.
fn python(program: &str) -> Command {
    let here = root().join("bindings");
    let mut command = command(Path::new("python3"));
    command
        .arg(here.join("c/tests").join(program))
        .env("PYTHONPATH", here.join("python"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("FERMATA_LIBRARY", tree().join("libfermata.so.0"));
    command
}

/// The pkg-config file in a tree as users get it: what it says compiles and links.
#[test]
fn pkg_config_says_how_to_build() {
    let dir = tempfile::tempdir().unwrap();
    let (here, tree_lib) = (root().join("bindings/c"), tree());
    for folder in ["lib/pkgconfig", "include"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    for (from, to) in [
        (here.join("fermata.pc"), "lib/pkgconfig/fermata.pc"),
        (here.join("include/fermata.h"), "include/fermata.h"),
        (tree_lib.join("libfermata.so.0"), "lib/libfermata.so"),
    ] {
        std::fs::copy(from, dir.path().join(to)).unwrap();
    }
    // As pkg-config reads it, which not every machine has.
    let text = std::fs::read_to_string(dir.path().join("lib/pkgconfig/fermata.pc")).unwrap();
    let mut variables = vec![(
        "pcfiledir".to_owned(),
        dir.path().join("lib/pkgconfig").display().to_string(),
    )];
    let mut fields = std::collections::BTreeMap::new();
    for line in text.lines() {
        let mut line = line.to_owned();
        for (name, value) in &variables {
            line = line.replace(&format!("${{{name}}}"), value);
        }
        if let Some((name, value)) = line.split_once(": ") {
            fields.insert(name.to_owned(), value.to_owned());
        } else if let Some((name, value)) = line.split_once('=') {
            variables.push((name.to_owned(), value.to_owned()));
        }
    }
    assert_eq!(fields["Version"], env!("CARGO_PKG_VERSION"));
    let program = dir.path().join("api");
    run(Command::new("gcc")
        .args(fields["Cflags"].split(' '))
        .arg(here.join("tests/api.c"))
        .arg("-o")
        .arg(&program)
        .args(fields["Libs"].split(' ')));
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    assert_eq!(run(command(&program).arg(&data)), "fine\n");
}

#[test]
fn header_and_library_name_the_same_functions() {
    let header = std::fs::read_to_string(root().join("bindings/c/include/fermata.h")).unwrap();
    let declared: BTreeSet<&str> = header
        .split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '('))
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("fermata_"))
        .collect();
    let symbols = run(Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(tree().join("libfermata.so.0")));
    let exported: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split(' ').nth(2))
        .collect();
    assert_eq!(declared, exported);
    assert!(declared.len() >= 17);
}
