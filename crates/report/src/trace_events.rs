//! The trace-event format that Chrome's tracing page and Perfetto read ("Trace Event Format", section "JSON Object
//! Format"): a thread for each who does something, counters for what is copied.

use serde_json::{Value, json};

use fermata_store::image::TimelineRecord;

use crate::story::{COPIES, LANES, PROGRAM, Story, lane};

fn row(name: &str) -> usize {
    let found = LANES.iter().position(|(lane, _)| *lane == name);
    found.unwrap_or(0) + 1
}

fn slice(lane: &str, name: &str, kind: &str, from: f64, seconds: f64, args: &Value) -> Value {
    let micros = |seconds: f64| (seconds * 1e6).round();
    json!({
        "ph": "X", "name": name, "cat": kind, "pid": 1, "tid": row(lane),
        "ts": micros(from), "dur": micros(seconds), "args": args,
    })
}

/// When operations waited, and for how long: one wait may last for many spans.
fn waits(line: &TimelineRecord) -> Vec<(f64, f64)> {
    let mut found: Vec<(f64, f64)> = Vec::new();
    for (index, waited) in line.waited.iter().enumerate().filter(|it| *it.1 > 0.0) {
        let from = line.start + line.span * index as f64;
        let full = *waited >= line.span * 0.999;
        match found.last_mut() {
            // It ends somewhere in this span.
            Some((begun, seconds)) if (*begun + *seconds - from).abs() < line.span * 1e-3 => {
                *seconds += waited;
            }
            // It begins somewhere in this one: at its end, if the next is waited through.
            _ if !full && line.waited.get(index + 1).is_some_and(|next| *next > 0.0) => {
                found.push((from + line.span - waited, *waited));
            }
            _ => found.push((from, *waited)),
        }
    }
    found
}

/// Slices and counters of what was copied behind the program.
fn copies(story: &Story) -> Vec<Value> {
    let line = &story.copies;
    let mut events = Vec::new();
    let rate = |bytes: u64| (bytes as f64 / line.span / 1e6).round();
    for index in 0..line.copied.len() {
        let from = line.start + line.span * index as f64;
        let aside = line.aside.get(index).copied().unwrap_or(0);
        let copied = line.copied[index];
        let ts = (from * 1e6).round();
        events.push(json!({
            "ph": "C", "name": "MB/s", "pid": 1, "ts": ts,
            "args": { "copied": rate(copied), "aside": rate(aside) },
        }));
        for (name, bytes) in [("copy", copied), ("copy aside", aside)] {
            if bytes > 0 {
                let args = json!({ "bytes": bytes });
                events.push(slice(COPIES, name, "copy", from, line.span, &args));
            }
        }
    }
    for (from, seconds) in waits(line) {
        events.push(slice(PROGRAM, "waits", "stall", from, seconds, &json!({})));
    }
    if let Some(last) = events.last().and_then(|_| line.copied.len().checked_sub(1)) {
        let ts = ((line.start + line.span * (last + 1) as f64) * 1e6).round();
        let zero = json!({ "copied": 0, "aside": 0 });
        events.push(json!({ "ph": "C", "name": "MB/s", "pid": 1, "ts": ts, "args": zero }));
    }
    events
}

/// The document.
pub fn trace(story: &Story) -> String {
    let mut events = vec![
        json!({ "ph": "M", "name": "process_name", "pid": 1, "args": { "name": story.title } }),
    ];
    for (name, _) in LANES {
        let args = json!({ "name": name });
        let tid = row(name);
        events
            .push(json!({ "ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": args }));
    }
    for stop in &story.stops {
        let time = stop.to - stop.from;
        events.push(slice(
            PROGRAM,
            stop.what,
            "stop",
            stop.from,
            time,
            &json!({}),
        ));
    }
    for p in &story.phases {
        let (who, args) = (lane(&p.name), json!({ "bytes": p.bytes }));
        events.push(slice(who, &p.name, "step", p.start, p.seconds, &args));
    }
    events.extend(copies(story));
    json!({ "traceEvents": events, "displayTimeUnit": "ms" }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::tests::manifest;

    #[test]
    fn program_worker_and_copies_have_their_time() {
        let text = trace(&Story::of_image(&manifest()));
        let trace: Value = serde_json::from_str(&text).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let find = |name: &str| {
            let event = events.iter().find(|e| e["name"] == name).unwrap();
            let number = |key: &str| event[key].as_f64().unwrap();
            (event["tid"].as_u64().unwrap(), number("ts"), number("dur"))
        };
        assert_eq!(find("capture"), (2, 280_000.0, 1e6));
        assert_eq!(find("the program stands still"), (1, 200_000.0, 80_000.0));
        assert_eq!(find("waits"), (1, 520_000.0, 125_000.0));
        assert_eq!(find("copy"), (6, 270_000.0, 250_000.0));
        let counted = events.iter().filter(|e| e["ph"] == "C");
        let rates: Vec<_> = counted.map(|e| e["args"]["copied"].as_f64()).collect();
        assert_eq!(rates, [4.0, 0.0, 8.0, 4.0, 0.0].map(Some));
    }

    #[test]
    fn a_wait_through_many_spans_is_one() {
        let line = TimelineRecord {
            start: 1.0,
            span: 0.5,
            waited: vec![0.0, 0.25, 0.5, 0.125, 0.0, 0.5],
            ..TimelineRecord::default()
        };
        assert_eq!(waits(&line), [(1.75, 0.875), (3.5, 0.5)]);
    }
}
