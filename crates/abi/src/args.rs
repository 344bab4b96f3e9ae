//! Arguments of exported driver functions that are pointers of the program.
//!
//! The types have the layout of the pointers in the C signatures, so an exported function names them in their place.
//! Each access checks for null; no access needs alignment, since C programs also pass unaligned pointers.
//!
//! | type | C | what the function does with it |
//! | --- | --- | --- |
//! | [`Out`] | `T *` | writes results; some functions read a value there first |
//! | [`In`] | `const T *` | reads one value or a list |
//! | [`Name`] | `const char *` | reads a string that ends with a NUL |
//!
//! The promise on which every access rests: a value comes from the caller of an exported function, who promises what
//! the CUDA documentation of that function asks, or from [`Out::from_raw`] and its relatives, whose caller promises the
//! same. So each pointer is null, or valid for what the documentation says is done with it, until the function returns.
//! Lists are copied and not borrowed, since other threads of the program may change them.

use core::ffi::{CStr, c_char, c_void};
use core::marker::PhantomData;

use crate::sys::driver::{CUDA_ERROR_INVALID_VALUE, CUresult};

/// The error type of a library's functions, as far as these types report an error of their own.
pub trait Refusal: Copy {
    /// What the driver answers where a pointer is null, or a text no text.
    const INVALID_VALUE: Self;
}

impl Refusal for CUresult {
    const INVALID_VALUE: Self = CUDA_ERROR_INVALID_VALUE;
}

/// A pointer through which results are written (and, for some functions, read before).
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T, E = CUresult>(*mut T, PhantomData<E>);

/// A pointer from which arguments are read.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T, E = CUresult>(*const T, PhantomData<E>);

/// A string that ends with a NUL.
#[repr(transparent)]
#[derive(Debug)]
pub struct Name<E = CUresult>(*const c_char, PhantomData<E>);

impl<T, E> Clone for Out<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for Out<T, E> {}

impl<T, E> Clone for In<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E> Copy for In<T, E> {}

impl<E> Clone for Name<E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Name<E> {}

impl<T, E> From<&mut T> for Out<T, E> {
    fn from(value: &mut T) -> Self {
        Self(value, PhantomData)
    }
}

impl<T, E> From<&mut [T]> for Out<T, E> {
    fn from(values: &mut [T]) -> Self {
        Self(values.as_mut_ptr(), PhantomData)
    }
}

impl<T, E> From<&T> for In<T, E> {
    fn from(value: &T) -> Self {
        Self(value, PhantomData)
    }
}

impl<T, E> From<&[T]> for In<T, E> {
    fn from(values: &[T]) -> Self {
        Self(values.as_ptr(), PhantomData)
    }
}

impl<E> From<&CStr> for Name<E> {
    fn from(name: &CStr) -> Self {
        Self(name.as_ptr(), PhantomData)
    }
}

impl<T, E> Out<T, E> {
    /// A pointer that came by another way than as an argument: in a structure or a list of the program.
    ///
    /// # Safety
    /// As for arguments: it is null, or valid for what is done with it.
    pub unsafe fn from_raw(pointer: *mut T) -> Self {
        Self(pointer, PhantomData)
    }

    /// A null pointer.
    pub fn null() -> Self {
        Self(core::ptr::null_mut(), PhantomData)
    }

    /// Whether the program passed none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The raw pointer.
    pub fn as_ptr(self) -> *mut T {
        self.0
    }

    /// The same pointer, to be read from.
    pub fn to_in(self) -> In<T, E> {
        In(self.0.cast_const(), PhantomData)
    }

    /// Seen as a pointer to something else, which the function documents to lie there.
    pub fn cast<U>(self) -> Out<U, E> {
        Out(self.0.cast(), PhantomData)
    }

    /// Writes the result if the program wants it.
    pub fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, so valid for the documented value; see the module's text.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

impl<T, E: Refusal> Out<T, E> {
    /// Writes the result.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn set(self, value: T) -> Result<(), E> {
        self.set_at(0, value)
    }

