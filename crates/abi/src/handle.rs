//! The numbers by which a program and its worker name things: one type for each kind.
//!
//! A program's library chooses handles (never 0, 1 or 2 for an object), counts them up and never uses one twice in a session.
//! In messages and in stored state each is a plain 64-bit number: the types exist for the compiler, which refuses
//! a stream's handle where an event's belongs. So nothing here converts one kind into another, and there is no `From<u64>`:
//! a number becomes a handle by [`Raw::from_raw`], at the places where one comes from outside (the driver API, a stored
//! image's older type, a test).
//!
//! ```compile_fail,E0308
//! use fermata_abi::op::{Op, StreamId};
//!
//! let stream = StreamId::from_raw(0x100);
//! let wrong = Op::EventDestroy { event: stream };
//! ```

use core::fmt;
use core::hash::Hash;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A kind of number, for code that is the same for several kinds.
pub trait Raw: Copy + Ord + Hash + fmt::Debug + Serialize + DeserializeOwned {
    /// The number as its kind. The caller knows that it is one.
    fn from_raw(number: u64) -> Self;

    /// The plain number.
    fn raw(self) -> u64;
}

impl Raw for u64 {
    fn from_raw(number: u64) -> Self {
        number
    }

    fn raw(self) -> u64 {
        self
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
            #[serde(transparent)]
            pub struct $name(u64);

            impl $name {
                /// 0, which names none.
                pub const NULL: Self = Self(0);

                /// The number as its kind. The caller knows that it is one.
                #[inline]
                pub const fn from_raw(number: u64) -> Self {
                    Self(number)
                }

                /// The plain number.
                #[inline]
                pub const fn raw(self) -> u64 {
                    self.0
                }
            }

            impl Raw for $name {
                #[inline]
                fn from_raw(number: u64) -> Self {
                    Self(number)
                }

                #[inline]
                fn raw(self) -> u64 {
                    self.0
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write!(f, concat!(stringify!($name), "({:#x})"), self.0)
                }
            }

            impl fmt::LowerHex for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    fmt::LowerHex::fmt(&self.0, f)
                }
            }
        )*
    };
}

kinds! {
    /// A context.
    ContextId;
    /// A module.
    ModuleId;
    /// A function of a module: a kernel in a context.
    FunctionId;
    /// A library, which is a module in each context that uses it.
    LibraryId;
    /// A kernel of a library, which is a function in each context that uses it.
    KernelId;
    /// An image that the worker keeps for a library.
    HeldImageId;
    /// A file whose descriptor goes over the side socket.
    FileId;
    /// A texture reference or a surface reference.
    ReferenceId;
    /// A linker's state.
    LinkerId;
    /// A green context, which as a context has another number.
    GreenId;
    /// A description of multiprocessors, which only the program has.
    DescriptorId;
    /// A stream.
    StreamId;
    /// An event.
    EventId;
    /// A graph, which only the program has.
    GraphId;
    /// A node of a graph, as the driver API names it; within its graph it has a number of its own.
    GraphNodeId;
    /// An executable graph.
    ExecId;
    /// An object of the program that graphs keep alive.
    UserObjectId;
    /// An array.
    ArrayId;
    /// An array with levels.
    MipmapId;
    /// A texture object or a surface object: the driver's own number, unique in its context.
    TextureId;
    /// Physical memory.
    MemoryId;
    /// A memory pool.
    PoolId;
    /// A function that the program has registered to be called.
    CallbackId;
}

impl KernelId {
    /// The driver API lets a kernel stand where a function does; [`FunctionId::as_kernel`] is the way back.
    pub const fn as_function(self) -> FunctionId {
        FunctionId(self.0)
    }
}

impl FunctionId {
    /// The kernel, if it is one that stands where a function does.
    pub const fn as_kernel(self) -> KernelId {
        KernelId(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_travels_as_the_plain_number() {
        for number in [0, 1, 0x7f, 0x80, 0x100, 0x3000_0000_0000, u64::MAX] {
            let plain = postcard::to_stdvec(&number).unwrap();
            assert_eq!(
                postcard::to_stdvec(&StreamId::from_raw(number)).unwrap(),
                plain
            );
            let back: EventId = postcard::from_bytes(&plain).unwrap();
            assert_eq!(back.raw(), number);
        }
    }

    #[test]
    fn a_handle_prints_its_kind_and_its_number() {
        let stream = StreamId::from_raw(0x110);
        assert_eq!(format!("{stream:?} {stream:#x}"), "StreamId(0x110) 0x110");
    }
}
