//! Chunks, packs, manifests, images: bytes and hashes on disk.
//!
//! ```text
//!  images/NAME/manifest.json ── covers ──► host/*, state, chunks
//!                  chunks ── names ──► store: index/*.idx ── places ──► packs/*.pack
//! ```
//! The order of writing is chunks, index, manifest; the order of reading is the reverse. The format
//! is described in `docs/image-format.md`. This crate knows nothing of CUDA, prints nothing, and
//! never changes a file that it has published, but to what it was (`Store::mend`).
//!
//! | files | subject |
//! | --- | --- |
//! | `image/` | an image's folder: manifest, chunk table, drafts, opening, verifying, comparing |
//! | `store`, `index`, `lock`, `owner` | a store: its folders, its index in memory, its locks, whose it is |
//! | `writer`, `pack`, `ready`, `direct`, `sync` | writing chunks into packs, durably |
//! | `reader`, `copies`, `cache`, `memory` | reading chunks: from disk, from copies in memory, from packs in memory |
//! | `gc`, `salvage`, `mend` | chunks that nothing refers to, that cannot be read, that are written anew |
//! | `paused` | data of paused sessions |
//! | `room`, `free_space` | whether there is space |
//! | `small_files`, `threads` | the same work for many files, and on several threads |
//! | `format`, `id` | records of packs and index files, the name of a chunk |
#![forbid(unsafe_code)]

mod cache;
mod copies;
mod direct;
mod display_path;
mod error;
mod file_key;
mod format;
mod free_space;
mod gc;
mod host_memory;
mod id;
pub mod image;
mod index;
mod lock;
mod memory;
mod mend;
pub mod moments;
mod named;
mod owner;
mod pack;
mod paused;
mod reader;
mod ready;
mod room;
mod salvage;
mod small_files;
mod store;
mod sync;
mod threads;
mod writer;

pub use cache::{Kept, PackCache, copied_packs};
pub use copies::Taken;
pub use direct::{AlignedBuf, BLOCK};
pub use error::{Result, StoreError};
pub use file_key::{FileKey, FileVersion};
pub use format::{IndexFile, IndexRecord, PackHeader, PackId};
pub use free_space::FreeSpace;
pub use gc::{GcOptions, GcReport, gc};
pub use host_memory::{HostMemory, is_memory};
pub use id::{ChunkId, ChunkSet};
pub use lock::SharedLock;
pub use memory::PackFile;
pub use named::read_named;
pub use owner::Owners;
pub use pack::Place;
pub use paused::{PartDigests, paused_part};
pub use reader::{ChunkReader, Located};
pub use ready::READY_BYTES;
pub use store::Store;
pub use sync::{make_folder, open_regular, read_limited};
pub use writer::{PackWriter, Put, Totals, WriteOptions};

/// The longest chunk the store takes, in bytes.
pub const MAX_CHUNK_BYTES: usize = 64 << 20;