    /// Writes element `index` of a sequence.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn set_at(self, index: usize, value: T) -> Result<(), E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of elements; see the module's text.
        unsafe { self.0.add(index).write_unaligned(value) };
        Ok(())
    }

    /// Writes the first elements of a sequence.
    ///
    /// # Errors
    /// The pointer is null and `values` is not empty.
    pub fn set_all(self, values: &[T]) -> Result<(), E>
    where
        T: Copy,
    {
        let mut values = values.iter().enumerate();
        values.try_for_each(|(index, value)| self.set_at(index, *value))
    }

    /// The value the program put there.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(self) -> Result<T, E>
    where
        T: Copy,
    {
        self.to_in().get()
    }

    /// The first `count` elements that the program put there.
    ///
    /// # Errors
    /// The pointer is null and `count` is not 0, or no memory can hold as many.
    pub fn list(self, count: usize) -> Result<Vec<T>, E>
    where
        T: Copy,
    {
        self.to_in().list(count)
    }

    /// Changes the structure there, and leaves what `change` does not touch.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn update(self, change: impl FnOnce(&mut T)) -> Result<(), E>
    where
        T: Copy,
    {
        let mut value = self.get()?;
        change(&mut value);
        self.set(value)
    }
}

impl<E: Refusal> Out<c_void, E> {
    /// Writes bytes.
    ///
    /// # Errors
    /// The pointer is null and there are bytes.
    pub fn set_bytes(self, bytes: &[u8]) -> Result<(), E> {
        self.cast().set_all(bytes)
    }
}

impl<E: Refusal> Out<c_char, E> {
    /// Writes a string and its NUL, cut to `len` bytes.
    ///
    /// # Errors
    /// The pointer is null or `len` is not positive.
    pub fn set_text(self, text: &str, len: i32) -> Result<(), E> {
        let room = usize::try_from(len).map_err(|_| E::INVALID_VALUE)?;
        self.set_text_in(text, room)
    }

    /// Writes a string and its NUL, cut to `room` bytes.
    ///
    /// # Errors
    /// The pointer is null or there is no room.
    pub fn set_text_in(self, text: &str, room: usize) -> Result<(), E> {
        let room = room.checked_sub(1).ok_or(E::INVALID_VALUE)?;
        let cut = &text.as_bytes()[..text.len().min(room)];
        for (index, byte) in cut.iter().chain([&0]).enumerate() {
            self.set_at(index, *byte as c_char)?;
        }
        Ok(())
    }
}

impl<T, E> In<T, E> {
    /// A pointer that came by another way than as an argument: in a structure or a list of the program.
    ///
    /// # Safety
    /// As for arguments: it is null, or valid for what is done with it.
    pub unsafe fn from_raw(pointer: *const T) -> Self {
        Self(pointer, PhantomData)
    }

    /// A null pointer.
    pub fn null() -> Self {
        Self(core::ptr::null(), PhantomData)
    }

    /// Whether the program passed none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The raw pointer.
    pub fn as_ptr(self) -> *const T {
        self.0
    }

    /// The address alone.
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// Seen as a pointer to something else, which the function documents to lie there.
    pub fn cast<U>(self) -> In<U, E> {
        In(self.0.cast(), PhantomData)
    }
}

impl<T: Copy, E: Refusal> In<T, E> {
    /// The value.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get(self) -> Result<T, E> {
        self.get_at(0)
    }

    /// Element `index` of a sequence.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn get_at(self, index: usize) -> Result<T, E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of elements; see the module's text.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// The first `count` elements.
    ///
    /// # Errors
    /// The pointer is null and `count` is not 0, or no memory can hold as many.
    pub fn list(self, count: usize) -> Result<Vec<T>, E> {
        let mut list = Vec::new();
        if count == 0 {
            return Ok(list);
        }
        let room = list.try_reserve_exact(count);
        if self.0.is_null() || room.is_err() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for `count` elements (see the module's text); the list has room for as many, and
        // holds them after the copy. Bytes are copied, so the source may be unaligned.
        unsafe {
            let to = list.as_mut_ptr().cast::<u8>();
            core::ptr::copy_nonoverlapping(self.0.cast(), to, count * size_of::<T>());
            list.set_len(count);
        }
        Ok(list)
    }
}

impl<T: Copy, E: Refusal> In<T, E> {
    /// The first `count` elements, none if there is no list.
    ///
    /// # Errors
    /// No memory can hold as many.
    pub fn list_if_any(self, count: usize) -> Result<Vec<T>, E> {
        self.list(if self.is_null() { 0 } else { count })
    }
}

impl<T, E: Refusal> In<*mut T, E> {
    /// Element `index` of a list of pointers, to be written through.
    ///
    /// # Errors
    /// There is no list.
    pub fn out_at(self, index: usize) -> Result<Out<T, E>, E> {
        Ok(Out(self.get_at(index)?, PhantomData))
    }

    /// Element `index` of a list of pointers, to be read from.
    ///
    /// # Errors
    /// There is no list.
    pub fn in_at(self, index: usize) -> Result<In<T, E>, E> {
        Ok(self.out_at(index)?.to_in())
    }
}

