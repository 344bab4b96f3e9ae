//! Operations among the lanes of a warp: shuffle, vote, match, reduce, synchronise.
//!
//! A lane that names a mask waits until every lane of the mask has arrived at an operation of the same
//! kind with the same mask, or has ended. The last one computes the answers of all.
//!
//! A shuffle may name a source lane outside the mask. The PTX manual leaves the value open; programs rely on
//! what GPUs give: the source's value if it runs the same instruction together with the lane that asks, else 0.
//! Such a shuffle waits until no other thread can get any further. Lanes ran together if they stand at the same
//! instruction then, or if it was the last shuffle of both and both have made as many.

use super::context::DeviceThread;
use super::mma;
use super::others::Others;

/// Kinds of operation; part of the generated code.
pub mod kind {
    #![allow(missing_docs)]
    pub const SYNC: u32 = 0;
    pub const SHFL_UP: u32 = 1;
    pub const SHFL_DOWN: u32 = 2;
    pub const SHFL_BFLY: u32 = 3;
    pub const SHFL_IDX: u32 = 4;
    pub const VOTE_ALL: u32 = 5;
    pub const VOTE_ANY: u32 = 6;
    pub const VOTE_UNI: u32 = 7;
    pub const VOTE_BALLOT: u32 = 8;
    pub const MATCH_ANY: u32 = 9;
    pub const MATCH_ALL: u32 = 10;
    pub const REDUX_ADD: u32 = 11;
    pub const REDUX_MIN_U: u32 = 12;
    pub const REDUX_MAX_U: u32 = 13;
    pub const REDUX_MIN_S: u32 = 14;
    pub const REDUX_MAX_S: u32 = 15;
    pub const REDUX_AND: u32 = 16;
    pub const REDUX_OR: u32 = 17;
    pub const REDUX_XOR: u32 = 18;
    pub const ELECT: u32 = 19;
    pub const PRODUCT: u32 = 20;
}

/// Lanes that have arrived at one operation.
#[derive(Debug, Clone)]
struct Meeting {
    kind: u32,
    mask: u32,
    arrived: u32,
    values: [u64; 32],
    operands: [u64; 32],
    fibers: [u32; 32],
    /// Where in the program each lane stands.
    sites: [u32; 32],
}

#[derive(Debug, Default)]
struct Warp {
    exited: u32,
    meetings: Vec<Meeting>,
    /// Complete shuffles with a source that has not arrived.
    parked: Vec<Meeting>,
    /// The last shuffle of each lane.
    last: [LastShuffle; 32],
}

/// A lane's last shuffle.
#[derive(Debug, Default, Clone, Copy)]
struct LastShuffle {
    /// Shuffles of the lane so far, with this one.
    count: u32,
    site: u32,
    value: u64,
}

/// One lane's part in an operation.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    /// One of [`kind`].
    pub kind: u32,
    /// Lanes that take part.
    pub mask: u32,
    /// The lane's value.
    pub value: u64,
    /// Its second operand.
    pub operand: u64,
    /// Where in the program it stands.
    pub site: u32,
}

/// A lane that has asked which lanes it runs together with.
#[derive(Debug)]
struct Asker {
    fiber: u32,
    warp: u32,
    lane: u32,
    site: u64,
}

/// All warps of a block.
#[derive(Debug, Default)]
pub struct Warps {
    list: Vec<Warp>,
    waiting: u32,
    /// Meetings that are parked.
    parked: u32,
    askers: Vec<Asker>,
}

impl Warps {
    /// Prepares for a block of `threads` threads.
    pub fn begin(&mut self, threads: u32) {
        let count = threads.div_ceil(32) as usize;
        self.list.resize_with(count, Warp::default);
        for warp in &mut self.list {
            warp.exited = 0;
            warp.last = Default::default();
        }
        if !threads.is_multiple_of(32) {
            self.list[count - 1].exited = u32::MAX << (threads % 32);
        }
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.list.clear();
        self.askers.clear();
        self.waiting = 0;
        self.parked = 0;
    }

