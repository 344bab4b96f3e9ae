//! Operations on pinned, registered and managed memory, which is shared with the program at one address.

use std::time::{Duration, Instant};

use fermata_abi::op::{Address, ContextId, HostKind, ToProgram};
use fermata_abi::sys::driver as cu;
use fermata_device::HostMapping;
use fermata_engine::Site;
use fermata_state::HostRegion;
use fermata_wire::{FromProgram, Ticket, WireError};

use super::{DONE, Step};
use crate::errors::OpError;
use crate::server::{Arrived, Server};
use crate::waiting::Then;

/// The longest wait for a descriptor. It is sent before its operation, so it has usually arrived.
const ARRIVAL: Duration = Duration::from_secs(5);
/// The most image files that may wait for their operation. The client sends each right before the operation.
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
        self.site.live.enter(context)?;
        let mapping = self.map_arrived(address, size)?;
        let Site { session, live, .. } = &mut self.site;
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

    /// Maps and registers what the program has sent for `address`.
    fn map_arrived(&mut self, address: Address, size: u64) -> Result<HostMapping, OpError> {
        let missing = || OpError::invalid("the descriptor is missing");
        let sent = self.arrived.remove(&address).ok_or_else(missing)?;
        let fd = sent.fd.ok_or_else(|| {
            let text = "the worker may open no more files: raise `ulimit -Hn`";
            OpError::new(cu::CUDA_ERROR_OUT_OF_MEMORY, text)
        })?;
        if sent.size < size {
            return Err(OpError::invalid(format!(
                "host memory of {} bytes cannot be mapped with {size}",
                sent.size
            )));
        }
        let unmappable = |error: std::io::Error| {
            OpError::new(
                cu::CUDA_ERROR_OUT_OF_MEMORY,
                format!("host memory {address:#x} cannot be mapped: {error}"),
            )
        };
        let driver = &self.site.live.driver;
        let mut mapping =
            HostMapping::map_part(fd, sent.offset, address.raw(), size).map_err(unmappable)?;
        if let Err(error) = mapping.register(driver) {
            mapping.unregister(driver)?;
            return Err(error.into());
        }
        Ok(mapping)
    }

    /// Asks the program for the files of regions that it shares with other processes and this worker has not mapped, when it
    /// serves the program for the first time.
    pub(crate) fn ask_for_shared(&mut self) -> Result<(), WireError> {
        let Site { session, live, .. } = &self.site;
        let shared = session.host_regions.iter();
        let shared = shared.filter(|(_, it)| it.kind == HostKind::Shared);
        let absent = shared.filter(|(address, _)| !live.hosts.contains_key(address));
        let absent: Vec<_> = absent.map(|(address, it)| (address, it.size)).collect();
        for (address, size) in absent {
            self.side
                .send_to_program(&ToProgram::Missing { address, size }, None)?;
            self.absent.push(address);
        }
        Ok(())
    }

    /// Maps these regions before the first operation is performed. The next answer reports a region that cannot be mapped;
    /// a kernel that uses it fails.
    pub(crate) fn map_shared(&mut self) {
        for address in std::mem::take(&mut self.absent) {
            if let Err(error) = self.map_absent(address) {
                self.note(None, &error);
            }
        }
    }

    fn map_absent(&mut self, address: Address) -> Result<(), OpError> {
        self.receive_descriptor(|it| it.arrived.contains_key(&address))?;
        let size = self.site.session.host_regions.get(address)?.size;
        self.site.live.enter_any()?;
        let mapping = self.map_arrived(address, size)?;
        self.site.live.hosts.insert(address, mapping);
        Ok(())
    }

    /// Takes descriptors from the side socket until the wanted one has arrived.
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
                    let offset = 0;
                    self.arrived.insert(address, Arrived { fd, size, offset });
                }
                Some((
                    FromProgram::Shared {
                        address,
                        size,
                        offset,
                    },
                    fd,
                )) => {
                    self.arrived.insert(address, Arrived { fd, size, offset });
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

    /// Unmaps a region that no work uses any more.
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
