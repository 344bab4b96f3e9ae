//! `fermata completions`: a completion script for a shell.

use clap::Command;
use clap_complete::Shell;

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

/// Does it; `whole` is the command line with all verbs.
pub fn call(args: Args, mut whole: Command, printer: &Printer) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole, "fermata", &mut script);
    printer.bytes(&script)?;
    Ok(0)
}
