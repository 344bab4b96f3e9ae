//! Pinned, registered and managed memory: shared with the program at one address.

use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ContextId, HostKind};
use fermata_abi::sys::driver as cu;
use fermata_device::HostMapping;
use fermata_state::HostRegion;
use fermata_wire::{FromProgram, Ticket};

use super::{DONE, Step};
use crate::errors::OpError;
use crate::server::Server;
use crate::waiting::Then;

/// The descriptor is sent before the operation, so it is there already or never will be.
const ARRIVAL: Duration = Duration::from_secs(5);
/// Files of images that wait for their operation. A program of ours sends each right before it.
const UNUSED_FILES: usize = 64;

impl Server {
    pub(super) fn host_map(
        &mut self,
        address: Address,
        size: u64,
        kind: HostKind,
        flags: u32,
        context: ContextId,
    ) -> Step {
        self.receive_descriptor(|it| it.arrived.contains_key(&address))?;
        let (fd, sent) = self
            .arrived
            .remove(&address)
            .ok_or_else(|| OpError::invalid("the descriptor is missing"))?;
        let fd = fd.ok_or_else(|| {
            let text = "the worker may open no more files: raise `ulimit -Hn`";
            OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text)
        })?;
        if sent < size {
            return Err(OpError::invalid(format!(
                "host memory of {sent} bytes cannot be mapped with {size}"
            )));
        }
        let live = &mut self.site.live;
        live.enter(context)?;
        let unmappable = |error: std::io::Error| {
            OpError::new(
                cu::CUDA_ERROR_OUT_OF_MEMORY,
                format!("host memory {address:#x} cannot be mapped: {error}"),
            )
        };
        let mut mapping = HostMapping::map(fd, address, size).map_err(unmappable)?;
        if let Err(error) = mapping.register(&live.driver) {
            mapping.unregister(&live.driver)?;
            return Err(error.into());
        }
        let session = &mut self.site.session;
        let buffer = session.number_buffer();
        session.host_regions.insert(
            address,
            HostRegion {
                size,
                kind,
                flags,
                context,
                buffer,
            },
        )?;
        live.hosts.insert(address, mapping);
        DONE
    }

    /// Takes descriptors from the side socket until the wanted one is there.
    pub(super) fn receive_descriptor(
        &mut self,
        is_there: impl Fn(&Self) -> bool,
    ) -> Result<(), OpError> {
        let until = Instant::now() + ARRIVAL;
        while !is_there(self) && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            // Where this process may open no more files, the kernel drops the descriptor of a packet.
            match self.side.receive_from_program(left)? {
                Some((FromProgram::Region { address, size }, fd)) => {
                    self.arrived.insert(address, (fd, size));
                }
                Some((FromProgram::File { file }, fd)) => {
                    if self.files.len() >= UNUSED_FILES {
                        self.files.clear();
                    }
                    self.files.insert(file, fd);
                }
                None => {}
            }
        }
        Ok(())
    }

    pub(super) fn host_unmap(&mut self, address: Address, ticket: Option<Ticket>) -> Step {
        let context = self.site.session.host_regions.get(address)?.context;
        self.after_all(None, Some(context), true, Then::HostUnmap(address), ticket)
    }

    /// Nothing uses the region any more.
    pub(crate) fn release_host(&mut self, address: Address) -> Result<(), OpError> {
        self.site.session.host_regions.remove(address)?;
        let live = &mut self.site.live;
        if let Some(mut mapping) = live.hosts.remove(&address) {
            live.enter_any()?;
            mapping.unregister(&live.driver)?;
        }
        Ok(())
    }
}
