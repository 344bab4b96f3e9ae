//! Operations of the program that move data between a device and the host, over the link that copies for an image need, too.

use fermata_abi::op::{Address, DEVICE_BASE, DEVICE_END, Op, Place};

fn on_device(address: &Address) -> bool {
    (DEVICE_BASE..DEVICE_END).contains(address)
}

/// Whether an operation moves data from a device to the host.
pub(super) fn is_to_host(op: &Op<'_>) -> bool {
    let (Op::Copy { to, from, .. } | Op::Copy3d { to, from, .. }) = op else {
        return false;
    };
    let from_device = match from {
        Place::Address(from) => on_device(from),
        Place::Array { .. } => true,
        Place::Blob(_) => false,
    };
    let to_host = match to {
        Place::Address(to) => !on_device(to),
        Place::Array { .. } => false,
        Place::Blob(_) => true,
    };
    from_device && to_host
}

/// Bytes that an operation moves between device and host.
pub(super) fn bytes(op: &Op<'_>) -> u64 {
    match op {
        Op::Copy {
            to: Place::Address(to),
            from: Place::Address(from),
            len,
            ..
        } if on_device(to) != on_device(from) => *len,
        Op::Copy {
            to: Place::Blob(_),
            len,
            ..
        }
        | Op::Copy {
            from: Place::Blob(_),
            len,
            ..
        } => *len,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use fermata_abi::op::{ArrayId, Blob, ContextId, StreamId, StreamRef};

    use super::*;

    fn copy(to: Place<'static>, from: Place<'static>) -> Op<'static> {
        Op::Copy {
            to,
            from,
            len: 4,
            stream: StreamRef {
                context: ContextId::from_raw(0x100),
                stream: StreamId::from_raw(1),
            },
            answered: true,
        }
    }

    #[test]
    fn only_what_leaves_a_device_for_the_host_moves_to_the_host() {
        let device = || Place::Address(DEVICE_BASE);
        let pinned = || Place::Address(Address::from_raw(0x1000));
        let bytes = || Place::Blob(Blob::Inline(&[0; 4]));
        let array = || Place::Array {
            array: ArrayId::from_raw(1),
            x: 0,
            y: 0,
            z: 0,
        };
        for from in [device, array] {
            for to in [bytes, pinned] {
                assert!(is_to_host(&copy(to(), from())));
            }
            for to in [device, array] {
                assert!(!is_to_host(&copy(to(), from())));
            }
        }
        for from in [bytes, pinned] {
            for to in [bytes, pinned, device, array] {
                assert!(!is_to_host(&copy(to(), from())));
            }
        }
        assert_eq!(super::bytes(&copy(bytes(), device())), 4);
        assert_eq!(super::bytes(&copy(device(), device())), 0);
    }
}