    /// The thread of `context` arrives. Returns whether it must wait; if not, its answer is there.
    pub fn arrive(
        &mut self,
        context: &mut DeviceThread,
        arrival: Arrival,
        others: &mut Others<'_>,
    ) -> bool {
        let lane = context.lane as usize;
        let Arrival { kind, .. } = arrival;
        let mask = arrival.mask | 1 << lane;
        let warp = &mut self.list[context.warp as usize];
        if is_shuffle(kind) {
            let last = &mut warp.last[lane];
            last.count = last.count.wrapping_add(1);
            (last.site, last.value) = (arrival.site, arrival.value);
        }
        let open = warp
            .meetings
            .iter()
            .position(|m| m.kind == kind && m.mask == mask && m.arrived >> lane & 1 == 0);
        let index = open.unwrap_or_else(|| {
            warp.meetings.push(Meeting {
                kind,
                mask,
                arrived: 0,
                values: [0; 32],
                operands: [0; 32],
                fibers: [0; 32],
                sites: [0; 32],
            });
            warp.meetings.len() - 1
        });
        let meeting = &mut warp.meetings[index];
        meeting.arrived |= 1 << lane;
        meeting.values[lane] = arrival.value;
        meeting.operands[lane] = arrival.operand;
        meeting.fibers[lane] = context.fiber;
        meeting.sites[lane] = arrival.site;
        self.waiting += 1;
        if (meeting.arrived | warp.exited) & mask != mask {
            return true;
        }
        self.conclude(context.warp, index, Some(context.fiber), others)
    }

    /// All lanes of a meeting are there. Returns whether they still wait, for a source outside the mask.
    fn conclude(
        &mut self,
        warp: u32,
        index: usize,
        running: Option<u32>,
        others: &mut Others<'_>,
    ) -> bool {
        let warp = &mut self.list[warp as usize];
        let meeting = warp.meetings.swap_remove(index);
        if meeting.needs_outsiders(warp.exited) {
            warp.parked.push(meeting);
            self.parked += 1;
            return true;
        }
        self.waiting -= meeting.arrived.count_ones();
        let outside = |source: usize, lane: usize| run_together(&warp.last, source, lane);
        complete(&meeting, running, &outside, others);
        false
    }

    /// A lane has ended. Whether any lane of the block waits for others: then [`Self::release`] is to be called.
    #[inline]
    pub fn exited(&mut self, warp: u32, lane: u32) -> bool {
        self.list[warp as usize].exited |= 1 << lane;
        self.waiting > 0
    }

    /// The lanes of a warp that have ended or do not exist.
    pub fn ended(&self, warp: u32) -> u32 {
        self.list.get(warp as usize).map_or(0, |warp| warp.exited)
    }

    /// Lanes that have waited for one that has ended go on.
    pub fn release(&mut self, warp: u32, others: &mut Others<'_>) {
        let exited = self.list[warp as usize].exited;
        while let Some(ready) = self.list[warp as usize]
            .meetings
            .iter()
            .position(|m| (m.arrived | exited) & m.mask == m.mask)
        {
            self.conclude(warp, ready, None, others);
        }
    }

    /// The thread of `context` asks at `site` which lanes run together with it, and waits.
    pub fn ask(&mut self, context: &DeviceThread, site: u64) {
        self.askers.push(Asker {
            fiber: context.fiber,
            warp: context.warp,
            lane: context.lane,
            site,
        });
    }

    /// Whether any thread waits until no other can get any further.
    pub fn any_converging(&self) -> bool {
        !self.askers.is_empty() || self.parked > 0
    }

