//! Caches the driver's answers about the occupancy of a function.
//!
//! Libraries ask before many launches, and choose kernels by the answers. So every answer comes from the driver, and is
//! kept until something changes that it may depend on: an attribute of the function, or the device behind the link.

use std::collections::HashMap;

use fermata_abi::op::{FunctionId, Occupancy, Op, ReplyBody};
use fermata_abi::sys::driver::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_UNKNOWN};
use parking_lot::Mutex;

use crate::link;
use crate::result::Result;

/// The most answers that are kept for a function; when a program asks for more, all are dropped.
const MOST: usize = 1024;

/// The answers of one function, by question.
#[derive(Debug, Default)]
pub struct Answers(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    generation: u64,
    /// Changes with every [`Answers::forget`], so that an answer to a question asked before is not kept.
    revision: u64,
    answers: HashMap<Vec<u8>, (u64, u64)>,
}

impl Answers {
    /// The driver's answer, one number or two.
    pub fn ask(&self, function: FunctionId, question: Occupancy<'_>) -> Result<(u64, u64)> {
        let key = postcard::to_stdvec(&question).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        let generation = link::generation();
        let revision = {
            let mut known = self.0.lock();
            if known.generation != generation {
                known.generation = generation;
                known.answers.clear();
            }
            if let Some(answer) = known.answers.get(&key) {
                return Ok(*answer);
            }
            known.revision
        };
        let op = Op::Occupancy { function, question };
        let answer = link::ask(&op, |body| match body {
            ReplyBody::U64(number) => Ok((number, 0)),
            ReplyBody::Pair(first, second) => Ok((first, second)),
            _ => Err(CUDA_ERROR_UNKNOWN),
        })?;
        let mut known = self.0.lock();
        if known.revision == revision && known.generation == generation {
            if known.answers.len() >= MOST {
                known.answers.clear();
            }
            known.answers.insert(key, answer);
        }
        Ok(answer)
    }

    /// Drops all answers, because something has changed that they depend on.
    pub fn forget(&self) {
        let mut known = self.0.lock();
        known.revision += 1;
        known.answers.clear();
    }
}
