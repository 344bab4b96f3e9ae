//! An image in a bucket is removed.

use std::collections::HashSet;

use super::Shelf;
use super::catalogue::Catalogue;
use super::push::{begun, now};
use crate::Result;

/// A pack that no catalogue names is what a machine has left that died while it wrote, once it is so old, in seconds.
const LEFT: u64 = 24 * 60 * 60;

impl Shelf {
    /// Removes an image, and what only it needed.
    ///
    /// # Errors
    /// The service's; `Gone` if there is no such image, after what dead writers have left was removed. If another image of the
    /// series cannot be read, the data stays, because that one may need it.
    pub fn remove(&self, name: &str) -> Result<()> {
        let key = self.catalogue_key(name);
        let found = self.client.get(&key, None);
        // What one that cannot be understood needed is found by its age.
        let removed = match &found {
            Ok(bytes) => Catalogue::decode(bytes).map_or(Vec::new(), |it| it.packs),
            Err(error) if error.is_gone() => Vec::new(),
            Err(_) => return found.map(drop),
        };
        let removed: HashSet<String> = removed.into_iter().map(|it| it.name).collect();
        if found.is_ok() {
            self.client.delete(&key)?;
        }
        let mut needed = HashSet::new();
        for other in self.series(name)? {
            match self.catalogue(&other.name) {
                Ok(catalogue) => needed.extend(catalogue.packs.into_iter().map(|it| it.name)),
                // Somebody removes it at the same time.
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        let old = |pack: &str| begun(pack).is_some_and(|it| it + LEFT < now());
        for pack in self.packs_of(name)? {
            if !needed.contains(&pack) && (removed.contains(&pack) || old(&pack)) {
                self.client
                    .delete(&format!("{}{pack}", self.packs_key(name)))?;
            }
        }
        found.map(drop)
    }
}
