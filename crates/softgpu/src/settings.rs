//! Settings, from the environment, read once at `cuInit`.
//!
//! | variable `FERMATA_SOFTGPU_...` | meaning | default |
//! | --- | --- | --- |
//! | `DEVICES` | number of devices | 1 |
//! | `VISIBLE_DEVICES` | those that the process sees, in its order, as NVIDIA's driver reads `CUDA_VISIBLE_DEVICES` (which is not read: it names other GPUs): ordinals or UUIDs; what follows one that is none is not seen | all |
//! | `MEMORY` | memory of each device in bytes; `K`, `M`, `G`, `T` multiply by 1024 | 4G |
//! | `SHARED` | folder by which several processes count what they take of a device's memory together | each has all of it |
//! | `NAME` | name of the devices | Fermata Software GPU |
//! | `COMPUTE_CAPABILITY` | as `major.minor` | 9.0 |
//! | `CUDA_VERSION` | version that the driver says it is of, as `major.minor`; its functions stay | 13.0 |
//! | `THREADS` | threads that run the blocks of a kernel; 0: one per core. More run those of a cooperative launch, and of kernels whose blocks wait for later ones | 0 |
//! | `HOST_LINK` | bytes per second between host and device; 0: as fast as it goes | 0 |
//! | `PEER_LINK` | bytes per second between devices; 0: as fast as it goes | 0 |
//! | `KERNEL_LIMIT` | seconds after which a kernel is stopped with a timeout; 0: never | 0 |
//! | `BLOCK_WAIT` | seconds without an end of a block after which a kernel is stopped whose blocks poll memory while others cannot begin; 0: never | 300 |
//! | `QUEUE` | work that a stream holds; a call that adds more waits until there is room; 0: no limit | 0 |
//! | `FAIL_ALLOC` | the n-th allocation of device memory fails for want of memory; 0: none | 0 |
//! | `FAIL_COPY` | the n-th copy fails like an uncorrectable memory error; 0: none | 0 |
//! | `FLIP_COPIES` | the first n copies of 64 KiB or more to the host arrive with a wrong bit; 0: none | 0 |
//! | `NO_PEERS` | 1: no GPU reaches the memory of another | 0 |
//! | `DIRTY_ARRAYS` | 1: new arrays are not zero, as those of a GPU need not be | 0 |
//! | `LOSE_DEVICE` | the device is lost when its n-th kernel is launched; 0: never | 0 |
//! | `PLACES` | how many pairs of multiprocessors each cluster of processors has, as `3,5`: a device of 16 multiprocessors has 8. Libraries are told where each lies | they are told nothing |
//! | `GROUP` | multiprocessors that groups of a split for green contexts are multiples of, 1 to 16 | 8 |
//! | `QUIET` | anything but 0: what the software GPU refuses is not told on standard error | 0 |
//! | `HOLD` | folder whose files hold up work, see `hold` | none |
//!
//! A value that cannot be read makes `cuInit` fail with `CUDA_ERROR_INVALID_VALUE`.

use std::path::PathBuf;

use fermata_abi::sys::driver as cu;

use crate::error::{INVALID_VALUE, Result};
use crate::uuid;

/// Multiprocessors every device reports.
pub const MULTIPROCESSORS: u32 = 16;

/// How this software GPU behaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Number of devices.
    pub devices: usize,
    /// Which of them the process sees, in the order of its numbers for them; all if none is named.
    pub visible: Option<Vec<i32>>,
    /// Bytes of memory of each device.
    pub memory: u64,
    /// Name of the devices.
    pub name: String,
    /// Compute capability, major and minor.
    pub compute_capability: (u32, u32),
    /// Version that the driver says it is of, as `cuDriverGetVersion` counts.
    pub cuda_version: i32,
    /// Threads that run blocks.
    pub threads: usize,
    /// Bytes per second between host and device; 0 is unlimited.
    pub host_link: u64,
    /// Bytes per second between devices; 0 is unlimited.
    pub peer_link: u64,
    /// Seconds a kernel may run; 0 is for ever.
    pub kernel_limit: u64,
    /// Seconds that blocks may wait for ones that have not begun; 0 is for ever.
    pub block_wait: u64,
    /// Pieces of work that a stream's queue holds; 0 is no limit.
    pub queue: u64,
    /// Number of the allocation that fails, from 1; 0 is none.
    pub fail_alloc: u64,
    /// Number of the copy that fails, from 1; 0 is none.
    pub fail_copy: u64,
    /// How many long copies to the host arrive with a wrong bit.
    pub flip_copies: u64,
    /// Whether new arrays are not zero, if not 0.
    pub dirty_arrays: u64,
    /// Whether no GPU reaches the memory of another.
    pub no_peers: u64,
    /// Number of the launch at which the device is lost, from 1; 0 is none.
    pub lose_device: u64,
    /// Pairs of multiprocessors in each cluster of processors, if it is told.
    pub places: Option<Vec<u8>>,
    /// Multiprocessors that groups of a split are multiples of.
    pub group: u32,
    /// Folder by which processes share the devices' memory.
    pub shared: Option<PathBuf>,
    /// Folder whose files hold up work.
    pub hold: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 1,
            visible: None,
            memory: 4 << 30,
            name: "Fermata Software GPU".to_owned(),
            compute_capability: (9, 0),
            cuda_version: cu::CUDA_VERSION as i32,
            threads: 0,
            host_link: 0,
            peer_link: 0,
            kernel_limit: 0,
            block_wait: 300,
            queue: 0,
            fail_alloc: 0,
            fail_copy: 0,
            flip_copies: 0,
            dirty_arrays: 0,
            no_peers: 0,
            lose_device: 0,
            places: None,
            group: 8,
            shared: None,
            hold: None,
        }
    }
}

