//! The parameters of graph nodes, owned.

use fermata_abi::op::{ContextId, FunctionId};
use serde::{Deserialize, Serialize};

/// A launch attribute as CUDA passes it: its id and the 64 bytes of the value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchAttribute {
    /// A `CU_LAUNCH_ATTRIBUTE_*` number.
    pub id: u32,
    /// The value's bytes, 64 of them.
    #[serde(with = "serde_bytes")]
    pub value: Vec<u8>,
}

/// A kernel launch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNode {
    /// The function.
    pub function: FunctionId,
    /// Context the launch belongs to; 0 means the function's.
    pub context: ContextId,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// The parameter block.
    #[serde(with = "serde_bytes")]
    pub params: Vec<u8>,
    /// Launch attributes, by id.
    pub attributes: Vec<LaunchAttribute>,
}

impl KernelNode {
    /// Whether both have the same context and attributes, which stay when an executable graph gets other parameters one kernel
    /// at a time.
    pub fn is_alike(&self, other: &Self) -> bool {
        (self.context, &self.attributes) == (other.context, &other.attributes)
    }

    /// Becomes `other`, with which it is alike, in the memory that its parameters have.
    pub fn become_alike(&mut self, other: &Self) {
        self.function = other.function;
        self.grid = other.grid;
        self.block = other.block;
        self.shared_bytes = other.shared_bytes;
        self.params.clone_from(&other.params);
    }
}

/// A memset of rows of 1-, 2- or 4-byte elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemsetNode {
    /// First byte.
    pub dst: u64,
    /// Bytes from row to row; meaningless for one row.
    pub pitch: u64,
    /// The value, in its low `element_size` bytes.
    pub value: u32,
    /// 1, 2 or 4.
    pub element_size: u32,
    /// Elements per row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// A call of a function in the program's process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCall {
    /// Address of the function.
    pub function: u64,
    /// Its argument.
    pub user_data: u64,
}

/// An allocation that lives from this node to the matching free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemAllocNode {
    /// Device it lives on.
    pub device: i32,
    /// Bytes.
    pub bytes: u64,
    /// Address it was given when the node was made.
    pub address: u64,
}

/// What one memory operation of a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemOpKind {
    /// Wait until the comparison with `value` holds; `flags` are `CU_STREAM_WAIT_VALUE_*`.
    Wait,
    /// Write `value`; `flags` are `CU_STREAM_WRITE_VALUE_*`.
    Write,
    /// A memory barrier or a flush of remote writes.
    Barrier,
}

/// A 32- or 64-bit wait or write, or a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemOp {
    /// What is done.
    pub kind: MemOpKind,
    /// Address of the word.
    pub address: u64,
    /// Value written or compared with.
    pub value: u64,
    /// CUDA's flags.
    pub flags: u32,
    /// 64-bit rather than 32-bit.
    pub wide: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_encoded_as_the_lists_of_older_images() {
        let value: Vec<u8> = (0..64).map(|it| it * 4).collect();
        let params: Vec<u8> = (0..=255).collect();
        let node = KernelNode {
            function: FunctionId::from_raw(300),
            context: ContextId::from_raw(2),
            grid: [1, 2, 300],
            block: [128, 1, 1],
            shared_bytes: 40_000,
            params: params.clone(),
            attributes: vec![LaunchAttribute {
                id: 4,
                value: value.clone(),
            }],
        };
        let shape = (node.grid, node.block, node.shared_bytes);
        let attributes = vec![(4_u32, value)];
        let lists = (node.function, node.context, shape, params, attributes);
        let encoded = postcard::to_stdvec(&node).expect("encoded");
        assert_eq!(encoded, postcard::to_stdvec(&lists).expect("encoded"));
        let decoded: KernelNode = postcard::from_bytes(&encoded).expect("decoded");
        assert_eq!(decoded, node);
    }
}
