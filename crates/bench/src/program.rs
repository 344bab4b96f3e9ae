//! The program that is measured, and the log of its steps.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fermata_control::Paths;

use crate::error::BenchError;
use crate::findings::median;
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// The share of memory that Fermata's own program keeps hot.
pub const HOT: f64 = 0.1;
/// How long the first steps may take to come, and to become even.
const SETTLE: Duration = Duration::from_secs(120);
/// The latest steps that are looked at: so many, but no more than fit into this many microseconds, and some.
const STEPS: usize = 40;
const SPAN: f64 = 1e6;
const FEW: usize = 5;

/// A step: begin and end in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    pub begin: f64,
    pub end: f64,
}

impl Step {
    /// Microseconds.
    pub fn length(&self) -> f64 {
        self.end - self.begin
    }
}

/// Microseconds since 1970.
pub fn now() -> f64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.unwrap_or_default().as_secs_f64() * 1e6
}

/// One program with the files it shares with the bench.
pub struct Program {
    /// Its command line.
    pub words: Vec<OsString>,
    log: PathBuf,
    until: PathBuf,
}

impl Program {
    /// `hot` of the installation, with these `options`, or what the user has named.
    pub fn hot(
        settings: &Settings,
        sandbox: &Sandbox,
        options: &[&str],
    ) -> Result<Self, BenchError> {
        let bytes = settings.bytes;
        let gib = (bytes as f64 / f64::from(1 << 30)).to_string();
        let buffers = if bytes >= 8 << 30 { "400" } else { "40" };
        let fixed = ["--gib", &gib, "--buffers", buffers];
        Self::new("hot", settings, sandbox, &[&fixed[..], options].concat())
    }

    /// Program `name` of the installation, with these `options`, or what the user has named.
    pub fn new(
        name: &str,
        settings: &Settings,
        sandbox: &Sandbox,
        options: &[&str],
    ) -> Result<Self, BenchError> {
        let (log, until) = (sandbox.file("steps"), sandbox.file("until"));
        let words = match settings.command.as_slice() {
            [] => {
                let path = Paths::find().home.join("bench").join(name);
                if !path.is_file() {
                    let message = format!("there is no program `{}`", path.display());
                    let hint = "run `make programs`, or name a program of your own after `--`";
                    return Err(BenchError::Program { message, hint });
                }
                let mut words = vec![path.into_os_string()];
                words.extend(options.iter().map(OsString::from));
                words.extend(["--until".into(), until.clone().into_os_string()]);
                words.extend(["--log".into(), log.clone().into_os_string()]);
                words
            }
            own => own.to_vec(),
        };
        Ok(Self { words, log, until })
    }

    /// Another program that shares the same files.
    pub fn with_words(&self, words: Vec<OsString>) -> Self {
        Self {
            words,
            log: self.log.clone(),
            until: self.until.clone(),
        }
    }

    /// Starts it as session `name`, and waits until its steps are even: then what Fermata makes ready
    /// behind it is ready.
    pub fn start(&self, sandbox: &Sandbox, name: &str) -> Result<(), BenchError> {
        self.clean();
        sandbox.start(name, &self.words, &self.variables())?;
        self.settle(sandbox)
    }

