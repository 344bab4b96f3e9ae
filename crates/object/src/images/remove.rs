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
    /// The service's; `Gone` if there is no such image. If another image of the series cannot be read, the data stays, because
    /// that one may need it.
    pub fn remove(&self, name: &str) -> Result<()> {
        let key = self.catalogue_key(name);
        // What one that cannot be understood needed is found by its age.
        let bytes = self.client.get(&key, None)?;
        let removed = Catalogue::decode(&bytes).map_or(Vec::new(), |it| it.packs);
        let removed: HashSet<String> = removed.into_iter().map(|it| it.name).collect();
        self.client.delete(&key)?;
        let mut needed = HashSet::new();
        for other in self.series(name)? {
            let packs = self.catalogue(&other.name)?.packs;
            needed.extend(packs.into_iter().map(|it| it.name));
        }
        let folder = self.packs_key(name);
        let packs = self.client.list(&folder, self.client.deadline())?;
        let old = |pack: &str| begun(pack).is_some_and(|it| it + LEFT < now());
        for pack in packs.iter().filter(|it| !needed.contains(*it)) {
            if removed.contains(pack) || old(pack) {
                self.client.delete(&format!("{folder}{pack}"))?;
            }
        }
        Ok(())
    }
}
