//! How many blocks of a kernel run at once.

use std::cell::RefCell;
use std::ffi::c_int;

use crate::driver::Result;
use crate::launch::with_config;
use crate::{Driver, FunctionHandle, KernelLaunch, StreamHandle};

/// Dynamic shared memory that a block needs.
#[derive(Debug, Clone, Copy)]
pub enum SharedNeed<'a> {
    /// The same bytes whatever its size.
    Any(u64),
    /// Threads and bytes for each size that may be asked for.
    Sizes(&'a [(i32, u64)]),
}

/// What is asked about clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clusters {
    /// How many run on the device at once.
    Active,
    /// Blocks of the largest.
    LargestSize,
}

thread_local! {
    /// What [`need_of`] looks up during a call of the driver.
    static SIZES: RefCell<Vec<(i32, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A size that is not known needs more than there is, so that it is never the best.
unsafe extern "C" fn need_of(block: c_int) -> usize {
    let known = SIZES.try_with(|sizes| {
        let sizes = sizes.try_borrow().ok()?;
        let found = sizes.iter().find(|(size, _)| *size == block)?;
        Some(found.1 as usize)
    });
    known.ok().flatten().unwrap_or(usize::MAX)
}

fn count(number: c_int) -> u64 {
    u64::from(number.max(0).unsigned_abs())
}

impl Driver {
    /// Blocks of a kernel that fit on one multiprocessor.
    ///
    /// # Errors
    /// What the driver says.
    pub fn active_blocks(
        &self,
        function: FunctionHandle,
        block: i32,
        shared: u64,
        flags: u32,
    ) -> Result<u64> {
        let mut blocks = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f
                .cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                    &mut blocks,
                    function.raw(),
                    block,
                    shared as usize,
                    flags,
                )?;
        }
        Ok(count(blocks))
    }

    /// Blocks of a grid that fills the device and threads of a block, for the most threads at once.
    ///
    /// # Errors
    /// What the driver says.
    pub fn best_block(
        &self,
        function: FunctionHandle,
        shared: SharedNeed<'_>,
        limit: i32,
        flags: u32,
    ) -> Result<(u64, u64)> {
        let (mut grid, mut block) = (0, 0);
        let (of, fixed) = match shared {
            SharedNeed::Any(bytes) => (None, bytes as usize),
            SharedNeed::Sizes(sizes) => {
                SIZES.set(sizes.to_vec());
                (Some(need_of as unsafe extern "C" fn(c_int) -> usize), 0)
            }
        };
        // SAFETY: the pointers refer to live locals; the function only reads a table of this thread.
        unsafe {
            self.f.cuOccupancyMaxPotentialBlockSizeWithFlags(
                &mut grid,
                &mut block,
                function.raw(),
                of,
                fixed,
                limit,
                flags,
            )?;
        }
        Ok((count(grid), count(block)))
    }

    /// Bytes of dynamic shared memory that each of `blocks` blocks on a multiprocessor may have.
    ///
    /// # Errors
    /// What the driver says.
    pub fn available_shared(
        &self,
        function: FunctionHandle,
        blocks: i32,
        block: i32,
    ) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: the pointer refers to a live local.
        unsafe {
            self.f.cuOccupancyAvailableDynamicSMemPerBlock(
                &mut bytes,
                function.raw(),
                blocks,
                block,
            )?;
        }
        Ok(bytes as u64)
    }

    /// What is asked about the clusters of a launch; its parameters do not matter.
    ///
    /// # Errors
    /// What the driver says.
    pub fn clusters(
        &self,
        asked: Clusters,
        launch: &KernelLaunch<'_>,
        stream: StreamHandle,
    ) -> Result<u64> {
        let (mut number, function) = (0, launch.function.raw());
        with_config(launch, stream, |config| {
            // SAFETY: the pointers refer to live locals, and the configuration's to attributes that outlive the call.
            unsafe {
                match asked {
                    Clusters::Active => {
                        self.f
                            .cuOccupancyMaxActiveClusters(&mut number, function, config)
                    }
                    Clusters::LargestSize => {
                        self.f
                            .cuOccupancyMaxPotentialClusterSize(&mut number, function, config)
                    }
                }
            }
        })?;
        Ok(count(number))
    }
}