    /// What tells a program where its files are.
    pub fn variables(&self) -> [(&'static str, &Path); 2] {
        [
            ("FERMATA_BENCH_STEPS", &self.log),
            ("FERMATA_BENCH_UNTIL", &self.until),
        ]
    }

    /// Removes what an earlier run has left.
    pub fn clean(&self) {
        for path in [&self.log, &self.until] {
            // Fails when there is none, which is as good.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Waits until the latest steps are even.
    pub fn settle(&self, sandbox: &Sandbox) -> Result<(), BenchError> {
        sandbox.wait(SETTLE, "the program's steps have not become even", || {
            sandbox.pause(Duration::from_millis(50))?;
            Ok(is_even(&self.steps()))
        })
    }

    /// Its steps so far.
    pub fn steps(&self) -> Vec<Step> {
        parse(&std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Lets it end, or begin.
    pub fn release(&self) -> Result<(), BenchError> {
        std::fs::write(&self.until, b"")
            .map_err(BenchError::io(format!("write `{}`", self.until.display())))
    }
}

/// Whether four of five of the latest steps take about as long as the median one.
fn is_even(steps: &[Step]) -> bool {
    let Some(last) = steps.last() else {
        return false;
    };
    let recent = steps.iter().rev().take(STEPS);
    let fit = recent
        .take_while(|step| last.end - step.begin <= SPAN)
        .count();
    let count = fit.max(FEW);
    let enough = fit == STEPS || steps.len() > count;
    let mut latest: Vec<f64> = steps.iter().rev().take(count).map(Step::length).collect();
    latest.sort_by(f64::total_cmp);
    enough && latest[count * 8 / 10] < 1.5 * latest[count / 2]
}

/// Whole lines that begin with two numbers; the last may be under way.
fn parse(text: &str) -> Vec<Step> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let step = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        Some(Step {
            begin: fields.next()?.parse().ok()?,
            end: fields.next()?.parse().ok()?,
        })
    };
    whole.lines().filter_map(step).collect()
}

/// What a program's steps say about a span of time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// Microseconds of a step before.
    pub usual: f64,
    /// Microseconds of the median step meanwhile, without those that a stop is in.
    pub meanwhile: f64,
    /// Microseconds of all steps meanwhile above the usual: stops, waits and slower work together.
    pub lost: f64,
    /// Microseconds of the longest.
    pub longest: f64,
}

/// What the steps between `begin` and `end` say, microseconds since 1970, or the next one where the program paused
/// for all of it; none if there are none.
pub fn seen(steps: &[Step], begin: f64, end: f64) -> Option<Seen> {
    let before: Vec<f64> = steps
        .iter()
        .filter(|step| step.end < begin)
        .map(Step::length)
        .collect();
    let usual = median(&before[before.len().saturating_sub(100)..])?;
    let after = steps.iter().filter(|step| step.end >= begin);
    let until = after.clone().next().map_or(end, |it| end.max(it.begin));
    let meanwhile: Vec<f64> = after
        .filter(|step| step.begin <= until)
        .map(Step::length)
        .collect();
    Some(Seen {
        usual,
        meanwhile: median(&meanwhile)?,
        lost: meanwhile.iter().map(|step| (step - usual).max(0.0)).sum(),
        longest: meanwhile.iter().copied().fold(0.0, f64::max),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_steps_are_even_after_a_few() {
        let steps = |lengths: &[f64]| -> Vec<Step> {
            let mut at = 0.0;
            let mut next = |length: &f64| {
                at += length;
                Step {
                    begin: at - length,
                    end: at,
                }
            };
            lengths.iter().map(&mut next).collect()
        };
        assert!(!is_even(&[]));
        assert!(!is_even(&steps(&[4e5; 5])));
        assert!(is_even(&steps(&[4e5; 6])));
        assert!(!is_even(&steps(&[1e3; 39])));
        assert!(is_even(&steps(&[1e3; 40])));
        assert!(!is_even(&steps(&[4e5, 4e5, 4e5, 4e5, 9e5, 9e5])));
    }

    #[test]
    fn steps_above_the_usual_are_lost_time() {
        let text = "0 10\n20 30 7 8\n40 50\n60 95\n100 110\n120 1";
        let steps = parse(text);
        assert_eq!(steps.len(), 5, "the last line is not whole");
        let seen = seen(&steps, 70.0, 105.0).expect("steps meanwhile");
        assert_eq!((seen.usual, seen.lost, seen.longest), (10.0, 25.0, 35.0));
        let paused = super::seen(&steps, 52.0, 55.0).expect("the next step");
        assert_eq!((paused.usual, paused.lost), (10.0, 25.0));
        assert_eq!(super::seen(&steps, 200.0, 300.0), None);
    }
}
