//! Which GPU takes the place of which when a foreign program is restored: the same, where it is; else another of its model.

use fermata_control::worker::{Device, FailureKind};
use fermata_store::image::DeviceRecord;

use crate::failure::{Hint as _, Result, fail};

/// The first CUDA version whose driver restores onto other GPUs (580).
const EXCHANGES: i32 = 13000;

/// Pairs of UUIDs, old and new, of all GPUs of the image; none where all of them are here.
///
/// # Errors
/// `Host`: a GPU is missing, and no other of its model is free of the image's, or the driver cannot exchange them.
pub(super) fn pairs(
    recorded: &[DeviceRecord],
    present: &[Device],
    version: i32,
) -> Result<Vec<(String, String)>> {
    let here = |uuid: &str| present.iter().any(|it| it.uuid == uuid);
    if recorded.iter().all(|it| here(&it.uuid)) {
        return Ok(Vec::new());
    }
    let is_recorded = |it: &&Device| recorded.iter().any(|old| old.uuid == it.uuid);
    let mut free: Vec<&Device> = present.iter().filter(|it| !is_recorded(it)).collect();
    let mut pairs = Vec::new();
    for old in recorded {
        if here(&old.uuid) {
            pairs.push((old.uuid.clone(), old.uuid.clone()));
            continue;
        }
        let fits = |it: &&Device| {
            let model = (&it.name, it.compute_capability) == (&old.name, old.compute_capability);
            model && it.memory >= old.memory
        };
        let Some(at) = free.iter().position(fits) else {
            let message = format!(
                "GPU {} ({}) of the image is not here, and no other of its model is",
                old.uuid, old.name
            );
            return Err(fail(FailureKind::Host, message).hint(
                "the driver restores a program onto GPUs of the same model, and as many as it could see at the checkpoint",
            ));
        };
        pairs.push((old.uuid.clone(), free.remove(at).uuid.clone()));
    }
    if version < EXCHANGES {
        let message =
            "the GPUs of the image are not here, and this driver cannot restore onto others";
        return Err(fail(FailureKind::Host, message).hint("drivers 580 and newer can"));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(uuid: &str, memory: u64) -> DeviceRecord {
        DeviceRecord {
            name: "H200".into(),
            uuid: uuid.into(),
            memory,
            compute_capability: 90,
            ..DeviceRecord::default()
        }
    }

    fn present(uuid: &str) -> Device {
        Device {
            name: "H200".into(),
            uuid: uuid.into(),
            memory: 100,
            compute_capability: 90,
        }
    }

    #[test]
    fn gpus_that_are_here_are_kept_and_others_found_by_model() {
        let both = [present("a"), present("b")];
        assert_eq!(pairs(&[recorded("a", 100)], &both, 12080), Ok(Vec::new()));
        let pair = |old: &str, new: &str| (old.to_owned(), new.to_owned());
        let found = pairs(&[recorded("x", 100), recorded("a", 100)], &both, 13000);
        assert_eq!(found, Ok(vec![pair("x", "b"), pair("a", "a")]));
        for (old, version) in [
            (&[recorded("x", 101)][..], 13000),
            (&[recorded("x", 100)], 12080),
            (
                &[recorded("x", 1), recorded("y", 1), recorded("z", 1)],
                13000,
            ),
        ] {
            let refused = pairs(old, &both, version).expect_err("refused");
            assert_eq!(refused.kind, FailureKind::Host);
            assert!(!refused.hint.is_empty());
        }
    }
}