impl<E: Refusal> In<u8, E> {
    /// `N` bytes from `offset` on.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn array_at<const N: usize>(self, offset: usize) -> Result<[u8; N], E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of bytes; see the module's text.
        Ok(unsafe { self.0.add(offset).cast::<[u8; N]>().read_unaligned() })
    }

    /// `len` bytes where they lie, for what is too large to be copied: neither the program nor the function may change
    /// them while they are borrowed.
    ///
    /// # Errors
    /// The pointer is null and `len` is not 0, or no memory is as long.
    pub fn bytes(&self, len: usize) -> Result<&[u8], E> {
        if len == 0 {
            return Ok(&[]);
        }
        if self.0.is_null() || isize::try_from(len).is_err() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of bytes until the function returns; see the module's
        // text.
        Ok(unsafe { core::slice::from_raw_parts(self.0, len) })
    }

    /// The bytes up to the first NUL, which is among them.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn until_nul(&self) -> Result<&[u8], E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so a NUL-terminated string that outlives the call; see the module's text.
        Ok(unsafe { CStr::from_ptr(self.0.cast()) }.to_bytes_with_nul())
    }

    /// Copies as many bytes as `to` has.
    ///
    /// # Errors
    /// The pointer is null.
    pub fn copy_to(self, to: &mut [u8]) -> Result<(), E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so valid for the documented number of bytes; see the module's text.
        unsafe { core::ptr::copy_nonoverlapping(self.0, to.as_mut_ptr(), to.len()) };
        Ok(())
    }
}

impl<E> Name<E> {
    /// A pointer that came by another way than as an argument: in a structure or a list of the program.
    ///
    /// # Safety
    /// As for arguments: it is null, or a string that ends with a NUL.
    pub unsafe fn from_raw(pointer: *const c_char) -> Self {
        Self(pointer, PhantomData)
    }

    /// Whether the program passed none.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

impl<E: Refusal> Name<E> {
    /// The text.
    ///
    /// # Errors
    /// Null or not UTF-8.
    pub fn text(&self) -> Result<&str, E> {
        if self.0.is_null() {
            return Err(E::INVALID_VALUE);
        }
        // SAFETY: not null, so a NUL-terminated string that outlives the call; see the module's text.
        unsafe { CStr::from_ptr(self.0) }
            .to_str()
            .map_err(|_| E::INVALID_VALUE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type To<T> = Out<T>;
    type From<T> = In<T>;

    #[test]
    fn a_null_pointer_is_an_invalid_value_and_a_list_of_none_is_empty() {
        assert_eq!(To::<u32>::null().set(7), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(To::<u32>::null().get(), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(
            To::<u32>::null().update(|it| *it = 1),
            Err(CUDA_ERROR_INVALID_VALUE)
        );
        To::<u32>::null().set_if_wanted(7);
        assert_eq!(From::<u32>::null().get(), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(From::<u32>::null().list(1), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(From::<u32>::null().list(0), Ok(Vec::new()));
        assert_eq!(To::<c_void>::null().set_bytes(&[]), Ok(()));
        // SAFETY: null.
        let name: Name = unsafe { Name::from_raw(core::ptr::null()) };
        assert_eq!(name.text(), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn a_list_too_long_for_any_memory_is_refused_before_it_is_read() {
        let one = 1u64;
        let list: In<u64> = In::from(&one);
        assert_eq!(list.list(usize::MAX), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(list.list(usize::MAX / 8), Err(CUDA_ERROR_INVALID_VALUE));
    }

    #[test]
    fn unaligned_memory_is_read_and_written() {
        let mut bytes = [0u8; 17];
        let at = bytes[1..].as_mut_ptr().cast::<u64>();
        // SAFETY: two numbers fit behind the first byte.
        let out: Out<u64> = unsafe { Out::from_raw(at) };
        assert_eq!(out.set_all(&[5, 6]), Ok(()));
        assert_eq!(out.to_in().list(2), Ok(vec![5, 6]));
        assert_eq!(out.update(|it| *it += 2), Ok(()));
        assert_eq!(out.get(), Ok(7));
        assert_eq!(bytes[0], 0);
    }

    #[test]
    fn a_text_is_cut_to_its_room_and_ends_with_a_nul() {
        let mut room = [1 as c_char; 4];
        let out: Out<c_char> = Out::from(&mut room[..]);
        assert_eq!(out.set_text("abcdef", 4), Ok(()));
        assert_eq!(room.map(|it| it as u8), *b"abc\0");
        let out: Out<c_char> = Out::from(&mut room[..]);
        assert_eq!(out.set_text("abc", 0), Err(CUDA_ERROR_INVALID_VALUE));
        assert_eq!(out.set_text("abc", -1), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
