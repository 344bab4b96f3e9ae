//! Operations on tensor maps: the driver encodes them, and the session records what each stands for.

use fermata_abi::op::{Address, ReplyBody, TENSOR_MAP, Tensor, TensorBox};
use fermata_wire::Ticket;

use super::{Reaction, Step};
use crate::errors::OpError;
use crate::server::Server;

impl Server {
    pub(super) fn tensor_map(
        &mut self,
        tensor: &Tensor,
        of: &TensorBox,
        ticket: Option<Ticket>,
    ) -> Step {
        let descriptor = self.site.live.driver.encode_tensor_map(tensor, of)?;
        self.made(descriptor, (tensor.address, tensor.extent()), ticket)
    }

    pub(super) fn tensor_map_move(
        &mut self,
        map: &[u8],
        address: Address,
        ticket: Option<Ticket>,
    ) -> Step {
        let map: [u8; TENSOR_MAP] = map
            .try_into()
            .map_err(|_| OpError::invalid(format!("a tensor map of {} bytes", map.len())))?;
        let descriptor = self.site.live.driver.move_tensor_map(&map, address.raw())?;
        let known = self.site.session.tensor_maps.find(&map);
        self.made(
            descriptor,
            (address, known.map_or(1, |(_, bytes)| bytes)),
            ticket,
        )
    }

    fn made(
        &mut self,
        descriptor: [u8; TENSOR_MAP],
        (address, bytes): (Address, u64),
        ticket: Option<Ticket>,
    ) -> Step {
        self.site
            .session
            .tensor_maps
            .add(descriptor, address, bytes);
        self.answer(ticket, None, false, Ok(ReplyBody::Bytes(&descriptor)));
        Ok(Reaction::Later)
    }
}
