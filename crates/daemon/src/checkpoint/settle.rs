//! Waits, before a program is stopped, until the devices have completed the work that they were given.
//!
//! ```text
//!  all streams of all processes held ─┬─ devices idle ─► the rings are taken whole, the program parked
//!         ▲                           └─ not soon: what they are at is named; those streams stay held, the others go on
//!         └──────────────── that has ended ◄──┘
//! ```
//! The program runs meanwhile. Operations that it issues are queued in the workers, and are part of the image.
//!
//! A kernel may be waiting for another kernel that is held, of its own or another process: a collective ends when every rank
//! has entered it. So the other streams go on. But a rank must not enter the next collective meanwhile, where it would wait
//! for ranks that are held. [`Patience`] decides how far the other streams may go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_control::settings;
use fermata_control::user::{WAITING, Waited};
use fermata_control::worker::{
    FailureKind, FromWorker, Hold, Holding, Meeting, StreamWork, ToWorker,
};

use super::halt::{Halt, workers_of};
use super::settled::Settled;
use crate::failure::{Failure, Hint, Result, fail};
use crate::parallel::{all_at_once, each_at_once};
use crate::progress::Report;
use crate::session::Served;
use crate::worker::{STEP_TIME, Worker, unexpected};

/// How long all streams are held without one of them becoming idle. Work that the devices have been given usually takes half
/// of this. Later rounds hold the streams longer ([`Patience::soon`]).
const SOON: Duration = Duration::from_millis(20);
/// How long they are held at most: many streams may become idle one after the other.
const HELD: Duration = Duration::from_millis(200);
/// How long streams whose work has ended stay held while others work, in the first round; each next round doubles it.
const ENDED: Duration = Duration::from_secs(5);
/// The most seconds to wait for the devices, unless [`LONGEST_SETTING`] is set: the program runs meanwhile.
const LONGEST: u64 = 300;
const LONGEST_SETTING: &str = "FERMATA_DEVICE_WAIT";
/// The time between two looks: while all streams are held, while they go on by steps, and while they go on freely.
const TURN_HELD: Duration = Duration::from_micros(500);
const TURN_STEPS: Duration = Duration::from_micros(200);
const TURN_FREE: Duration = Duration::from_millis(5);
/// How often the user is told what is waited for.
const SAYING: Duration = Duration::from_secs(2);

/// The work that a stream of a process is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Work {
    /// The index of its worker.
    worker: usize,
    on: StreamWork,
}

impl Work {
    fn in_words(&self, served: &[Served]) -> String {
        let StreamWork { what, stream, .. } = &self.on;
        let stream = match stream {
            1 => "the default stream".to_owned(),
            stream => format!("stream {stream:#x}"),
        };
        match served {
            [_] => format!("{what} on {stream}"),
            several => {
                let pid = several[self.worker].agent.process.pid;
                format!("{what} on {stream} of process {pid}")
            }
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        let which = |it: &Self| (it.worker, it.on.stream, it.on.count);
        which(self) == which(other)
    }
}

/// How far the other streams may go while some do work that takes long.
#[derive(Debug, Default)]
struct Patience {
    rounds: u32,
    /// Whether a collective was waited for in the last round.
    collective: bool,
}

impl Patience {
    /// Rounds in which the others go on freely: most long kernels do not wait for another kernel.
    const FREELY: u32 = 3;
    /// Rounds in which they go on from one collective to the next, if a collective is waited for. Later rounds go from kernel
    /// to kernel, because other kernels, such as a program's own reductions over peer memory, wait for each other, too.
    const BY_COLLECTIVES: u32 = 24;
    /// Each round holds all streams four times as long as the last, but at most this many times: 20 s.
    const LONGER: u32 = 5;

    /// How streams are held in the next round, which waits for `long`.
    fn next(&mut self, long: &[Work]) -> Hold {
        self.rounds += 1;
        let collective = long.iter().any(|it| it.on.collective);
        self.collective = collective;
        match self.rounds {
            round if collective && round <= Self::BY_COLLECTIVES => {
                Hold::Step(Meeting::Collectives)
            }
            round if !collective && round <= Self::FREELY => Hold::Busy,
            _ => Hold::Step(Meeting::Kernels),
        }
    }

