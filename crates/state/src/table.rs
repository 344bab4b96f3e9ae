//! Objects of one kind by handle or address.

use std::collections::BTreeMap;

use fermata_abi::op::Raw;
use fermata_abi::sys::driver::CUresult;
use serde::{Deserialize, Serialize};

use crate::StateError;

/// What a kind of object is called, and what a program is told when one is missing.
pub trait Kind {
    /// What names one: a handle of its kind, or an address.
    type Key: Raw;
    /// Name in messages.
    const NAME: &'static str;
    /// `CUresult` for a handle that is none.
    const MISSING: CUresult;
}

/// Objects of one kind, in the order of their handles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    transparent,
    bound(
        serialize = "T: Kind + Serialize",
        deserialize = "T: Kind + Deserialize<'de>"
    )
)]
pub struct Table<T: Kind>(BTreeMap<T::Key, T>);

impl<T: Kind> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Kind> Table<T> {
    fn unknown(handle: T::Key) -> StateError {
        StateError::Unknown {
            kind: T::NAME,
            handle: handle.raw(),
            code: T::MISSING,
        }
    }

    /// Adds an object.
    ///
    /// # Errors
    /// The handle is taken.
    pub fn insert(&mut self, handle: T::Key, object: T) -> Result<(), StateError> {
        if self.0.contains_key(&handle) {
            return Err(StateError::Exists {
                kind: T::NAME,
                handle: handle.raw(),
            });
        }
        self.0.insert(handle, object);
        Ok(())
    }

    /// The object `handle`.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, handle: T::Key) -> Result<&T, StateError> {
        self.0.get(&handle).ok_or_else(|| Self::unknown(handle))
    }

    /// The object `handle`, to be changed.
    ///
    /// # Errors
    /// There is none.
    pub fn get_mut(&mut self, handle: T::Key) -> Result<&mut T, StateError> {
        self.0.get_mut(&handle).ok_or_else(|| Self::unknown(handle))
    }

    /// Takes an object out.
    ///
    /// # Errors
    /// There is none.
    pub fn remove(&mut self, handle: T::Key) -> Result<T, StateError> {
        self.0.remove(&handle).ok_or_else(|| Self::unknown(handle))
    }

    /// Whether the handle is taken.
    pub fn contains(&self, handle: T::Key) -> bool {
        self.0.contains_key(&handle)
    }

    /// All objects.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (T::Key, &T)> {
        self.0.iter().map(|(handle, object)| (*handle, object))
    }

    /// All objects, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (T::Key, &mut T)> {
        self.0.iter_mut().map(|(handle, object)| (*handle, object))
    }

    /// The object at the highest handle not above `handle`.
    pub fn at_or_below(&self, handle: T::Key) -> Option<(T::Key, &T)> {
        self.0
            .range(..=handle)
            .next_back()
            .map(|(handle, object)| (*handle, object))
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out what `which` picks; the answer is what was taken.
    pub fn take_where(&mut self, which: impl Fn(&T) -> bool) -> Vec<(T::Key, T)> {
        let picked: Vec<T::Key> = self
            .0
            .iter()
            .filter(|(_, object)| which(object))
            .map(|(handle, _)| *handle)
            .collect();
        picked
            .into_iter()
            .filter_map(|handle| Some((handle, self.0.remove(&handle)?)))
            .collect()
    }
}
