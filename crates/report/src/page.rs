//! The page: one document with its drawing and its tables, which loads nothing.

use fermata_control::user::{ArrivalStand, Session};
use fermata_store::image::{Manifest, ValidationRecord};

use crate::breakdown::{Row, moved};
use crate::story::{COPIES, LANES, PROGRAM, Story, lane};
use crate::svg::escaped;
use crate::units;

const WIDTH: f64 = 860.0;
const LEFT: f64 = 80.0;
const ROW: f64 = 34.0;
const TOP: f64 = 26.0;

type Facts = Vec<(&'static str, String)>;

/// How an image was taken.
pub fn of_image(manifest: &Manifest, story: &Story) -> String {
    let sentence = format!(
        "Session <b>{}</b>, taken with <b>{}</b>; the program stood still for <b>{}</b> of <b>{}</b>.",
        escaped(&manifest.session),
        escaped(&manifest.mode),
        units::seconds(manifest.totals.stopped_seconds),
        units::seconds(manifest.totals.seconds),
    );
    page(&manifest.name, &sentence, story, ("Image", facts(manifest)))
}

/// How a session was restored.
pub fn of_session(session: &Session, story: &Story) -> String {
    let runs = story.stops.first().map_or(0.0, |stop| stop.to);
    let sentence = format!("It ran after <b>{}</b>.", units::seconds(runs));
    let image = session.image.as_deref().unwrap_or("".as_ref()).display();
    let data = match &session.arrival {
        None => "everything was there before it ran".to_owned(),
        Some(it) => {
            let stand = match it.stand {
                ArrivalStand::Coming => "it is coming",
                ArrivalStand::Complete => "everything is there",
                ArrivalStand::RollingBack => "it is being rolled back",
                ArrivalStand::RolledBack => "it was rolled back",
            };
            let (done, total) = (units::bytes(it.done), units::bytes(it.total));
            format!("{done} of {total} in the background: {stand}")
        }
    };
    let mut facts = vec![
        ("image", image.to_string()),
        ("program", session.argv.join(" ")),
        ("data", data),
    ];
    let misses = session.arrival.iter().flat_map(|it| &it.misses);
    facts.extend(misses.map(|miss| {
        let text = format!(
            "`{}`: {} bytes at {:#x}, buffer {}",
            miss.kernel, miss.bytes, miss.address, miss.buffer
        );
        ("used too early", text)
    }));
    facts.extend(session.note.iter().map(|note| ("note", note.clone())));
    page(&session.name, &sentence, story, ("Session", facts))
}

fn page(name: &str, sentence: &str, story: &Story, (kind, facts): (&str, Facts)) -> String {
    let facts: String = facts
        .into_iter()
        .map(|(name, value)| format!("<tr><th>{name}</th><td>{}</td></tr>\n", escaped(&value)))
        .collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{name}</title>\n<style>\n\
         body {{ font: 15px/1.45 sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222 }}\n\
         table {{ border-collapse: collapse }} th, td {{ text-align: left; padding: .15em .9em .15em 0 }}\n\
         th {{ font-weight: 600 }} svg {{ width: 100%; height: auto }}\n</style></head><body>\n\
         <h1>{name}</h1>\n<p>{sentence}</p>\n{drawing}\n\
         <h2>What the time went into</h2>\n<table><tr><th>what</th><th>the program</th><th>took</th>\
         <th>moved</th><th>rate</th></tr>\n{rows}</table>\n\
         <h2>Steps</h2>\n<table><tr><th>step</th><th>by</th>\
         <th>began after</th><th>took</th><th>moved</th><th>rate</th></tr>\n{steps}</table>\n\
         <h2>{kind}</h2>\n<table>\n{facts}</table>\n</body></html>\n",
        name = escaped(name),
        rows = rows(story),
        steps = steps(story),
        drawing = drawing(story),
    )
}

fn rows(story: &Story) -> String {
    let row = |row: &Row| {
        let [bytes, rate] = moved(row.bytes, row.seconds);
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{bytes}</td><td>{rate}</td></tr>\n",
            escaped(&row.what),
            row.when.name(),
            row.time(),
        )
    };
    story.rows.iter().map(row).collect()
}

fn steps(story: &Story) -> String {
    let step = |p: &fermata_store::image::Phase| {
        let [bytes, rate] = moved(p.bytes, p.seconds);
        format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{bytes}</td><td>{rate}</td></tr>\n",
            escaped(&p.name),
            lane(&p.name),
            units::seconds(p.start),
            units::seconds(p.seconds),
        )
    };
    story.phases.iter().map(step).collect()
}

/// A bar with what it says when it is pointed at.
fn bar(x: f64, y: f64, (width, height): (f64, f64), fill: &str, title: &str) -> String {
    format!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" {fill}><title>{}</title></rect>\n",
        escaped(title)
    )
}

