//! The reason why an instruction is not translated.

use fermata_ptx::ast::Name;

/// Why an instruction was not translated.
#[derive(Debug)]
pub enum Refused {
    /// It, or one of its modifiers or operands, is not executed here.
    Unsupported,
    /// As before, and there is a name for what is missing.
    Missing(String),
    /// It names something unknown.
    Undefined(Name),
}

/// Outcome of a step of translation.
pub type Step<T = ()> = Result<T, Refused>;
