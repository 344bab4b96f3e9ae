//! Operations of the program that move data between a device and the host, over the link that images need, too.
//!
//! A device has an engine for each way, which serves a stream as long as that has copies that are ready, and only then another. So whoever
//! copies for an image while the program runs leaves gaps (decision 064).

use fermata_abi::op::{Address, DEVICE_BASE, DEVICE_END, Op, Place};

/// The way of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From a device to the host.
    ToHost,
    /// From the host to a device.
    ToDevice,
}

fn on_device(address: &Address) -> bool {
    (DEVICE_BASE..DEVICE_END).contains(address)
}

fn is_on_device(place: &Place<'_>) -> bool {
    match place {
        Place::Address(address) => on_device(address),
        Place::Array { .. } => true,
        Place::Blob(_) => false,
    }
}

/// Which way an operation moves data over the link; none if it does not.
pub(crate) fn way_of(op: &Op<'_>) -> Option<Way> {
    let (Op::Copy { to, from, .. } | Op::Copy3d { to, from, .. }) = op else {
        return None;
    };
    match (is_on_device(from), is_on_device(to)) {
        (true, false) => Some(Way::ToHost),
        (false, true) => Some(Way::ToDevice),
        _ => None,
    }
}

/// Bytes that an operation moves between device and host.
pub(crate) fn bytes(op: &Op<'_>) -> u64 {
    match op {
        Op::Copy { len, .. } if way_of(op).is_some() => *len,
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
    fn a_copy_between_device_and_host_has_a_way() {
        let device = || Place::Address(DEVICE_BASE);
        let array = || Place::Array {
            array: ArrayId::from_raw(1),
            x: 0,
            y: 0,
            z: 0,
        };
        let pinned = || Place::Address(Address::from_raw(0x1000));
        let message = || Place::Blob(Blob::Inline(&[0; 4]));
        for there in [device, array] {
            for here in [message, pinned] {
                assert_eq!(way_of(&copy(here(), there())), Some(Way::ToHost));
                assert_eq!(way_of(&copy(there(), here())), Some(Way::ToDevice));
                assert_eq!(bytes(&copy(here(), there())), 4);
            }
            for other in [device, array] {
                assert_eq!(way_of(&copy(other(), there())), None);
                assert_eq!(bytes(&copy(other(), there())), 0);
            }
        }
        assert_eq!(way_of(&copy(pinned(), message())), None);
    }
}
