//! Images: folders that hold one checkpoint each, and what can be done with them.
//!
//! ```text
//!  NAME/manifest.json   what the image is; length and BLAKE3 of every other file
//!       manifest.b3     BLAKE3 of manifest.json
//!       state           objects of the session (written by the engine)
//!       chunks          which chunk fills which part of which buffer
//!       process-2/ ...  `state` and `chunks` of each further process that uses the GPU
//!       host/           the host process (written by CRIU); `host/chunks`: which chunk fills which part of its memory
//! ```

mod beside;
mod diff;
mod draft;
mod folder;
mod manifest;
mod open;
mod profile;
mod registry;
mod table;
mod time;
mod verify;

pub use beside::chunks_beside;
pub use diff::{BufferChange, BufferDiff, Diff, FileChange, FileDiff, diff};
pub use draft::Draft;
pub use folder::{Listed, Removed, check_name, check_place, ls, next_name, rm, sweep_drafts};
pub use manifest::{
    CHUNKS, DeviceRecord, FileRecord, HOST, HOST_CHUNKS, HostRecord, MANIFEST, MANIFEST_HASH,
    Manifest, MissRecord, PROCESS_FILES, PROFILE, Phase, Program, SCHEMA_VERSION, STATE,
    SessionTotals, StallRecord, TimelineRecord, ValidationRecord, part_name,
};
pub use open::{Held, Image};
pub use profile::{read_profile, write_profile};
pub use table::{BufferChunks, BufferId, ChunkRecord, ChunkTable, ChunkTableWriter};
pub use time::{rfc3339, unix_now};
pub use verify::{Damage, DamagedBuffer, Report, VerifyProgress, verify};

pub(crate) use beside::{PARTS, table_of};
pub(crate) use registry::{forget, known_images};
