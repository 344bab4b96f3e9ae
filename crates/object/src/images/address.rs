//! Addresses of images and of folders of images in buckets: `s3://BUCKET/FOLDER/NAME`.

use fermata_store::image::check_name;

const SCHEME: &str = "s3://";

/// A folder of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The bucket.
    pub bucket: String,
    /// The folder's path without slashes at its ends; empty for the bucket itself.
    pub folder: String,
}

impl Address {
    /// Whether `text` is meant as such an address.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// What `s3://BUCKET[/FOLDER]` says; else what is wrong with it.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn folder(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| Err(format!("`{text}` is no address of a folder: {what}"));
        let Some(rest) = text.strip_prefix(SCHEME) else {
            return wrong("it must begin with `s3://`");
        };
        let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let folder = folder.trim_end_matches('/');
        if bucket.is_empty() {
            return wrong("it names no bucket");
        }
        if !folder.is_empty() && folder.split('/').any(|it| matches!(it, "" | "." | "..")) {
            return wrong("a part of its path is empty, `.` or `..`");
        }
        Ok(Self {
            bucket: bucket.into(),
            folder: folder.into(),
        })
    }

    /// What `s3://BUCKET[/FOLDER]/NAME` says: the folder, and the image's name.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn image(text: &str) -> Result<(Self, String), String> {
        let whole = Self::folder(text)?;
        let (folder, name) = match whole.folder.rsplit_once('/') {
            Some((folder, name)) => (folder, name),
            None => ("", whole.folder.as_str()),
        };
        if name.is_empty() {
            return Err(format!("`{text}` names a bucket and no image"));
        }
        check_name(name).map_err(|error| error.to_string())?;
        let address = Self {
            bucket: whole.bucket.clone(),
            folder: folder.into(),
        };
        Ok((address, name.into()))
    }

    /// The address of an image there.
    pub(super) fn join(&self, name: &str) -> String {
        let Self { bucket, folder } = self;
        match folder.as_str() {
            "" => format!("{SCHEME}{bucket}/{name}"),
            folder => format!("{SCHEME}{bucket}/{folder}/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let folder = |text: &str| Address::folder(text).map(|it| (it.bucket, it.folder));
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(folder("s3://b"), pair("b", ""));
        assert_eq!(folder("s3://b/"), pair("b", ""));
        assert_eq!(folder("s3://b/x/y/"), pair("b", "x/y"));
        for wrong in ["s3:///x", "s3://", "/b/x", "s3://b//x", "s3://b/../x"] {
            assert!(folder(wrong).is_err(), "{wrong}");
        }
        let (address, name) = Address::image("s3://b/x/heat-1").expect("an image");
        assert_eq!((address.folder.as_str(), name.as_str()), ("x", "heat-1"));
        assert_eq!(address.join(&name), "s3://b/x/heat-1");
        let (address, name) = Address::image("s3://b/heat").expect("an image");
        assert_eq!(address.join(&name), "s3://b/heat");
        for wrong in ["s3://b", "s3://b/", "s3://b/x/.draft-heat"] {
            assert!(Address::image(wrong).is_err(), "{wrong}");
        }
    }
}
