//! An image in the making: a hidden folder beside its final place.
//!
//! ```text
//!  create ─► .draft-NAME-… (locked by its writer) ─ commit ─► NAME
//!                 │ drop, or death of the writer
//!                 ▼
//!              removed
//! ```
//! From `create` to the end a draft holds the store's shared lock: chunks put for it are not
//! collected although no image refers to them yet.

use std::fs::Permissions;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::RenameFlags;

use super::folder::{DRAFT_PREFIX, check_name, check_place, sweep_drafts};
use super::manifest::{FileRecord, HOST, MANIFEST, MANIFEST_HASH, Manifest, PROFILE, part_name};
use super::{Image, registry, rfc3339, unix_now};
use crate::lock::{self, Guard, Kind, SharedLock};
use crate::{Result, Store, StoreError, format, moments, sync};

/// In the names of folders that become no images.
const SCRATCH: &str = "scratch";

/// An image that does not exist yet.
pub struct Draft {
    path: PathBuf,
    target: PathBuf,
    name: String,
    store: Store,
    files: Option<Vec<FileRecord>>,
    parts: Vec<String>,
    _own: Guard,
    _share: SharedLock,
}

impl Draft {
    /// Makes the folder for an image `name` in `images_dir` (made if absent) whose chunks go to
    /// `store`.
    ///
    /// # Errors
    /// `Exists` when there is such an image, or anything else with its name; `BadName`; `BadPlace`; `Locked` while a collection runs, `Full`.
    pub fn create(store: &Store, images_dir: &Path, name: &str) -> Result<Self> {
        check_name(name)?;
        Self::begin(store, images_dir, name, true)
    }

    /// Makes a folder like that of a draft, for files that are needed for a while: it goes when this is dropped, or with the
    /// next look after dead drafts. It must not be committed.
    ///
    /// # Errors
    /// As [`Self::create`], but for the name.
    pub fn scratch(store: &Store, images_dir: &Path) -> Result<Self> {
        Self::begin(store, images_dir, SCRATCH, false)
    }

    fn begin(store: &Store, images_dir: &Path, name: &str, becomes_image: bool) -> Result<Self> {
        check_place(images_dir)?;
        let share = store.share()?;
        sync::make_folder(images_dir)?;
        let images_dir = std::fs::canonicalize(images_dir)
            .map_err(|e| StoreError::io("resolve", images_dir, 0, e))?;
        let target = images_dir.join(name);
        if becomes_image && target.symlink_metadata().is_ok() {
            return Err(StoreError::Exists { path: target });
        }
        sweep_drafts(&images_dir)?;
        loop {
            let unique = format::PackId(sync::unique()?);
            let path = images_dir.join(format!("{DRAFT_PREFIX}{name}-{unique}"));
            sync::make_folder(&path)?;
            // Somebody who sweeps can take the folder for a dead one before it is locked.
            let own = match lock::folder(&path, Kind::Exclusive, Duration::ZERO) {
                Ok(Some(own)) if path.exists() => own,
                Ok(_) => continue,
                Err(_) if !path.exists() => continue,
                Err(e) => return Err(e),
            };
            let draft = Self {
                path,
                target,
                name: name.into(),
                store: store.clone(),
                files: None,
                parts: Vec::new(),
                _own: own,
                _share: share,
            };
            sync::make_folder(&draft.host())?;
            return Ok(draft);
        }
    }

    /// The store to which its chunks go.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The folder to write into.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its sub-folder for the host process.
    pub fn host(&self) -> PathBuf {
        self.path.join(HOST)
    }

