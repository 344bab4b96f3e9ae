//! Which contexts have kernels that may print: what they print appears when the driver synchronises.
//!
//! Whether an image mentions device `printf` is found out by `fermata_engine`, for large images behind the program.
//! Until it is known, an image counts as one that prints.

use std::collections::HashSet;

use fermata_abi::op::ContextId;
use fermata_engine::Site;

/// Contexts with a module that may print.
pub(crate) fn contexts(site: &Site) -> HashSet<ContextId> {
    let modules = site.session.modules.iter();
    let printing = modules.filter(|(_, it)| site.may_print(&it.image));
    printing.map(|(_, it)| it.context).collect()
}
