//! `fermata completions`: a completion script for a shell.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;
use crate::printer::Printer;

/// Print a completion script for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  source <(fermata completions bash)
  fermata completions zsh > ~/.zfunc/_fermata
  fermata completions fish > ~/.config/fish/completions/fermata.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "fermata", &mut script);
    printer.bytes(&script)?;
    Ok(0)
}
