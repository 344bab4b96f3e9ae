//! Images in a bucket.
//!
//! ```text
//!  PREFIX train-protect/images/train-protect-12     a catalogue: the manifest, and where everything else is; written last
//!  PREFIX train-protect/packs/TIME-RANDOM-0         parts of files and chunks, one after the other
//! ```
//! Images whose names differ only in the number at their end are a *series*. What images of a series have alike, the bucket
//! holds once. Removing one removes the packs that no other needs.
//!
//! Somebody may remove images while another is written: a catalogue whose packs are not all there, or are named by no other
//! that they were taken over from, is removed again, and written anew. Whoever removes an image deletes its catalogue first and
//! then looks which packs the remaining ones need, so one of the two always sees the other (object stores list what was written
//! before). Two that write images of one name at the same time are not told apart.

mod address;
mod catalogue;
mod content;
mod pull;
mod push;
mod remove;

use fermata_store::image::check_name;

use self::catalogue::{Catalogue, is_pack_name};
use crate::config::{DEADLINE, ObjectConfig};
use crate::{Cause, Client, ObjectError, Result};

pub use self::address::Address;
pub use self::push::Pushed;

/// A folder of a bucket in which images are.
pub struct Shelf {
    client: Client,
    address: Address,
    /// Before all keys: empty, or ends with a slash.
    prefix: String,
}

/// An image in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Its series.
    series: String,
}

impl Shelf {
    /// The one at `address`, with the service and the keys that `$AWS_ENDPOINT_URL_S3`, `$AWS_REGION`, `$AWS_ACCESS_KEY_ID` and
    /// `$AWS_SECRET_ACCESS_KEY` name. Asks the service nothing.
    ///
    /// # Errors
    /// `Config` where these are missing or make no sense.
    pub fn open(address: Address) -> Result<Self> {
        let config = ObjectConfig {
            bucket: address.bucket.clone(),
            endpoint: None,
            region: None,
            prefix: String::new(),
            path_style: None,
            keys: None,
            deadline: DEADLINE,
        };
        Self::with(&config, address)
    }

    /// The same with the service and the keys of `config`.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn with(config: &ObjectConfig, address: Address) -> Result<Self> {
        let prefix = match address.folder.as_str() {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        Ok(Self {
            client: Client::new(config)?,
            address,
            prefix,
        })
    }

    /// Where an image of this name is.
    pub fn address_of(&self, name: &str) -> String {
        self.address.join(name)
    }

    /// All images, by their names, numbers in their order.
    ///
    /// # Errors
    /// The service's.
    pub fn list(&self) -> Result<Vec<Listed>> {
        self.under("")
    }

    /// The images of the series that `name` belongs to, oldest number first.
    ///
    /// # Errors
    /// The service's.
    pub fn series(&self, name: &str) -> Result<Vec<Listed>> {
        self.under(&format!("{}/images/", series(name)))
    }

    fn under(&self, folder: &str) -> Result<Vec<Listed>> {
        let keys = self
            .client
            .list(&format!("{}{folder}", self.prefix), self.client.deadline())?;
        let mut found: Vec<Listed> = keys
            .iter()
            .filter_map(|key| listed(&format!("{folder}{key}")))
            .collect();
        found.sort_by(|a, b| (&a.series, number(&a.name)).cmp(&(&b.series, number(&b.name))));
        Ok(found)
    }

    fn catalogue(&self, name: &str) -> Result<Catalogue> {
        let key = self.catalogue_key(name);
        let bytes = self.client.get(&key, None)?;
        Catalogue::decode(&bytes)
            .ok_or_else(|| self.damaged(&key, "it is no catalogue of an image"))
    }

    fn catalogue_key(&self, name: &str) -> String {
        format!("{}{}/images/{name}", self.prefix, series(name))
    }

    /// The packs of the series that `name` belongs to.
    fn packs_of(&self, name: &str) -> Result<Vec<String>> {
        let patience = self.client.deadline();
        let mut packs = self.client.list(&self.packs_key(name), patience)?;
        packs.retain(|pack| is_pack_name(pack));
        Ok(packs)
    }

    fn packs_key(&self, name: &str) -> String {
        format!("{}{}/packs/", self.prefix, series(name))
    }

    fn damaged(&self, key: &str, what: &str) -> ObjectError {
        self.error("use", key, what, Cause::Damaged)
    }

    fn error(&self, op: &'static str, key: &str, what: &str, cause: Cause) -> ObjectError {
        ObjectError::Service {
            op,
            bucket: self.address.bucket.clone(),
            key: key.into(),
            what: what.into(),
            cause,
        }
    }
}

/// An image's name without the number at its end.
fn series(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((series, number))
            if !series.is_empty()
                && !number.is_empty()
                && number.bytes().all(|it| it.is_ascii_digit()) =>
        {
            series
        }
        _ => name,
    }
}

/// The number at its end, 0 if there is none; one too large to be compared is the largest.
fn number(name: &str) -> u64 {
    match name.strip_prefix(series(name)) {
        Some("") | None => 0,
        Some(number) => number[1..].parse().unwrap_or(u64::MAX),
    }
}

/// What the key of a catalogue says.
fn listed(key: &str) -> Option<Listed> {
    let (folder, name) = key.rsplit_once('/')?;
    let series_of = folder.strip_suffix("/images")?;
    let right = series_of == series(name) && check_name(name).is_ok();
    right.then(|| Listed {
        name: name.into(),
        series: series_of.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_differ_in_their_number_are_a_series() {
        let cases = [
            ("heat-1", "heat", 1),
            ("train-protect-12", "train-protect", 12),
            ("heat", "heat", 0),
            ("heat-x", "heat-x", 0),
            ("heat-", "heat-", 0),
            ("-7", "-7", 0),
            ("a-99999999999999999999", "a", u64::MAX),
        ];
        for (name, of, at) in cases {
            assert_eq!((series(name), number(name)), (of, at), "{name}");
        }
    }

    #[test]
    fn only_catalogues_are_images() {
        let name = |key: &str| listed(key).map(|it| it.name);
        assert_eq!(name("heat/images/heat-1"), Some("heat-1".into()));
        for other in [
            "heat/packs/heat-1",
            "heat/images/other-1",
            "heat-1",
            "deeper/heat/images/heat-1",
            "heat/images/",
            "heat/images/.heat-1",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
