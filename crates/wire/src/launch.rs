//! The one operation that is not encoded by postcard's generic code: a kernel launch, the most frequent of all.
//!
//! The bytes are the same, which a test demands for every shape of launch; only the way there is shorter, a
//! tenth of the instructions. A launch with attributes takes the ordinary way.

use fermata_abi::op::{FunctionId, StreamRef};

use crate::shm::Window;

/// Which variant of [`fermata_abi::op::Op`] a launch is: the first.
const TAG: u8 = 0;

/// A launch without attributes; the fields are those of [`fermata_abi::op::Launch`].
#[derive(Debug, Clone, Copy)]
pub struct BareLaunch<'a> {
    /// The function.
    pub function: FunctionId,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared: u32,
    /// Cooperative launch.
    pub cooperative: bool,
    /// The parameter block.
    pub params: &'a [u8],
    /// Where it goes.
    pub stream: StreamRef,
}

/// Writes a launch; false if there is no room, and then what has been written means nothing.
#[inline(always)]
pub(crate) fn encode(room: &mut Window<'_>, launch: &BareLaunch<'_>) -> bool {
    let [x, y, z] = launch.grid.map(u64::from);
    let [u, v, w] = launch.block.map(u64::from);
    let (shared, cooperative) = (u64::from(launch.shared), launch.cooperative);
    room.push(TAG)
        && number(room, launch.function.raw())
        && if x | y | z | u | v | w | shared < 0x80 {
            // A byte each.
            let (grid, block) = (x | y << 8 | z << 16, u | v << 8 | w << 16);
            let rest = shared << 48 | u64::from(cooperative) << 56;
            room.append(grid | block << 24 | rest, 8)
        } else {
            let shape = [x, y, z, u, v, w, shared];
            shape.iter().all(|it| number(room, *it)) && room.push(cooperative.into())
        }
        && number(room, launch.params.len() as u64)
        && room.extend(launch.params)
        // No attributes.
        && room.push(0)
        && number(room, launch.stream.context.raw())
        && number(room, launch.stream.stream.raw())
}

/// Seven bits a byte, the lowest first; all but the last with the eighth bit set.
#[inline(always)]
fn number(room: &mut Window<'_>, value: u64) -> bool {
    match value {
        0..0x80 => room.push(value as u8),
        0x80..0x4000 => room.append(value & 0x7f | 0x80 | (value & 0x3f80) << 1, 2),
        0x4000..0x20_0000 => {
            let low = value & 0x7f | (value & 0x3f80) << 1;
            room.append(low | 0x8080 | (value & 0x1f_c000) << 2, 3)
        }
        _ => long_number(room, value),
    }
}

#[cold]
fn long_number(room: &mut Window<'_>, mut value: u64) -> bool {
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

    use fermata_abi::op::{ContextId, Launch, Op, StreamId};
    use proptest::prelude::*;

    use super::*;
    use crate::layout::Config;
    use crate::shm::{Mapping, create};

    /// Handles of every length that an encoding has.
    fn handle() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift)
    }

    fn size() -> impl Strategy<Value = u32> {
        (any::<u32>(), 0u32..32).prop_map(|(value, shift)| value >> shift)
    }

    proptest! {
        #[test]
        fn a_launch_has_the_bytes_that_postcard_gives_it(
            function in handle(),
            grid in prop::array::uniform3(size()),
            block in prop::array::uniform3(size()),
            small in any::<bool>(),
            shared in size(),
            cooperative: bool,
            params in prop::collection::vec(any::<u8>(), 0..300),
            context in handle(),
            stream in handle(),
        ) {
            let small_enough = |it: u32| if small { it % 130 } else { it };
            let (grid, block) = (grid.map(small_enough), block.map(small_enough));
            let shared = small_enough(shared);
            let function = FunctionId::from_raw(function);
            let stream = StreamRef {
                context: ContextId::from_raw(context),
                stream: StreamId::from_raw(stream),
            };
            let bare = BareLaunch {
                function,
                grid,
                block,
                shared,
                cooperative,
                params: &params,
                stream,
            };
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
            prop_assert!(encode(&mut room, &bare));
            let mut written = vec![0; room.written()];
            map.read(4096, &mut written);
            let expected = postcard::to_stdvec(&Op::Launch { launch, stream }).unwrap();
            prop_assert_eq!(written, expected);
        }
    }
}
