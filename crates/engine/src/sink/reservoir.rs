//! Host memory for chunks that wait for a store which is slower than the link, so that staging buffers become free.
//!
//! While the program runs, this memory has a limit. While the program waits, the limit is exceeded as long as an
//! eighth of the machine's memory stays available, so that the program waits for the link and never for storage.

use fermata_store::{AlignedBuf, HostMemory};
use parking_lot::Mutex;

use crate::CHUNK;

/// One part in so many of the memory is left to others.
const LEFT: u64 = 8;

/// See the module. Buffers are of [`CHUNK`] bytes, made when they are needed and used again.
pub(super) struct Reservoir {
    /// The most buffers while the program does not wait.
    limit: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<AlignedBuf>,
    /// Buffers there are.
    made: u64,
}

impl Reservoir {
    /// A reservoir of at most `bytes` bytes while the program runs.
    pub fn new(bytes: u64) -> Self {
        Self {
            limit: bytes / CHUNK,
            state: Mutex::default(),
        }
    }

    /// A buffer; `None` if as many as allowed are in use. `hurry`: the program waits.
    pub fn take(&self, hurry: bool) -> Option<AlignedBuf> {
        self.take_if(hurry, memory_is_left)
    }

    fn take_if(&self, hurry: bool, is_left: impl Fn() -> bool) -> Option<AlignedBuf> {
        let mut state = self.state.lock();
        if let Some(buffer) = state.free.pop() {
            return Some(buffer);
        }
        if state.made >= self.limit && !(hurry && is_left()) {
            return None;
        }
        state.made += 1;
        Some(AlignedBuf::new(CHUNK as usize))
    }

    /// Takes a buffer back.
    pub fn put(&self, buffer: AlignedBuf) {
        let mut state = self.state.lock();
        if state.made > self.limit {
            state.made -= 1;
        } else {
            state.free.push(buffer);
        }
    }
}

/// Whether the machine, and this process's control groups, have enough memory left for others. What is not known is not used.
fn memory_is_left() -> bool {
    is_left(HostMemory::now())
}

fn is_left(memory: Option<HostMemory>) -> bool {
    memory.is_some_and(|it| it.available >= it.total / LEFT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_unless_the_program_waits_and_memory_is_left() {
        let reservoir = Reservoir::new(2 * CHUNK);
        let taken: Vec<_> = (0..2).map(|_| reservoir.take(false)).collect();
        assert!(taken.iter().all(Option::is_some));
        assert!(reservoir.take_if(false, || true).is_none());
        assert!(reservoir.take_if(true, || false).is_none());
        let third = reservoir.take_if(true, || true).expect("a third");
        taken.into_iter().flatten().for_each(|it| reservoir.put(it));
        reservoir.put(third);
        let again: Vec<_> = (0..3).map(|_| reservoir.take(false)).collect();
        assert_eq!(
            again.iter().flatten().count(),
            2,
            "what went beyond is given back"
        );
    }

    #[test]
    fn an_eighth_of_the_memory_is_left_to_others() {
        let total = 8000 << 10;
        let memory = |available| Some(HostMemory { total, available });
        assert!(is_left(memory(1000 << 10)) && !is_left(memory(999 << 10)));
        assert!(!is_left(None), "what is not known is not used");
    }
}
