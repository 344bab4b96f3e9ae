//! Finds the contexts whose kernels may print: the driver writes their output only when it synchronises.
//!
//! `fermata_engine` examines whether a module image mentions device `printf`, for large images in the background. Until
//! it knows, an image counts as one that prints.

use std::collections::HashSet;

use fermata_abi::op::ContextId;
use fermata_engine::Site;

/// Contexts with a module that may print.
pub(crate) fn contexts(site: &Site) -> HashSet<ContextId> {
    let modules = site.session.modules.iter();
    let printing = modules.filter(|(_, it)| site.may_print(&it.image));
    printing.map(|(_, it)| it.context).collect()
}
