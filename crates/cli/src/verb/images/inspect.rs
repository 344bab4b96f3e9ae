//! `fermata images inspect`.

use std::path::PathBuf;

use fermata_report::page::validated;
use fermata_report::units;
use fermata_store::image::Manifest;
use serde_json::json;

use crate::failure::Failure;
use crate::place;
use crate::printer::Printer;

/// Show what an image holds.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata images inspect heat-1
  fermata images inspect heat-1 --json | jq .manifest.program")]
pub struct Args {
    /// The image.
    image: PathBuf,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let image = place::open(&args.image)?;
    let table = image.chunk_table()?;
    let buffers = table.buffers().count();
    let chunks = table.records().len();
    if printer.is_json() {
        printer.document(
            &json!({ "path": image.dir().display().to_string(), "buffers": buffers, "chunks": chunks,
            "content_bytes": table.content_bytes(), "manifest": image.manifest() }),
        )?;
        return Ok(0);
    }
    let mut lines = describe(image.manifest());
    lines.push(("path", image.dir().display().to_string()));
    lines.push(("store", image.store().display().to_string()));
    let content = units::bytes(table.content_bytes());
    lines.push((
        "buffers",
        format!("{buffers} in {chunks} chunks, {content}"),
    ));
    let width = lines.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let text: String = lines
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}\n"))
        .collect();
    printer.data(&text)?;
    Ok(0)
}

fn describe(m: &Manifest) -> Vec<(&'static str, String)> {
    let t = &m.totals;
    let mut lines = vec![
        ("name", m.name.clone()),
        ("created", m.created.clone()),
        ("session", m.session.clone()),
        ("program", m.program.argv.join(" ")),
        ("folder", m.program.cwd.clone()),
        (
            "machine",
            format!(
                "{}, Linux {}, CRIU {}",
                m.host.hostname, m.host.kernel, m.host.criu
            ),
        ),
        (
            "written by",
            format!("Fermata {}, mode {}", m.fermata_version, m.mode),
        ),
        ("validated by", validated(&m.validation)),
    ];
    for d in &m.devices {
        let kind = if d.soft { "software GPU" } else { "GPU" };
        let memory = units::bytes(d.memory);
        lines.push((
            "device",
            format!("{} ({kind}, {memory}, {})", d.name, d.uuid),
        ));
    }
    lines.push((
        "device memory",
        format!(
            "{} in {} allocations",
            units::bytes(t.device_bytes),
            t.allocations
        ),
    ));
    lines.push(("host memory", units::bytes(m.host_bytes())));
    lines.push(("objects", t.objects.to_string()));
    let (all, still) = (units::seconds(t.seconds), units::seconds(t.stopped_seconds));
    lines.push((
        "took",
        format!("{all}, of which the program stood still {still}"),
    ));
    for p in &m.phases {
        let mut value = format!("{} {}", p.name, units::seconds(p.seconds));
        if p.bytes > 0 {
            value += &format!(", {}", units::bytes(p.bytes));
        }
        lines.push(("step", value));
    }
    lines
}
