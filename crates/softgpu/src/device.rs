//! A device: its identity, its memory account, its faults.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fermata_abi::sys::driver as cu;
use parking_lot::Mutex;

use crate::account::Account;
use crate::error::{CuError, INVALID_VALUE, OUT_OF_MEMORY, Result};
use crate::hold;
use crate::settings::Settings;
use crate::uuid::uuid_of;

/// One software GPU.
#[derive(Debug)]
pub struct Device {
    /// Its number, from 0.
    pub ordinal: i32,
    /// How it behaves.
    pub settings: Arc<Settings>,
    /// Its memory pools.
    pub pools: Mutex<DevicePools>,
    /// Which of the machine's devices it is: another than its number where `VISIBLE_DEVICES` says so, or once the process was
    /// restored onto others.
    place: AtomicI32,
    used: AtomicU64,
    /// Where the device is shared with other processes.
    account: OnceLock<Option<Account>>,
    allocations: AtomicU64,
    copies: AtomicU64,
    flipped: AtomicU64,
    launches: AtomicU64,
    lost: AtomicBool,
}

/// Handles of a device's memory pools; 0 where there is none yet.
#[derive(Debug, Default)]
pub struct DevicePools {
    /// The default pool.
    pub default: u64,
    /// The one that allocations come from, where it was set.
    pub current: u64,
}

/// Memory counted against a device until this is dropped.
#[derive(Debug)]
pub struct Charge {
    device: Arc<Device>,
    bytes: u64,
}

impl Charge {
    /// How much it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.device.used.fetch_sub(self.bytes, Ordering::Relaxed);
        if let Some(account) = self.device.account() {
            // Less always fits.
            let _ = account.set(|| self.device.used(), u64::MAX);
        }
    }
}

impl Device {
    /// Whether it reaches the memory of another one.
    pub fn reaches(&self, other: &Self) -> bool {
        self.ordinal != other.ordinal && self.settings.no_peers == 0
    }

    /// The device number `ordinal`.
    pub fn new(ordinal: i32, settings: Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            ordinal,
            settings,
            pools: Mutex::default(),
            place: AtomicI32::new(ordinal),
            used: AtomicU64::new(0),
            account: OnceLock::new(),
            allocations: AtomicU64::new(0),
            copies: AtomicU64::new(0),
            flipped: AtomicU64::new(0),
            launches: AtomicU64::new(0),
            lost: AtomicBool::new(false),
        })
    }

    /// Its UUID: the same in every process, different for every device of the machine.
    pub fn uuid(&self) -> [u8; 16] {
        uuid_of(self.place())
    }

    /// Its address on the PCI bus as programs see it.
    pub fn pci_bus_id(&self) -> String {
        format!("0000:{:02X}:00.0", self.place() + 1)
    }

    /// Makes it the device of the machine with this number.
    pub fn move_to(&self, place: i32) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// Which of the machine's devices it is.
    pub fn place(&self) -> i32 {
        self.place.load(Ordering::Relaxed)
    }

    /// Counts `bytes` against its memory.
    ///
    /// # Errors
    /// It has not that much left.
    pub fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        let fits = |used: u64| {
            used.checked_add(bytes)
                .filter(|sum| *sum <= self.settings.memory)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits)
            .map_err(|_| OUT_OF_MEMORY)?;
        if let Some(account) = self.account()
            && account.set(|| self.used(), self.settings.memory).is_err()
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(OUT_OF_MEMORY);
        }
        Ok(Charge {
            device: Arc::clone(self),
            bytes,
        })
    }

    /// Bytes that no process uses.
    pub fn free(&self) -> u64 {
        let others = self.account().map_or(0, Account::taken_by_others);
        self.settings
            .memory
            .saturating_sub(self.used())
            .saturating_sub(others)
    }

    /// Opened when it is first used; a file that cannot be opened leaves the device to this process alone.
    fn account(&self) -> Option<&Account> {
        let open = || {
            let folder = self.settings.shared.as_deref()?;
            Account::open(folder, self.place()).ok()
        };
        self.account.get_or_init(open).as_ref()
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Counts an allocation, for the setting that makes one fail.
    ///
    /// # Errors
    /// This is the one that fails, or the device is lost.
    pub fn count_allocation(&self) -> Result {
        self.check()?;
        let number = self.allocations.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.settings.fail_alloc {
            Err(OUT_OF_MEMORY)
        } else {
            Ok(())
        }
    }

    /// Counts a copy, for the setting that makes one fail.
    ///
    /// # Errors
    /// This is the one that fails.
    pub fn count_copy(&self) -> Result {
        let number = self.copies.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.settings.fail_copy {
            return Err(CuError(cu::CUDA_ERROR_ECC_UNCORRECTABLE));
        }
        Ok(())
    }

    /// Whether a long copy to the host that is made now arrives with a wrong bit.
    pub fn flips_copy(&self) -> bool {
        self.settings.flip_copies > 0
            && self.flipped.fetch_add(1, Ordering::Relaxed) < self.settings.flip_copies
    }

    /// Counts a launch, for the setting that loses the device, and numbers it.
    ///
    /// # Errors
    /// The device is lost.
    pub fn count_launch(&self) -> Result<u64> {
        let number = self.launches.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.settings.lose_device {
            self.lost.store(true, Ordering::Relaxed);
        }
        self.check().map(|()| number)
    }

    /// Whether it is still there.
    ///
    /// # Errors
    /// It is lost.
    pub fn check(&self) -> Result {
        if hold::loses_device(self.settings.hold.as_deref()) {
            self.lost.store(true, Ordering::Relaxed);
        }
        if self.lost.load(Ordering::Relaxed) {
            return Err(CuError(cu::CUDA_ERROR_DEVICE_UNAVAILABLE));
        }
        Ok(())
    }
}

