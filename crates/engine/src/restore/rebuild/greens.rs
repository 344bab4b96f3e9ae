//! Rebuilds green contexts, and checks that the driver splits multiprocessors as the program was told.
//!
//! Which multiprocessors a part has may differ from run to run, how many may not: programs size grids by that, and results
//! may depend on it.

use fermata_abi::op::{ContextId, SmQuestion};
use fermata_state::Session;

use crate::{EngineError, Live};

/// Makes a green context.
///
/// # Errors
/// [`EngineError::Multiprocessors`] if the driver makes its parts otherwise than before, or a driver error.
pub(super) fn make(
    session: &Session,
    live: &mut Live,
    handle: ContextId,
) -> Result<(), EngineError> {
    let green = session.greens.contexts.get(handle)?;
    // The split comes first: its failure is explained, where that of the context is not.
    if let Some((of, cut)) = green.resource.origin() {
        let question = SmQuestion::Split(cut.split);
        if let Some(told) = session.greens.told.get(&(of.clone(), question)) {
            let now = live.ask_multiprocessors(&of, &question);
            compare(of.device, told, &now.map_err(EngineError::driver(asked()))?)?;
        }
    }
    let made = live.make_green(handle, green.context, &green.resource);
    made.map_err(EngineError::driver(format!(
        "make green context {handle:#x} on device {}",
        green.resource.device
    )))
}

/// Compares what the program was told of devices, and of green contexts that there are, with what it would be told now.
///
/// # Errors
/// As [`make`].
pub(super) fn check(session: &Session, live: &mut Live) -> Result<(), EngineError> {
    for ((of, question), told) in &session.greens.told {
        let mut greens = session.greens.contexts.iter();
        if of.cuts.is_empty() || greens.any(|(_, it)| it.resource == *of) {
            let now = live.ask_multiprocessors(of, question);
            compare(of.device, told, &now.map_err(EngineError::driver(asked()))?)?;
        }
    }
    Ok(())
}

fn asked() -> String {
    "ask for multiprocessors as the program did".to_owned()
}

fn compare(device: u32, told: &[u64], now: &[u64]) -> Result<(), EngineError> {
    if told == now {
        return Ok(());
    }
    let counts = |numbers: &[u64]| {
        let counts: Vec<String> = numbers.chunks(3).map(|it| it[0].to_string()).collect();
        counts.join(", ")
    };
    Err(EngineError::Multiprocessors(format!(
        "the program has parts of the multiprocessors of its GPU {device}, and this driver makes other parts: they were {}, and would be {}",
        counts(told),
        counts(now)
    )))
}
