//! Extends access sets after a capture that was overtaken.

use std::collections::BTreeSet;

use fermata_abi::op::Address;
use fermata_state::{BufferOwner, Session};

use super::outcome::Ahead;
use crate::Site;
use crate::access::Predictor;

impl Ahead {
    /// In the stop after a capture was overtaken: extends the access sets of the kernels that may have mis-speculated.
    pub(crate) fn teach(&self, site: &mut Site) {
        if !self.overtaken {
            return;
        }
        site.live.overtaken += 1;
        let mut predictor = site.live.lasting.take::<Predictor>().unwrap_or_default();
        for address in addresses(&site.session, &self.unexplained) {
            for function in &self.suspects {
                predictor.remember(*function, address);
            }
        }
        site.live.lasting.put(predictor);
    }
}

/// The program's addresses of these buffers.
fn addresses(session: &Session, numbers: &BTreeSet<u64>) -> Vec<Address> {
    let mut found = Vec::new();
    for buffer in session.buffers() {
        if !numbers.contains(&buffer.number) {
            continue;
        }
        match buffer.owner {
            BufferOwner::Allocation(address) => found.push(address),
            BufferOwner::Memory(memory) => {
                let mappings = session.mappings.iter();
                let mapped = mappings.filter(|(_, mapping)| mapping.memory == memory);
                found.extend(mapped.map(|(address, _)| address));
            }
            BufferOwner::Variable { module, name } => {
                let module = session.modules.get(module);
                let variable = module.ok().and_then(|it| it.variables.get(&name));
                found.extend(variable.map(|it| it.address));
            }
            BufferOwner::Host(_) | BufferOwner::Array(_) => {}
        }
    }
    found
}
