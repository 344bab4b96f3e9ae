//! Arguments of exported functions that are pointers of the program.
//!
//! These types look like the pointers of the C signatures. Values of them only come from callers of
//! exported functions, who promise what the CUDA documentation asks: that a pointer is null, or valid for
//! what the function does with it. Everything here rests on that promise.

use std::ffi::{CStr, c_char, c_void};

use crate::error::{INVALID_VALUE, Result};

/// A pointer through which results are written (and, for some functions, read before).
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

/// A pointer from which arguments are read.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

/// A NUL-terminated string.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Name(*const c_char);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> From<&mut T> for Out<T> {
    fn from(value: &mut T) -> Self {
        Self(value)
    }
}

impl<T> From<&mut [T]> for Out<T> {
    fn from(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr())
    }
}

impl<T> From<&T> for In<T> {
    fn from(value: &T) -> Self {
        Self(value)
    }
}

impl<T> From<&[T]> for In<T> {
    fn from(values: &[T]) -> Self {
        Self(values.as_ptr())
    }
}

impl From<&CStr> for Name {
    fn from(name: &CStr) -> Self {
        Self(name.as_ptr())
    }
}

impl<T> Out<T> {
    /// A null pointer.
    pub fn null() -> Self {
        Self(std::ptr::null_mut())
    }

    /// Whether the program passed none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the result.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn set(self, value: T) -> Result {
        self.set_at(0, value)
    }

    /// Writes the result if the program wants it.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Writes element `index` of a sequence.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn set_at(self, index: usize, value: T) -> Result {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of elements; see the module's text.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// The value the program put there.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(self) -> Result<T>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// The raw pointer.
    pub fn as_ptr(self) -> *mut T {
        self.0
    }

    /// A pointer found in a structure or list of the program.
    pub fn from_raw(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// The same pointer, to be read from.
    pub fn to_in(self) -> In<T> {
        In(self.0.cast_const())
    }
}

impl Out<c_void> {
    /// Seen as a pointer to something.
    pub fn cast<T>(self) -> Out<T> {
        Out(self.0.cast())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn set_bytes(self, bytes: &[u8]) -> Result {
        let out: Out<u8> = self.cast();
        bytes
            .iter()
            .enumerate()
            .try_for_each(|(index, byte)| out.set_at(index, *byte))
    }
}

impl Out<c_char> {
    /// Writes a string and its NUL, cut to `len` bytes.
    ///
    /// # Errors
    /// The pointer is null or `len` is not positive.
    pub fn set_text(self, text: &str, len: i32) -> Result {
        let room = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_sub(1))
            .ok_or(INVALID_VALUE)?;
        let cut = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in cut.iter().chain([&0]).enumerate() {
            self.set_at(index, *byte as c_char)?;
        }
        Ok(())
    }
}

impl<T> In<T> {
    /// A pointer that came by another way than as an argument.
    ///
    /// # Safety
    /// As for arguments: it is null, or valid for what is done with it.
    pub unsafe fn from_pointer(pointer: *const T) -> Self {
        Self(pointer)
    }

    /// Whether the program passed none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// A null pointer.
    pub fn null() -> Self {
        Self(std::ptr::null())
    }

    /// Seen as a pointer to something else.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// The address alone.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The raw pointer.
    pub fn as_ptr(self) -> *const T {
        self.0
    }

    /// The value.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(self) -> Result<T>
    where
        T: Copy,
    {
        self.get_at(0)
    }

    /// Element `index` of a sequence.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get_at(self, index: usize) -> Result<T>
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of elements; see the module's text.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first `count` elements.
    ///
    /// # Errors
    /// The pointer is null and `count` is not 0.
    pub fn list(self, count: usize) -> Result<Vec<T>>
    where
        T: Copy,
    {
        (0..count).map(|index| self.get_at(index)).collect()
    }
}

impl Name {
    /// The text.
    ///
    /// # Errors
    /// Null or not UTF-8.
    pub fn text(&self) -> Result<&str> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a NUL-terminated string that outlives the call; see the module's text.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| INVALID_VALUE)
    }
}
