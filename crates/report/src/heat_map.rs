//! The heat map of a trace: buffer by time, reads and writes (PhoenixOS, figure 21).

use std::fmt::Write;

use fermata_control::trace::{Buffer, Trace};

use crate::units::bytes;

const LEFT: f64 = 190.0;
const TOP: f64 = 44.0;
const MAP: f64 = 800.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 40.0;
/// Rows are between these, so that few do not look lost and many stay on a page.
const ROW: std::ops::RangeInclusive<f64> = 2.0..=14.0;
const PAGE: f64 = 900.0;
/// Read, written, both: apart for colour-blind readers and in print.
const COLOURS: [(&str, &str); 3] = [
    ("read", "#0072b2"),
    ("written", "#d55e00"),
    ("both", "#7b3294"),
];

fn at(counts: &[u32], column: usize) -> u32 {
    counts.get(column).copied().unwrap_or(0)
}

fn columns(trace: &Trace) -> usize {
    let length = |b: &Buffer| b.reads.len().max(b.writes.len());
    trace.buffers.iter().map(length).max().unwrap_or(0)
}

/// One line for each buffer and column in which it was touched.
pub fn csv(trace: &Trace) -> String {
    let mut out = String::from("buffer,kind,address,bytes,seconds,reads,writes\n");
    for (index, buffer) in trace.buffers.iter().enumerate() {
        for column in 0..buffer.reads.len().max(buffer.writes.len()) {
            let (reads, writes) = (at(&buffer.reads, column), at(&buffer.writes, column));
            if reads + writes == 0 {
                continue;
            }
            let time = column as f64 * trace.bin_seconds;
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{index},{},{:#x},{},{time:.6},{reads},{writes}",
                buffer.kind, buffer.address, buffer.bytes
            );
        }
    }
    out
}

/// A cell's colour and how strong it is: 0 nothing, then in steps, so that neighbours can be joined.
fn cell(reads: u32, writes: u32, most: u32) -> (usize, u32) {
    let which = match (reads, writes) {
        (0, 0) => return (0, 0),
        (_, 0) => 0,
        (0, _) => 1,
        _ => 2,
    };
    let share = f64::from((reads + writes).max(1)).ln_1p() / f64::from(most.max(1)).ln_1p();
    (which, 1 + (share * 3.0).round() as u32)
}

/// A self-contained drawing.
pub fn svg(trace: &Trace) -> String {
    let columns = columns(trace).max(1);
    let rows = trace.buffers.len().max(1) as f64;
    let row = (PAGE / rows).clamp(*ROW.start(), *ROW.end());
    let (width, height) = (LEFT + MAP + RIGHT, TOP + rows * row + BOTTOM);
    let column = MAP / columns as f64;
    let most = trace
        .buffers
        .iter()
        .flat_map(|b| b.reads.iter().chain(&b.writes))
        .max();
    let most = most.copied().unwrap_or(1);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.0}\" font-family=\"sans-serif\" font-size=\"10\">\n\
         <rect width=\"{width}\" height=\"{height:.0}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">Buffers read and written over time</text>\n"
    );
    for (index, (name, colour)) in COLOURS.iter().enumerate() {
        let x = LEFT + 80.0 * index as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{colour}\"/><text x=\"{}\" y=\"35\">{name}</text>",
            x + 14.0
        );
    }
    let every = (12.0 / row).ceil() as usize;
    for (index, buffer) in trace.buffers.iter().enumerate() {
        let y = TOP + index as f64 * row;
        if index.is_multiple_of(every) {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} {:#x}, {}</text>",
                LEFT - 6.0,
                y + row.min(10.0),
                buffer.kind,
                buffer.address,
                bytes(buffer.bytes)
            );
        }
        let mut from = 0;
        while from < columns {
            let kind = |c: usize| cell(at(&buffer.reads, c), at(&buffer.writes, c), most);
            let (which, strength) = kind(from);
            let same = (from..columns).take_while(|c| kind(*c) == (which, strength));
            let count = same.count();
            if strength > 0 {
                let _ = writeln!(
                    out,
                    "<rect x=\"{:.2}\" y=\"{y:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{}\" opacity=\"{:.2}\"/>",
                    LEFT + from as f64 * column,
                    count as f64 * column,
                    row * 0.9,
                    COLOURS[which].1,
                    0.25 * f64::from(strength)
                );
            }
            from += count;
        }
    }
    let below = TOP + rows * row;
    for tick in 0..=4 {
        let part = f64::from(tick) / 4.0;
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.3}</text>",
            LEFT + part * MAP,
            below + 14.0,
            part * columns as f64 * trace.bin_seconds
        );
    }
    let _ = writeln!(
        out,
        "<path d=\"M{LEFT} {TOP}V{below:.1}H{}\" fill=\"none\" stroke=\"black\"/>\n\
         <text x=\"{}\" y=\"{:.1}\" text-anchor=\"middle\">seconds</text>\n</svg>",
        LEFT + MAP,
        LEFT + MAP / 2.0,
        below + 30.0
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace() -> Trace {
        let buffer = |address, reads: &[u32], writes: &[u32]| Buffer {
            kind: "allocation".to_owned(),
            address,
            bytes: 4096,
            reads: reads.to_vec(),
            writes: writes.to_vec(),
        };
        Trace {
            bin_seconds: 0.5,
            buffers: vec![
                buffer(0x1000, &[1, 1, 0, 9], &[]),
                buffer(0x2000, &[0, 2], &[0, 1, 1]),
            ],
            ..Trace::default()
        }
    }

    #[test]
    fn only_touched_columns_are_in_the_table() {
        let text = csv(&trace());
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[2], "0,allocation,0x1000,4096,1.500000,9,0");
        assert_eq!(lines[4], "1,allocation,0x2000,4096,1.000000,0,1");
    }

    #[test]
    fn equal_neighbours_are_one_rectangle() {
        let text = svg(&trace());
        // Two frames of the legend more, and the background.
        assert_eq!(text.matches("opacity").count(), 4);
        assert!(text.contains(COLOURS[2].1) && text.ends_with("</svg>\n"));
    }

    #[test]
    fn an_empty_trace_can_be_drawn() {
        assert!(svg(&Trace::default()).contains("</svg>"));
    }
}
