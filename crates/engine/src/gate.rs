//! The gate: decides when a decoded operation may go to the device, while a checkpoint or a restore is under way.
//!
//! ```text
//!  decode ─► gate.before(op) ── Go ────► device
//!                │    ▲
//!                └────┘ NotYet: the server looks at completions and asks again
//! ```
//! Outside checkpoints and restores there is no gate; that costs one branch per operation.

use fermata_abi::op::{Address, ExecId, Launch, Op, StreamRef};
use fermata_device::DriverError;

use crate::{EngineError, Site};

/// A gate's answer for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It may go to the device now.
    Go,
    /// It has to wait, and the gate is asked again. Asking must be cheap, and the answer must not depend on later
    /// operations of the program.
    NotYet,
}

/// See the module. All calls come from the thread that serves the program.
pub trait Gate: Send {
    /// Called before `op` is given to the driver. May add work of its own to the operation's stream.
    ///
    /// # Errors
    /// The session cannot go on: the operation fails, and its context with it. If only the gate's own purpose has failed,
    /// and the program can go on, it returns [`Passage::Go`].
    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError>;

    /// Launches a kernel that has just passed in the gate's own way, for example instrumented. False if the caller must
    /// launch the kernel itself.
    ///
    /// # Errors
    /// An error that the launch of the kernel itself could have had.
    fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let _ = (site, launch, stream);
        Ok(false)
    }

    /// Launches an executable graph that has just passed in the gate's own way. False if the caller must launch the
    /// graph as it is.
    ///
    /// # Errors
    /// An error that the launch of the graph itself could have had.
    fn launch_graph(
        &mut self,
        site: &mut Site,
        exec: ExecId,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let _ = (site, exec, stream);
        Ok(false)
    }

    /// Whether the memory of the allocation that starts at `address` must stay although the program has
    /// freed it.
    fn holds(&self, address: Address) -> bool;

    /// Whether the gate does not read the memory of the allocation that starts at `address`, and will not before the
    /// next operation, so that other memory can be mapped in its place. With `now` the gate abandons reads that stand
    /// in the way.
    fn lets_go(&mut self, address: Address, now: bool) -> bool {
        let _ = (address, now);
        true
    }

    /// Called when the devices have finished all work of the program; this stays so until the next operation. The
    /// gate may do postponed work of its own now.
    fn rests(&mut self) {}

    /// Whether nothing is left to watch; the server then closes the gate.
    fn finished(&self) -> bool;

    /// A counter that changes whenever something has arrived that operations may be waiting for. While it changes, a wait
    /// is not a hang, however long it lasts.
    fn progress(&self) -> u64 {
        0
    }

    /// Whether the gate may be closed at any moment to free the memory it holds, without harm to the program.
    fn is_dispensable(&self) -> bool {
        true
    }

    /// Whether the gate will free memory soon, whatever the program does, so that an allocation can wait for it.
    fn frees(&self) -> bool {
        true
    }

    /// Called when a context has died for `reason`. True if the gate has caused that and the session will be rolled back:
    /// the program must then get no more answers.
    fn condemns(&mut self, reason: &str) -> bool {
        let _ = reason;
        false
    }

    /// The last call: releases what the gate holds on the device. Abandons the gate's purpose if it is not achieved
    /// by now.
    fn close(&mut self, site: &mut Site);
}
