//! `fermata report`: how an image was taken, drawn.
//!
//! One self-contained page (no scripts, nothing loaded from elsewhere), or the trace-event format that
//! Chrome's tracing page and Perfetto read ("Trace Event Format", section "JSON Object Format").

use std::path::PathBuf;

use fermata_store::image::{HOST, Manifest, Phase, ValidationRecord};
use serde_json::json;

use crate::failure::{Failure, USER};
use crate::printer::Printer;
use crate::svg::escaped;
use crate::{place, units};

/// Draw how an image was taken.
///
/// The page shows what the checkpoint did when, for how long the program stood still, and what
/// copying behind it has cost.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata report heat-1                         heat-1.html in the current folder
  fermata report heat-1 -o /tmp/page.html
  fermata report heat-1 --trace heat-1.trace    to be opened with Perfetto")]
pub struct Args {
    /// The image.
    image: PathBuf,
    /// The page.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a trace instead.
    #[arg(long, value_name = "FILE", conflicts_with = "output")]
    trace: Option<PathBuf>,
}

/// Does it.
pub fn call(args: &Args, printer: &Printer) -> Result<u8, Failure> {
    let image = place::open(&args.image)?;
    let manifest = image.manifest();
    let (path, text) = match &args.trace {
        Some(path) => (path.clone(), trace(manifest)),
        None => {
            let name = PathBuf::from(format!("{}.html", manifest.name));
            let path = args.output.clone().unwrap_or(name);
            (path, page(manifest))
        }
    };
    std::fs::write(&path, text)
        .map_err(|e| Failure::new(USER, format!("cannot write `{}`: {e}", path.display())))?;
    if printer.is_json() {
        printer.document(&json!({ "image": image.dir(), "file": path }))?;
    } else {
        printer.data(&format!("{}\n", path.display()))?;
    }
    Ok(0)
}

/// Who does a step, for the rows of the drawing.
fn lane(phase: &str) -> &'static str {
    match phase {
        "quiesce" | "detach" | "reattach" => "program",
        "host" => "CRIU",
        "commit" => "store",
        _ => "worker",
    }
}

const LANES: [(&str, &str); 4] = [
    ("program", "#d55e00"),
    ("worker", "#0072b2"),
    ("CRIU", "#009e73"),
    ("store", "#cc79a7"),
];

/// The spans in which the program stood still: from each `quiesce` to the `reattach` after it.
fn stops(phases: &[Phase]) -> Vec<(f64, f64)> {
    let end = |p: &Phase| p.start + p.seconds;
    let last = phases.iter().map(end).fold(0.0, f64::max);
    let begins = phases.iter().filter(|p| p.name == "quiesce");
    begins
        .map(|begin| {
            let after = phases
                .iter()
                .filter(|p| p.name == "reattach" && p.start >= begin.start);
            let back = after.map(end).fold(f64::INFINITY, f64::min);
            // A program that was not brought back was ended.
            (begin.start, if back.is_finite() { back } else { last })
        })
        .collect()
}

