//! `fermata ps`: list sessions.

use fermata_control::user::{
    Arrival, ArrivalStand, FromDaemon, PausedData, Session, SessionState, Verb,
};
use fermata_report::table::Table;
use fermata_report::units;
use fermata_store::image::unix_now;
use serde_json::json;

use crate::daemon::{question, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;

/// List sessions.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata ps
  fermata ps --running
  fermata ps --json | jq '.sessions[].name'")]
pub struct Args {
    /// Leave out sessions whose program has ended.
    #[arg(long, short)]
    running: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let mut sessions = match question(&Verb::Ps, printer)? {
        FromDaemon::Sessions(sessions) => sessions,
        other => return Err(unexpected(&other)),
    };
    sessions.retain(|s| !args.running || s.state != SessionState::Exited);
    if printer.is_json() {
        printer.document(&json!({ "sessions": sessions }))?;
        return Ok(0);
    }
    let mut table = Table::new(&["NAME", "STATE", "PID", "DEVICE", "AGE", "COMMAND"]);
    for s in &sessions {
        table.row(cells(s));
    }
    printer.data(&table.render())?;
    Ok(0)
}

fn running(arrival: Option<&Arrival>) -> String {
    match arrival {
        Some(it) if it.stand == ArrivalStand::Coming => {
            format!("running, {} % read", it.done * 100 / it.total.max(1))
        }
        _ => "running".to_owned(),
    }
}

fn paused(data: Option<&PausedData>) -> String {
    let Some(data) = data else {
        return "paused".to_owned();
    };
    let place = match data.in_memory {
        true => "in memory",
        false => "on disk",
    };
    format!("paused, {} {place}", units::bytes(data.device_bytes))
}

fn cells(s: &Session) -> [String; 6] {
    let state = match (s.state, s.exit_status) {
        (SessionState::Exited, Some(status)) => format!("exited {status}"),
        (SessionState::Running, None) => running(s.arrival.as_ref()),
        (SessionState::Paused, None) => paused(s.paused.as_ref()),
        (state, _) => format!("{state:?}").to_lowercase(),
    };
    let device = match (s.soft, s.devices.as_slice()) {
        (Some(true), _) => "software GPU".to_owned(),
        (_, []) => "-".to_owned(),
        (_, [one]) => one.name.clone(),
        (_, [first, rest @ ..]) => format!("{} and {} more", first.name, rest.len()),
    };
    let pid = s.pid.map_or_else(|| "-".to_owned(), |p| p.to_string());
    let age = units::span(unix_now().saturating_sub(s.started));
    [s.name.clone(), state, pid, device, age, s.argv.join(" ")]
}