    /// How long all streams are held next without one of them becoming idle.
    ///
    /// Streams with long kernels that wait for nothing may take turns: whenever one ends, another has begun. They are idle
    /// together only if all are held for as long as a kernel takes. Holding collectives longer does not help.
    fn soon(&self) -> Duration {
        let times = match self.collective {
            true => 0,
            false => self.rounds.saturating_sub(1).min(Self::LONGER),
        };
        SOON.saturating_mul(1 << (2 * times))
    }
}

/// How streams go on in one round.
#[derive(Debug)]
struct Round {
    how: Hold,
    /// The work that is waited for and has not ended.
    long: Vec<Work>,
    /// When a part of that work last ended.
    ended: Option<Instant>,
    /// How long after that the rest may go on.
    grace: Duration,
    /// The work that the last look has found.
    last: Option<Vec<Work>>,
}

impl Round {
    /// The `count`th round, which waits for `long`.
    fn new(how: Hold, count: u32, long: Vec<Work>) -> Self {
        Self {
            how,
            long,
            ended: None,
            grace: ENDED.saturating_mul(1 << count.saturating_sub(1).min(5)),
            last: None,
        }
    }

    /// Whether a look at `at` that found `now` is the last one of this round: the work that is waited for has ended; or a part
    /// of it has, and the rest may be waiting for a stream that is held since then.
    ///
    /// A stream that had work when the round began stays held when that has ended. Without this rule, if one rank's kernel waits
    /// for the next launch of another rank, which is busy with long work, neither goes on until the time limit.
    fn is_over(&mut self, now: &[Work], at: Instant) -> bool {
        let before = self.long.len();
        self.long
            .retain(|it| now.iter().any(|work| work.is_same(it)));
        if self.long.len() < before {
            self.ended = Some(at);
        }
        let steps = matches!(self.how, Hold::Step(_));
        let late = |ended| at.saturating_duration_since(ended) >= self.grace;
        self.long.is_empty() || (!steps && self.ended.is_some_and(late))
    }

    /// What to ask the workers next.
    ///
    /// Streams that go on by steps are let on only if two looks find the same. The look that finds the end of the work that is
    /// waited for must let none on: one rank would enter the next collective, and another, which was asked a moment before,
    /// would be held in front of it. Ranks that wait for the end of each step met like this round after round, once for a minute.
    fn next(&mut self, now: Vec<Work>) -> Hold {
        let moved = self.last.as_ref() != Some(&now);
        self.last = Some(now);
        match self.how {
            Hold::Step(_) if moved => Hold::Same,
            how => how,
        }
    }

    fn turn(&self) -> Duration {
        match self.how {
            Hold::Step(_) => TURN_STEPS,
            _ => TURN_FREE,
        }
    }
}

impl Halt<'_> {
    /// Holds all streams of all processes and waits until the devices are idle.
    ///
    /// # Errors
    /// `NotCheckpointable` after [`longest`], naming the work that the devices are doing; a worker does not answer. No stream
    /// is held then.
    pub(super) fn settle(
        &self,
        served: &[Served],
        meanwhile: &mut dyn FnMut(),
        report: &mut Report<'_>,
    ) -> Result<Settled> {
        self.wait_for_devices(served, meanwhile, report)
            .inspect_err(|_| self.let_on(served))
    }

    /// Stops holding streams, so that the devices get work again.
    pub(super) fn let_on(&self, served: &[Served]) {
        // A lost worker holds no streams.
        let off = |worker: Arc<Worker>| ask(&worker, Hold::Off);
        let _ = each_at_once(workers_of(served), "let on", off);
    }