    /// Completes the shuffles that wait for sources outside their mask.
    fn converge_shuffles(&mut self, others: &mut Others<'_>) -> bool {
        if self.parked == 0 {
            return false;
        }
        self.parked = 0;
        for warp in &mut self.list {
            let parked = std::mem::take(&mut warp.parked);
            let value_at = |source: usize, lane: usize| {
                let site = warp.last[lane].site;
                let stands = |m: &&Meeting| {
                    is_shuffle(m.kind) && m.arrived >> source & 1 == 1 && m.sites[source] == site
                };
                let meeting = parked.iter().chain(&warp.meetings).find(stands);
                meeting.map_or_else(
                    || run_together(&warp.last, source, lane),
                    |m| m.values[source],
                )
            };
            for meeting in &parked {
                self.waiting -= meeting.arrived.count_ones();
                complete(meeting, None, &value_at, others);
            }
        }
        true
    }

    /// Answers all that have asked: those of one warp at one site run together. Called when no other
    /// thread can get any further. Returns whether there were any.
    pub fn converge(&mut self, others: &mut Others<'_>) -> bool {
        if self.converge_shuffles(others) {
            return true;
        }
        let askers = std::mem::take(&mut self.askers);
        for asker in &askers {
            let together = askers
                .iter()
                .filter(|o| o.warp == asker.warp && o.site == asker.site);
            let mask = together.fold(0u32, |m, o| m | 1 << o.lane);
            // SAFETY: contexts of waiting fibers are valid, and their fibers do not run now.
            unsafe { (*others.contexts[asker.fiber as usize]).result = u64::from(mask) };
            others.ready.push_back(asker.fiber);
        }
        !askers.is_empty()
    }
}

fn is_shuffle(kind: u32) -> bool {
    (kind::SHFL_UP..=kind::SHFL_IDX).contains(&kind)
}

/// The value of a source that took part in the last shuffle of `lane`, under another mask; 0 if it did not.
fn run_together(last: &[LastShuffle; 32], source: usize, lane: usize) -> u64 {
    let (theirs, own) = (last[source], last[lane]);
    let together = theirs.count == own.count && theirs.site == own.site;
    if together { theirs.value } else { 0 }
}

