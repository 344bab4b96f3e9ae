//! Operations among the lanes of a warp: shuffle, vote, match, reduce, synchronise.
//!
//! A lane that names a mask waits until every lane of the mask has arrived at an operation of the same
//! kind with the same mask, or has ended. The last one computes the answers of all.

use super::barrier::Others;
use super::context::Context;

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
}

#[derive(Debug, Default)]
struct Warp {
    exited: u32,
    meetings: Vec<Meeting>,
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
    askers: Vec<Asker>,
}

impl Warps {
    /// Prepares for a block of `threads` threads.
    pub fn begin(&mut self, threads: u32) {
        let count = threads.div_ceil(32) as usize;
        self.list.resize_with(count, Warp::default);
        self.list.iter_mut().for_each(|w| w.exited = 0);
        if !threads.is_multiple_of(32) {
            self.list[count - 1].exited = u32::MAX << (threads % 32);
        }
    }

    /// Forgets everything that waits.
    pub fn clear(&mut self) {
        self.list.clear();
        self.askers.clear();
        self.waiting = 0;
    }

    /// The thread of `context` arrives. Returns whether it must wait; if not, its answer is there.
    pub fn arrive(
        &mut self,
        context: &mut Context,
        kind: u32,
        mask: u32,
        value: u64,
        operand: u64,
        others: &mut Others<'_>,
    ) -> bool {
        let lane = context.lane as usize;
        let mask = mask | 1 << lane;
        let warp = &mut self.list[context.warp as usize];
        let open = warp
            .meetings
            .iter()
            .position(|m| m.kind == kind && m.mask == mask && m.arrived >> lane & 1 == 0);
        let index = open.unwrap_or_else(|| {
            let (values, operands, fibers) = ([0; 32], [0; 32], [0; 32]);
            warp.meetings.push(Meeting {
                kind,
                mask,
                arrived: 0,
                values,
                operands,
                fibers,
            });
            warp.meetings.len() - 1
        });
        let meeting = &mut warp.meetings[index];
        meeting.arrived |= 1 << lane;
        meeting.values[lane] = value;
        meeting.operands[lane] = operand;
        meeting.fibers[lane] = context.fiber;
        if (meeting.arrived | warp.exited) & mask != mask {
            self.waiting += 1;
            return true;
        }
        let meeting = warp.meetings.swap_remove(index);
        self.waiting -= meeting.arrived.count_ones() - 1;
        complete(&meeting, Some(context.fiber), others);
        false
    }

    /// A lane has ended.
    pub fn exited(&mut self, warp: u32, lane: u32, others: &mut Others<'_>) {
        let warp = &mut self.list[warp as usize];
        warp.exited |= 1 << lane;
        if self.waiting == 0 {
            return;
        }
        let exited = warp.exited;
        while let Some(index) = warp
            .meetings
            .iter()
            .position(|m| (m.arrived | exited) & m.mask == m.mask)
        {
            let meeting = warp.meetings.swap_remove(index);
            self.waiting -= meeting.arrived.count_ones();
            complete(&meeting, None, others);
        }
    }

    /// The thread of `context` asks at `site` which lanes run together with it, and waits.
    pub fn ask(&mut self, context: &Context, site: u64) {
        self.askers.push(Asker {
            fiber: context.fiber,
            warp: context.warp,
            lane: context.lane,
            site,
        });
    }

    /// Whether any thread has asked.
    pub fn any_converging(&self) -> bool {
        !self.askers.is_empty()
    }

    /// Answers all that have asked: those of one warp at one site run together. Called when no other
    /// thread can get any further. Returns whether there were any.
    pub fn converge(&mut self, others: &mut Others<'_>) -> bool {
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

/// Gives every arrived lane its answer; all but `running` become ready.
fn complete(meeting: &Meeting, running: Option<u32>, others: &mut Others<'_>) {
    let lanes = (0..32).filter(|lane| meeting.arrived >> lane & 1 == 1);
    let common = common_answer(meeting, lanes.clone());
    for lane in lanes {
        let (result, flag) = common.unwrap_or_else(|| own_answer(meeting, lane));
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
        kind::SYNC => (0, true),
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
fn own_answer(m: &Meeting, lane: usize) -> (u64, bool) {
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
        _ => shuffle(m, lane),
    }
}

/// Source lane and value of a shuffle; `operands` holds lane operand and clamp operand (high half).
fn shuffle(m: &Meeting, lane: usize) -> (u64, bool) {
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
    let source = if valid { source as usize & 31 } else { lane };
    // The value of a lane that takes no part is undefined; the own one is as good as any.
    let source = if m.arrived >> source & 1 == 1 {
        source
    } else {
        lane
    };
    (m.values[source], valid)
}
