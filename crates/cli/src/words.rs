//! Arguments that are one of a few words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fermata_control::Choice;

/// Reads a word; the help lists all of them.
pub fn words<T: Choice>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL
        .iter()
        .map(|(_, word, help)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(values).try_map(|word| T::named(&word).ok_or("no such word"))
}
