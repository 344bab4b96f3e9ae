//! `fermata ps`: list sessions, or what waits for them.

mod pool;

use fermata_control::user::{
    Arrival, ArrivalStand, DeviceMemory, FromDaemon, Session, SessionMemory, SessionState, Verb,
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
  fermata ps --memory                            host and device memory of each
  fermata ps --pool                              workers that wait for sessions
  fermata ps --json | jq '.sessions[].name'")]
pub struct Args {
    /// Leave out sessions whose program has ended.
    #[arg(long, short)]
    running: bool,
    /// Show the memory of sessions that have not ended: host memory (PSS) of the program and of its workers, and the part of
    /// each that no other process maps; device memory, and how much of it other sessions or several processes use.
    #[arg(long, short)]
    memory: bool,
    /// Show the workers that wait for sessions instead: on which device each has its context, its host memory (PSS) and
    /// device memory, for how long it has waited, and when it ends if no session uses it.
    #[arg(long, short, conflicts_with_all = ["running", "memory"])]
    pool: bool,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    if args.pool {
        return pool::show(printer);
    }
    let mut sessions = match question(&Verb::Ps, printer)? {
        FromDaemon::Sessions(sessions) => sessions,
        other => return Err(unexpected(&other)),
    };
    sessions.retain(|s| !args.running || s.state != SessionState::Exited);
    if args.memory {
        return with_memory(&sessions, printer);
    }
    if printer.is_json() {
        printer.document(&json!({ "sessions": sessions }))?;
        return Ok(0);
    }
    let mut heads = vec!["NAME", "STATE", "PID", "DEVICE", "AGE", "COMMAND"];
    let prioritised = sessions.iter().any(|it| it.priority != 0);
    if prioritised {
        heads.insert(2, "PRIORITY");
    }
    let mut table = Table::new(&heads);
    for s in &sessions {
        let mut row = Vec::from(cells(s));
        if prioritised {
            row.insert(2, s.priority.to_string());
        }
        table.row(row);
    }
    printer.data(&table.render())?;
    Ok(0)
}

fn with_memory(sessions: &[Session], printer: &Printer) -> Result<u8, Failure> {
    let memory = match question(&Verb::Memory, printer)? {
        FromDaemon::Memory(memory) => memory,
        other => return Err(unexpected(&other)),
    };
    if printer.is_json() {
        printer.document(&json!({ "sessions": sessions, "memory": memory }))?;
        return Ok(0);
    }
    let mut table = Table::new(&[
        "NAME", "STATE", "HOST", "OWN", "WORKERS", "OWN", "DEVICE", "COMMON", "SHARED",
    ]);
    for session in sessions {
        if let Some(memory) = memory.iter().find(|it| it.session == session.name) {
            let [name, state, ..] = cells(session);
            table.row([name, state].into_iter().chain(sums(memory)));
        }
    }
    printer.data(&table.render())?;
    Ok(0)
}

fn sums(memory: &SessionMemory) -> Vec<String> {
    let of = |it: fn(&DeviceMemory) -> u64| memory.devices.iter().map(it).sum::<u64>();
    let device = |bytes: u64| match memory.complete {
        true => units::bytes(bytes),
        // A worker that does not say holds more.
        false => format!("{} or more", units::bytes(bytes)),
    };
    let host = [
        memory.program.pss,
        memory.program.own,
        memory.workers.pss,
        memory.workers.own,
    ];
    let host = host.into_iter().map(units::bytes);
    host.chain([
        device(of(|it| it.bytes)),
        units::bytes(of(|it| it.common)),
        device(of(|it| it.shared)),
    ])
    .collect()
}

fn running(arrival: Option<&Arrival>) -> String {
    match arrival {
        Some(it) if it.stand == ArrivalStand::Coming => {
            format!("running, {} % read", it.done * 100 / it.total.max(1))
        }
        _ => "running".to_owned(),
    }
}

fn paused(session: &Session) -> String {
    let state = match &session.paused_for {
        Some(other) => format!("paused for {other}"),
        None => "paused".to_owned(),
    };
    let Some(data) = &session.paused else {
        return state;
    };
    let place = match data.in_memory {
        true => "in memory",
        false => "on disk",
    };
    format!("{state}, {} {place}", units::bytes(data.device_bytes))
}

fn cells(s: &Session) -> [String; 6] {
    let state = match (s.state, s.exit_status) {
        (SessionState::Exited, Some(status)) => format!("exited {status}"),
        (SessionState::Running, None) => running(s.arrival.as_ref()),
        (SessionState::Paused, None) => paused(s),
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
