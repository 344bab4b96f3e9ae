//! Exported functions for arrays, and for one-dimensional copies from and to them.

use core::ffi::c_void;

use fermata_abi::op::{Address, ArrayId, Extent};
use fermata_abi::sys::driver as sys;

use super::boxes::issue;
use crate::args::{In, Out};
use crate::frame::entry::driver_api;
use crate::handles::to_pointer;
use crate::object::array::Shape;
use crate::object::context::current;
use crate::object::session::session;
use crate::result::Result;
use crate::work::boxes::{Corner, Memory, Origin, copy};

driver_api! {
    fn cuArrayCreate_v2(array: Out<sys::CUarray>, desc: In<sys::CUDA_ARRAY_DESCRIPTOR>) {
        let desc = &desc.get()?;
        let shape = Shape {
            width: desc.Width as u64,
            height: desc.Height as u64,
            depth: 0,
            format: desc.Format,
            channels: desc.NumChannels,
            flags: 0,
        };
        array.set(to_pointer(session()?.arrays.create(&*current()?, shape)?.handle))
    }

    fn cuArray3DCreate_v2(array: Out<sys::CUarray>, desc: In<sys::CUDA_ARRAY3D_DESCRIPTOR>) {
        let shape = Shape::of(&desc.get()?);
        array.set(to_pointer(session()?.arrays.create(&*current()?, shape)?.handle))
    }

    fn cuArrayGetDescriptor_v2(desc: Out<sys::CUDA_ARRAY_DESCRIPTOR>, array: sys::CUarray) {
        let shape = session()?.arrays.get(array)?.shape;
        desc.set(sys::CUDA_ARRAY_DESCRIPTOR {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Format: shape.format,
            NumChannels: shape.channels,
        })
    }

    fn cuArray3DGetDescriptor_v2(desc: Out<sys::CUDA_ARRAY3D_DESCRIPTOR>, array: sys::CUarray) {
        let shape = session()?.arrays.get(array)?.shape;
        desc.set(sys::CUDA_ARRAY3D_DESCRIPTOR {
            Width: shape.width as usize,
            Height: shape.height as usize,
            Depth: shape.depth as usize,
            Format: shape.format,
            NumChannels: shape.channels,
            Flags: shape.flags,
        })
    }

    fn cuArrayDestroy(array: sys::CUarray) {
        session()?.arrays.destroy(array)
    }

    fn cuMemcpyHtoA_v2(to: sys::CUarray, offset: usize, from: *const c_void, size: usize) {
        row(At::Array(to, offset), At::Memory(Memory::Host(from.cast_mut().cast())), size, None, true)
    }

    fn cuMemcpyHtoAAsync_v2(
        to: sys::CUarray,
        offset: usize,
        from: *const c_void,
        size: usize,
        stream: sys::CUstream,
    ) {
        let from = At::Memory(Memory::Host(from.cast_mut().cast()));
        row(At::Array(to, offset), from, size, Some(stream), false)
    }

    fn cuMemcpyAtoH_v2(to: *mut c_void, from: sys::CUarray, offset: usize, size: usize) {
        row(At::Memory(Memory::Host(to.cast())), At::Array(from, offset), size, None, true)
    }

    fn cuMemcpyAtoHAsync_v2(
        to: *mut c_void,
        from: sys::CUarray,
        offset: usize,
        size: usize,
        stream: sys::CUstream,
    ) {
        row(At::Memory(Memory::Host(to.cast())), At::Array(from, offset), size, Some(stream), false)
    }

    fn cuMemcpyDtoA_v2(to: sys::CUarray, offset: usize, from: sys::CUdeviceptr, size: usize) {
        row(At::Array(to, offset), At::Memory(Memory::Device(Address::from_raw(from))), size, None, false)
    }

    fn cuMemcpyAtoD_v2(to: sys::CUdeviceptr, from: sys::CUarray, offset: usize, size: usize) {
        row(At::Memory(Memory::Device(Address::from_raw(to))), At::Array(from, offset), size, None, false)
    }

    fn cuMemcpyAtoA_v2(
        to: sys::CUarray,
        to_offset: usize,
        from: sys::CUarray,
        from_offset: usize,
        size: usize,
    ) {
        row(At::Array(to, to_offset), At::Array(from, from_offset), size, None, false)
    }
}

enum At {
    Array(sys::CUarray, usize),
    Memory(Memory),
}

/// Copies bytes of an array's first row.
fn row(to: At, from: At, size: usize, stream: Option<sys::CUstream>, wait: bool) -> Result {
    let session = session()?;
    if size == 0 {
        return Ok(());
    }
    let extent = Extent {
        width: size as u64,
        height: 1,
        depth: 1,
    };
    let corner = |at: At| match at {
        At::Array(array, x) => {
            let array: ArrayId = session.arrays.get(array)?.handle;
            Ok(Corner::Array {
                array,
                x: x as u64,
                y: 0,
                z: 0,
            })
        }
        At::Memory(memory) => {
            let origin = Origin {
                x: 0,
                y: 0,
                z: 0,
                pitch: 0,
                rows: 0,
            };
            Corner::memory(&session.memory, memory, origin, &extent)
        }
    };
    let (to, from) = (corner(to)?, corner(from)?);
    let Some(stream) = issue(session, to, from, extent, stream)? else {
        return Ok(());
    };
    copy(to, from, extent, stream, wait)
}
