//! Occupancy queries: how many blocks of a kernel run at once, answered by the driver.

use fermata_abi::op::{FunctionId, Launch, Occupancy, ReplyBody, SharedOf, StreamRef};
use fermata_device::{Clusters, Grid, KernelLaunch, SharedNeed};

use super::{Reaction, Step};
use crate::server::Server;

impl Server {
    pub(super) fn occupancy(&mut self, function: FunctionId, question: &Occupancy<'_>) -> Step {
        let live = &mut self.site.live;
        let found = live.function(function)?.handle;
        let driver = &live.driver;
        let answer = match question {
            Occupancy::Blocks {
                block,
                shared,
                flags,
            } => ReplyBody::U64(driver.active_blocks(found, *block, *shared, *flags)?),
            Occupancy::BlockSize {
                shared,
                limit,
                flags,
            } => {
                let shared = match shared {
                    SharedOf::Any(bytes) => SharedNeed::Any(*bytes),
                    SharedOf::Sizes(sizes) => SharedNeed::Sizes(sizes),
                };
                let (grid, block) = driver.best_block(found, shared, *limit, *flags)?;
                ReplyBody::Pair(grid, block)
            }
            Occupancy::SharedMemory { blocks, block } => {
                ReplyBody::U64(driver.available_shared(found, *blocks, *block)?)
            }
            Occupancy::Clusters(launch, stream) => {
                return self.clusters(Clusters::Active, launch, *stream);
            }
            Occupancy::ClusterSize(launch, stream) => {
                return self.clusters(Clusters::LargestSize, launch, *stream);
            }
        };
        Ok(Reaction::Answer(answer))
    }

    fn clusters(&mut self, asked: Clusters, launch: &Launch<'_>, stream: StreamRef) -> Step {
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
            params: &[],
            attributes: &attributes,
        };
        let number = live.driver.clusters(asked, &kernel, handle)?;
        Ok(Reaction::Answer(ReplyBody::U64(number)))
    }
}
