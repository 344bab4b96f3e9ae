//! Serving behind a gate: operations wait for it, and freed memory stays while it is needed.

use std::time::{Duration, Instant};

use fermata_abi::op::{Address, Op};
use fermata_abi::sys::driver as cu;
use fermata_engine::Passage;

use crate::errors::OpError;
use crate::serve::Server;

/// Gates have deadlines of their own; one that holds an operation longer than this is broken.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two questions to the gate.
const TURN: Duration = Duration::from_micros(20);

impl Server {
    /// Waits until the gate lets `op` pass. Completions are looked at meanwhile, so that other threads of
    /// the program get their answers.
    pub(crate) fn pass_gate(&mut self, op: &Op<'_>) -> Result<(), OpError> {
        let mut until = None;
        while let Some(mut gate) = self.gate.take() {
            let passage = gate.before(&mut self.site, op);
            self.gate = Some(gate);
            match passage {
                Ok(Passage::Go) => return Ok(()),
                Ok(Passage::NotYet) => {}
                Err(error) => {
                    return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, error.to_string()));
                }
            }
            if Instant::now() >= *until.get_or_insert_with(|| Instant::now() + PATIENCE) {
                self.close_gate();
                let text = "the gate of a checkpoint or restore does not open";
                return Err(OpError::new(cu::CUDA_ERROR_UNKNOWN, text));
            }
            self.poll();
            std::thread::sleep(TURN);
        }
        Ok(())
    }

    /// Closes the gate, if there is one, and frees what it has held.
    pub(crate) fn close_gate(&mut self) {
        if let Some(mut gate) = self.gate.take() {
            gate.close(&mut self.site);
        }
        for address in std::mem::take(&mut self.limbo) {
            // The program has had its answer. Memory that cannot be freed goes with the process.
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
