//! `fermata function`: programs that answer requests over HTTP by instances restored for them.
//!
//! ```text
//!  create   run CMD ─► it listens ─► image, record; the program is ended
//!  serve    request ─► `fermata_function` ─► instances: Restore (leased, own network) ─► its socket
//! ```

mod create;
mod instances;
mod ls;
mod network;
mod rm;
mod seconds;
mod serve;
mod show;

use clap::Subcommand;

use crate::failure::Failure;
use crate::printer::Printer;

/// Serve HTTP requests from instances of a program that are restored on demand.
///
/// `create` runs a program until it listens and takes an image of it. `serve` is an HTTP server that answers each
/// request by an instance restored from that image, in a network of its own.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function create llama -- python server.py
  fermata function serve llama --port 8080
  curl http://127.0.0.1:8080/generate -d '{\"prompt\": \"Once\"}'
  curl http://127.0.0.1:8080/-/metrics")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

// No doc comments on the variants: clap would show them in place of the verbs' own help.
#[derive(Debug, Subcommand)]
enum What {
    Create(create::Args),
    Serve(serve::Args),
    Ls(ls::Args),
    Show(show::Args),
    Rm(rm::Args),
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    match args.what {
        What::Create(args) => create::call(args, printer),
        What::Serve(args) => serve::call(&args, printer),
        What::Ls(args) => ls::call(&args, printer),
        What::Show(args) => show::call(&args, printer),
        What::Rm(args) => rm::call(&args, printer),
    }
}
