//! How soon a restored program is at work, by the order in which its data comes (gCROP, figure 11): everything
//! first, by address, as an earlier restore has used it, and the worst order there is.

use std::time::Duration;

use fermata_control::user::{Arrival, ArrivalStand, Restored};
use serde_json::json;

use crate::error::BenchError;
use crate::findings::{Cell, Findings};
use crate::program::{Program, Step, now};
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// Orders and the options that choose them. The first restore leaves the record that `profile` uses.
const ORDERS: [(&str, &[&str]); 4] = [
    ("eager", &["--eager"]),
    ("default", &["--order", "default"]),
    ("profile", &["--order", "profile"]),
    ("worst", &["--order", "worst"]),
];
/// A driver takes seconds to give back what a killed worker held.
const REST: Duration = Duration::from_secs(3);
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(300);

pub fn run(settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
    let sandbox = Sandbox::new(settings)?.with_slow_link(settings.bytes);
    let bytes = settings.bytes;
    let gib = (bytes as f64 / f64::from(1 << 30)).to_string();
    let buffers = if bytes >= 8 << 30 { "400" } else { "40" };
    let options = ["--gib", &gib, "--buffers", buffers, "--passes", "4"];
    let program = Program::new("passes", settings, &sandbox, &options)?;
    sandbox.prepare(bytes + bytes / 8)?;
    program.clean();
    sandbox.start("passes", &program.words, &program.variables())?;
    sandbox.wait(START, "the program has not begun", || {
        let session = sandbox.session("passes")?;
        let log = std::fs::read_to_string(&session.log).unwrap_or_default();
        Ok(!settings.command.is_empty() || log.contains("ready"))
    })?;
    sandbox.warm(REST)?;
    sandbox.checkpoint(
        "passes",
        &["--mode", "stop", "--then", "stop", "-o", "image"],
    )?;
    let mut rows = Vec::new();
    let mut outputs = Vec::new();
    let mut devices = Vec::new();
    for run in 0..settings.runs {
        for (order, options) in ORDERS {
            note(&format!("run {} of {}: {order}", run + 1, settings.runs));
            let name = format!("{order}-{run}");
            sandbox.warm(if settings.is_soft {
                Duration::ZERO
            } else {
                REST
            })?;
            program.clean();
            program.release()?;
            let begin = now();
            let words = [
                "restore",
                "image",
                "--detach",
                "--ignore-changed-files",
                "--name",
                &name,
            ];
            let restored: Restored = sandbox.ask(&[&words[..], options].concat())?;
            let command = (now() - begin) / 1e3;
            sandbox.wait(END, "the restored program has not ended", || {
                Ok(sandbox.session(&name)?.exit_status.is_some())
            })?;
            let session = sandbox.session(&name)?;
            if session.exit_status != Some(0) {
                let status = session.exit_status.unwrap_or(-1);
                let message = format!("the restored program ended with {status}");
                return Err(BenchError::program(message));
            }
            let log = std::fs::read_to_string(&session.log).unwrap_or_default();
            outputs.extend(
                log.lines()
                    .filter(|it| it.starts_with("digest"))
                    .map(str::to_owned),
            );
            devices.clone_from(&session.devices);
            rows.push(row(
                order,
                begin,
                command,
                &program.steps(),
                &restored,
                session.arrival.as_ref(),
            ));
        }
    }
    outputs.dedup();
    if outputs.len() > 1 {
        let message = format!(
            "restores of one image have ended differently: {}",
            outputs.join(", ")
        );
        return Err(BenchError::Unexpected(message));
    }
    Ok(Findings {
        name: "restore",
        title: "From the restore command to work, by the order of the data",
        facts: vec![
            ("devices", json!(devices)),
            ("bytes", json!(bytes)),
            ("digest", json!(outputs)),
        ],
        columns: vec![
            "order", "command_ms", "first_step_ms", "last_step_ms", "host_ms", "device_ms", "reattach_ms",
            "data_mib", "data_ms", "data_gb_s", "read_mib", "stand",
        ],
        rows,
        drawn: ("order", vec!["last_step_ms", "first_step_ms", "command_ms"]),
        lines: None,
        remarks: vec![
            "first and last step: from the command until the program has seen it done".into(),
            "data: until it was there, before the program ran or behind it; read: what of it did not come straight out of registered memory".into(),
        ],
    })
}

fn row(
    order: &str,
    begin: f64,
    command: f64,
    steps: &[Step],
    restored: &Restored,
    arrival: Option<&Arrival>,
) -> Vec<Cell> {
    let since = |step: Option<&Step>| step.map(|it| (it.end - begin) / 1e3);
    let phase = |name: &str| {
        let found = restored.phases.iter().find(|it| it.name == name);
        found.map(|it| 1e3 * it.seconds)
    };
    let late = arrival.filter(|it| it.stand == ArrivalStand::Complete);
    let (parts, of) = match late {
        Some(late) => (&late.steps, ""),
        None => (&restored.phases, "device."),
    };
    let part = |name: &str| parts.iter().find(|it| it.name == format!("{of}{name}"));
    let data = part("data").filter(|it| it.bytes > 0);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let read = data.map(|_| part("read").map_or(0, |it| it.bytes));
    let stand = match arrival.map(|it| it.stand) {
        None => "everything first",
        Some(ArrivalStand::Coming) => "coming",
        Some(ArrivalStand::Complete) => "complete",
        Some(ArrivalStand::RollingBack) => "rolling back",
        Some(ArrivalStand::RolledBack) => "rolled back",
    };
    vec![
        order.into(),
        command.into(),
        since(steps.first()).into(),
        since(steps.last()).into(),
        phase("host").into(),
        phase("device").into(),
        phase("reattach").into(),
        data.map(|it| mib(it.bytes)).into(),
        data.map(|it| 1e3 * it.seconds).into(),
        data.map(|it| it.bytes as f64 / 1e9 / it.seconds).into(),
        read.map(mib).into(),
        stand.into(),
    ]
}
