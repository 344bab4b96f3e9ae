//! Strings of the operating system in JSON: text where it is UTF-8, an array of bytes else.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// An argument, a variable or a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Text {
    /// UTF-8.
    Utf8(String),
    /// Anything else.
    Bytes(Vec<u8>),
}

impl Text {
    /// For showing: what is not UTF-8 is replaced.
    pub fn lossy(&self) -> String {
        match self {
            Self::Utf8(text) => text.clone(),
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        }
    }

    /// As the operating system has it.
    pub fn to_os(&self) -> OsString {
        match self {
            Self::Utf8(text) => text.into(),
            Self::Bytes(bytes) => OsString::from_vec(bytes.clone()),
        }
    }

    /// As a path.
    pub fn to_path(&self) -> PathBuf {
        self.to_os().into()
    }
}

impl From<&OsStr> for Text {
    fn from(text: &OsStr) -> Self {
        match text.to_str() {
            Some(text) => Self::Utf8(text.to_owned()),
            None => Self::Bytes(text.as_bytes().to_vec()),
        }
    }
}

impl From<OsString> for Text {
    fn from(text: OsString) -> Self {
        text.as_os_str().into()
    }
}

impl From<&Path> for Text {
    fn from(path: &Path) -> Self {
        path.as_os_str().into()
    }
}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self::Utf8(text.to_owned())
    }
}

/// For `#[serde(with = "...")]` at a path, which need not be UTF-8.
pub mod path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::Text;

    /// As [`Text`].
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        Text::from(path).serialize(serializer)
    }

    /// From [`Text`].
    ///
    /// # Errors
    /// It is neither text nor bytes.
    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Text::deserialize(deserializer).map(|text| text.to_path())
    }
}

/// As [`path`], where there may be none.
pub mod some_path {
    use std::path::{Path, PathBuf};

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::Text;

    /// As [`Text`].
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_deref()
            .map(<Text as From<&Path>>::from)
            .serialize(serializer)
    }

    /// From [`Text`].
    ///
    /// # Errors
    /// It is neither text nor bytes.
    pub fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let text = Option::<Text>::deserialize(deserializer)?;
        Ok(text.map(|text| text.to_path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_string_survives_json() {
        for bytes in [b"plain".to_vec(), vec![b'a', 0xff, b'b'], Vec::new()] {
            let text = Text::from(OsString::from_vec(bytes.clone()));
            let json = serde_json::to_string(&text).expect("encoded");
            let back: Text = serde_json::from_str(&json).expect("decoded");
            assert_eq!(back.to_os().into_vec(), bytes);
        }
    }
}