fn trace(manifest: &Manifest) -> String {
    let micros = |seconds: f64| (seconds * 1e6).round();
    let row = |name: &str| {
        LANES
            .iter()
            .position(|(lane, _)| *lane == name)
            .unwrap_or(0)
            + 1
    };
    let mut events: Vec<_> = LANES
        .iter()
        .map(|(name, _)| {
            json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": row(name), "args": { "name": name } })
        })
        .collect();
    for phase in &manifest.phases {
        events.push(json!({
            "ph": "X", "name": phase.name, "cat": "checkpoint", "pid": 1, "tid": row(lane(&phase.name)),
            "ts": micros(phase.start), "dur": micros(phase.seconds), "args": { "bytes": phase.bytes },
        }));
    }
    for (from, to) in stops(&manifest.phases) {
        events.push(json!({
            "ph": "X", "name": "the program stands still", "cat": "stop", "pid": 1, "tid": 0,
            "ts": micros(from), "dur": micros(to - from),
        }));
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

fn page(manifest: &Manifest) -> String {
    let facts: String = facts(manifest)
        .into_iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escaped(&value)))
        .collect();
    let steps: String = manifest
        .phases
        .iter()
        .map(|p| {
            let rate = match (p.bytes, p.seconds > 0.0) {
                (0, _) | (_, false) => String::new(),
                (bytes, true) => format!("{}/s", units::bytes((bytes as f64 / p.seconds) as u64)),
            };
            let bytes = if p.bytes == 0 { String::new() } else { units::bytes(p.bytes) };
            format!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{bytes}</td><td>{rate}</td></tr>\n",
                escaped(&p.name),
                lane(&p.name),
                units::seconds(p.start),
                units::seconds(p.seconds),
            )
        })
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n<style>\n\
         body {{ font: 15px/1.45 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }}\n\
         table {{ border-collapse: collapse }} th, td {{ text-align: left; padding: .15em .9em .15em 0 }}\n\
         th {{ font-weight: 600 }} svg {{ width: 100%; height: auto }}\n</style></head><body>\n\
         <h1>{name}</h1>\n<p>Session <b>{session}</b>, taken with <b>{mode}</b>; the program stood still for \
         <b>{stopped}</b> of <b>{all}</b>.</p>\n{drawing}\n<h2>Steps</h2>\n<table><tr><th>step</th><th>by</th>\
         <th>began after</th><th>took</th><th>moved</th><th>rate</th></tr>\n{steps}</table>\n\
         <h2>Image</h2>\n<table>\n{facts}</table>\n</body></html>\n",
        name = escaped(&manifest.name),
        session = escaped(&manifest.session),
        mode = escaped(&manifest.mode),
        stopped = units::seconds(manifest.totals.stopped_seconds),
        all = units::seconds(manifest.totals.seconds),
        drawing = timeline(&manifest.phases),
    )
}

/// Rows of bars over a common axis; the stops are shaded.
fn timeline(phases: &[Phase]) -> String {
    const WIDTH: f64 = 860.0;
    const LEFT: f64 = 80.0;
    const ROW: f64 = 34.0;
    const TOP: f64 = 26.0;
    let height = TOP + ROW * LANES.len() as f64 + 30.0;
    let end = phases
        .iter()
        .map(|p| p.start + p.seconds)
        .fold(1e-6, f64::max);
    let at = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - 10.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    for (from, to) in stops(phases) {
        let (x, width) = (at(from), (at(to) - at(from)).max(1.0));
        out += &format!(
            "<rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{}\" fill=\"#eee\"><title>the program stands still: {}</title></rect>\n\
             <text x=\"{x:.1}\" y=\"18\" fill=\"#555\">stopped {}</text>\n",
            ROW * LANES.len() as f64,
            units::seconds(to - from),
            units::seconds(to - from),
        );
    }
    for (row, (name, colour)) in LANES.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        out += &format!("<text x=\"4\" y=\"{:.1}\">{name}</text>\n", y + 21.0);
        for p in phases.iter().filter(|p| lane(&p.name) == *name) {
            let (x, width) = (
                at(p.start),
                (at(p.start + p.seconds) - at(p.start)).max(1.5),
            );
            out += &format!(
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"><title>{}: {}</title></rect>\n",
                y + 6.0,
                ROW - 12.0,
                escaped(&p.name),
                units::seconds(p.seconds),
            );
            if width > 9.0 * p.name.len() as f64 {
                out += &format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"white\">{}</text>\n",
                    x + 5.0,
                    y + 21.0,
                    escaped(&p.name)
                );
            }
        }
    }
    let y = TOP + ROW * LANES.len() as f64;
    out += &format!(
        "<path d=\"M{LEFT} {y}H{}\" stroke=\"#999\"/>\n",
        WIDTH - 10.0
    );
    for tick in 0..=4 {
        let seconds = end * f64::from(tick) / 4.0;
        out += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
            at(seconds).min(WIDTH - 30.0),
            y + 18.0,
            units::seconds(seconds)
        );
    }
    out + "</svg>"
}

