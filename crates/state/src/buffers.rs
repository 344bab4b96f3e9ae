//! Everything with content, by number. The number is what an image's chunk table refers to.

use fermata_abi::op::{Address, ArrayId, HostKind, MemoryId, ModuleId};

use crate::{HostRegion, Memory, Session};

/// Whose content a buffer is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum BufferOwner {
    /// An allocation.
    Allocation(Address),
    /// Physical memory.
    Memory(MemoryId),
    /// A host region.
    Host(Address),
    /// A device variable.
    Variable {
        /// Its module.
        module: ModuleId,
        /// Its name.
        name: String,
    },
    /// An array, rows packed.
    Array(ArrayId),
}

/// Content to be saved and loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Its number, unique in the session.
    pub number: u64,
    /// Whose it is.
    pub owner: BufferOwner,
    /// Bytes.
    pub bytes: u64,
}

impl std::fmt::Display for BufferOwner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Allocation(address) => write!(f, "allocation {address:#x}"),
            Self::Memory(handle) => write!(f, "physical memory {handle:#x}"),
            Self::Host(address) => write!(f, "host region {address:#x}"),
            Self::Variable { module, name } => write!(f, "variable `{name}` of module {module:#x}"),
            Self::Array(handle) => write!(f, "array {handle:#x}"),
        }
    }
}

impl Session {
    /// All buffers, by number. The content of physical memory of other processes is theirs.
    pub fn buffers(&self) -> Vec<Buffer> {
        let mut buffers = Vec::new();
        let mut add = |number, owner, bytes| {
            buffers.push(Buffer {
                number,
                owner,
                bytes,
            })
        };
        for (address, it) in self.allocations.iter() {
            add(it.buffer, BufferOwner::Allocation(address), it.size);
        }
        for (handle, it) in self.own_memories() {
            add(it.buffer, BufferOwner::Memory(handle), it.size);
        }
        for (address, it) in self.own_host_regions() {
            add(it.buffer, BufferOwner::Host(address), it.size);
        }
        for (handle, it) in self.arrays.iter() {
            add(it.buffer, BufferOwner::Array(handle), it.bytes);
        }
        for (module, it) in self.modules.iter() {
            for (name, variable) in &it.variables {
                add(
                    variable.buffer,
                    BufferOwner::Variable {
                        module,
                        name: name.clone(),
                    },
                    variable.size,
                );
            }
        }
        buffers.sort_by_key(|buffer| buffer.number);
        buffers
    }

    /// Physical memory that is not another process's.
    pub fn own_memories(&self) -> impl Iterator<Item = (MemoryId, &Memory)> {
        let own = |(handle, _): &(MemoryId, &Memory)| !self.is_fetched(*handle);
        self.memories.iter().filter(own)
    }

    /// Host memory whose content is the session's: all but what the program shares with other processes.
    pub fn own_host_regions(&self) -> impl Iterator<Item = (Address, &HostRegion)> {
        let own = |(_, it): &(Address, &HostRegion)| it.kind != HostKind::Shared;
        self.host_regions.iter().filter(own)
    }

    /// Whether the content of the host memory at `address` is the session's.
    pub fn owns_host_region(&self, address: Address) -> bool {
        let found = self.host_regions.get(address);
        found.is_ok_and(|it| it.kind != HostKind::Shared)
    }

    /// The number given last to content: another one means that memory has been added since.
    pub fn last_buffer(&self) -> u64 {
        self.next_buffer
    }

    /// A number for new content.
    pub fn number_buffer(&mut self) -> u64 {
        self.next_buffer += 1;
        self.next_buffer
    }
}
