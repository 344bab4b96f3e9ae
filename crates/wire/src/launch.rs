//! The one operation that is not encoded by postcard's generic code: a kernel launch, the most frequent of all.
//!
//! The bytes are the same, which a test demands for every shape of launch; only the way there is shorter, a
//! fifth of the instructions. A launch with attributes takes the ordinary way.

use fermata_abi::op::{Launch, StreamRef};

use crate::shm::Window;

/// Which variant of [`fermata_abi::op::Op`] a launch is.
const TAG: u8 = 48;

/// Writes a launch without attributes; false if there is no room, and then what has been written means
/// nothing.
#[inline]
pub(crate) fn encode(room: &mut Window<'_>, launch: &Launch<'_>, stream: StreamRef) -> bool {
    let [x, y, z] = launch.grid;
    let [u, v, w] = launch.block;
    let numbers = [x, y, z, u, v, w, launch.shared];
    let shape = |room: &mut Window<'_>| {
        if numbers.iter().fold(0, |all, it| all | it) < 0x80 {
            // A byte each.
            let bytes = numbers.map(|it| it as u8);
            let [a, b, c, d, e, f, g] = bytes;
            return room.extend(&[a, b, c, d, e, f, g, u8::from(launch.cooperative)]);
        }
        numbers.iter().all(|it| number(room, u64::from(*it)))
            && room.push(u8::from(launch.cooperative))
    };
    room.push(TAG)
        && number(room, launch.function)
        && shape(room)
        && number(room, launch.params.len() as u64)
        && room.extend(launch.params)
        // No attributes.
        && room.push(0)
        && number(room, stream.context)
        && number(room, stream.stream)
}

/// Seven bits a byte, the lowest first; all but the last with the eighth bit set.
#[inline]
fn number(room: &mut Window<'_>, mut value: u64) -> bool {
    while value >= 0x80 {
        if !room.push(value as u8 | 0x80) {
            return false;
        }
        value >>= 7;
    }
    room.push(value as u8)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use fermata_abi::op::Op;
    use proptest::prelude::*;

    use super::*;
    use crate::layout::Config;
    use crate::shm::{Mapping, create};

    proptest! {
        #[test]
        fn a_launch_has_the_bytes_that_postcard_gives_it(
            function: u64,
            grid: [u32; 3],
            block: [u32; 3],
            small in any::<bool>(),
            shared: u32,
            cooperative: bool,
            params in prop::collection::vec(any::<u8>(), 0..300),
            context: u64,
            stream: u64,
        ) {
            let small_enough = |it: u32| if small { it % 130 } else { it };
            let (grid, block) = (grid.map(small_enough), block.map(small_enough));
            let shared = small_enough(shared);
            let stream = StreamRef { context, stream };
            let launch = Launch {
                function,
                grid,
                block,
                shared,
                cooperative,
                params: &params,
                attributes: Vec::new(),
            };
            let memory = create(&Config { ring: 4096, slots: 1, staging: 4096 }).unwrap();
            let map = Mapping::open(memory.as_fd()).unwrap();
            let mut room = map.window(4096, 512);
            prop_assert!(encode(&mut room, &launch, stream));
            let mut written = vec![0; room.written()];
            map.read(4096, &mut written);
            let expected = postcard::to_stdvec(&Op::Launch { launch, stream }).unwrap();
            prop_assert_eq!(written, expected);
        }
    }
}