impl Settings {
    /// The settings in the environment.
    ///
    /// # Errors
    /// A value cannot be read.
    pub fn from_env() -> Result<Self> {
        // An empty variable counts as none.
        let get = |name: &str| std::env::var(format!("FERMATA_SOFTGPU_{name}")).ok();
        Self::read(|name| get(name).filter(|value| !value.is_empty()))
    }

    fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let mut settings = Self::default();
        let number = |name: &str, slot: &mut u64| match get(name) {
            Some(text) => parse_size(&text)
                .map(|value| *slot = value)
                .ok_or(INVALID_VALUE),
            None => Ok(()),
        };
        let (mut devices, mut threads) = (settings.devices as u64, settings.threads as u64);
        let mut group = u64::from(settings.group);
        number("GROUP", &mut group)?;
        let groups = 1..=u64::from(MULTIPROCESSORS);
        let group = Some(group).filter(|group| groups.contains(group));
        settings.group = group.ok_or(INVALID_VALUE)? as u32;
        number("DEVICES", &mut devices)?;
        number("THREADS", &mut threads)?;
        number("MEMORY", &mut settings.memory)?;
        number("HOST_LINK", &mut settings.host_link)?;
        number("PEER_LINK", &mut settings.peer_link)?;
        number("KERNEL_LIMIT", &mut settings.kernel_limit)?;
        number("BLOCK_WAIT", &mut settings.block_wait)?;
        number("QUEUE", &mut settings.queue)?;
        number("FAIL_ALLOC", &mut settings.fail_alloc)?;
        number("FAIL_COPY", &mut settings.fail_copy)?;
        number("FLIP_COPIES", &mut settings.flip_copies)?;
        number("DIRTY_ARRAYS", &mut settings.dirty_arrays)?;
        number("NO_PEERS", &mut settings.no_peers)?;
        number("LOSE_DEVICE", &mut settings.lose_device)?;
        settings.devices = usize::try_from(devices)
            .ok()
            .filter(|n| *n <= 64)
            .ok_or(INVALID_VALUE)?;
        settings.threads = usize::try_from(threads)
            .ok()
            .filter(|n| *n <= 1024)
            .ok_or(INVALID_VALUE)?;
        settings.places = match get("PLACES") {
            Some(text) => Some(parse_places(&text).ok_or(INVALID_VALUE)?),
            None => None,
        };
        let visible = get("VISIBLE_DEVICES");
        settings.visible = visible.map(|text| uuid::visible(&text, settings.devices));
        settings.shared = get("SHARED").map(PathBuf::from);
        settings.hold = get("HOLD").map(PathBuf::from);
        if let Some(name) = get("NAME") {
            settings.name = name;
        }
        if let Some(text) = get("COMPUTE_CAPABILITY") {
            settings.compute_capability = parse_version(&text).ok_or(INVALID_VALUE)?;
        }
        if let Some(text) = get("CUDA_VERSION") {
            let parts = parse_version(&text).filter(|(major, minor)| *major < 1000 && *minor < 100);
            let (major, minor) = parts.ok_or(INVALID_VALUE)?;
            settings.cuda_version = (major * 1000 + minor * 10) as i32;
        }
        Ok(settings)
    }
}

/// Two numbers with a dot between.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Numbers, separated by commas, that are the pairs of multiprocessors together.
fn parse_places(text: &str) -> Option<Vec<u8>> {
    let clusters = text.split(',').map(|it| it.trim().parse().ok());
    let clusters: Vec<u8> = clusters.collect::<Option<_>>()?;
    let pairs: u32 = clusters.iter().map(|it| u32::from(*it)).sum();
    (pairs == MULTIPROCESSORS / 2).then_some(clusters)
}

/// A whole number, optionally followed by K, M, G or T.
fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let shift = match text.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => 0,
    };
    let digits = if shift == 0 {
        text
    } else {
        &text[..text.len() - 1]
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("3g"), Some(3 << 30));
        assert_eq!(parse_size("x"), None);
        assert_eq!(parse_size(""), None);
        assert_eq!(parse_size("99999999T"), None);
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_not_a_default() {
        let with = |name: &'static str, value: &'static str| {
            Settings::read(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(with("MEMORY", "lots"), Err(INVALID_VALUE));
        assert_eq!(with("COMPUTE_CAPABILITY", "9"), Err(INVALID_VALUE));
        for wrong in ["3", "3,6", "3,,5", "300,8"] {
            assert_eq!(with("PLACES", wrong), Err(INVALID_VALUE), "{wrong}");
        }
        assert_eq!(with("PLACES", "3,5").unwrap().places, Some(vec![3, 5]));
        assert_eq!(with("CUDA_VERSION", "12.8").unwrap().cuda_version, 12080);
        assert_eq!(with("CUDA_VERSION", "12"), Err(INVALID_VALUE));
        assert_eq!(with("DEVICES", "2").unwrap().devices, 2);
        assert_eq!(
            with("COMPUTE_CAPABILITY", "8.6")
                .unwrap()
                .compute_capability,
            (8, 6)
        );
    }
}