fn facts(m: &Manifest) -> Vec<(&'static str, String)> {
    let host: u64 = m
        .files
        .iter()
        .filter(|f| f.path.starts_with(HOST))
        .map(|f| f.length)
        .sum();
    let (t, s) = (&m.totals, &m.stall);
    let mut facts = vec![
        ("created", m.created.clone()),
        ("program", m.program.argv.join(" ")),
        (
            "machine",
            format!("{}, Linux {}", m.host.hostname, m.host.kernel),
        ),
    ];
    for device in &m.devices {
        facts.push((
            "device",
            format!("{}, {}", device.name, units::bytes(device.memory)),
        ));
    }
    facts.extend([
        (
            "device memory",
            format!(
                "{} in {} allocations and {} chunks, {} of it new in the store",
                units::bytes(t.device_bytes),
                t.allocations,
                t.chunks,
                units::bytes(t.written_bytes)
            ),
        ),
        (
            "host memory",
            format!(
                "{} of the process, {} shared with the device",
                units::bytes(host),
                units::bytes(t.host_bytes)
            ),
        ),
        ("copied behind it in", units::seconds(s.copying_seconds)),
        (
            "copied aside",
            format!(
                "{}, at most {} at once",
                units::bytes(s.isolated_bytes),
                units::bytes(s.pool_bytes)
            ),
        ),
        (
            "operations that waited",
            format!(
                "{}, {} in all; {} spent on copies before operations",
                s.waits,
                units::seconds(s.waited_seconds),
                units::seconds(s.issuing_seconds)
            ),
        ),
        (
            "not foreseen",
            format!(
                "{} operations may have touched more than was known; {} buffers were overtaken and \
                 taken in a stop",
                s.incomplete, s.overtaken
            ),
        ),
    ]);
    facts.push(("validated by", validated(&m.validation)));
    facts
}

/// By what, and what was found.
pub fn validated(v: &ValidationRecord) -> String {
    let by = match v.by.as_str() {
        "" => "content",
        "off" => "nothing: the image may be wrong",
        by => by,
    };
    let mut text = by.to_owned();
    if v.checked + v.unchecked > 0 {
        text += &format!(
            "; {} launches checked themselves, {} could not; {} unforeseen stores",
            v.checked, v.unchecked, v.violations
        );
    }
    for miss in &v.misses {
        text += &format!(
            "; `{}` stored {} bytes at {}",
            miss.kernel, miss.bytes, miss.address
        );
    }
    if !v.note.is_empty() {
        text += &format!("; {}", v.note);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let step = |name: &str, start: f64, seconds: f64| Phase {
            name: name.into(),
            start,
            seconds,
            bytes: 0,
        };
        Manifest {
            name: "a<b".into(),
            phases: vec![
                step("prepare", 0.0, 0.2),
                step("quiesce", 0.2, 0.01),
                step("host", 0.21, 0.05),
                step("reattach", 0.27, 0.01),
                step("capture", 0.28, 1.0),
            ],
            ..Manifest::default()
        }
    }

    #[test]
    fn a_stop_ends_when_the_program_is_brought_back() {
        let found = stops(&manifest().phases);
        assert_eq!(found.len(), 1);
        assert!((found[0].0 - 0.2).abs() < 1e-9 && (found[0].1 - 0.28).abs() < 1e-9);
        let mut ended = manifest().phases;
        ended.retain(|p| p.name != "reattach");
        assert!((stops(&ended)[0].1 - 1.28).abs() < 1e-9);
    }

    #[test]
    fn the_page_is_whole_and_names_are_no_markup() {
        let page = page(&manifest());
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        assert!(page.ends_with("</html>\n") && page.matches("<rect").count() == 6);
    }

    #[test]
    fn an_image_nobody_vouches_for_says_so() {
        let mut manifest = manifest();
        assert!(page(&manifest).contains("<td>content</td>"));
        manifest.validation.by = "off".into();
        assert!(page(&manifest).contains("the image may be wrong"));
    }

    #[test]
    fn the_trace_has_every_step_with_its_time() {
        let trace: serde_json::Value = serde_json::from_str(&trace(&manifest())).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let capture = events.iter().find(|e| e["name"] == "capture").unwrap();
        assert_eq!(
            (capture["ts"].as_f64(), capture["dur"].as_f64()),
            (Some(280_000.0), Some(1e6))
        );
        assert_eq!(events.iter().filter(|e| e["ph"] == "X").count(), 6);
    }
}
