//! The images of a protected session: NAME-protect-1, NAME-protect-2, ... in one folder.
//!
//! An image counts as valid once every bit of it has been read and found right. Only then may an older one go.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use fermata_store::Store;
use fermata_store::image::{self, Image};

use super::bucket::{Bucket, Copied, number};
use crate::failure::{Failure, INTERNAL};
use crate::place;

/// Where images from the bucket are, in the folder of the session's images.
const FETCHED: &str = "fetched";

/// What is known of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    /// It has not been read yet.
    Unread,
    /// Every bit is right.
    Valid,
    /// It cannot be restored.
    Damaged,
}

/// An image.
#[derive(Debug, Clone)]
struct Kept {
    number: u64,
    path: PathBuf,
    validity: Validity,
}

/// The images, oldest first.
pub struct Images {
    folder: PathBuf,
    base: String,
    keep: usize,
    kept: Vec<Kept>,
    to_read: Sender<PathBuf>,
    read: Receiver<(PathBuf, Result<(), Failure>)>,
    bucket: Option<Bucket>,
    /// Whether space of removed images is still to be given back.
    uncollected: bool,
}

/// What has become known of an image.
pub enum News {
    /// It was read, and is right.
    Valid,
    /// It is damaged.
    Damaged(PathBuf, String),
    /// It was removed, because there are enough newer ones.
    Removed(PathBuf),
    /// A copy to the bucket has ended.
    Copied(Copied),
}

