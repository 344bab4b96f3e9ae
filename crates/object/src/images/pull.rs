//! An image is brought back from a bucket.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use fermata_store::image::{ChunkTable, Draft, Image, Manifest, PROFILE, rm};
use fermata_store::{ChunkId, Store, StoreError};

use super::Shelf;
use super::catalogue::{Catalogue, Chunk};
use crate::{Place, Result, at_once, reads};

const OP: &str = "bring the image from its bucket";

/// Called with the bytes read so far, and in all.
type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

impl Shelf {
    /// Brings an image to the folder `images`, its chunks into `store`. Everything is checked by its hash; what the store has, and
    /// has right, is not read.
    ///
    /// # Errors
    /// The service's; `Gone` if there is no such image; `Damaged` in the bucket; `Exists`, `Full` here. After any of them there is
    /// no image here.
    pub fn pull(
        &self,
        name: &str,
        images: &Path,
        store: &Store,
        progress: Progress<'_>,
    ) -> Result<Image> {
        let catalogue = self.catalogue(name)?;
        let at = self.address_of(name);
        let manifest = Manifest::decode(catalogue.manifest.as_bytes(), Path::new(&at))?;
        let mut draft = Draft::create(store, images, name)?;
        for _ in &manifest.parts {
            draft.add_part()?;
        }
        let meter = Meter {
            done: AtomicU64::new(0),
            total: catalogue.chunks.iter().map(|it| u64::from(it.length)).sum(),
            progress,
        };
        self.files(name, &catalogue, &manifest, draft.path(), &meter)?;
        self.chunks(name, &catalogue, &manifest, draft.path(), store, &meter)?;
        let wanted = manifest.files.clone();
        let target = draft.target().to_owned();
        let committed = draft.commit(manifest);
        if committed.is_err() && target.exists() {
            // What lacks a file that every image of its kind has is found at the end.
            let _ = rm(&target, Some(store));
        }
        let image = committed?;
        if image.manifest().files != wanted {
            rm(image.dir(), Some(store))?;
            return Err(self.damaged(
                &self.catalogue_key(name),
                "its files are not those of its manifest",
            ));
        }
        Ok(image)
    }

    /// Writes the files into `to`.
    fn files(
        &self,
        name: &str,
        catalogue: &Catalogue,
        manifest: &Manifest,
        to: &Path,
        meter: &Meter<'_>,
    ) -> Result<()> {
        let known: HashSet<&str> = manifest.files.iter().map(|it| it.path.as_str()).collect();
        let profiles: Vec<_> = manifest
            .part_folders()
            .map(|part| Path::new(part).join(PROFILE))
            .collect();
        // The manifest's paths have been checked: they stay inside.
        let right =
            |path: &str| known.contains(path) || profiles.iter().any(|it| it == Path::new(path));
        let mut files = Vec::new();
        let mut users: HashMap<u32, Vec<(usize, u64)>> = HashMap::new();
        for file in &catalogue.files {
            if !right(&file.path) {
                let what = format!(
                    "it has a file `{}`, which its manifest does not name",
                    file.path
                );
                return Err(self.damaged(&self.catalogue_key(name), &what));
            }
            let path = to.join(&file.path);
            let failed = |error| StoreError::io("write", &path, 0, error);
            fs::create_dir_all(path.parent().unwrap_or(to)).map_err(failed)?;
            let mut offset = 0;
            for number in &file.chunks {
                users
                    .entry(*number)
                    .or_default()
                    .push((files.len(), offset));
                offset += u64::from(catalogue.chunks[*number as usize].length);
            }
            File::create_new(&path).map_err(failed)?;
            files.push(path);
        }
        let wanted = users
            .keys()
            .map(|number| catalogue.chunks[*number as usize]);
        let numbers: HashMap<ChunkId, u32> = users
            .keys()
            .map(|number| (catalogue.chunks[*number as usize].id, *number))
            .collect();
        self.read(name, catalogue, wanted.collect(), meter, &|id, bytes| {
            for (file, offset) in &users[&numbers[id]] {
                let path = &files[*file];
                // Opened anew: an image can have more files than a process may have open.
                let file = File::options().write(true).open(path);
                file.and_then(|file| file.write_all_at(bytes, *offset))
                    .map_err(|error| StoreError::io("write", path, bytes.len() as u64, error))?;
            }
            Ok(())
        })
    }

