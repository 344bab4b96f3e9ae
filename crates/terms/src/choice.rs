//! What a user chooses by a word: on the command line, in messages and in manifests it is the same word.

/// A set of values, each with its word.
pub trait Choice: Copy + PartialEq + Send + Sync + 'static {
    /// All values, each with its word and a sentence for the help.
    const ALL: &'static [(Self, &'static str, &'static str)];

    /// The value with this word.
    fn named(word: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|it| it.1 == word);
        found.map(|it| it.0)
    }
}

/// Defines an enum of values with their words and sentences; the sentence is the value's documentation, too.
macro_rules! choice {
    (
        $(#[$about:meta])*
        $name:ident {
            $($(#[$attribute:meta])* $value:ident = $word:literal: $help:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $(#[doc = $help] $(#[$attribute])* #[serde(rename = $word)] $value,)*
        }

        impl $name {
            /// Its word.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }

        impl $crate::Choice for $name {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$value, $word, $help),)*];
        }
    };
}
pub(crate) use choice;
