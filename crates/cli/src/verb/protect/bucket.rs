//! The bucket that a protected session's images are copied to, by a thread of its own: the newest valid one each time that the
//! one before is there.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fermata_control::Paths;
use fermata_object::{Listed, ObjectError, Pushed, Shelf};
use fermata_store::Store;
use fermata_store::image::Image;

use crate::failure::{Failure, INTERNAL};
use crate::place;
use crate::verb::images::remove;

/// How soon a copy that has failed is tried again: the first time; each further time twice as long after, up to [`LONGEST`].
const AGAIN: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(320);

/// A folder of a bucket with images of one session.
pub struct Bucket {
    shelf: Arc<Shelf>,
    /// Name of the session's images without their number.
    base: String,
    to_copy: Sender<PathBuf>,
    copied: Receiver<Copied>,
    /// The image that is being copied.
    busy: Option<PathBuf>,
    /// The one that follows.
    next: Option<PathBuf>,
    /// After a failure: when copying begins again, and the pause until then.
    pause: Option<(Instant, Duration)>,
    /// The highest number of an image that is there, or was to be copied there.
    highest: u64,
}

/// The end of a copy.
pub struct Copied {
    /// The image.
    pub image: PathBuf,
    /// Its address in the bucket.
    pub address: String,
    /// What it meant; `None` if the image has gone.
    pub result: Result<Option<Pushed>, Failure>,
    /// Whether older ones could be removed there.
    pub thinned_out: Result<(), Failure>,
    /// How long it took.
    pub seconds: f64,
}

impl Bucket {
    /// The folder at `address`, in which `keep` images named BASE-NUMBER are kept.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn open(address: &str, base: &str, keep: usize) -> Result<Self, Failure> {
        let shelf = Arc::new(place::shelf(address)?);
        let highest = there(&shelf, base)?.last().map(|(number, _)| *number);
        let (to_copy, paths) = channel::<PathBuf>();
        let (send, copied) = channel();
        let (copying, base) = (shelf.clone(), base.to_owned());
        let series = base.clone();
        let work = move || {
            for image in paths {
                let begun = Instant::now();
                let name = image
                    .file_name()
                    .map(|it| it.to_string_lossy().into_owned());
                let address = copying.address_of(&name.unwrap_or_default());
                let result = copy(&copying, &image);
                let thinned_out = match &result {
                    Ok(Some(_)) => thin_out(&copying, &series, keep),
                    _ => Ok(()),
                };
                let seconds = begun.elapsed().as_secs_f64();
                let copied = Copied {
                    image,
                    address,
                    result,
                    thinned_out,
                    seconds,
                };
                if send.send(copied).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("bucket".into())
            .spawn(work)
            .map_err(|e| Failure::new(INTERNAL, format!("cannot start a thread: {e}")))?;
        Ok(Self {
            shelf,
            base,
            to_copy,
            copied,
            busy: None,
            next: None,
            pause: None,
            highest: highest.unwrap_or(0),
        })
    }

    /// The highest number of an image that is there, or was to be copied there.
    pub fn highest(&self) -> u64 {
        self.highest
    }

    /// The image at `path` is valid: it is copied, unless a newer one is there.
    pub fn offer(&mut self, path: &Path) {
        let Some(offered) = self.number_of(path).filter(|it| *it > self.highest) else {
            return;
        };
        let next = self.next.as_deref().and_then(|next| self.number_of(next));
        if next.is_none_or(|next| next < offered) {
            self.next = Some(path.into());
        }
    }

    fn number_of(&self, path: &Path) -> Option<u64> {
        number(&self.base, &path.file_name()?.to_string_lossy())
    }

    /// Whether the image at `path` is being copied.
    pub fn is_copying(&self, path: &Path) -> bool {
        self.busy.as_deref() == Some(path)
    }

    /// Copies that have ended since the last call.
    pub fn news(&mut self) -> Vec<Copied> {
        let news: Vec<Copied> = self.copied.try_iter().collect();
        if !news.is_empty() {
            self.busy = None;
        }
        for copied in &news {
            if copied.result.is_ok() {
                self.pause = None;
                continue;
            }
            // Once more, unless a newer one is there by then.
            self.next.get_or_insert_with(|| copied.image.clone());
            let pause = self.pause.map_or(AGAIN, |(_, last)| LONGEST.min(2 * last));
            self.pause = Some((Instant::now() + pause, pause));
        }
        news
    }

    /// Begins to copy the image that was offered, if none is being copied.
    pub fn begin(&mut self) {
        let pauses = self.pause.is_some_and(|(end, _)| Instant::now() < end);
        if self.busy.is_some() || pauses {
            return;
        }
        if let Some(path) = self.next.take() {
            self.highest = self.highest.max(self.number_of(&path).unwrap_or(0));
            // The thread is there as long as this is.
            let _ = self.to_copy.send(path.clone());
            self.busy = Some(path);
        }
    }

    /// Brings the newest image that can be read to `folder`, unless it is there and was `tried` already; `None` if there is none.
    ///
    /// # Errors
    /// Why the newest one could not be brought.
    pub fn fetch(
        &self,
        folder: &Path,
        tried: &HashSet<&Path>,
    ) -> Result<Option<(u64, PathBuf)>, Failure> {
        let there = there(&self.shelf, &self.base)?;
        let store = Store::open(&Paths::find().store(), true)?;
        let mut first = None;
        for (number, name) in there.into_iter().rev() {
            let path = folder.join(&name);
            if tried.contains(path.as_path()) {
                continue;
            }
            // What was brought for an earlier program of this name.
            if path.exists() {
                remove(&path)?;
            }
            match self.shelf.pull(&name, folder, &store, &|_, _| {}) {
                Ok(_) => return Ok(Some((number, path))),
                Err(error) => {
                    first.get_or_insert(Failure::from(error));
                }
            }
        }
        first.map_or(Ok(None), Err)
    }
}

/// Copies the image at `path`.
fn copy(shelf: &Shelf, path: &Path) -> Result<Option<Pushed>, Failure> {
    let copied = || -> Result<Pushed, ObjectError> {
        let image = Image::open(path)?;
        let store = image.find_store(&[Paths::find().store()])?;
        shelf.push(&image, &store, &|_, _| {})
    };
    match copied() {
        Ok(pushed) => Ok(Some(pushed)),
        // It was removed, because newer ones came meanwhile.
        Err(_) if !path.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The session's images that are there, oldest first: numbers and names.
fn there(shelf: &Shelf, base: &str) -> Result<Vec<(u64, String)>, Failure> {
    let series = shelf.series(&format!("{base}-1"))?;
    let numbered = |it: Listed| Some((number(base, &it.name)?, it.name));
    Ok(series.into_iter().filter_map(numbered).collect())
}

/// Removes the oldest images as long as there are more than are to be kept.
fn thin_out(shelf: &Shelf, base: &str, keep: usize) -> Result<(), Failure> {
    let there = there(shelf, base)?;
    let surplus = there.len().saturating_sub(keep);
    for (_, old) in &there[..surplus] {
        match shelf.remove(old) {
            Err(error) if !error.is_gone() => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// The number of a session's image.
pub fn number(base: &str, name: &str) -> Option<u64> {
    name.strip_prefix(base)?.strip_prefix('-')?.parse().ok()
}
