//! Chooses how the image of a capture is validated, and which kernels are suspected after a mis-speculation.

use fermata_abi::op::FunctionId;
use fermata_terms::{Validate, Way};

/// The validation that is used with a protocol, and why if it is not the one asked for: a copy made in the stop needs
/// no validation, and what was copied ahead is always compared. `without`: why not all kernels are instrumented; may
/// be empty.
pub(super) fn settle_on(asked: Validate, way: Way, without: &str) -> (Validate, String) {
    match (asked, way) {
        (Validate::Content, _) | (Validate::Both, Way::Cow | Way::Recopy) => (asked, String::new()),
        (_, Way::Snapshot) => {
            let why = "a snapshot is copied while the program stands still";
            (Validate::Content, why.to_owned())
        }
        (Validate::Ptx, Way::Recopy) => {
            let why = "what was copied ahead is compared in the stop in any case";
            (Validate::Both, why.to_owned())
        }
        (Validate::Off, Way::Recopy) => {
            let why = "what was copied ahead is compared in the stop in any case";
            (Validate::Content, why.to_owned())
        }
        (Validate::Ptx, Way::Cow) if !without.is_empty() => (Validate::Content, without.to_owned()),
        (Validate::Ptx | Validate::Off, Way::Cow) => (asked, String::new()),
    }
}

/// The suspected kernels among those launched during the capture, each with whether its access set was complete: those
/// with an open set if there are any, else all.
pub(super) fn suspects(
    launched: impl IntoIterator<Item = (FunctionId, bool)> + Clone,
) -> Vec<FunctionId> {
    let of = |wanted: bool| -> Vec<FunctionId> {
        let launched = launched.clone().into_iter();
        let found = launched.filter(|(_, complete)| !(wanted && *complete));
        found.map(|(function, _)| function).collect()
    };
    Some(of(true))
        .filter(|open| !open.is_empty())
        .unwrap_or_else(|| of(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_kernels_are_suspected_before_others() {
        let [a, b, c] = [1, 2, 3].map(FunctionId::from_raw);
        assert_eq!(suspects([(a, true), (b, false), (c, true)]), [b]);
        assert_eq!(suspects([(a, true), (c, true)]), [a, c]);
        assert!(suspects([]).is_empty());
    }

    #[test]
    fn no_image_is_validated_by_less_than_was_asked_for_without_a_note() {
        for asked in [
            Validate::Content,
            Validate::Ptx,
            Validate::Both,
            Validate::Off,
        ] {
            for way in [Way::Snapshot, Way::Cow, Way::Recopy] {
                for without in ["", "kernel `k` cannot be instrumented"] {
                    let (by, why) = settle_on(asked, way, without);
                    assert_eq!(by != asked, !why.is_empty(), "{asked:?} {way:?}");
                    assert!(by != Validate::Off || asked == Validate::Off && way == Way::Cow);
                }
            }
        }
        assert_eq!(settle_on(Validate::Ptx, Way::Cow, "x").0, Validate::Content);
    }
}
