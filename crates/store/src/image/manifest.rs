//! `manifest.json`: what an image is and what it consists of.
//!
//! Fields may be added in later releases without a new schema version; readers ignore those they do
//! not know. Removing a field or changing its meaning takes a new version.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::error::damaged;
use crate::{Result, StoreError};

/// The latest version of the manifest and of the image folder's layout: that of an image whose memory of processes is in the store,
/// named by a table of its own.
pub const SCHEMA_VERSION: u32 = 5;
/// The version of an image with device memory in the memory of processes, and that in the store, named by the chunk table.
const PROCESSES_IN_STORE: u32 = 4;
/// The version of an image with device memory in the memory of processes, and that in files.
const IN_PROCESSES: u32 = 3;
/// The version of an image whose device part is of one process, or that has none.
const ONE_PART: u32 = 1;
/// The version of an image with device parts of several processes.
const SEVERAL_PARTS: u32 = 2;
/// Name of the manifest.
pub const MANIFEST: &str = "manifest.json";
/// Name of the file with the manifest's BLAKE3: 64 hexadecimal digits and a line feed.
pub const MANIFEST_HASH: &str = "manifest.b3";
/// What restores of an image have learnt, for the next: advice that no hash covers.
pub const PROFILE: &str = "profile";
/// Name of the file with the session's objects.
pub const STATE: &str = "state";
/// Name of the chunk table.
pub const CHUNKS: &str = "chunks";
/// Name of the folder of the host process.
pub const HOST: &str = "host";
/// Path of the chunk table with the memory of processes.
pub const HOST_CHUNKS: &str = "host/chunks";

/// Files that every image of a process has: the end of its output, and what CRIU writes of every process.
pub const PROCESS_FILES: [&str; 4] = [
    "log",
    "host/inventory.img",
    "host/pstree.img",
    "host/files.img",
];

/// The contents of `manifest.json`. A field that is added is written only where it is not its default: parity is computed over these
/// bytes, also by later releases.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// The least that says what this manifest does; set by `Draft::commit`.
    pub schema_version: u32,
    /// The image's name when it was written; set by `Draft::commit`.
    pub name: String,
    /// When it was committed, RFC 3339 UTC; set by `Draft::commit`.
    pub created: String,
    /// Folder of the store with its chunks, absolute; set by `Draft::commit`.
    pub store: String,
    /// The same in bytes, if it is not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_bytes: Option<Vec<u8>>,
    /// Release of Fermata that wrote it.
    pub fermata_version: String,
    /// Session it was taken of.
    pub session: String,
    /// Protocol: `stop`, `snapshot`, `cow`, `recopy`.
    pub mode: String,
    /// The program.
    pub program: Program,
    /// The machine.
    pub host: HostRecord,
    /// Devices in the program's order.
    pub devices: Vec<DeviceRecord>,
    /// What the session held.
    pub totals: SessionTotals,
    /// Folders with `state` and `chunks` of further processes, beside those of the first ([`part_name`]); set by
    /// `Draft::commit`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// Processes, by their numbers in the image, whose device memory is in their host memory, where the driver's own
    /// checkpoint has put it; such an image has no device part.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub driver_processes: Vec<u32>,
    /// Steps of the checkpoint in order.
    pub phases: Vec<Phase>,
    /// What the program has felt of it beside the stop.
    pub stall: StallRecord,
    /// How what was copied while the program ran was validated.
    pub validation: ValidationRecord,
    /// What the writer needs at restore beyond the above (log length, open files), by name.
    pub extra: BTreeMap<String, serde_json::Value>,
    /// Every other file of the folder; set by `Draft::commit`.
    pub files: Vec<FileRecord>,
}

/// The program that was checkpointed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// Its command line.
    pub argv: Vec<String>,
    /// Its working folder.
    pub cwd: String,
    /// Path of its executable.
    pub executable: String,
    /// Its process id as it sees it.
    pub pid: u32,
}

/// The machine an image was written on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRecord {
    /// Host name.
    pub hostname: String,
    /// Kernel release.
    pub kernel: String,
    /// Version of CRIU.
    pub criu: String,
}

