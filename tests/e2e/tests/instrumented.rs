//! Every kernel of every program has an instrumented form, for checkpoints and for restores, that NVIDIA's assembler
//! takes: what a driver compiles on a GPU is the same text, by the same compiler.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::command;
use fermata_e2e::programs::PROGRAMS;
use fermata_e2e::tree::Tree;
use fermata_ptx::fatbin::{self, Kind};
use fermata_ptx::passes::{Guard, bind, guard};

const LIMIT: Duration = Duration::from_secs(300);
/// Where variables are said to lie.
const SOMEWHERE: u64 = 0x7f00_0000_1000;

/// The PTX in a program: one text, or fat binaries anywhere in it.
fn texts(file: &Path) -> Result<Vec<String>> {
    let bytes = std::fs::read(file)?;
    if file.extension().is_some_and(|it| it == "ptx") {
        return Ok(vec![String::from_utf8(bytes)?]);
    }
    let magic = fatbin::MAGIC.to_le_bytes();
    let mut found = Vec::new();
    for (word, _) in bytes
        .as_chunks::<4>()
        .0
        .iter()
        .enumerate()
        .filter(|it| *it.1 == magic)
    {
        // The same word may stand elsewhere, before nothing that can be read.
        let entries = fatbin::entries(&bytes[word * 4..]).unwrap_or_default();
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Ptx) {
            let text = String::from_utf8(entry.contents()?.into_owned())?;
            found.push(text.trim_end_matches('\0').to_owned());
        }
    }
    Ok(found)
}

fn assemble(text: &str, folder: &Path) -> Result<()> {
    let file = folder.join("instrumented.ptx");
    std::fs::write(&file, text)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut ptxas = Command::new(root.join(".deps/cuda/bin/ptxas"));
    ptxas
        .arg("-arch=sm_90")
        .arg("-o")
        .arg(folder.join("instrumented.cubin"));
    ptxas.arg(&file);
    command::run(ptxas, LIMIT)?.success("ptxas").map(drop)
}

#[test]
fn every_program_has_instrumented_kernels_that_an_assembler_takes() -> Result<()> {
    let (tree, folder) = (Tree::find()?, tempfile::tempdir()?);
    // Kernels that use texture or surface references are not instrumented.
    for program in PROGRAMS.iter().filter(|it| it.name != "textures") {
        let file = match program.name {
            "driver" => tree.program("driver_kernels.ptx")?,
            name => tree.program(name)?,
        };
        let texts = texts(&file)?;
        ensure!(!texts.is_empty(), "`{}` has no PTX", program.name);
        for (text, what) in texts
            .iter()
            .flat_map(|text| [Guard::Writes, Guard::Accesses].map(|what| (text, what)))
        {
            let module = fermata_ptx::parse(text)?;
            let made = guard(&module, what, &|_| true)?;
            let bound = bind(made.module, &|_| Some(SOMEWHERE));
            let refused = made.refused.iter().chain(&bound.refused).next();
            ensure!(
                refused.is_none(),
                "`{}`, {what:?}: {refused:?}",
                program.name
            );
            ensure!(
                bound.kernels().count() > 0,
                "`{}` has no kernel",
                program.name
            );
            assemble(&bound.module.to_string(), folder.path())
                .with_context(|| format!("`{}`, {what:?}", program.name))?;
        }
    }
    Ok(())
}