    fn wait_for_devices(
        &self,
        served: &[Served],
        meanwhile: &mut dyn FnMut(),
        report: &mut Report<'_>,
    ) -> Result<Settled> {
        let workers = workers_of(served);
        let longest = longest()?;
        let begun = Instant::now();
        let mut said: Option<Instant> = None;
        let mut waited: Option<Work> = None;
        let mut patience = Patience::default();
        let arrived = self.session.arrived();
        loop {
            let since = Instant::now();
            let left = longest.saturating_sub(begun.elapsed());
            if become_idle(&workers, patience.soon().min(left.max(SOON)))? {
                ask_all(&workers, Hold::Closing)?;
                let waited = waited.map(|work| Waited {
                    what: work.in_words(served),
                    seconds: begun.elapsed().as_secs_f64(),
                });
                return Ok(Settled { since, waited });
            }
            let long = busy(&workers, Hold::All)?;
            waited = waited.or_else(|| first_named(&long).cloned());
            let how = patience.next(&long);
            let mut round = Round::new(how, patience.rounds, long);
            let mut ask = how;
            let mut looked = Instant::now();
            loop {
                let now = busy(&workers, ask)?;
                let is_over = round.is_over(&now, Instant::now());
                let Some(work) = first_named(&now).filter(|_| !is_over) else {
                    break;
                };
                let so_far = begun.elapsed();
                if so_far >= longest {
                    return Err(too_long(work, served, so_far));
                }
                // The work may be waiting for a new process, which gets its worker only when this stop is over.
                if self.session.arrived() != arrived && so_far >= SAYING {
                    let message = "the program cannot be stopped now: another of its processes begins to use CUDA";
                    return Err(fail(FailureKind::Locked, message).hint("try again"));
                }
                if said.is_none_or(|it| it.elapsed() >= SAYING) {
                    said = Some(Instant::now());
                    let phase = format!("{WAITING} for {}", work.in_words(served));
                    report(&phase, so_far.as_secs(), longest.as_secs());
                }
                workers[work.worker].pause(round.turn());
                ask = round.next(now);
                if looked.elapsed() >= TURN_FREE {
                    looked = Instant::now();
                    // The program runs, and writes its memory.
                    meanwhile();
                }
            }
            if begun.elapsed() >= longest {
                let message = "the program cannot be stopped now: its devices do not come to an end of their work";
                return Err(fail(FailureKind::NotCheckpointable, message).hint("try again later"));
            }
        }
    }
}

/// How long to wait for the devices at most.
fn longest() -> Result<Duration> {
    let asked = settings::number(LONGEST_SETTING);
    let asked = asked.map_err(|it| fail(FailureKind::User, it.to_string()))?;
    Ok(Duration::from_secs(asked.unwrap_or(LONGEST)))
}

/// Holds all streams; returns whether all devices become idle, with no more than `soon` between two streams' ends.
fn become_idle(workers: &[Arc<Worker>], soon: Duration) -> Result<bool> {
    let begun = Instant::now();
    let held = HELD.max(2 * soon);
    let (mut last, mut moved) = (usize::MAX, begun);
    loop {
        let holding = ask_all(workers, Hold::All)?;
        let Some(late) = holding.iter().position(|it| !it.idle) else {
            return Ok(true);
        };
        let left = holding.iter().map(|it| it.busy.len()).sum();
        if left < last {
            (last, moved) = (left, Instant::now());
        }
        if moved.elapsed() >= soon || begun.elapsed() >= held {
            return Ok(false);
        }
        workers[late].pause(TURN_HELD);
    }
}

/// Holds streams as `how` says, and returns the work of those that have some.
fn busy(workers: &[Arc<Worker>], how: Hold) -> Result<Vec<Work>> {
    let holding = ask_all(workers, how)?;
    let each = holding.into_iter().enumerate();
    let works =
        each.flat_map(|(worker, it)| it.busy.into_iter().map(move |on| Work { worker, on }));
    Ok(works.collect())
}

/// The work that users are told of: a collective, else work that waits for nothing; the rest may be waiting for it.
fn first_named(works: &[Work]) -> Option<&Work> {
    works
        .iter()
        .min_by_key(|it| (!it.on.collective, it.on.waits))
}

fn too_long(work: &Work, served: &[Served], so_far: Duration) -> Failure {
    let message = format!(
        "the program cannot be stopped now: {} has not ended in {} s",
        work.in_words(served),
        so_far.as_secs()
    );
    let hint = match work.on.collective {
        true => {
            "a collective ends when every rank has entered it: look for a rank that has not, and try again then"
        }
        false => "try again when it has ended",
    };
    let hint = format!("{hint}; `{LONGEST_SETTING}` says how long is waited");
    fail(FailureKind::NotCheckpointable, message).hint(hint)
}

fn ask_all(workers: &[Arc<Worker>], hold: Hold) -> Result<Vec<Holding>> {
    all_at_once(workers.to_vec(), "settle", |it: Arc<Worker>| ask(&it, hold))
}