/// A device the program saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceRecord {
    /// Name.
    pub name: String,
    /// UUID.
    pub uuid: String,
    /// Bytes of memory.
    pub memory: u64,
    /// 10 * major + minor.
    pub compute_capability: u32,
    /// `cuDriverGetVersion`.
    pub driver_version: i32,
    /// Whether it was softgpu's.
    pub soft: bool,
}

/// What a session held when it was checkpointed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SessionTotals {
    /// Live device allocations.
    pub allocations: u64,
    /// Their bytes.
    pub device_bytes: u64,
    /// Bytes of pinned, registered and managed memory.
    pub host_bytes: u64,
    /// Bytes of the processes' own memory that are in the store; with `driver_processes` device memory is among it.
    #[serde(skip_serializing_if = "is_zero")]
    pub memory_bytes: u64,
    /// Streams, events, modules, graphs alive.
    pub objects: u64,
    /// Chunks referred to.
    pub chunks: u64,
    /// Bytes newly written to the store.
    pub written_bytes: u64,
    /// Seconds the whole checkpoint took.
    pub seconds: f64,
    /// Seconds the program stood still.
    pub stopped_seconds: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A step of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phase {
    /// Name: `quiesce`, `device`, `host`, ...
    pub name: String,
    /// Seconds after the checkpoint's begin at which it began; steps may overlap.
    pub start: f64,
    /// Seconds it took.
    pub seconds: f64,
    /// Bytes it moved.
    pub bytes: u64,
}

/// What copying behind the running program has cost it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StallRecord {
    /// Operations that had to wait for a copy.
    pub waits: u64,
    /// Seconds they waited, in all.
    pub waited_seconds: f64,
    /// Seconds spent on putting copies before operations.
    pub issuing_seconds: f64,
    /// Bytes copied aside on the devices.
    pub isolated_bytes: u64,
    /// The most bytes that lay aside at once.
    pub pool_bytes: u64,
    /// Operations that may have touched more than could be foreseen.
    pub incomplete: u64,
    /// Seconds until everything had been copied.
    pub copying_seconds: f64,
    /// Buffers written before their copy by mis-speculation; a stop has taken them.
    pub overtaken: u64,
    /// When what was done.
    pub timeline: TimelineRecord,
}

/// When copying behind the program did what: sums over spans of equal length.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimelineRecord {
    /// Seconds after the checkpoint's begin at which the first span began.
    pub start: f64,
    /// Seconds of each span.
    pub span: f64,
    /// Bytes copied to the host, or found to be in the store.
    pub copied: Vec<u64>,
    /// Bytes copied aside on devices.
    pub aside: Vec<u64>,
    /// Seconds that an operation of the program waited for a copy.
    pub waited: Vec<f64>,
}

/// How what was copied while the program ran was validated.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ValidationRecord {
    /// `content`, `ptx`, `both`, or `off` for nothing; empty in images of earlier releases: `content`.
    pub by: String,
    /// Why that is not what was asked for, or why it did not suffice.
    pub note: String,
    /// Launches that checked their own stores.
    pub checked: u64,
    /// Launches of kernels and graphs that could not, although they should have.
    pub unchecked: u64,
    /// Stores outside the predicted access sets, as far as launches can be told apart.
    pub violations: u64,
    /// The first of them.
    pub misses: Vec<MissRecord>,
}

/// A store outside the predicted access set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MissRecord {
    /// The kernel's name.
    pub kernel: String,
    /// Where, in hexadecimal.
    pub address: String,
    /// How many bytes.
    pub bytes: u64,
    /// Number of the buffer there; 0 if it is none of the image's.
    pub buffer: u64,
}

/// A file of the image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Path inside the image folder, parts separated by `/`.
    pub path: String,
    /// Bytes.
    pub length: u64,
    /// BLAKE3, 64 hexadecimal digits.
    pub blake3: String,
}

/// [`ValidationRecord::by`] of an image that was not validated.
const NOTHING: &str = "off";

