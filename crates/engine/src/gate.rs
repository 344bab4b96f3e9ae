//! What stands between a decoded operation and the device while a checkpoint or a restore is under way.
//!
//! ```text
//!  decode ─► gate.before(op) ── Go ────► device
//!                │    ▲
//!                └────┘ NotYet: the server looks at completions and asks again
//! ```
//! Outside checkpoints and restores there is no gate, which costs one branch an operation.

use fermata_abi::op::{Address, ExecId, Launch, Op, StreamRef};
use fermata_device::DriverError;

use crate::{EngineError, Site};

/// What a gate says to an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It may go to the device now.
    Go,
    /// It has to wait. Asking again must be cheap, and must not depend on later operations of the program.
    NotYet,
}

/// See the module. All calls come from the thread that serves the program.
pub trait Gate: Send {
    /// Asked before `op` is given to the driver. May put work of its own into the operation's stream.
    ///
    /// # Errors
    /// The session cannot go on: the operation fails, and its context with it. A gate whose own purpose has
    /// failed, while the program could go on, says [`Passage::Go`].
    fn before(&mut self, site: &mut Site, op: &Op<'_>) -> Result<Passage, EngineError>;

    /// Launches a kernel, that has just passed, in a way of its own; false if the kernel itself is to be
    /// launched.
    ///
    /// # Errors
    /// What the launch of the kernel itself could have said.
    fn launch(
        &mut self,
        site: &mut Site,
        launch: &Launch<'_>,
        stream: StreamRef,
    ) -> Result<bool, DriverError> {
        let _ = (site, launch, stream);
        Ok(false)
    }

    /// Launches an executable graph, that has just passed, in a way of its own; false if it is to be launched as it
    /// is.
    ///
    /// # Errors
    /// What the launch of the graph itself could have said.
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

    /// Whether nothing reads the memory of the allocation that starts at `address` on the gate's behalf, and nothing will before
    /// the next operation: other memory can then be mapped in its place. With `now` the gate gives up what keeps it from that.
    fn lets_go(&mut self, address: Address, now: bool) -> bool {
        let _ = (address, now);
        true
    }

    /// All that the program has given its devices is done; true until the next operation comes to the gate. Work of the
    /// gate's own that can wait a little does so for this.
    fn rests(&mut self) {}

    /// Whether nothing is left to watch; the server then closes the gate.
    fn finished(&self) -> bool;

    /// A number that changes whenever something has come that operations may be waiting for. While it does, waiting has
    /// a sense, however long it lasts.
    fn progress(&self) -> u64 {
        0
    }

    /// Whether it may be closed at any moment, for the memory it holds: the program must lose nothing by that.
    fn is_dispensable(&self) -> bool {
        true
    }

    /// Whether memory becomes free when it is finished, which will be soon whatever the program does, so that an
    /// allocation can wait for it.
    fn frees(&self) -> bool {
        true
    }

    /// A context has died for `reason` while the gate watches. True if that is the gate's own doing and the
    /// session will be rolled back: the program must then get no answer any more.
    fn condemns(&mut self, reason: &str) -> bool {
        let _ = reason;
        false
    }

    /// The last call: gives back what the gate holds on the device. A purpose that is not achieved by now
    /// is given up.
    fn close(&mut self, site: &mut Site);
}
