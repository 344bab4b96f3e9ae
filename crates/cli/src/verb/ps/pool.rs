//! `fermata ps --pool`: the workers that wait for sessions.

use fermata_control::user::{FromDaemon, SpareKind, SpareWorkers, Text, Verb};
use fermata_report::table::Table;
use fermata_report::units;
use serde_json::json;

use crate::daemon::{question, unexpected};
use crate::failure::Failure;
use crate::printer::Printer;

/// Shows them.
pub(super) fn show(printer: &Printer) -> Result<u8, Failure> {
    let spare = match question(&Verb::SpareWorkers, printer)? {
        FromDaemon::SpareWorkers(spare) => spare,
        other => return Err(unexpected(&other)),
    };
    if printer.is_json() {
        printer.document(&json!({ "pool": spare }))?;
        return Ok(0);
    }
    printer.data(&table(&spare))?;
    for kind in &spare.kinds {
        printer.note(&sum(kind));
        if !kind.trouble.is_empty() {
            printer.warn(&format!("no spare worker: {}", kind.trouble));
        }
    }
    if spare.kinds.is_empty() && spare.most == 0 {
        printer.note("no workers are started ahead: FERMATA_SPARE_WORKERS is 0");
    }
    Ok(0)
}

fn table(spare: &SpareWorkers) -> String {
    let heads = [
        "DEVICE", "FOR", "STATE", "PID", "HOST", "MEMORY", "AGE", "ENDS IN",
    ];
    let mut table = Table::new(&heads);
    let none = || "-".to_owned();
    for kind in &spare.kinds {
        for worker in &kind.ready {
            table.row([
                device(kind),
                purpose(kind),
                "ready".to_owned(),
                worker.pid.to_string(),
                units::bytes(worker.host.pss),
                worker.device_bytes.map_or_else(none, units::bytes),
                units::span(worker.age_seconds),
                worker.ends_in_seconds.map_or_else(none, units::span),
            ]);
        }
        let mut other = |state: String| {
            let cells = [none(), none(), none(), none(), none()];
            let first = [device(kind), purpose(kind), state];
            table.row(first.into_iter().chain(cells));
        };
        (0..kind.making).for_each(|_| other("starting".to_owned()));
        if let Some(seconds) = kind.retry_seconds {
            other(format!("failed, again in {}", units::span(seconds)));
        }
    }
    table.render()
}

fn device(kind: &SpareKind) -> String {
    match (&kind.device, kind.soft) {
        (_, true) => "software GPU".to_owned(),
        // The first digits tell devices of one model apart.
        (Some(it), false) => {
            let short: String = it.uuid.chars().take(12).collect();
            format!("{}, {short}", it.name)
        }
        (None, false) => "GPU".to_owned(),
    }
}

/// What they may be used for.
fn purpose(kind: &SpareKind) -> String {
    let name = |image: &Text| {
        let path = image.to_path();
        let name = path.file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    kind.image.as_ref().map_or_else(|| "any".to_owned(), name)
}

fn sum(kind: &SpareKind) -> String {
    let making = match kind.making {
        0 => String::new(),
        many => format!(", {many} being started"),
    };
    let ready = kind.ready.len();
    let (device, purpose, most) = (device(kind), purpose(kind), kind.most);
    format!("{device}, for {purpose}: {ready} of {most} ready{making}")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use fermata_control::user::{HostMemory, SpareWorker};

    use super::*;

    #[test]
    fn each_worker_has_a_line_and_so_has_what_holds_up_the_next_one() {
        let worker = SpareWorker {
            pid: 77,
            host: HostMemory {
                pss: 3 << 20,
                own: 1 << 20,
            },
            device_bytes: None,
            age_seconds: 61,
            ends_in_seconds: Some(30),
        };
        let kind = SpareKind {
            soft: true,
            image: Some(Text::from(OsStr::new("/images/heat"))),
            most: 3,
            device: None,
            ready: vec![worker],
            making: 1,
            awaited: 0,
            trouble: "no driver".to_owned(),
            retry_seconds: Some(8),
        };
        let text = table(&SpareWorkers {
            most: 3,
            idle_seconds: Some(90),
            kinds: vec![kind.clone()],
            ..SpareWorkers::default()
        });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(
            words(lines[1]),
            format!(
                "software GPU heat ready 77 3.0 MiB - {} {}",
                units::span(61),
                units::span(30)
            )
        );
        assert_eq!(words(lines[2]), "software GPU heat starting - - - - -");
        assert!(lines[3].contains("failed, again in"), "{text}");
        let told = "software GPU, for heat: 1 of 3 ready, 1 being started";
        assert_eq!(sum(&kind), told);
    }
}