impl Manifest {
    /// What to tell the user of an image that was not validated.
    pub fn warning(&self) -> Option<String> {
        (self.validation.by == NOTHING).then(|| {
            format!(
                "nothing vouches for image `{}`: it was taken with `--validate off` while the program ran",
                self.name
            )
        })
    }

    /// The least version that says what this manifest does.
    pub(super) fn needed_version(&self) -> u32 {
        if self.file(HOST_CHUNKS).is_some() {
            return SCHEMA_VERSION;
        }
        match (self.driver_processes.is_empty(), self.parts.is_empty()) {
            (false, _) if self.file(CHUNKS).is_some() => PROCESSES_IN_STORE,
            (false, _) => IN_PROCESSES,
            (true, false) => SEVERAL_PARTS,
            (true, true) => ONE_PART,
        }
    }

    /// Notes where the store is.
    pub(super) fn set_store(&mut self, dir: &Path) {
        self.store = dir.to_string_lossy().into_owned();
        let bytes = || dir.as_os_str().as_bytes().to_vec();
        self.store_bytes = dir.to_str().is_none().then(bytes);
    }

    /// Folder of the store with its chunks.
    pub fn store_path(&self) -> &Path {
        match &self.store_bytes {
            Some(bytes) => Path::new(OsStr::from_bytes(bytes)),
            None => Path::new(&self.store),
        }
    }

    /// The same without what [`super::Draft::commit`] sets: the same bytes for every copy of an image, wherever and whenever it was
    /// committed.
    pub fn uncommitted(&self) -> Self {
        Self {
            name: String::new(),
            created: String::new(),
            store: String::new(),
            store_bytes: None,
            parts: Vec::new(),
            files: Vec::new(),
            ..self.clone()
        }
    }

    /// Paths of the chunk tables: those of the device parts, and that of the memory of processes.
    pub fn tables(&self) -> impl Iterator<Item = String> {
        let parts = self.part_folders().map(|part| in_part(part, CHUNKS));
        let all = parts.chain(std::iter::once(HOST_CHUNKS.to_owned()));
        all.filter(|path| self.file(path).is_some())
    }

    /// Bytes of the processes: their files, and their memory in the store.
    pub fn host_bytes(&self) -> u64 {
        let files = self.files.iter().filter(|it| it.path.starts_with(HOST));
        let files: u64 = files.map(|it| it.length).sum();
        let memory = match self.driver_processes.is_empty() {
            true => self.totals.memory_bytes,
            false => (self.totals.memory_bytes).saturating_sub(self.totals.device_bytes),
        };
        files + memory
    }

    /// Reads a manifest; `path` is only named in errors.
    ///
    /// # Errors
    /// `Newer` for a later schema version, `Damaged` for anything that is not a manifest.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema_version: u32,
        }
        let bad = |e: serde_json::Error| StoreError::Damaged {
            path: path.into(),
            what: format!("not a manifest: {e}"),
        };
        let found = serde_json::from_slice::<Version>(bytes)
            .map_err(bad)?
            .schema_version;
        if found > SCHEMA_VERSION {
            return Err(StoreError::Newer {
                path: path.into(),
                found,
                known: SCHEMA_VERSION,
            });
        }
        if found == 0 {
            return damaged(path, "schema version 0 does not exist");
        }
        let manifest: Self = serde_json::from_slice(bytes).map_err(bad)?;
        let expected = (1..).map(part_name);
        if !manifest
            .parts
            .iter()
            .cloned()
            .eq(expected.take(manifest.parts.len()))
        {
            return damaged(
                path,
                "its device parts are not numbered one after the other",
            );
        }
        let mut seen = HashSet::new();
        for file in &manifest.files {
            if !stays_inside(&file.path) {
                return damaged(path, &format!("`{}` leads out of the image", file.path));
            }
            if !seen.insert(&file.path) {
                return damaged(path, &format!("it lists `{}` twice", file.path));
            }
        }
        Ok(manifest)
    }

    /// The bytes of `manifest.json`.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a manifest has only text keys");
        bytes.push(b'\n');
        bytes
    }

    /// The folders with device parts: that of the image itself, empty, and those of further processes.
    pub fn part_folders(&self) -> impl Iterator<Item = &str> {
        std::iter::once("").chain(self.parts.iter().map(String::as_str))
    }

    /// The record of a file, by its path inside the image.
    pub fn file(&self, path: &str) -> Option<&FileRecord> {
        self.files.iter().find(|f| f.path == path)
    }
}

