//! `fermata trace`: run a program, draw which memory its operations touched when, and say how well that was
//! predicted.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fermata_control::trace::{ENV_FILE, Trace, VERSION};
use fermata_control::wait;
use fermata_report::{heat_map, predictions};
use serde::Serialize;

use super::run::{self, Program};
use crate::failure::{Failure, INTERNAL};
use crate::printer::Printer;

/// The worker writes when the program has ended.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks for what it writes.
const LOOK: Duration = Duration::from_millis(20);

/// Run a program and write which memory it touches.
///
/// The program runs as with `fermata run`, slower: each kernel is launched in an instrumented form that
/// checks whether it touches only what was predicted. In the folder then are `heat.svg` and `heat.csv` (which
/// buffer was read and written when), `speculation.csv` (for each kernel how often the prediction was
/// right) and `trace.json` with all of it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata trace -- ./heat2d --steps 100
  fermata trace -o heat --device soft -- ./heat2d      into the folder `heat`
  fermata trace --json -- ./heat2d > trace.json        the program's output goes to the terminal")]
pub struct Args {
    /// The folder to write to.
    #[arg(long, short, default_value = "trace")]
    output: PathBuf,
    #[command(flatten)]
    program: Program,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Document<'a> {
    /// The program's exit status.
    status: u8,
    folder: &'a Path,
    trace: &'a Trace,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let folder = std::path::absolute(&args.output)
        .map_err(|e| Failure::io("find the folder to write to", &e))?;
    let at = |name: &str| folder.join(name);
    let shown = folder.display();
    std::fs::create_dir_all(&folder).map_err(|e| Failure::io(&format!("make `{shown}`"), &e))?;
    let file = at("trace.json");
    match std::fs::remove_file(&file) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Failure::io(&format!("replace `{}`", file.display()), &e));
        }
        _ => {}
    }
    let variable = (
        OsString::from(format!("FERMATA_WORKER_{ENV_FILE}")),
        file.clone().into_os_string(),
    );
    let status = run::attended(args.program, vec![variable], printer)?;
    tell(status, &folder, &file, printer).map_err(Failure::after_end)
}

/// Draws and prints the record of a program that has ended with `status`, which is returned.
fn tell(status: u8, folder: &Path, file: &Path, printer: &Printer) -> Result<u8, Failure> {
    let at = |name: &str| folder.join(name);
    let trace = read(file)?;
    let save = |name: &str, text: String| {
        let path = at(name);
        std::fs::write(&path, text)
            .map_err(|e| Failure::io(&format!("write `{}`", path.display()), &e))
    };
    save("heat.csv", heat_map::csv(&trace))?;
    save("heat.svg", heat_map::svg(&trace))?;
    save("speculation.csv", predictions::csv(&trace))?;
    if printer.is_json() {
        printer.document(&Document {
            status,
            folder,
            trace: &trace,
        })?;
    } else {
        printer.data(&predictions::table(&trace))?;
        printer.note(&format!(
            "`heat.svg`, `heat.csv`, `speculation.csv` and `trace.json` are in `{}`",
            folder.display()
        ));
    }
    Ok(status)
}

/// The record, once it is there.
fn read(file: &Path) -> Result<Trace, Failure> {
    // Polled: the worker that writes it outlives the session's end by a moment, and the command knows nothing of it.
    let written = wait::until(PATIENCE, LOOK, || std::fs::read(file).ok());
    let bytes = written.ok_or_else(|| {
        let text = format!("the session has left no record `{}`", file.display());
        Failure::new(INTERNAL, text)
            .hint("did the program use CUDA? `fermata logs` shows what it has said")
    })?;
    let trace: Trace = serde_json::from_slice(&bytes)
        .map_err(|e| Failure::new(INTERNAL, format!("cannot read `{}`: {e}", file.display())))?;
    if trace.version != VERSION {
        let text = format!("`{}` is of version {}", file.display(), trace.version);
        return Err(Failure::new(INTERNAL, text).hint("worker and command must be of one release"));
    }
    Ok(trace)
}