impl Images {
    /// Those that are in `folder` already, of which `keep` valid ones are kept, there and in the folder of a bucket at the address
    /// `bucket`.
    pub fn find(
        folder: &Path,
        session: &str,
        keep: u32,
        bucket: Option<&str>,
    ) -> Result<Self, Failure> {
        let base = format!("{session}-protect");
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let bucket = bucket
            .map(|address| Bucket::open(address, &base, keep))
            .transpose()?;
        let (to_read, paths) = channel::<PathBuf>();
        let (send, read) = channel();
        let work = move || {
            for path in paths {
                let result = check(&path);
                if send.send((path, result)).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("verify".into())
            .spawn(work)
            .map_err(|e| Failure::new(INTERNAL, format!("cannot start a thread: {e}")))?;
        let mut images = Self {
            folder: folder.into(),
            keep,
            kept: Vec::new(),
            base,
            to_read,
            read,
            bucket,
            uncollected: false,
        };
        for listed in image::ls(folder)? {
            if let Some(number) = images.number_of(&listed.name) {
                images.add(number, listed.path);
            }
        }
        images.kept.sort_by_key(|it| it.number);
        Ok(images)
    }

    /// The folder of the next image.
    pub fn next(&self) -> PathBuf {
        // Restores take the one with the highest number for the newest, also one that was taken on another machine.
        let there = self.bucket.iter().map(Bucket::highest);
        let numbers = self.kept.iter().map(|it| it.number).chain(there);
        let last = numbers.max().unwrap_or(0);
        let free = (last.saturating_add(1)..)
            .map(|number| self.folder.join(format!("{}-{number}", self.base)));
        let mut free = free.filter(|path| path.symlink_metadata().is_err());
        free.next().unwrap_or_else(|| self.folder.join(&self.base))
    }

    /// The image at `path` is complete; it is read from now on.
    pub fn taken(&mut self, path: &Path) {
        let name = path.file_name().map(|it| it.to_string_lossy());
        if let Some(number) = name.and_then(|it| self.number_of(&it)) {
            self.add(number, path.into());
        }
    }

    /// Images to restore from, newest first.
    pub fn to_restore(&self) -> Vec<PathBuf> {
        let usable = self.kept.iter().rev();
        let usable = usable.filter(|it| it.validity != Validity::Damaged);
        usable.map(|it| it.path.clone()).collect()
    }

    /// The image at `path` could not be restored.
    pub fn damaged(&mut self, path: &Path) {
        self.set(path, Validity::Damaged);
    }

    /// The image at `path` is there no more.
    pub fn gone(&mut self, path: &Path) {
        self.kept.retain(|it| it.path != path);
    }

    /// What has become known since the last call.
    pub fn news(&mut self) -> Vec<News> {
        let mut news = Vec::new();
        let read: Vec<_> = self.read.try_iter().collect();
        for (path, result) in read {
            match result {
                Ok(()) => {
                    self.set(&path, Validity::Valid);
                    if let Some(bucket) = &mut self.bucket {
                        bucket.offer(&path);
                    }
                    news.push(News::Valid);
                }
                Err(e) if e.status == crate::failure::DAMAGED => {
                    self.set(&path, Validity::Damaged);
                    news.push(News::Damaged(path, e.message));
                }
                // A collection was at work, say; or it was removed by somebody else.
                Err(_) if path.exists() => self.read_again(path),
                Err(_) => self.gone(&path),
            }
        }
        let copied = self.bucket.as_mut().map(Bucket::news);
        news.extend(copied.into_iter().flatten().map(News::Copied));
        if !news.is_empty() {
            self.thin_out(&mut news);
            self.collect();
        }
        // Not before: while an image is copied, nothing can be collected.
        if let Some(bucket) = &mut self.bucket {
            bucket.begin();
        }
        news
    }

    /// Brings the newest image from the bucket, where none here can be restored; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be brought.
    pub fn fetch(&mut self) -> Result<Option<PathBuf>, Failure> {
        let Some(bucket) = &self.bucket else {
            return Ok(None);
        };
        // Those that cannot be restored keep their names: somebody may want to look at them.
        let tried: HashSet<&Path> = self.kept.iter().map(|it| it.path.as_path()).collect();
        let fetched = bucket.fetch(&self.folder.join(FETCHED), &tried)?;
        Ok(fetched.map(|(number, path)| {
            self.kept.push(Kept {
                number,
                path: path.clone(),
                // Every byte was checked on its way.
                validity: Validity::Valid,
            });
            path
        }))
    }

    /// Removes the oldest valid images as long as there are more than are to be kept, and what only they needed.
    fn thin_out(&mut self, news: &mut Vec<News>) {
        loop {
            let valid = self.kept.iter().filter(|it| it.validity == Validity::Valid);
            let valid: Vec<PathBuf> = valid.map(|it| it.path.clone()).collect();
            if valid.len() <= self.keep {
                break;
            }
            let (oldest, newer) = valid.split_at(valid.len() - self.keep);
            // Somebody may have removed or changed one since.
            if let Some(bad) = newer.iter().find(|it| !is_whole(it)) {
                self.set(bad, Validity::Damaged);
                let text = "it was changed after it had been checked".to_owned();
                news.push(News::Damaged(bad.clone(), text));
                continue;
            }
            let copying =
                |path: &PathBuf| self.bucket.as_ref().is_some_and(|it| it.is_copying(path));
            let Some(path) = oldest.iter().find(|it| !copying(it)) else {
                break;
            };
            self.gone(path);
            // One that is being restored stays, and is found when the protection begins anew.
            if remove(path).is_ok() {
                self.uncollected = true;
                news.push(News::Removed(path.clone()));
            }
        }
    }

    /// Gives the space of removed images back, unless somebody else uses the store just now: the next time then.
    fn collect(&mut self) {
        if !self.uncollected {
            return;
        }
        let store = self.kept.last().and_then(|it| Image::open(&it.path).ok());
        let store = store.and_then(|it| place::store_of(&it).ok());
        if let Some(store) = store {
            let collected = fermata_store::gc(
                &place::images(),
                &store,
                &fermata_store::GcOptions::default(),
            );
            self.uncollected = collected.is_err();
        }
    }

    fn number_of(&self, name: &str) -> Option<u64> {
        number(&self.base, name)
    }

    fn add(&mut self, number: u64, path: PathBuf) {
        self.kept.push(Kept {
            number,
            path: path.clone(),
            validity: Validity::Unread,
        });
        self.read_again(path);
    }

    fn read_again(&self, path: PathBuf) {
        // The thread is there as long as this is.
        let _ = self.to_read.send(path);
    }

    fn set(&mut self, path: &Path, validity: Validity) {
        if let Some(kept) = self.kept.iter_mut().find(|it| it.path == path) {
            kept.validity = validity;
        }
    }
}

/// Reads every bit.
fn check(path: &Path) -> Result<(), Failure> {
    let image = Image::open(path)?;
    let report = image::verify(&image, &place::store_of(&image)?, &|_| {})?;
    match report.damage.first() {
        None => Ok(()),
        Some(damage) => Err(Failure::new(crate::failure::DAMAGED, damage.what.clone())),
    }
}

/// Whether the folder still has every file that its manifest lists, with its length.
fn is_whole(path: &Path) -> bool {
    let Ok(image) = Image::open(path) else {
        return false;
    };
    let files = &image.manifest().files;
    let whole = files.iter().all(|file| {
        let found = path.join(&file.path).metadata();
        found.is_ok_and(|it| it.len() == file.length)
    });
    whole && image.check_listed().is_ok()
}

/// Removes an image.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let image = Image::open(path)?;
    let store = Store::open(image.store(), false).ok();
    image::rm(path, store.as_ref())?;
    Ok(())
}
