//! What the driver's refusals mean, for those who read them.

use std::time::Duration;

use fermata_control::foreign::{DriverStep, Refusal};
use fermata_control::worker::FailureKind;

use crate::failure::{Failure, Hint as _, fail};

/// How long the calls and kernels of a process may take to end once it is to be locked.
pub(super) const LOCK_TIME: Duration = Duration::from_secs(30);

/// Numbers of `CUresult`.
const OUT_OF_MEMORY: u32 = 2;
const NOT_READY: u32 = 600;
const ILLEGAL_STATE: u32 = 401;
const NOT_PERMITTED: u32 = 800;
const NOT_SUPPORTED: u32 = 801;

/// What a refusal means for the process that is called `name`.
pub(super) fn explain(refusal: &Refusal, name: &str) -> Failure {
    let who = format!("process {} ({name})", refusal.pid);
    let said = format!("the driver says {}", refusal.name);
    let no = |what: String| fail(FailureKind::NotCheckpointable, what);
    match (refusal.step, refusal.code) {
        (DriverStep::Lock, NOT_READY) => no(format!(
            "{who} cannot be stopped: work that it has given to the GPU has not ended within {} s",
            LOCK_TIME.as_secs()
        ))
        .hint(
            "try again when its kernels are shorter; a kernel that waits for another process, as NCCL's do, may wait for \
             one that is stopped already: `fermata run` takes such programs",
        ),
        (DriverStep::Lock, ILLEGAL_STATE) => fail(
            FailureKind::Locked,
            format!("{who} is being checkpointed by another program"),
        )
        .hint("try again when that has ended"),
        (_, NOT_PERMITTED) => fail(
            FailureKind::Host,
            format!("the driver does not permit to checkpoint {who}"),
        )
        .hint("the daemon needs CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE: start it as root"),
        (DriverStep::Checkpoint, NOT_SUPPORTED) => no(format!(
            "the driver cannot checkpoint what {who} uses: managed memory (`cudaMallocManaged`), GPU memory that it shares \
             with other processes (IPC), multicast (NVLS), or MPS"
        ))
        .hint("start it with `fermata run`, which takes managed and shared memory; nothing takes programs under MPS"),
        (DriverStep::Checkpoint, OUT_OF_MEMORY) => no(format!(
            "there is not enough host memory for the GPU data of {who}"
        ))
        .hint("free some: the driver copies all its GPU memory into the program's own"),
        (DriverStep::Restore, OUT_OF_MEMORY) => fail(
            FailureKind::Host,
            format!("there is not enough GPU memory for the data of {who}"),
        )
        .hint("`nvidia-smi` says who has it"),
        (DriverStep::Lock, _) => no(format!("{who} cannot be locked: {said}")),
        (DriverStep::Checkpoint, _) => no(format!("the driver cannot checkpoint {who}: {said}"))
            .hint("NVIDIA's `cuda-checkpoint` says the same of it; `fermata run` needs no such interface"),
        (DriverStep::Restore, _) => fail(
            FailureKind::Host,
            format!("the driver cannot restore the GPU data of {who}: {said}"),
        ),
        (DriverStep::Unlock, _) => fail(
            FailureKind::Host,
            format!("{who} cannot be unlocked: {said}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_in_words() {
        let said = |step, code| {
            let refusal = Refusal {
                pid: 7,
                step,
                code,
                name: "CUDA_ERROR_X".into(),
            };
            explain(&refusal, "train")
        };
        for (step, code, word) in [
            (DriverStep::Lock, NOT_READY, "has not ended within"),
            (DriverStep::Checkpoint, NOT_SUPPORTED, "managed memory"),
            (DriverStep::Checkpoint, OUT_OF_MEMORY, "host memory"),
            (DriverStep::Restore, OUT_OF_MEMORY, "GPU memory"),
            (DriverStep::Checkpoint, NOT_PERMITTED, "permit"),
            (DriverStep::Unlock, 1, "CUDA_ERROR_X"),
        ] {
            let failure = said(step, code);
            assert!(failure.message.contains(word), "{}", failure.message);
            assert!(failure.message.contains("process 7 (train)"));
        }
    }
}
