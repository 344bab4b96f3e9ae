//! Operations that launch kernels.

use fermata_abi::op::{Launch, StreamRef};
use fermata_device::{Grid, KernelLaunch};

use super::Step;
use crate::errors::OpError;
use crate::server::Server;

impl Server {
    pub(super) fn launch(&mut self, launch: &Launch<'_>, stream: StreamRef) -> Step {
        let events: Vec<_> = launch
            .attributes
            .iter()
            .filter_map(|it| it.event())
            .collect();
        for event in &events {
            self.before_record(*event)?;
        }
        self.launch_now(launch, stream)?;
        for event in events {
            self.site.session.events.get_mut(event)?.recorded = true;
        }
        self.issued(stream, false, None)
    }

    fn launch_now(&mut self, launch: &Launch<'_>, stream: StreamRef) -> Result<(), OpError> {
        // Instrumented kernels of a capture take precedence over those of a trace.
        if let Some(gate) = &mut self.gate
            && gate.launch(&mut self.site, launch, stream)?
        {
            return Ok(());
        }
        if let Some(recorder) = &mut self.recorder
            && recorder.launch(&mut self.site, launch, stream)?
        {
            return Ok(());
        }
        let live = &mut self.site.live;
        let function = live.function(launch.function)?.handle;
        let handle = live.stream(stream)?;
        let size = Grid {
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
        };
        let attributes = live.launch_attributes(launch)?;
        let kernel = KernelLaunch {
            function,
            size,
            params: launch.params,
            attributes: &attributes,
        };
        Ok(live.driver.launch(&kernel, handle)?)
    }
}
