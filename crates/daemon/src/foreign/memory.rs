//! Whether host memory suffices for the GPU data of a program.

use fermata_control::worker::FailureKind;
use fermata_store::HostMemory;

use crate::failure::{Hint as _, Result, fail};

/// What the machine needs beside.
const MARGIN: u64 = 64 << 20;

/// Refuses where `bytes` of GPU memory do not fit into what is free of the host's.
///
/// # Errors
/// `NotCheckpointable`, with both numbers.
pub(super) fn check(bytes: u64) -> Result<()> {
    match HostMemory::now() {
        Some(memory) => check_against(bytes, memory.available),
        // The driver says it.
        None => Ok(()),
    }
}

fn check_against(bytes: u64, free: u64) -> Result<()> {
    if bytes == 0 || bytes.saturating_add(MARGIN) <= free {
        return Ok(());
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let message = format!(
        "the program has {} MiB of GPU memory, which the driver copies into host memory, and {} MiB of that are free",
        mib(bytes),
        mib(free)
    );
    Err(fail(FailureKind::NotCheckpointable, message).hint(
        "free some host memory; programs started with `fermata run` need only that of a few buffers",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_host_memory_is_foreseen() {
        assert!(check_against(0, 0).is_ok());
        assert!(check_against(1 << 30, 2 << 30).is_ok());
        let refused = check_against(4 << 30, 2 << 30).expect_err("too little");
        assert!(refused.message.contains("4096 MiB"), "{}", refused.message);
        assert_eq!(refused.kind, FailureKind::NotCheckpointable);
    }
}
