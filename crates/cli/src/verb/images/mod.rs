//! `fermata images`: list, examine, compare, move and remove images. None of it but `warm` needs the daemon.

mod diff;
mod gc;
mod inspect;
mod ls;
mod prepare;
mod pull;
mod push;
mod rm;
mod verify;
mod warm;

use clap::Subcommand;

use crate::failure::Failure;
use crate::printer::Printer;

/// List, examine, compare, move and remove images.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images ls
  fermata images verify heat-1
  fermata images diff heat-1 heat-2
  fermata images push heat-2 s3://bucket/jobs
  fermata images rm heat-1 && fermata images gc

An image is given as a path, or as a name in the folder of images (`FERMATA_IMAGE_DIR`).")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

// No doc comments on the variants: clap would show them in place of the verbs' own help.
#[derive(Debug, Subcommand)]
enum Verb {
    Ls(ls::Args),
    Inspect(inspect::Args),
    Verify(verify::Args),
    Diff(diff::Args),
    Push(push::Args),
    Pull(pull::Args),
    Rm(rm::Args),
    Gc(gc::Args),
    Prepare(prepare::Args),
    Warm(warm::Args),
}

pub use self::rm::remove;

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    match args.verb {
        Verb::Ls(args) => ls::call(args, printer),
        Verb::Inspect(args) => inspect::call(args, printer),
        Verb::Verify(args) => verify::call(args, printer),
        Verb::Diff(args) => diff::call(args, printer),
        Verb::Push(args) => push::call(&args, printer),
        Verb::Pull(args) => pull::call(&args, printer),
        Verb::Rm(args) => rm::call(args, printer),
        Verb::Gc(args) => gc::call(args, printer),
        Verb::Prepare(args) => prepare::call(&args, printer),
        Verb::Warm(args) => warm::call(&args, printer),
    }
}
