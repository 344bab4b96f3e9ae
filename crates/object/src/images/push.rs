//! An image is taken to a bucket.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use fermata_store::image::Image;
use fermata_store::{ChunkId, Store};

use super::catalogue::{Catalogue, Chunk, Pack};
use super::content::{Content, Piece};
use super::{Shelf, number};
use crate::{Cause, LARGE, ObjectError, Result, put_parts, put_pieces};

/// From how many images of the series, the newest first, chunks are taken over.
const BASES: usize = 4;
/// How often an image is written anew because one that it relies on is removed meanwhile.
const ATTEMPTS: usize = 3;

/// What taking an image to a bucket meant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pushed {
    /// Bytes of its chunks and of what its files hold, equal ones once.
    pub bytes: u64,
    /// Those that the bucket did not have.
    pub written_bytes: u64,
}

/// Where the chunks of an image are, and what has to be written for that.
struct Plan {
    packs: Vec<Pack>,
    chunks: Vec<Chunk>,
    /// Packs to write, by their numbers, with the numbers of their pieces.
    puts: Vec<(usize, Vec<usize>)>,
}

impl Shelf {
    /// Takes an image there, which then has it whole or not at all. `progress` gets the bytes written so far and in all.
    ///
    /// # Errors
    /// The service's; `Exists` in the bucket, unless it is this very image; `Damaged` where the image is.
    pub fn push(
        &self,
        image: &Image,
        store: &Store,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Pushed> {
        let held = image.hold()?;
        if let Some(bytes) = self.has(image)? {
            return Ok(Pushed {
                bytes,
                written_bytes: 0,
            });
        }
        let content = Content::of(image)?;
        let pushed = self.push_content(image, store, &content, progress);
        drop(held);
        pushed
    }

    /// Bytes of this very image, if it is there, and whole: of an earlier attempt, say, whose answer was lost.
    fn has(&self, image: &Image) -> Result<Option<u64>> {
        let manifest = image.manifest();
        let found = match self.catalogue(&manifest.name) {
            Ok(found) => found,
            Err(error) if error.is_gone() => return Ok(None),
            Err(error) => return Err(error),
        };
        let packs: HashSet<String> = self.packs_of(&manifest.name)?.into_iter().collect();
        let whole = found.packs.iter().all(|it| packs.contains(&it.name));
        let same = found.manifest.as_bytes() == manifest.encode();
        let bytes = found.chunks.iter().map(|it| u64::from(it.length)).sum();
        Ok((whole && same).then_some(bytes))
    }

    /// The images of the series, if this is none of them.
    fn check_new(&self, name: &str) -> Result<Vec<String>> {
        let there: Vec<String> = self.series(name)?.into_iter().map(|it| it.name).collect();
        if there.iter().any(|it| it == name) {
            let what = "there is an image of this name already";
            return Err(self.error("write", &self.catalogue_key(name), what, Cause::Exists));
        }
        Ok(there)
    }

    fn push_content(
        &self,
        image: &Image,
        store: &Store,
        content: &Content,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Pushed> {
        let name = &image.manifest().name;
        let key = self.catalogue_key(name);
        let bytes = content.pieces.iter().map(|it| u64::from(it.length)).sum();
        for _ in 0..ATTEMPTS {
            let there = self.check_new(name)?;
            let bases = self.bases(name, &there)?;
            let plan = plan(&bases, &content.pieces, &unique());
            let written_bytes = plan.puts.iter().map(|(at, _)| plan.packs[*at].bytes).sum();
            if let Err(error) = self.put(name, store, content, &plan, written_bytes, progress) {
                self.take_back(name, &plan);
                return Err(error);
            }
            let relied: HashSet<String> = plan.relied().map(str::to_owned).collect();
            let manifest = String::from_utf8_lossy(&image.manifest().encode()).into_owned();
            let catalogue =
                Catalogue::new(manifest, plan.packs, plan.chunks, content.files.clone());
            let encoded = catalogue.encode();
            // After a failure it may be there all the same, so its packs stay; if it is not, they go a day later.
            put_parts(&self.client, &key, encoded.len() as u64, |start, end| {
                Ok::<_, ObjectError>(encoded[start as usize..end as usize].to_vec())
            })?;
            match self.is_whole(name, &catalogue, &bases, &relied) {
                Ok(true) => {
                    return Ok(Pushed {
                        bytes,
                        written_bytes,
                    });
                }
                whole => {
                    // Nobody knows whether it can be restored: no later one may rely on it.
                    let removed = self.remove(name);
                    whole?;
                    removed?;
                }
            }
        }
        let what = "data that it shares with other images is removed again and again";
        Err(self.error("write", &key, what, Cause::Other))
    }

    /// The newest images that can be read, without what is in packs that are not there.
    fn bases(&self, name: &str, there: &[String]) -> Result<Vec<(String, Catalogue)>> {
        let mut newest = there.to_vec();
        newest.sort_by_key(|name| std::cmp::Reverse(number(name)));
        let packs: HashSet<String> = self.packs_of(name)?.into_iter().collect();
        let mut bases = Vec::new();
        for base in newest.into_iter().take(BASES) {
            match self.catalogue(&base) {
                Ok(mut catalogue) => {
                    let Catalogue {
                        packs: of, chunks, ..
                    } = &mut catalogue;
                    chunks.retain(|it| packs.contains(&of[it.pack as usize].name));
                    bases.push((base, catalogue));
                }
                // One that is damaged, or has just been removed, shares nothing.
                Err(error) if error.is_gone() || error.is_damaged() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bases)
    }

    /// Writes the packs.
    fn put(
        &self,
        name: &str,
        store: &Store,
        content: &Content,
        plan: &Plan,
        total: u64,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<()> {
        let done = AtomicU64::new(0);
        progress(0, total);
        for (pack, pieces) in &plan.puts {
            // One for each pack: between two of them what nobody needs can be collected. The image keeps what it needs.
            let reader = store.reader()?;
            let pack = &plan.packs[*pack];
            let key = format!("{}{}", self.packs_key(name), pack.name);
            let pieces: Vec<&Piece> = pieces.iter().map(|at| &content.pieces[*at]).collect();
            put_pieces(
                &self.client,
                &key,
                pieces.iter().map(|it| u64::from(it.length)),
                |at| Content::read(pieces[at], &reader),
                |bytes| progress(done.fetch_add(bytes, Ordering::Relaxed) + bytes, total),
            )?;
        }
        Ok(())
    }

    /// Whether all packs of a catalogue that was written are there, and those that were taken over are named by an image which is
    /// still what it was: then nobody removes them.
    fn is_whole(
        &self,
        name: &str,
        catalogue: &Catalogue,
        bases: &[(String, Catalogue)],
        relied: &HashSet<String>,
    ) -> Result<bool> {
        let mut kept: HashSet<String> = HashSet::new();
        for (base, _) in bases.iter().filter(|_| !relied.is_empty()) {
            match self.catalogue(base) {
                Ok(found) => kept.extend(found.packs.into_iter().map(|it| it.name)),
                Err(error) if error.is_gone() || error.is_damaged() => {}
                Err(error) => return Err(error),
            }
        }
        let there: HashSet<String> = self.packs_of(name)?.into_iter().collect();
        let mut packs = catalogue.packs.iter();
        Ok(relied.is_subset(&kept) && packs.all(|it| there.contains(&it.name)))
    }

    /// Removes packs that no catalogue names, as well as that can be done: what stays is removed with an image, a day later.
    fn take_back(&self, name: &str, plan: &Plan) {
        for (at, _) in &plan.puts {
            let key = format!("{}{}", self.packs_key(name), plan.packs[*at].name);
            if self.client.delete(&key).is_err() {
                return;
            }
        }
    }
}

impl Plan {
    fn relied(&self) -> impl Iterator<Item = &str> {
        let own: HashSet<usize> = self.puts.iter().map(|(at, _)| *at).collect();
        let others = self.packs.iter().enumerate();
        others
            .filter(move |(at, _)| !own.contains(at))
            .map(|(_, pack)| pack.name.as_str())
    }
}

/// Takes over what `bases` have, in packs of which at least half is needed, so that space comes back without rewriting
/// anything. The rest is put into new packs, whose names begin with `unique`.
fn plan(bases: &[(String, Catalogue)], pieces: &[Piece], unique: &str) -> Plan {
    let mut known: HashMap<ChunkId, (&Pack, Chunk)> = HashMap::new();
    for (_, base) in bases {
        for chunk in &base.chunks {
            let pack = &base.packs[chunk.pack as usize];
            known.entry(chunk.id).or_insert((pack, *chunk));
        }
    }
    let found = |piece: &Piece| {
        let there = known.get(&piece.id).copied();
        there.filter(|(_, chunk)| chunk.length == piece.length)
    };
    let mut needed: HashMap<&str, u64> = HashMap::new();
    for (pack, chunk) in pieces.iter().filter_map(found) {
        *needed.entry(&pack.name).or_default() += u64::from(chunk.length);
    }
    let mut plan = Plan {
        packs: Vec::new(),
        chunks: Vec::new(),
        puts: Vec::new(),
    };
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    for (at, piece) in pieces.iter().enumerate() {
        let there = found(piece).filter(|(pack, _)| 2 * needed[pack.name.as_str()] >= pack.bytes);
        let (pack, offset) = match there {
            Some((pack, chunk)) => {
                let number = *numbers.entry(&pack.name).or_insert_with(|| {
                    plan.packs.push(pack.clone());
                    plan.packs.len() as u32 - 1
                });
                (number, chunk.offset)
            }
            None => plan.add(at, u64::from(piece.length), unique),
        };
        plan.chunks.push(Chunk {
            id: piece.id,
            length: piece.length,
            pack,
            offset,
        });
    }
    plan
}

impl Plan {
    /// The pack and the offset for a piece that is written.
    fn add(&mut self, piece: usize, length: u64, unique: &str) -> (u32, u64) {
        let full = |plan: &Self| {
            let last = plan.puts.last();
            last.is_none_or(|(pack, _)| plan.packs[*pack].bytes >= LARGE)
        };
        if full(self) {
            let name = format!("{unique}-{}", self.puts.len());
            self.puts.push((self.packs.len(), Vec::new()));
            self.packs.push(Pack { name, bytes: 0 });
        }
        let last = self.puts.len() - 1;
        let (number, pieces) = &mut self.puts[last];
        pieces.push(piece);
        let pack = &mut self.packs[*number];
        let offset = pack.bytes;
        pack.bytes += length;
        (*number as u32, offset)
    }
}

/// What no other attempt's packs begin with: the time in seconds and a random number, in hexadecimal.
fn unique() -> String {
    use std::hash::{BuildHasher, RandomState};
    format!(
        "{:x}-{:016x}",
        now(),
        RandomState::new().hash_one(std::process::id())
    )
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| it.as_secs())
}

/// When a pack of this name was begun.
pub(super) fn begun(pack: &str) -> Option<u64> {
    u64::from_str_radix(pack.split('-').next()?, 16).ok()
}
