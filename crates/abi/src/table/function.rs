//! What the table of API functions says of each.

/// One exported function of the driver API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Name in the programmer's view, without version: `cuMemAlloc`.
    pub base: &'static str,
    /// Exported symbol: `cuMemAlloc_v2`.
    pub symbol: &'static str,
    /// CUDA version (1000 * major + 10 * minor) from which a request for `base` means this symbol.
    pub since: u32,
    /// The variant for programs built with per-thread default streams, and the version it came with.
    pub per_thread: Option<(&'static str, u32)>,
    /// C type of the result.
    pub result: &'static str,
    /// Parameters in order.
    pub params: &'static [Param],
}

/// One parameter of a [`Function`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Param {
    /// Name in the header.
    pub name: &'static str,
    /// C type, `const` first, pointers last: `const char **`.
    pub ctype: &'static str,
}

pub(crate) const fn f(
    base: &'static str,
    symbol: &'static str,
    since: u32,
    per_thread: Option<(&'static str, u32)>,
    result: &'static str,
    params: &'static [Param],
) -> Function {
    Function {
        base,
        symbol,
        since,
        per_thread,
        result,
        params,
    }
}

pub(crate) const fn p(name: &'static str, ctype: &'static str) -> Param {
    Param { name, ctype }
}
