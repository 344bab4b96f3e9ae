//! Exported functions for waits and writes of memory words in streams.

use std::ffi::c_uint;

use fermata_abi::sys::driver as cu;
use fermata_graph::{MemOp, MemOpKind, NodeKind};

use super::args::In;
use crate::capture;
use crate::error::{INVALID_VALUE, Result};
use crate::stream::Stream;

fn submit(stream: cu::CUstream, op: MemOp) -> Result {
    check_flags(&op)?;
    capture::submit(&Stream::resolve(stream)?, NodeKind::BatchMemOp(vec![op]))
}

fn check_flags(op: &MemOp) -> Result {
    let known = match op.kind {
        MemOpKind::Wait => cu::CU_STREAM_WAIT_VALUE_NOR | cu::CU_STREAM_WAIT_VALUE_FLUSH,
        MemOpKind::Write => cu::CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER,
        MemOpKind::Barrier => return Ok(()),
    };
    if op.flags & !known != 0 {
        Err(INVALID_VALUE)
    } else {
        Ok(())
    }
}

/// Reads a list of operations.
pub fn read_ops(count: c_uint, params: In<cu::CUstreamBatchMemOpParams>) -> Result<Vec<MemOp>> {
    let ops = params.list(count as usize)?.into_iter().map(|params| {
        // SAFETY: every member of the union begins with the operation.
        let operation = unsafe { params.operation };
        let op = match operation {
            cu::CU_STREAM_MEM_OP_WAIT_VALUE_32 | cu::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
                // SAFETY: the operation says that the union holds a wait.
                let wait = unsafe { params.waitValue };
                let wide = operation == cu::CU_STREAM_MEM_OP_WAIT_VALUE_64;
                // SAFETY: both values overlay each other and every bit pattern is a number.
                let value = unsafe { wait.__bindgen_anon_1.value64 };
                MemOp {
                    kind: MemOpKind::Wait,
                    address: wait.address,
                    value,
                    flags: wait.flags,
                    wide,
                }
            }
            cu::CU_STREAM_MEM_OP_WRITE_VALUE_32 | cu::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
                // SAFETY: the operation says that the union holds a write.
                let write = unsafe { params.writeValue };
                let wide = operation == cu::CU_STREAM_MEM_OP_WRITE_VALUE_64;
                // SAFETY: both values overlay each other and every bit pattern is a number.
                let value = unsafe { write.__bindgen_anon_1.value64 };
                MemOp {
                    kind: MemOpKind::Write,
                    address: write.address,
                    value,
                    flags: write.flags,
                    wide,
                }
            }
            cu::CU_STREAM_MEM_OP_BARRIER | cu::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES => MemOp {
                kind: MemOpKind::Barrier,
                address: 0,
                value: 0,
                flags: 0,
                wide: false,
            },
            _ => return Err(INVALID_VALUE),
        };
        check_flags(&op)?;
        Ok(if op.wide {
            op
        } else {
            MemOp {
                value: op.value & u64::from(u32::MAX),
                ..op
            }
        })
    });
    ops.collect()
}

api! {
    fn cuStreamWaitValue32_v2 | fn cuStreamWaitValue32(
        stream: cu::CUstream,
        address: cu::CUdeviceptr,
        value: cu::cuuint32_t,
        flags: c_uint,
    ) {
        submit(stream, MemOp { kind: MemOpKind::Wait, address, value: value.into(), flags, wide: false })
    }

    fn cuStreamWaitValue64_v2 | fn cuStreamWaitValue64(
        stream: cu::CUstream,
        address: cu::CUdeviceptr,
        value: cu::cuuint64_t,
        flags: c_uint,
    ) {
        submit(stream, MemOp { kind: MemOpKind::Wait, address, value, flags, wide: true })
    }

    fn cuStreamWriteValue32_v2 | fn cuStreamWriteValue32(
        stream: cu::CUstream,
        address: cu::CUdeviceptr,
        value: cu::cuuint32_t,
        flags: c_uint,
    ) {
        submit(stream, MemOp { kind: MemOpKind::Write, address, value: value.into(), flags, wide: false })
    }

    fn cuStreamWriteValue64_v2 | fn cuStreamWriteValue64(
        stream: cu::CUstream,
        address: cu::CUdeviceptr,
        value: cu::cuuint64_t,
        flags: c_uint,
    ) {
        submit(stream, MemOp { kind: MemOpKind::Write, address, value, flags, wide: true })
    }

    fn cuStreamBatchMemOp_v2 | fn cuStreamBatchMemOp(
        stream: cu::CUstream,
        count: c_uint,
        params: In<cu::CUstreamBatchMemOpParams>,
        flags: c_uint,
    ) {
        if flags != 0 || count > 256 {
            return Err(INVALID_VALUE);
        }
        let ops = read_ops(count, params)?;
        capture::submit(&Stream::resolve(stream)?, NodeKind::BatchMemOp(ops))
    }
}