/// Rows of bars over a common axis; the stops are shaded.
fn drawing(story: &Story) -> String {
    let all = ROW * LANES.len() as f64;
    let height = TOP + all + 30.0;
    let end = story.end();
    let at = |seconds: f64| LEFT + seconds / end * (WIDTH - LEFT - 10.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n"
    );
    for stop in &story.stops {
        let (x, time) = (at(stop.from), units::seconds(stop.to - stop.from));
        let width = (at(stop.to) - x).max(1.0);
        let title = format!("{}: {time}", stop.what);
        out += &bar(x, TOP, (width, all), "fill=\"#eee\"", &title);
        out += &format!("<text x=\"{x:.1}\" y=\"18\" fill=\"#555\">stopped {time}</text>\n");
    }
    for (row, (name, colour)) in LANES.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        out += &format!("<text x=\"4\" y=\"{:.1}\">{name}</text>\n", y + 21.0);
        let fill = format!("fill=\"{colour}\"");
        for p in story.phases.iter().filter(|p| lane(&p.name) == *name) {
            let x = at(p.start);
            let width = (at(p.start + p.seconds) - x).max(1.5);
            let title = format!("{}: {}", p.name, units::seconds(p.seconds));
            out += &bar(x, y + 6.0, (width, ROW - 12.0), &fill, &title);
            if width > 9.0 * p.name.len() as f64 {
                out += &format!(
                    "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"white\">{}</text>\n",
                    x + 5.0,
                    y + 21.0,
                    escaped(&p.name)
                );
            }
        }
        match *name {
            COPIES => out += &copies(story, &at, y),
            PROGRAM => out += &waits(story, &at, y),
            _ => {}
        }
    }
    let y = TOP + all;
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

/// What was copied behind the program: the higher the faster; what was put aside lies before it.
fn copies(story: &Story, at: &dyn Fn(f64) -> f64, y: f64) -> String {
    let line = &story.copies;
    let most = line.copied.iter().chain(&line.aside).max();
    let most = most.copied().unwrap_or(0).max(1) as f64;
    let mut out = String::new();
    for (name, bytes, colour) in [
        ("copied", &line.copied, "#e69f00"),
        ("put aside", &line.aside, "#999933"),
    ] {
        for (index, bytes) in bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0) {
            let from = line.start + line.span * index as f64;
            let width = (at(from + line.span) - at(from)).max(0.5);
            let height = (*bytes as f64 / most * (ROW - 8.0)).max(1.0);
            let rate = units::bytes((*bytes as f64 / line.span) as u64);
            let title = format!("{name}: {}, {rate}/s", units::bytes(*bytes));
            let fill = format!("fill=\"{colour}\"");
            out += &bar(
                at(from),
                y + ROW - 4.0 - height,
                (width, height),
                &fill,
                &title,
            );
        }
    }
    out
}

/// When operations of the program waited for copies: the stronger the longer.
fn waits(story: &Story, at: &dyn Fn(f64) -> f64, y: f64) -> String {
    let line = &story.copies;
    let waited = line.waited.iter().enumerate().filter(|it| *it.1 > 0.0);
    let bars = waited.map(|(index, seconds)| {
        let from = line.start + line.span * index as f64;
        let width = (at(from + line.span) - at(from)).max(1.0);
        let strength = (seconds / line.span).clamp(0.15, 1.0);
        let fill = format!("fill=\"#882255\" opacity=\"{strength:.2}\"");
        let title = format!("waited for copies: {}", units::seconds(*seconds));
        bar(at(from), y + 6.0, (width, ROW - 12.0), &fill, &title)
    });
    bars.collect()
}

fn facts(m: &Manifest) -> Facts {
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
                "{} in {} allocations",
                units::bytes(t.device_bytes),
                t.allocations
            ),
        ),
        (
            "in the store",
            format!(
                "{} chunks, {} of it new",
                t.chunks,
                units::bytes(t.written_bytes)
            ),
        ),
        (
            "host memory",
            format!(
                "{} of the process, {} shared with the device",
                units::bytes(m.host_bytes()),
                units::bytes(t.host_bytes)
            ),
        ),
        (
            "copied in the background in",
            units::seconds(s.copying_seconds),
        ),
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
    use crate::story::tests::manifest;

    #[test]
    fn the_page_is_whole_and_names_are_no_markup() {
        let manifest = manifest();
        let page = of_image(&manifest, &Story::of_image(&manifest));
        assert!(page.contains("a&lt;b") && !page.contains("a<b"));
        // A stop, seven steps, three spans with copies, one with what was put aside, one with a wait.
        assert!(page.ends_with("</html>\n") && page.matches("<rect").count() == 13);
        assert!(page.contains("What the time went into") && page.contains("<td>hash</td>"));
    }

    #[test]
    fn the_page_loads_nothing() {
        let manifest = manifest();
        let page = of_image(&manifest, &Story::of_image(&manifest));
        let other = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http", "<script", "<link", "<img", "url(", "@import"] {
            assert!(!other.contains(word), "{word}");
        }
    }

    #[test]
    fn an_image_that_was_not_validated_says_so() {
        let mut manifest = manifest();
        let page = |manifest: &Manifest| of_image(manifest, &Story::of_image(manifest));
        assert!(page(&manifest).contains("<td>content</td>"));
        manifest.validation.by = "off".into();
        assert!(page(&manifest).contains("the image may be wrong"));
    }
}