    /// Brings what the chunk tables name into the store.
    fn chunks(
        &self,
        name: &str,
        catalogue: &Catalogue,
        manifest: &Manifest,
        from: &Path,
        store: &Store,
        meter: &Meter<'_>,
    ) -> Result<()> {
        let there: HashMap<ChunkId, Chunk> =
            catalogue.chunks.iter().map(|it| (it.id, *it)).collect();
        let (writer, reader) = (store.begin()?, store.reader()?);
        let (mut wanted, mut seen, mut damaged) = (Vec::new(), HashSet::new(), HashSet::new());
        let mut scratch = Vec::new();
        for path in manifest.tables() {
            for record in ChunkTable::read(&from.join(path))?.records() {
                if !seen.insert(record.id) {
                    continue;
                }
                let Some(chunk) = there.get(&record.id) else {
                    let what = format!("chunk {} is missing", record.id);
                    return Err(self.damaged(&self.catalogue_key(name), &what));
                };
                if !writer.put_known(&record.id, u64::from(record.length)) {
                    wanted.push(*chunk);
                } else if reader.verify(&record.id, &mut scratch).is_err() {
                    damaged.insert(record.id);
                    wanted.push(*chunk);
                } else {
                    meter.read(u64::from(record.length));
                }
            }
        }
        let lacking = wanted.iter().filter(|it| !damaged.contains(&it.id));
        store.check_room(OP, lacking.map(|it| u64::from(it.length)))?;
        self.read(name, catalogue, wanted, meter, &|id, bytes| {
            match damaged.contains(id) {
                true => store.mend(id, bytes).map(drop)?,
                false => writer.put(id, bytes).map(drop)?,
            }
            Ok(())
        })?;
        writer.finish()?;
        Ok(())
    }

    /// Reads chunks, checks each and gives it to `take`, in no order and from several threads.
    fn read(
        &self,
        name: &str,
        catalogue: &Catalogue,
        mut wanted: Vec<Chunk>,
        meter: &Meter<'_>,
        take: &(dyn Fn(&ChunkId, &[u8]) -> Result<()> + Sync),
    ) -> Result<()> {
        wanted.sort_unstable_by_key(|it| (it.pack, it.offset));
        let reads = reads(&wanted, |it| Place {
            pack: it.pack,
            offset: it.offset,
            length: it.length.into(),
        });
        at_once(reads.len(), |number| {
            let chunks = reads[number];
            let pack = &catalogue.packs[chunks[0].pack as usize];
            let key = format!("{}{}", self.packs_key(name), pack.name);
            let bytes = chunks.iter().map(|it| u64::from(it.length)).sum();
            let content = self.client.get(&key, Some((chunks[0].offset, bytes)))?;
            let mut rest = &content[..];
            for chunk in chunks {
                let (bytes, more) = rest.split_at(chunk.length as usize);
                if ChunkId::of(bytes) != chunk.id {
                    let what = format!(
                        "the bytes from {} on are not those that were written",
                        chunk.offset
                    );
                    return Err(self.damaged(&key, &what));
                }
                take(&chunk.id, bytes)?;
                meter.read(u64::from(chunk.length));
                rest = more;
            }
            Ok(())
        })
    }
}

/// How much has been read.
struct Meter<'a> {
    done: AtomicU64,
    total: u64,
    progress: Progress<'a>,
}

impl Meter<'_> {
    fn read(&self, bytes: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (self.progress)(done.min(self.total), self.total);
    }
}