    /// Makes the folder for `state` and `chunks` of a further process, whose number (2, 3, ...) is one more than the last
    /// one's.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub fn add_part(&mut self) -> Result<PathBuf> {
        let name = part_name(self.parts.len() + 1);
        let folder = self.path.join(&name);
        sync::make_folder(&folder)?;
        self.parts.push(name);
        Ok(folder)
    }

    /// Where the image will be.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Protects, hashes and syncs every file in the folder, which must not change from then on: the part of
    /// [`Self::commit`] that takes long, for those whose manifest shall tell how long.
    ///
    /// # Errors
    /// `Full`; `Misuse` when the folder holds something that is neither file nor folder.
    pub fn seal(&mut self) -> Result<()> {
        let mut files = Vec::new();
        collect(&self.path, "", &mut files)?;
        // Restores write them anew.
        files.retain(|it| !self.is_profile(&it.path));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        self.files = Some(files);
        Ok(())
    }

    /// Whether the file at `path` in the folder is the profile of a part, or that of the processes' memory.
    fn is_profile(&self, path: &str) -> bool {
        let folder = match path.strip_suffix(PROFILE) {
            Some("") => return true,
            Some(folder) => folder.strip_suffix('/'),
            None => None,
        };
        folder.is_some_and(|folder| folder == HOST || self.parts.iter().any(|part| part == folder))
    }

    /// Completes the image: seals the folder if that has not been done, writes the manifest, and
    /// gives the folder its name. The chunks must have been published before.
    ///
    /// # Errors
    /// `Full`, `Exists` when somebody else has taken the name, `Misuse` when the folder holds
    /// something that is neither file nor folder. After any error there is no image, and none
    /// of the older ones is touched.
    pub fn commit(mut self, mut manifest: Manifest) -> Result<Image> {
        if self.files.is_none() {
            self.seal()?;
        }
        moments::pass("commit");
        manifest.parts = std::mem::take(&mut self.parts);
        manifest.files = self.files.take().unwrap_or_default();
        manifest.schema_version = manifest.needed_version();
        manifest.name.clone_from(&self.name);
        manifest.created = rfc3339(unix_now());
        manifest.set_store(self.store.dir());
        let bytes = manifest.encode();
        let hash = format!("{}\n", blake3::hash(&bytes).to_hex());
        sync::write_new(&self.path.join(MANIFEST), &[&bytes], true)?;
        sync::write_new(&self.path.join(MANIFEST_HASH), &[hash.as_bytes()], true)?;
        sync::folder(&self.path)?;
        moments::pass("manifest");
        registry::announce(&self.store, &self.target)?;
        let dir = rustix::fs::CWD;
        rustix::fs::renameat_with(dir, &self.path, dir, &self.target, RenameFlags::NOREPLACE)
            .map_err(|e| match e {
                rustix::io::Errno::EXIST => StoreError::Exists {
                    path: self.target.clone(),
                },
                e => StoreError::io("rename", &self.path, 0, e),
            })?;
        moments::pass("named");
        sync::folder(self.target.parent().unwrap_or(Path::new("/")))?;
        registry::enter(&self.store, &self.target)?;
        Image::open(&self.target)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a commit the folder has another name. What cannot be removed now is swept later.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Hashes, protects and syncs everything below a folder.
fn collect(folder: &Path, prefix: &str, files: &mut Vec<FileRecord>) -> Result<()> {
    let io = |op, path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| StoreError::io(op, &path, 0, e)
    };
    for entry in std::fs::read_dir(folder).map_err(io("list", folder))? {
        let entry = entry.map_err(io("list", folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(io("examine", &path))?;
        let Ok(name) = entry.file_name().into_string() else {
            let what = format!("the name of `{}` is not UTF-8", path.display());
            return Err(StoreError::Misuse {
                op: "commit an image",
                what,
            });
        };
        let relative = format!("{prefix}{name}");
        if kind.is_dir() {
            std::fs::set_permissions(&path, Permissions::from_mode(0o700))
                .map_err(io("protect", &path))?;
            collect(&path, &format!("{relative}/"), files)?;
        } else if kind.is_file() {
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))
                .map_err(io("protect", &path))?;
            let (length, blake3) = hash_file(&path, true)?;
            files.push(FileRecord {
                path: relative,
                length,
                blake3,
            });
        } else {
            let what = format!("`{}` is neither a file nor a folder", path.display());
            return Err(StoreError::Misuse {
                op: "commit an image",
                what,
            });
        }
    }
    sync::folder(folder)
}

/// Length and BLAKE3 of a file.
pub(super) fn hash_file(path: &Path, durable: bool) -> Result<(u64, String)> {
    let mut file = sync::open_regular(path)?;
    let mut hash = || {
        let mut hasher = blake3::Hasher::new();
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                n => hasher.update(&piece[..n]),
            };
        }
        if durable {
            file.sync_all()?;
        }
        Ok((hasher.count(), hasher.finalize().to_hex().to_string()))
    };
    hash().map_err(|e: std::io::Error| StoreError::io("read", path, 0, e))
}
