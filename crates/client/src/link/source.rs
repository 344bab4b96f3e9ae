//! Sends a module image to the worker.
//!
//! | image | way |
//! | --- | --- |
//! | small | in the message |
//! | larger | through the staging area |
//! | large, in a mapped file | the file's descriptor; the worker reads it |
//! | large, elsewhere | the descriptor of a memory file into which it is copied |

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use fermata_abi::op::{Blob, ContextId, FileId, HeldImageId, ImageRef, ModuleId, Op, ReplyBody};
use fermata_abi::sys::driver::{CUDA_ERROR_FILE_NOT_FOUND, CUDA_ERROR_OUT_OF_MEMORY};
use fermata_wire::FromProgram;
use rustix::fs::MemfdFlags;

use crate::handles;
use crate::link;
use crate::link::mapped;
use crate::result::Result;
use crate::thread::gate;

/// Images up to this size travel inside the message.
pub const INLINE: usize = 16 << 10;
/// Images from this size on travel in a file.
const LARGE: usize = 1 << 20;

/// What the worker is to do with an image.
#[derive(Debug, Clone, Copy)]
pub enum Order {
    /// The worker holds it under this handle.
    Hold(HeldImageId),
    /// It becomes a module in a context.
    Load {
        /// The module.
        module: ModuleId,
        /// The context.
        context: ContextId,
    },
}

impl Order {
    fn op<'a>(self, image: ImageRef<'a>) -> Op<'a> {
        match self {
            Self::Hold(handle) => Op::ImageHold {
                image: handle,
                from: image,
            },
            Self::Load { module, context } => Op::ModuleLoad {
                module,
                context,
                image,
                beside: gate::is_shared(),
            },
        }
    }

    /// Carries it out with an image that the worker holds.
    pub fn give_held(self, image: HeldImageId, log: impl FnOnce(&str)) -> Result {
        let op = self.op(ImageRef::Held { image });
        link::ask_long(&op, log, nothing)
    }

    /// Carries it out with an image of the program.
    pub fn give(self, image: &[u8], log: impl FnOnce(&str)) -> Result {
        if image.len() <= INLINE {
            let op = self.op(ImageRef::Blob(Blob::Inline(image)));
            return link::ask_long(&op, log, nothing);
        }
        if image.len() < LARGE {
            return self.give_staged(image, log);
        }
        let mut said = String::new();
        if let Some(found) = mapped::find(image) {
            match self.give_file(&found.file, (found.offset, image.len()), &mut said) {
                // The file has been truncated meanwhile, or the worker cannot open more files.
                Err(CUDA_ERROR_FILE_NOT_FOUND) => {}
                other => {
                    log(&said);
                    return other;
                }
            }
        }
        // If the program or the worker cannot open more files, the image must fit the staging area.
        let Ok(file) = rustix::fs::memfd_create("fermata-image", MemfdFlags::CLOEXEC) else {
            return self.give_staged(image, log);
        };
        let copy = File::from(file);
        // The image may lie in a truncated file: that is an error here, where a memory access would be a signal.
        let written = copy.write_all_at(image, 0);
        written.map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)?;
        match self.give_file(&copy, (0, image.len()), &mut said) {
            Err(CUDA_ERROR_FILE_NOT_FOUND) => self.give_staged(image, log),
            other => {
                log(&said);
                other
            }
        }
    }

    fn give_staged(self, image: &[u8], log: impl FnOnce(&str)) -> Result {
        let (range, room) = link::stage_with_room(image.len() as u64)?;
        // SAFETY: the range is as long as the image, and ours until it is dropped.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), range.address(), image.len()) };
        let staged = Blob::Staged {
            offset: range.offset(),
            len: range.len(),
        };
        link::ask_in(&room, &self.op(ImageRef::Blob(staged)), log, nothing)
    }

    fn give_file(self, file: &File, (offset, len): (u64, usize), said: &mut String) -> Result {
        loop {
            // Before the descriptor is sent, because the wait for room may be long.
            let room = link::long_room()?;
            let worker = link::generation();
            let number = handles::fresh();
            send(number, file.as_fd())?;
            let image = ImageRef::File {
                file: number,
                offset,
                len: len as u64,
            };
            let given = link::ask_in(&room, &self.op(image), |it| it.clone_into(said), nothing);
            // Between the two messages the session may have got another worker, which does not have the file.
            if given != Err(CUDA_ERROR_FILE_NOT_FOUND) || link::generation() == worker {
                return given;
            }
        }
    }
}

fn nothing(body: ReplyBody<'_>) -> Result {
    link::nothing(body)
}

fn send(file: FileId, fd: BorrowedFd<'_>) -> Result {
    link::side()?
        .send_region(&FromProgram::File { file }, fd)
        .map_err(|error| link::lost(&error))
}