/// Which devices of the machine `devices` are to be, where each UUID in `pairs` is exchanged for its second one; the same as
/// before where there are no pairs.
///
/// # Errors
/// A device is missing in `pairs`, or what it is to be is none of the machine's, or two would be one.
pub fn exchanged(devices: &[Arc<Device>], pairs: &[([u8; 16], [u8; 16])]) -> Result<Vec<i32>> {
    if pairs.is_empty() {
        return Ok(devices.iter().map(|it| it.place()).collect());
    }
    let new = |device: &Arc<Device>| {
        let (_, new) = pairs.iter().find(|(old, _)| *old == device.uuid())?;
        let machine = device.settings.devices as i32;
        (0..machine).find(|place| uuid_of(*place) == *new)
    };
    let places: Option<Vec<i32>> = devices.iter().map(new).collect();
    let places = places.ok_or(INVALID_VALUE)?;
    let once = |it: &i32| places.iter().filter(|other| *other == it).count() == 1;
    match places.iter().all(once) {
        true => Ok(places),
        false => Err(INVALID_VALUE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_exchanged_all_at_once_or_not_at_all() {
        let settings = Arc::new(Settings {
            devices: 2,
            ..Settings::default()
        });
        let devices = [0, 1].map(|ordinal| Device::new(ordinal, Arc::clone(&settings)));
        let [one, other] = [0, 1].map(uuid_of);
        assert_eq!(exchanged(&devices, &[]), Ok(vec![0, 1]));
        let swapped = exchanged(&devices, &[(one, other), (other, one)]).unwrap();
        assert_eq!(swapped, [1, 0]);
        for wrong in [
            &[(one, one)][..],
            &[(one, other), (other, other)],
            &[(one, uuid_of(2)), (other, one)],
        ] {
            assert_eq!(exchanged(&devices, wrong), Err(INVALID_VALUE), "{wrong:?}");
        }
        devices
            .iter()
            .zip(swapped)
            .for_each(|(it, to)| it.move_to(to));
        assert_eq!(devices[0].uuid(), other);
        assert_eq!(devices[0].pci_bus_id(), "0000:02:00.0");
        assert_eq!(exchanged(&devices, &[]), Ok(vec![1, 0]));
    }

    fn device(settings: Settings) -> Arc<Device> {
        Device::new(0, Arc::new(settings))
    }

    #[test]
    fn memory_comes_back_when_the_charge_is_dropped() {
        let device = device(Settings {
            memory: 100,
            ..Settings::default()
        });
        let charge = device.charge(60).unwrap();
        assert!(device.charge(41).is_err());
        drop(charge);
        assert!(device.charge(100).is_ok());
    }

    #[test]
    fn faults_happen_at_the_number_asked_for() {
        let device = device(Settings {
            fail_alloc: 2,
            lose_device: 2,
            ..Settings::default()
        });
        assert!(device.count_allocation().is_ok());
        assert_eq!(device.count_allocation(), Err(OUT_OF_MEMORY));
        assert!(device.count_allocation().is_ok());
        assert!(device.count_launch().is_ok());
        assert!(device.count_launch().is_err());
        assert!(device.count_launch().is_err() && device.check().is_err());
    }
}
