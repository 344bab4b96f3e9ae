//! Kernel launches.

use fermata_abi::op::{Launch, StreamRef};
use fermata_abi::sys::driver as cu;
use fermata_device::{Grid, KernelLaunch};

use super::Step;
use crate::serve::Server;

impl Server {
    pub(super) fn launch(&mut self, launch: &Launch<'_>, stream: StreamRef) -> Step {
        // What vouches for an image goes before what is only looked at.
        if let Some(gate) = &mut self.gate
            && gate.launch(&mut self.site, launch, stream)?
        {
            return self.issued(stream, false, None);
        }
        if let Some(recorder) = &mut self.recorder
            && recorder.launch(&mut self.site, launch, stream)?
        {
            return self.issued(stream, false, None);
        }
        let live = &mut self.site.live;
        let function = live.function(launch.function)?.handle;
        let handle = live.stream(stream)?;
        let size = Grid {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
        };
        let mut attributes: Vec<(u32, &[u8])> = launch
            .attributes
            .iter()
            .map(|it| (it.id, it.value))
            .collect();
        let yes = 1i32.to_ne_bytes();
        if launch.cooperative {
            attributes.push((cu::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &yes));
        }
        let kernel = KernelLaunch {
            function,
            size,
            params: launch.params,
            attributes: &attributes,
        };
        live.driver.launch(&kernel, handle)?;
        self.issued(stream, false, None)
    }
}