impl Meeting {
    /// Whether some lane reads from one that exists, has not ended and is not here.
    fn needs_outsiders(&self, exited: u32) -> bool {
        let here = self.arrived | exited;
        is_shuffle(self.kind)
            && here != u32::MAX
            && lanes(self.arrived).any(|lane| {
                let (source, valid) = source(self, lane);
                valid && here >> source & 1 == 0
            })
    }
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> + Clone {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

/// Gives every arrived lane its answer; all but `running` become ready. `outside` is the value of a lane that has
/// not arrived, for one that has.
fn complete(
    meeting: &Meeting,
    running: Option<u32>,
    outside: &dyn Fn(usize, usize) -> u64,
    others: &mut Others<'_>,
) {
    let lanes = lanes(meeting.arrived);
    if meeting.kind == kind::PRODUCT {
        multiply(meeting, others);
    }
    let common = common_answer(meeting, lanes.clone());
    for lane in lanes {
        let (result, flag) = common.unwrap_or_else(|| own_answer(meeting, lane, outside));
        let fiber = meeting.fibers[lane];
        // SAFETY: contexts are valid while the block runs; waiting fibers do not run now, and the
        // running one is inside a helper that reads its answer afterwards.
        unsafe {
            let context = others.contexts[fiber as usize];
            (*context).result = result;
            (*context).flag = u64::from(flag);
        }
        if running != Some(fiber) {
            others.ready.push_back(fiber);
        }
    }
}

/// Multiplies the matrices whose parts the lanes of a meeting have in their contexts.
fn multiply(meeting: &Meeting, others: &Others<'_>) {
    let context = |lane: usize| others.contexts[meeting.fibers[lane] as usize];
    let mut parts: mma::Lanes = std::array::from_fn(|lane| {
        let here = meeting.arrived >> lane & 1 == 1;
        // SAFETY: contexts are valid while the block runs; waiting fibers do not run now, and the running one is inside
        // a helper that reads its part afterwards.
        here.then(|| unsafe { (*context(lane)).fragments.0 })
    });
    let product = meeting.values[meeting.arrived.trailing_zeros() as usize & 31];
    mma::multiply(product, &mut parts);
    for (lane, part) in parts.into_iter().enumerate() {
        if let Some(part) = part {
            // SAFETY: as above.
            unsafe { (*context(lane)).fragments.0 = part };
        }
    }
}

/// The answer where all lanes get the same.
fn common_answer(m: &Meeting, lanes: impl Iterator<Item = usize> + Clone) -> Option<(u64, bool)> {
    let values = lanes.clone().map(|l| m.values[l]);
    let words = values.clone().map(|v| v as u32);
    let signed = words.clone().map(|v| v as i32);
    let all = values.clone().all(|v| v != 0);
    let any = values.clone().any(|v| v != 0);
    let bit = |b: bool| (u64::from(b), b);
    let number = |n: u32| (u64::from(n), true);
    Some(match m.kind {
        kind::SYNC | kind::PRODUCT => (0, true),
        kind::VOTE_ALL => bit(all),
        kind::VOTE_ANY => bit(any),
        kind::VOTE_UNI => bit(all || !any),
        kind::VOTE_BALLOT => number(
            lanes
                .filter(|&l| m.values[l] != 0)
                .fold(0, |b, l| b | 1 << l),
        ),
        kind::MATCH_ALL => {
            let first = values.clone().next();
            let same = values.clone().all(|v| Some(v) == first);
            (
                if same {
                    u64::from(m.arrived & m.mask)
                } else {
                    0
                },
                same,
            )
        }
        kind::REDUX_ADD => number(words.fold(0, u32::wrapping_add)),
        kind::REDUX_MIN_U => number(words.min().unwrap_or(0)),
        kind::REDUX_MAX_U => number(words.max().unwrap_or(0)),
        kind::REDUX_MIN_S => number(signed.min().unwrap_or(0) as u32),
        kind::REDUX_MAX_S => number(signed.max().unwrap_or(0) as u32),
        kind::REDUX_AND => number(words.fold(u32::MAX, |a, b| a & b)),
        kind::REDUX_OR => number(words.fold(0, |a, b| a | b)),
        kind::REDUX_XOR => number(words.fold(0, |a, b| a ^ b)),
        _ => return None,
    })
}

/// The answer of one lane where they differ.
fn own_answer(m: &Meeting, lane: usize, outside: &dyn Fn(usize, usize) -> u64) -> (u64, bool) {
    match m.kind {
        kind::MATCH_ANY => {
            let same =
                (0..32).filter(|&l| m.arrived >> l & 1 == 1 && m.values[l] == m.values[lane]);
            (same.fold(0, |b, l| b | 1 << l), true)
        }
        kind::ELECT => {
            let leader = m.arrived.trailing_zeros();
            (u64::from(leader), lane as u32 == leader)
        }
        _ => match source(m, lane) {
            (_, false) => (m.values[lane], false),
            (source, true) if m.arrived >> source & 1 == 1 => (m.values[source], true),
            (source, true) => (outside(source, lane), true),
        },
    }
}

/// Source lane of a shuffle, and whether it lies in the segment; `operands` holds lane operand and clamp operand
/// (high half).
fn source(m: &Meeting, lane: usize) -> (usize, bool) {
    let operand = (m.operands[lane] as u32 & 31) as i32;
    let clamp = (m.operands[lane] >> 32) as u32;
    let segment = clamp >> 8 & 31;
    let me = lane as u32;
    let last = ((me & segment) | (clamp & 31 & !segment)) as i32;
    let first = (me & segment) as i32;
    let (source, valid) = match m.kind {
        kind::SHFL_UP => (me as i32 - operand, me as i32 - operand >= last),
        kind::SHFL_DOWN => (me as i32 + operand, me as i32 + operand <= last),
        kind::SHFL_BFLY => (me as i32 ^ operand, me as i32 ^ operand <= last),
        _ => {
            let source = first | (operand & !(segment as i32));
            (source, source <= last)
        }
    };
    (source as usize & 31, valid)
}
