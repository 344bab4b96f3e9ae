//! Prepares a capture while the program runs, so that the stop is short.
//!
//! ```text
//!  sketch   by the thread that serves the program: what the session has, addresses for pools   short
//!  prepare  by any other thread: staging buffers, hash kernels, pools, a place in the store    takes time
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fermata_device::hash::Hasher;
use fermata_device::{ContextHandle, PinnedPool};
use fermata_store::{Store, moments};
use parking_lot::Mutex;

use super::checker;
use super::map::device_of;
use super::pool::{DevicePool, PAGE, Place, room, slot_bytes};
use super::tools::Tools;
use super::validation::settle_on;
use crate::access::Predictor;
use crate::digest;
use crate::hashers::SharedHasher;
use crate::live::Reach;
use crate::protocol::pieces;
use crate::sink::Sink;
use crate::{CHUNK, EngineError, Live, STAGING_BUFFERS, Site, Tier, variables};
use fermata_terms::Way;
use fermata_terms::{Validate, Validation};

/// What `cow` sets aside of a device's memory even if that is more than half of what is free (PhoenixOS, section 4.2).
const LEAST_SHARE: u64 = 2 << 30;
/// After this many overtaken captures a session is captured by `recopy`, unless the request names a protocol.
const OFTEN: u32 = 2;

/// How the program is captured, as asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// The protocol; `None` for the best: `snapshot` if it fits, else `cow`.
    pub way: Option<Way>,
    /// The most bytes of each device's memory to set aside, for `cow`; none for half of what is free, and at least 2 GiB.
    pub pool_bytes: Option<u64>,
    /// How the image is to be validated.
    pub validate: Validate,
}

/// A prepared capture. When it is dropped, it releases everything.
pub struct Prepared {
    tools: Tools,
    staging: Option<PinnedPool>,
    hashers: HashMap<u32, SharedHasher>,
}

/// The most bytes that `cow` sets aside of so many that are free, unless it is told. A program that writes faster than the link
/// copies waits once the pool is full, so the pool takes more than that of PhoenixOS (2 GiB) where nobody needs the memory.
fn share(free: u64) -> u64 {
    (free / 2).max(LEAST_SHARE)
}

/// What has to be known of a session to prepare a capture of it.
pub struct Sketch {
    wish: Wish,
    /// Why instrumented kernels cannot validate all of the session; empty if they can, or were not asked for.
    without: String,
    bytes: BTreeMap<u32, u64>,
    /// How long its pieces are: the digests of so many zeros are computed ahead.
    lengths: BTreeSet<usize>,
    /// The context, by device, in which its memory is hashed.
    contexts: BTreeMap<u32, ContextHandle>,
    places: Vec<Place>,
    reach: Reach,
    tier: Option<Arc<Tier>>,
    hashers: HashMap<u32, SharedHasher>,
    hashes: bool,
}

/// The first, short part of preparing: collects what only the thread that serves the program may read.
///
/// # Errors
/// A driver error; the session is as before.
pub fn sketch(site: &mut Site, mut wish: Wish) -> Result<Sketch, EngineError> {
    if wish.way.is_none() && site.live.overtaken >= OFTEN {
        // For an image of the end, writes need not be predicted.
        wish.way = Some(Way::Recopy);
    }
    for base in site.live.set_aside.loose() {
        // Addresses that cannot be released stay reserved, which does no harm.
        let _ = site.live.space.unreserve(base);
    }
    variables::discover(site)?;
    let exposed = site.live.expose(&site.session)?;
    let plan = pieces(&site.session, &exposed.addresses);
    site.live.conceal(exposed)?;
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    let mut lengths = BTreeSet::new();
    for piece in plan?.iter().filter(|piece| piece.is_on_device()) {
        *bytes.entry(device_of(piece)).or_default() += slot_bytes(piece.len as u64);
        lengths.insert(piece.len);
    }
    let mut predictor = site.live.lasting.take::<Predictor>().unwrap_or_default();
    predictor.forget(&site.session);
    predictor.prepare(site);
    site.live.lasting.put(predictor);
    let without = match wish.validate.by_instrumenting() {
        true => checker::prepare(site),
        false => String::new(),
    };
    site.live.adopt_staging();
    let mut reach = site.live.reach_for_image();
    if wish.way == Some(Way::Recopy) {
        // What it takes first may have changed at the end, when other workers count on it.
        reach.elsewhere = None;
    }
    let mut contexts = BTreeMap::new();
    for device in bytes.keys() {
        let context = site.live.enter_device(*device);
        let context = context.map_err(EngineError::driver(format!("reach device {device}")))?;
        contexts.insert(*device, context.handle);
    }
    let mut places = Vec::new();
    for (device, needed) in bytes.iter().filter(|_| wish.way != Some(Way::Recopy)) {
        // `prepare` limits what `cow` takes.
        let bytes = needed.next_multiple_of(PAGE);
        if bytes > 0 {
            let base = site.live.space.reserve(bytes, 0, 0);
            places.push(Place {
                set_aside: site.live.set_aside.clone(),
                device: *device,
                context: reach.context(*device)?,
                base: base.map_err(EngineError::memory("find addresses for copies aside"))?,
                bytes,
            });
        }
    }
    Ok(Sketch {
        wish,
        without,
        bytes,
        lengths,
        contexts,
        places,
        reach,
        tier: site.live.tier.clone(),
        hashers: site.live.hashers.clone(),
        hashes: site.live.device_hashes,
    })
}

