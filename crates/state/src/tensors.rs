//! Tensor maps that the program has made: what memory a descriptor in a kernel's parameters stands for.

use std::collections::{HashMap, VecDeque};

use fermata_abi::op::{Address, TENSOR_MAP};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Descriptors that are known; the one made longest ago is forgotten first, and then counts as any bytes do.
pub const KNOWN_TENSORS: usize = 4096;

/// A descriptor and what it was made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct TensorMap {
    descriptor: ByteBuf,
    address: Address,
    bytes: u64,
}

/// Descriptors by content, with the memory of their tensors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "Vec<TensorMap>", into = "Vec<TensorMap>")]
pub struct TensorMaps {
    places: HashMap<[u8; TENSOR_MAP], (Address, u64)>,
    order: VecDeque<[u8; TENSOR_MAP]>,
}

impl TensorMaps {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// A descriptor of `bytes` bytes of memory was made.
    pub fn add(&mut self, descriptor: [u8; TENSOR_MAP], address: Address, bytes: u64) {
        if self.places.insert(descriptor, (address, bytes)).is_some() {
            return;
        }
        self.order.push_back(descriptor);
        if self.order.len() > KNOWN_TENSORS
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
    }

    /// Address and bytes of the tensor behind a descriptor.
    pub fn find(&self, descriptor: &[u8; TENSOR_MAP]) -> Option<(Address, u64)> {
        self.places.get(descriptor).copied()
    }
}

impl PartialEq for TensorMaps {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order && self.places == other.places
    }
}

impl Eq for TensorMaps {}

impl From<Vec<TensorMap>> for TensorMaps {
    fn from(list: Vec<TensorMap>) -> Self {
        let mut maps = Self::default();
        for it in list {
            // Of another length, it is no descriptor, and nothing is ever found by it.
            if let Ok(descriptor) = <[u8; TENSOR_MAP]>::try_from(it.descriptor.as_slice()) {
                maps.add(descriptor, it.address, it.bytes);
            }
        }
        maps
    }
}

impl From<TensorMaps> for Vec<TensorMap> {
    fn from(maps: TensorMaps) -> Self {
        let known = maps.order.iter();
        known
            .filter_map(|descriptor| {
                let (address, bytes) = maps.find(descriptor)?;
                let descriptor = ByteBuf::from(descriptor.to_vec());
                Some(TensorMap {
                    descriptor,
                    address,
                    bytes,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_made_longest_ago_is_forgotten_first() {
        let mut maps = TensorMaps::default();
        let descriptor = |n: usize| {
            let mut bytes = [0; TENSOR_MAP];
            bytes[..8].copy_from_slice(&n.to_le_bytes());
            bytes
        };
        for n in 0..=KNOWN_TENSORS {
            maps.add(descriptor(n), Address::from_raw(n as u64), 1);
        }
        assert_eq!(maps.find(&descriptor(0)), None);
        assert_eq!(maps.find(&descriptor(1)), Some((Address::from_raw(1), 1)));
        let list = Vec::<TensorMap>::from(maps.clone());
        assert_eq!(TensorMaps::from(list), maps);
    }
}