fn ask(worker: &Worker, hold: Hold) -> Result<Holding> {
    match worker.request(&ToWorker::Hold(hold), &[], STEP_TIME, &mut |_, _| {})? {
        FromWorker::Holding(holding) => Ok(holding),
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(worker: usize, count: u64, collective: bool) -> Work {
        let on = StreamWork {
            what: "kernel `k`".into(),
            stream: 1,
            count,
            collective,
            waits: false,
        };
        Work { worker, on }
    }

    #[test]
    fn what_waits_for_others_lets_them_go_on_by_steps() {
        let mut patience = Patience::default();
        for _ in 0..Patience::FREELY {
            assert_eq!(patience.next(&[work(0, 1, false)]), Hold::Busy);
        }
        assert_eq!(
            patience.next(&[work(0, 1, false)]),
            Hold::Step(Meeting::Kernels)
        );
        let mut patience = Patience::default();
        let long = [work(0, 1, false), work(1, 1, true)];
        for _ in 0..Patience::BY_COLLECTIVES {
            assert_eq!(patience.next(&long), Hold::Step(Meeting::Collectives));
        }
        assert_eq!(patience.next(&long), Hold::Step(Meeting::Kernels));
    }

    #[test]
    fn kernels_that_take_turns_are_held_longer_and_longer() {
        let mut patience = Patience::default();
        let mut holds = Vec::new();
        for _ in 0..20 {
            patience.next(&[work(0, 1, false)]);
            holds.push(patience.soon());
        }
        assert_eq!(holds[..3], [SOON, 4 * SOON, 16 * SOON]);
        assert_eq!(holds[19], 1024 * SOON);
        patience.next(&[work(0, 1, true)]);
        assert_eq!(patience.soon(), SOON);
    }

    #[test]
    fn streams_are_let_on_by_steps_only_while_nothing_moves() {
        let how = Hold::Step(Meeting::Collectives);
        let (waits, both) = (
            vec![work(0, 7, true)],
            vec![work(0, 7, true), work(1, 7, true)],
        );
        let mut round = Round::new(how, 1, waits.clone());
        // The other rank enters: what it was let on for is under way.
        assert_eq!(round.next(waits.clone()), Hold::Same);
        assert_eq!(round.next(both.clone()), Hold::Same);
        assert_eq!(round.next(both), how);
        assert_eq!(round.next(waits.clone()), Hold::Same);
        assert_eq!(round.next(waits), how);
        let mut free = Round::new(Hold::Busy, 1, Vec::new());
        assert_eq!(free.next(Vec::new()), Hold::Busy);
    }

    #[test]
    fn work_is_told_from_that_of_another_process_and_from_later_work() {
        let long = vec![work(0, 7, false), work(1, 9, false)];
        let at = Instant::now();
        let is_over = |now: &[Work]| Round::new(Hold::Busy, 1, long.clone()).is_over(now, at);
        assert!(is_over(&[work(1, 7, false), work(0, 9, false)]));
        assert!(!is_over(&[work(1, 8, false), work(1, 9, false)]));
        assert!(is_over(&[]));
        let both = [work(0, 7, false), work(1, 9, true)];
        assert_eq!(first_named(&both).map(|it| it.worker), Some(1));
    }

    #[test]
    fn streams_are_not_held_for_ever_once_their_work_has_ended() {
        let long = vec![work(0, 7, false), work(1, 9, false)];
        let rest = [work(0, 7, false)];
        let begun = Instant::now();
        let after = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let mut round = Round::new(Hold::Busy, 1, long.clone());
        // Nothing has ended: they may take as long as they like.
        assert!(!round.is_over(&long, after(100.0)));
        assert!(!round.is_over(&rest, after(101.0)));
        assert!(!round.is_over(&rest, after(105.9)));
        assert!(round.is_over(&rest, after(106.1)));
        let mut third = Round::new(Hold::Busy, 3, long.clone());
        assert!(!third.is_over(&rest, after(0.0)));
        assert!(!third.is_over(&rest, after(19.9)));
        assert!(third.is_over(&rest, after(20.1)));
        // By steps a stream whose work has ended may go on.
        let mut steps = Round::new(Hold::Step(Meeting::Kernels), 1, long);
        assert!(!steps.is_over(&rest, after(0.0)));
        assert!(!steps.is_over(&rest, after(100.0)));
    }
}