/// Name of the folder with the device part of a session's process number `at`, counted from 0; empty for the first, whose
/// part lies in the image's folder itself.
pub fn part_name(at: usize) -> String {
    match at {
        0 => String::new(),
        _ => format!("process-{}", at + 1),
    }
}

/// Path of a file in a part's folder, as manifests name it.
pub(super) fn in_part(part: &str, name: &str) -> String {
    match part {
        "" => name.to_owned(),
        _ => format!("{part}/{name}"),
    }
}

fn stays_inside(path: &str) -> bool {
    !path.is_empty()
        && Path::new(path)
            .components()
            .all(|c| matches!(c, Component::Normal(_)))
}

/// Whether a folder is an image, sound or not: what is in the place of its manifest does not matter.
pub(super) fn is_image(folder: &Path) -> bool {
    let mut names = [MANIFEST, MANIFEST_HASH].into_iter();
    names.any(|name| folder.join(name).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_store_need_not_be_utf_8() {
        for bytes in [&b"/plain/.store"[..], b"/od\xffd/.store"] {
            let place = Path::new(OsStr::from_bytes(bytes));
            let mut manifest = Manifest {
                schema_version: SCHEMA_VERSION,
                ..Manifest::default()
            };
            manifest.set_store(place);
            let read = Manifest::decode(&manifest.encode(), Path::new("m")).unwrap();
            assert_eq!(read.store_path(), place);
            assert_eq!(read.store_bytes.is_some(), place.to_str().is_none());
        }
    }

    #[test]
    fn unknown_fields_are_ignored_and_newer_versions_refused() {
        let m = Manifest::decode(br#"{"schema_version":1,"later":2}"#, Path::new("m")).unwrap();
        assert_eq!(m.schema_version, 1);
        let e = Manifest::decode(br#"{"schema_version":6}"#, Path::new("m")).unwrap_err();
        assert!(matches!(e, StoreError::Newer { found: 6, .. }));
        assert!(Manifest::decode(b"{}", Path::new("m")).is_err());
    }

    #[test]
    fn device_parts_are_numbered() {
        let decode = |parts: &str| {
            let text = format!(r#"{{"schema_version":2,"parts":{parts}}}"#);
            Manifest::decode(text.as_bytes(), Path::new("m"))
        };
        assert_eq!(
            decode(r#"["process-2","process-3"]"#).unwrap().parts.len(),
            2
        );
        for wrong in [
            r#"["process-3"]"#,
            r#"["process-2","process-2"]"#,
            r#"["../x"]"#,
            r#"[""]"#,
        ] {
            let e = decode(wrong).unwrap_err();
            assert!(matches!(e, StoreError::Damaged { .. }), "{wrong}: {e}");
        }
    }

    #[test]
    fn seconds_are_read_as_they_were_written() {
        for seconds in [4.4444444444444445e33, 0.1 + 0.2, f64::MIN_POSITIVE] {
            let mut m = Manifest {
                schema_version: 1,
                ..Default::default()
            };
            m.totals.seconds = seconds;
            m.extra.insert("seconds".into(), seconds.into());
            let again = Manifest::decode(&m.encode(), Path::new("m")).unwrap();
            assert_eq!(again.totals.seconds.to_bits(), seconds.to_bits());
            assert_eq!(again.extra["seconds"].as_f64(), Some(seconds));
        }
    }

    #[test]
    fn paths_that_lead_outside_are_refused() {
        for path in ["../x", "/etc/passwd", "a/../../b", ""] {
            let m = Manifest {
                schema_version: 1,
                files: vec![FileRecord {
                    path: path.into(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let e = Manifest::decode(&m.encode(), Path::new("m")).unwrap_err();
            assert!(e.to_string().contains("leads out"), "{path}: {e}");
        }
    }
}