/// The second part of preparing: what takes time, while the program runs. Any thread may call this; changes the thread's
/// current context.
///
/// # Errors
/// A driver or store error; the session is as before.
pub fn prepare(mut sketch: Sketch, store: &Store) -> Result<Prepared, EngineError> {
    moments::pass("prepare");
    if sketch.hashes {
        digest::know_zeros(std::mem::take(&mut sketch.lengths));
    }
    let driver = Arc::clone(&sketch.reach.driver);
    for (device, context) in &sketch.contexts {
        let failed = || EngineError::driver(format!("make device {device} ready"));
        driver.set_current(*context).map_err(failed())?;
        if sketch.reach.staging.is_none() {
            let staging = PinnedPool::new(&driver, STAGING_BUFFERS, CHUNK as usize);
            sketch.reach.staging = Some(staging.map_err(failed())?);
        }
        let there = sketch.hashers.get(device);
        if sketch.hashes && there.is_none_or(|(known, _)| known != context) {
            // A device that cannot hash is found out at the first use.
            if let Ok(hasher) = Hasher::new(&driver, *device) {
                let shared = (*context, Arc::new(Mutex::new(hasher)));
                sketch.hashers.insert(*device, shared);
            }
        }
    }
    let staging = sketch.reach.staging.clone();
    let sink = Sink::over(sketch.reach, sketch.tier, store)?;
    sink.stand_back();
    let mut tools = Tools {
        way: sketch.wish.way.unwrap_or(Way::Snapshot),
        validation: Validation::default(),
        signals: sink.signals(),
        sink,
        pools: Vec::new(),
    };
    let vouch = |tools: &mut Tools| {
        let validate = sketch.wish.validate;
        let (by, note) = settle_on(validate, tools.way, &sketch.without);
        (tools.validation.by, tools.validation.note) = (by, note);
    };
    let hashers = sketch.hashers;
    let prepared = |tools| Prepared {
        tools,
        staging,
        hashers,
    };
    if tools.way == Way::Recopy {
        vouch(&mut tools);
        return Ok(prepared(tools));
    }
    let mut fits = true;
    let mut shares = Vec::new();
    for place in &sketch.places {
        let free = room(&driver, place)?;
        fits &= free >= place.bytes;
        shares.push(sketch.wish.pool_bytes.unwrap_or(share(free)));
    }
    if tools.way == Way::Snapshot && !fits {
        if sketch.wish.way.is_some() {
            let needed: u64 = sketch.bytes.values().sum();
            return Err(EngineError::Unsuitable(format!(
                "a snapshot needs {needed} bytes of free device memory beside the program's; `--mode cow` \
                 needs less"
            )));
        }
        tools.way = Way::Cow;
    }
    if tools.way == Way::Cow {
        for (place, share) in sketch.places.iter_mut().zip(shares) {
            place.bytes = place.bytes.min(share).next_multiple_of(PAGE);
        }
    }
    vouch(&mut tools);
    for place in sketch.places {
        tools.pools.push(DevicePool::new(&driver, place)?);
    }
    Ok(prepared(tools))
}

impl Prepared {
    /// The protocol that will be used.
    pub fn way(&self) -> Way {
        self.tools.way
    }

    /// How the image will be validated.
    pub fn validation(&self) -> &Validation {
        &self.tools.validation
    }

    /// Hands over what the capture works with. Objects that were made for the session stay with the session.
    pub(super) fn hand_over(self, live: &mut Live) -> Tools {
        if live.staging.is_none() {
            live.staging = self.staging;
        }
        live.hashers.extend(self.hashers);
        live.forget_current();
        self.tools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_leaves_half_of_what_is_free_but_for_a_little() {
        assert_eq!(share(80 << 30), 40 << 30);
        assert_eq!(share(3 << 30), LEAST_SHARE);
        assert_eq!(share(0), LEAST_SHARE);
    }
}
