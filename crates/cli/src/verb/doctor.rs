//! `fermata doctor`: what this host, or a session, can and cannot do, and the fix.

use fermata_control::user::{Check, CheckState, FromDaemon, Verb};
use fermata_report::table::Table;
use serde_json::json;

use crate::daemon::{Daemon, question, unexpected};
use crate::doctor;
use crate::failure::{Failure, HOST, NOT_CHECKPOINTABLE};
use crate::printer::Printer;
use crate::progress::Progress;

/// Say what this host, or a session, can and cannot do, and the fix.
///
/// Without NAME looks at the host: kernel, CRIU, GPU, limits, the installation. With NAME lists what
/// the running program holds that a checkpoint would refuse; nothing is stopped for it. Returns 13
/// when this host cannot checkpoint, 14 when the session cannot be checkpointed. With --settings prints
/// every setting with its value and the place it comes from.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata doctor
  fermata doctor heat
  fermata doctor --settings
  fermata doctor --json | jq '.checks[] | select(.state != \"ok\")'")]
pub struct Args {
    /// A session.
    name: Option<String>,
    /// Print the settings with their values, and where each value comes from.
    #[arg(long, conflicts_with = "name")]
    settings: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    if args.settings {
        return settings(printer);
    }
    let (checks, status) = match args.name {
        Some(name) => {
            let verb = Verb::Doctor { name: Some(name) };
            (report(question(&verb, printer)?)?, NOT_CHECKPOINTABLE)
        }
        None => (host(printer)?, HOST),
    };
    let failed = checks.iter().any(|c| c.state == CheckState::Fail);
    if printer.is_json() {
        printer.document(&json!({ "checks": checks, "able": !failed }))?;
    } else {
        printer.data(&render(&checks))?;
    }
    Ok(if failed { status } else { 0 })
}

/// The settings of this command, and of the daemon if one runs.
fn settings(printer: &Printer) -> Result<u8, Failure> {
    let daemon = match Daemon::find() {
        Some(daemon) => match daemon.ask(Verb::Status, &Progress::new(printer))? {
            FromDaemon::Status(status) => Some(status.settings),
            other => return Err(unexpected(&other)),
        },
        None => None,
    };
    let rows = doctor::settings::rows(daemon.as_deref());
    if printer.is_json() {
        printer.document(&json!({ "settings": rows }))?;
    } else {
        printer.data(&doctor::settings::render(&rows))?;
    }
    Ok(0)
}

/// Our own checks, and those that only a running daemon can do.
fn host(printer: &Printer) -> Result<Vec<Check>, Failure> {
    let mut checks = doctor::host();
    let Some(daemon) = Daemon::find() else {
        checks.push(doctor::no_daemon());
        return Ok(checks);
    };
    checks.push(doctor::daemon(&daemon, printer)?);
    let verb = Verb::Doctor { name: None };
    for check in report(daemon.ask(verb, &Progress::new(printer))?)? {
        match checks.iter_mut().find(|c| c.name == check.name) {
            // The daemon has tried what we have only looked at.
            Some(own) if severity(&check) > severity(own) => *own = check,
            Some(_) => {}
            None => checks.push(check),
        }
    }
    Ok(checks)
}

fn severity(check: &Check) -> u8 {
    match check.state {
        CheckState::Ok => 0,
        CheckState::Warn => 1,
        CheckState::Fail => 2,
    }
}

fn report(answer: FromDaemon) -> Result<Vec<Check>, Failure> {
    match answer {
        FromDaemon::Report(checks) => Ok(checks),
        other => Err(unexpected(&other)),
    }
}

fn render(checks: &[Check]) -> String {
    let mut table = Table::new(&["CHECK", "STATE", "FOUND"]);
    for c in checks {
        let state = match c.state {
            CheckState::Ok => "ok",
            CheckState::Warn => "warn",
            CheckState::Fail => "FAIL",
        };
        table.row([c.name.clone(), state.into(), c.detail.clone()]);
        if c.state != CheckState::Ok && !c.hint.is_empty() {
            table.row([String::new(), String::new(), format!("fix: {}", c.hint)]);
        }
    }
    table.render()
}
