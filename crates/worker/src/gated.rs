//! Serving behind a gate: operations wait for it, and freed memory stays while it is needed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ContextId, Op, ReplyBody, ends_context};
use fermata_abi::sys::driver as cu;
use fermata_engine::{Gate, Passage};
use fermata_wire::{Consumer, Event};

use crate::errors::OpError;
use crate::server::{Ended, Requests, Server};
use crate::threads::pause_beside_device;

/// Gates have deadlines of their own. One that holds an operation this long without progress counts as broken.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two questions to the gate.
const TURN: Duration = Duration::from_micros(20);
/// Between two looks at whether the program still waits.
const LOOK: Duration = Duration::from_millis(20);

/// How long the gate has made no progress.
#[derive(Default)]
struct Standstill {
    since: Option<(Instant, u64)>,
}

impl Standstill {
    /// Whether the standstill has lasted too long; `progress` is the gate's counter.
    fn is_over(&mut self, now: Instant, progress: u64) -> bool {
        match self.since {
            Some((since, known)) if known == progress => now.duration_since(since) >= PATIENCE,
            _ => {
                self.since = Some((now, progress));
                false
            }
        }
    }
}

impl Server {
    /// Waits until the gate lets `op` pass. Completions are looked at meanwhile, so that other threads of
    /// the program get their answers.
    pub(crate) fn pass_gate(&mut self, op: &Op<'_>) -> Result<(), OpError> {
        let mut standstill = Standstill::default();
        let mut look = Instant::now() + LOOK;
        while let Some(mut gate) = self.gate.take() {
            let passage = gate.before(&mut self.site, op);
            let progress = gate.progress();
            self.gate = Some(gate);
            match passage {
                Ok(Passage::Go) => return Ok(()),
                Ok(Passage::NotYet) => {}
                Err(error) => {
                    return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, error.to_string()));
                }
            }
            if standstill.is_over(Instant::now(), progress) {
                self.close_gate();
                let text = "the gate of a checkpoint or restore does not open";
                return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, text));
            }
            if Instant::now() >= look {
                look = Instant::now() + LOOK;
                // The program is dead: neither this operation nor any behind it has to be done.
                self.gone |= self.presence.has_died();
            }
            if self.gone {
                return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, "the program has died"));
            }
            self.poll();
            if self.condemned {
                let text = "the session is about to be rolled back";
                return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, text));
            }
            pause_beside_device(TURN);
        }
        Ok(())
    }

    /// Whether this answer, and all after it, must not reach the program: the gate has caused the error, and the session
    /// will be rolled back.
    pub(crate) fn is_condemned(
        &mut self,
        context: Option<ContextId>,
        reports: bool,
        outcome: &Result<ReplyBody<'_>, OpError>,
    ) -> bool {
        if self.condemned || self.gone {
            return true;
        }
        let fatal = match outcome {
            Err(error) if ends_context(error.code) => Some(error),
            _ if reports => context.and_then(|context| self.faults.fatal(context)),
            _ => None,
        };
        let Some(OpError { code, text: reason }) = fatal.cloned() else {
            return false;
        };
        let by_gate = |gate: &mut Box<dyn Gate>| gate.condemns(&reason);
        self.condemned = self.gate.as_mut().is_some_and(by_gate);
        // The driver's errors for a write to memory that is mapped for reading.
        if let (cu::CUDA_ERROR_ILLEGAL_ADDRESS | cu::CUDA_ERROR_LAUNCH_FAILED, Some(guard)) =
            (code, &mut self.guard)
        {
            self.condemned = self.condemned || guard.condemns(&self.site.live, &reason);
        }
        self.condemned
    }

    /// Keeps the program waiting until the daemon has ended it, or this process. If the daemon does neither, the program's
    /// calls fail.
    pub(crate) fn await_rollback(&mut self, consumer: &mut Consumer, requests: &Requests) -> Ended {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until && !requests.stop.load(Ordering::Acquire) {
            match consumer.next(Duration::from_millis(20)) {
                Ok(Event::Message(_) | Event::Idle) => {}
                Ok(Event::Closed) | Err(_) => return Ended::ProgramGone,
            }
        }
        Ended::ProgramGone
    }

    /// Whether memory is set aside or held for a checkpoint or restore, and will be free again.
    pub(crate) fn is_captured(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.frees()) || !self.site.live.set_aside.is_empty()
    }

    /// Closes the gate, if there is one, and frees what it has held.
    pub(crate) fn close_gate(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            gate.close(&mut self.site);
        }
        for address in std::mem::take(&mut self.limbo) {
            // The program has had its answer already. Memory that cannot be freed now goes with the process.
            let _ = self.release(address);
        }
    }

    /// Whether freed memory has to wait; then it is freed when the gate is closed.
    pub(crate) fn is_held(&mut self, address: Address) -> bool {
        let held = self.gate.as_ref().is_some_and(|gate| gate.holds(address));
        if held {
            self.limbo.push(address);
        }
        held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_waits_as_long_as_something_comes() {
        let mut standstill = Standstill::default();
        let mut now = Instant::now();
        // An image on a slow disk takes hours.
        for piece in 0..100 {
            assert!(!standstill.is_over(now, piece));
            now += PATIENCE - Duration::from_secs(1);
            assert!(!standstill.is_over(now, piece));
        }
        now += Duration::from_secs(1);
        assert!(standstill.is_over(now, 99));
        assert!(!standstill.is_over(now, 100));
    }
}
