//! `fermata kill`: end a session, or send it another signal.

use fermata_control::user::{FromDaemon, Verb};

use crate::daemon::{Daemon, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::progress::Progress;

/// End a session, or send it another signal.
///
/// With the signal KILL, the default, the command returns when nothing of the session is left.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata kill heat
  fermata kill --signal TERM heat      let the program end by itself")]
pub struct Args {
    /// Signal to send: a name such as TERM, or a number.
    #[arg(long, short, default_value = "KILL", value_parser = parse_signal)]
    signal: i32,
    /// The sessions.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let daemon = Daemon::reach(printer)?;
    for name in args.names {
        let verb = Verb::Kill {
            name: name.clone(),
            signal: args.signal,
        };
        match daemon.ask(verb, &Progress::new(printer))? {
            FromDaemon::Done => {}
            other => return Err(unexpected(&other)),
        }
        printer.note(&format!("sent signal {} to session `{name}`", args.signal));
    }
    Ok(0)
}

const SIGNALS: [(&str, i32); 14] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
];

fn parse_signal(text: &str) -> Result<i32, String> {
    let upper = text.to_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let known = SIGNALS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, number)| *number);
    known
        .or_else(|| text.parse().ok().filter(|n| (1..=64).contains(n)))
        .ok_or_else(|| "neither a signal's name nor a number from 1 to 64".to_owned())
}

#[cfg(test)]
mod tests {
    use super::parse_signal;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(parse_signal("SIGTERM"), Ok(15));
        assert_eq!(parse_signal("kill"), Ok(9));
        assert_eq!(parse_signal("34"), Ok(34));
        assert!(parse_signal("65").is_err());
        assert!(parse_signal("WHAT").is_err());
    }
}
