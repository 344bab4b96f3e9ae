//! Answers where there is no NVML: what the CUDA driver says of its devices, and what a session has on them. Nothing is
//! made up: what neither knows is `NVML_ERROR_NOT_SUPPORTED`, as NVML says it itself of many a device.

use crate::ask::{Call, Given, Outcome, Own, room};
use crate::code::Code;
use crate::table::{self, Kind};

/// A machine as its CUDA driver describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machine {
    /// Version of the driver, as it calls itself; empty if it does not say.
    pub driver: String,
    /// `cuDriverGetVersion`.
    pub cuda: i32,
    /// Its devices.
    pub devices: Vec<Card>,
    /// Processors on which the devices' work is done, in words of 64, if that is known.
    pub processors: Vec<u64>,
}

/// A device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// Name of the model.
    pub name: String,
    /// UUID with its prefix.
    pub uuid: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Domain, bus and device on the PCI bus.
    pub bus: [u32; 3],
    /// Compute capability.
    pub capability: (u32, u32),
    /// `CUcomputemode`.
    pub compute_mode: Option<u32>,
    /// Bits of the memory bus.
    pub bus_width: Option<u32>,
    /// For each device, whether its memory can be reached from this one.
    pub peers: Vec<bool>,
}

/// `NVML_TOPOLOGY_SYSTEM`: what any two devices of a machine have in common.
const SYSTEM: u32 = 50;
/// `nvmlMemory_v2`.
const MEMORY_V2: u32 = 2 << 24 | 40;
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const NO_PEER: u32 = 5;
/// `NVML_P2P_CAPS_INDEX_WRITE`: reads and writes come before what the driver does not tell.
const PEER_WRITE: u64 = 1;

impl Machine {
    /// The answer to `call` of a session that has `own` on the devices.
    pub fn answer(&self, call: &Call, own: Option<&Own>) -> Outcome {
        let Some(function) = table::find(&call.function) else {
            return Outcome::failed(Code::FUNCTION_NOT_FOUND);
        };
        let kinds = function.parameters;
        let found = self
            .checked(kinds, &call.given)
            .and_then(|()| self.look(&call.function, &call.given, own));
        match found {
            Ok(found) => fill(kinds, &call.given, found),
            Err(code) => Outcome::failed(code),
        }
    }

    fn checked(&self, kinds: &[Kind], given: &[Given]) -> Result<(), Code> {
        if kinds.len() != given.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for (kind, given) in kinds.iter().zip(given) {
            room(*kind, given)?;
            if *kind == Kind::Device {
                self.card(given)?;
            }
        }
        Ok(())
    }

    fn card(&self, given: &Given) -> Result<(usize, &Card), Code> {
        let place = number(given)? as usize;
        let card = self.devices.get(place).ok_or(Code::INVALID_ARGUMENT)?;
        Ok((place, card))
    }

    /// What is filled, without the parameters that are not.
    fn look(&self, name: &str, given: &[Given], own: Option<&Own>) -> Result<Vec<Vec<u8>>, Code> {
        match name {
            "nvmlSystemGetDriverVersion" => one(text(&self.known_driver()?)),
            "nvmlSystemGetNVMLVersion" => {
                let version = format!("{}.{}", self.cuda / 1000, self.known_driver()?);
                one(text(&version))
            }
            "nvmlSystemGetCudaDriverVersion" | "nvmlSystemGetCudaDriverVersion_v2" => {
                one(self.cuda.to_ne_bytes().into())
            }
            "nvmlDeviceGetCount" | "nvmlDeviceGetCount_v2" => one(word(self.devices.len() as u32)),
            "nvmlUnitGetCount" => one(word(0)),
            "nvmlDeviceGetHandleByIndex" | "nvmlDeviceGetHandleByIndex_v2" => {
                let (place, _) = self.card(&given[0])?;
                one(word(place as u32))
            }
            "nvmlDeviceGetHandleByUUID" => {
                self.find(|card| bytes(&given[0]) == Ok(card.uuid.as_bytes()))
            }
            "nvmlDeviceGetHandleByPciBusId" | "nvmlDeviceGetHandleByPciBusId_v2" => {
                let bus = std::str::from_utf8(bytes(&given[0])?)
                    .ok()
                    .and_then(parse_bus);
                let bus = bus.ok_or(Code::INVALID_ARGUMENT)?;
                self.find(|card| card.bus == bus)
            }
            "nvmlDeviceOnSameBoard" => Err(Code::NOT_SUPPORTED),
            "nvmlDeviceGetTopologyCommonAncestor" => {
                let same = number(&given[0])? == number(&given[1])?;
                one(word(if same { 0 } else { SYSTEM }))
            }
            "nvmlDeviceGetP2PStatus" => {
                let (_, card) = self.card(&given[0])?;
                let (other, _) = self.card(&given[1])?;
                if number(&given[2])? > PEER_WRITE {
                    return Err(Code::NOT_SUPPORTED);
                }
                let reached = card.peers.get(other).copied().unwrap_or_default();
                one(word(if reached { 0 } else { NO_PEER }))
            }
            _ if name.starts_with("nvmlDevice") => {
                let (place, card) = self.card(given.first().ok_or(Code::NOT_SUPPORTED)?)?;
                self.of_card(name, place, card, given, own)
            }
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn of_card(
        &self,
        name: &str,
        place: usize,
        card: &Card,
        given: &[Given],
        own: Option<&Own>,
    ) -> Result<Vec<Vec<u8>>, Code> {
        let used = own.map_or(0, |own| own.on(&card.uuid)).min(card.memory);
        let free = card.memory - used;
        match name {
            "nvmlDeviceGetName" => one(text(&card.name)),
            "nvmlDeviceGetUUID" => one(text(&card.uuid)),
            "nvmlDeviceGetIndex" => one(word(place as u32)),
            "nvmlDeviceGetMemoryInfo" => one(longs(&[card.memory, free, used])),
            "nvmlDeviceGetMemoryInfo_v2" => {
                let version = MEMORY_V2.to_ne_bytes();
                if bytes(&given[1])?.get(..4) != Some(&version[..]) {
                    return Err(Code::ARGUMENT_VERSION_MISMATCH);
                }
                let mut memory = [version, [0; 4]].concat();
                memory.extend(longs(&[card.memory, 0, free, used]));
                one(memory)
            }
            "nvmlDeviceGetPciInfo" | "nvmlDeviceGetPciInfo_v2" | "nvmlDeviceGetPciInfo_v3" => {
                one(card.pci())
            }
            "nvmlDeviceGetCudaComputeCapability" => {
                let (major, minor) = card.capability;
                Ok(vec![word(major), word(minor)])
            }
            "nvmlDeviceGetArchitecture" => one(word(card.architecture())),
            "nvmlDeviceGetComputeMode" => one(word(card.compute_mode.ok_or(Code::NOT_SUPPORTED)?)),
            "nvmlDeviceGetMemoryBusWidth" => one(word(card.bus_width.ok_or(Code::NOT_SUPPORTED)?)),
            "nvmlDeviceIsMigDeviceHandle" => one(word(0)),
            "nvmlDeviceGetCpuAffinity" | "nvmlDeviceGetCpuAffinityWithinScope" => {
                if self.processors.is_empty() {
                    return Err(Code::NOT_SUPPORTED);
                }
                one(longs(&self.processors))
            }
            "nvmlDeviceGetFieldValues" => {
                let mut values = bytes(&given[1])?.to_vec();
                for value in values.chunks_exact_mut(40) {
                    // Time, duration and value are left as they are; `nvmlReturn` is at 28.
                    value[28..32].copy_from_slice(&Code::NOT_SUPPORTED.0.to_ne_bytes());
                }
                one(values)
            }
            _ if name.starts_with("nvmlDeviceGetComputeRunningProcesses") => {
                let v1 = name == "nvmlDeviceGetComputeRunningProcesses";
                let process = own.map(|own| {
                    let mut process = longs(&[u64::from(own.process), used]);
                    if !v1 {
                        // Of no part of a device.
                        process.extend([0xff; 8]);
                    }
                    process
                });
                one(process.unwrap_or_default())
            }
            _ => Err(Code::NOT_SUPPORTED),
        }
    }

    fn find(&self, is: impl Fn(&Card) -> bool) -> Result<Vec<Vec<u8>>, Code> {
        let place = self.devices.iter().position(is).ok_or(Code::NOT_FOUND)?;
        one(word(place as u32))
    }

    fn known_driver(&self) -> Result<String, Code> {
        match self.driver.is_empty() {
            true => Err(Code::NOT_SUPPORTED),
            false => Ok(self.driver.clone()),
        }
    }
}

impl Own {
    fn on(&self, uuid: &str) -> u64 {
        let its = self.memory.iter().filter(|(device, _)| device == uuid);
        its.map(|(_, bytes)| *bytes).sum()
    }
}

impl Card {
    /// `nvmlPciInfo_t`; its older forms are the beginning of it.
    fn pci(&self) -> Vec<u8> {
        let [domain, bus, device] = self.bus;
        let mut info = padded(&format!("{domain:04X}:{bus:02X}:{device:02X}.0"), 16);
        for number in [domain, bus, device, 0, 0] {
            info.extend(word(number));
        }
        info.extend(padded(
            &format!("{domain:08X}:{bus:02X}:{device:02X}.0"),
            32,
        ));
        info
    }

    /// `NVML_DEVICE_ARCH_*`.
    fn architecture(&self) -> u32 {
        match self.capability {
            (3, _) => 2,
            (5, _) => 3,
            (6, _) => 4,
            (7, 0..=2) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            (10 | 12, _) => 10,
            _ => u32::MAX,
        }
    }
}

/// Domain, bus and device of `0000:01:00.0`, `00000000:01:00.0` or `01:00.0`.
pub fn parse_bus(text: &str) -> Option<[u32; 3]> {
    let text = text
        .trim()
        .split_once('.')
        .map_or(text.trim(), |(bus, _)| bus);
    let parts: Option<Vec<u32>> = text
        .split(':')
        .map(|part| u32::from_str_radix(part, 16).ok())
        .collect();
    match *parts?.as_slice() {
        [bus, device] => Some([0, bus, device]),
        [domain, bus, device] => Some([domain, bus, device]),
        _ => None,
    }
}

/// Puts what was found into the parameters that are filled.
fn fill(kinds: &[Kind], given: &[Given], found: Vec<Vec<u8>>) -> Outcome {
    let mut found = found.into_iter();
    let mut outcome = Outcome::failed(Code::SUCCESS);
    for (kind, given) in kinds.iter().zip(given) {
        let room = room(*kind, given).unwrap_or_default();
        let filled = match kind {
            Kind::Device | Kind::Number | Kind::Long | Kind::Name => Vec::new(),
            Kind::List(size) | Kind::Processes(size) => {
                let elements = found.next().unwrap_or_default();
                let count = (elements.len() / *size as usize) as u32;
                let fits = elements.len() <= room;
                if !fits {
                    outcome.code = Code::INSUFFICIENT_SIZE;
                }
                let elements = if fits { &elements[..] } else { &[] };
                [&count.to_ne_bytes()[..], elements].concat()
            }
            Kind::Handle => found.next().unwrap_or_default(),
            _ => {
                let mut filled = found.next().unwrap_or_default();
                if *kind == Kind::Text && filled.len() > room {
                    outcome.code = Code::INSUFFICIENT_SIZE;
                }
                filled.resize(room, 0);
                filled
            }
        };
        outcome.filled.push(filled);
    }
    outcome
}

fn one(bytes: Vec<u8>) -> Result<Vec<Vec<u8>>, Code> {
    Ok(vec![bytes])
}

fn word(number: u32) -> Vec<u8> {
    number.to_ne_bytes().into()
}

fn longs(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|it| it.to_ne_bytes()).collect()
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

fn padded(text: &str, bytes: usize) -> Vec<u8> {
    let mut padded = text.as_bytes().to_vec();
    padded.truncate(bytes - 1);
    padded.resize(bytes, 0);
    padded
}

fn number(given: &Given) -> Result<u64, Code> {
    match given {
        Given::Number(number) => Ok(*number),
        Given::Bytes(_) => Err(Code::INVALID_ARGUMENT),
    }
}

fn bytes(given: &Given) -> Result<&[u8], Code> {
    match given {
        Given::Bytes(bytes) => Ok(bytes),
        Given::Number(_) => Err(Code::INVALID_ARGUMENT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let card = |n: u32| Card {
            name: format!("card {n}"),
            uuid: format!("GPU-{n}"),
            memory: 1 << 30,
            bus: [0, n + 1, 0],
            capability: (9, 0),
            peers: vec![false; 2],
            ..Card::default()
        };
        Machine {
            driver: "1.2".into(),
            cuda: 13000,
            devices: vec![card(0), card(1)],
            processors: vec![0b11],
        }
    }

    fn ask(function: &str, given: Vec<Given>, own: Option<&Own>) -> Outcome {
        let function = function.to_owned();
        machine().answer(&Call { function, given }, own)
    }

    #[test]
    fn memory_is_what_the_session_has() {
        let own = Own {
            process: 7,
            memory: vec![("GPU-1".into(), 4096)],
        };
        let given = vec![Given::Number(1), Given::Number(0)];
        let memory = ask("nvmlDeviceGetMemoryInfo", given.clone(), Some(&own));
        assert_eq!(memory.filled[1], longs(&[1 << 30, (1 << 30) - 4096, 4096]));
        let unused = ask("nvmlDeviceGetMemoryInfo", given, None);
        assert_eq!(unused.filled[1], longs(&[1 << 30, 1 << 30, 0]));
        let version = 0x0200_0028u32.to_ne_bytes();
        let bytes = [&version[..], &[0xaa; 36]].concat();
        let given = vec![Given::Number(1), Given::Bytes(bytes)];
        let memory = ask("nvmlDeviceGetMemoryInfo_v2", given, Some(&own));
        assert_eq!((memory.code, memory.filled[1].len()), (Code::SUCCESS, 40));
        let other = Given::Bytes([&0x0300_0028u32.to_ne_bytes()[..], &[0; 36]].concat());
        let given = vec![Given::Number(1), other];
        let memory = ask("nvmlDeviceGetMemoryInfo_v2", given, Some(&own));
        assert_eq!(memory.code, Code::ARGUMENT_VERSION_MISMATCH);
    }

    #[test]
    fn lists_say_how_much_room_they_need() {
        let own = Own {
            process: 7,
            memory: Vec::new(),
        };
        let given = |count| vec![Given::Number(0), Given::Number(count)];
        let name = "nvmlDeviceGetComputeRunningProcesses_v3";
        let asked = ask(name, given(0), Some(&own));
        assert_eq!(asked.code, Code::INSUFFICIENT_SIZE);
        assert_eq!(asked.filled[1], word(1));
        let told = ask(name, given(4), Some(&own));
        assert_eq!((told.code, told.filled[1].len()), (Code::SUCCESS, 4 + 24));
        assert_eq!(ask(name, given(0), None).code, Code::SUCCESS);
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let device = || vec![Given::Number(0), Given::Number(0)];
        let temperature = vec![Given::Number(0), Given::Number(0), Given::Number(0)];
        let code = |name, given| ask(name, given, None).code;
        assert_eq!(
            code("nvmlDeviceGetTemperature", temperature),
            Code::NOT_SUPPORTED
        );
        assert_eq!(
            code("nvmlDeviceGetUtilizationRates", device()),
            Code::NOT_SUPPORTED
        );
        assert_eq!(
            code("nvmlDeviceGetComputeMode", device()),
            Code::NOT_SUPPORTED
        );
        assert_eq!(code("nvmlNothing", device()), Code::FUNCTION_NOT_FOUND);
        let beyond = vec![Given::Number(2), Given::Number(0)];
        assert_eq!(code("nvmlDeviceGetIndex", beyond), Code::INVALID_ARGUMENT);
        assert_eq!(
            code("nvmlDeviceGetIndex", Vec::new()),
            Code::INVALID_ARGUMENT
        );
    }

    #[test]
    fn devices_are_found_however_they_are_written() {
        let found = |name: &str, text: &str| {
            let given = vec![Given::Bytes(text.into()), Given::Number(0)];
            let outcome = ask(name, given, None);
            (
                outcome.code.0,
                outcome.filled.last().cloned().unwrap_or_default(),
            )
        };
        for text in ["0000:02:00.0", "00000000:02:00.0", "02:00"] {
            assert_eq!(
                found("nvmlDeviceGetHandleByPciBusId_v2", text),
                (0, word(1))
            );
        }
        assert_eq!(
            found("nvmlDeviceGetHandleByPciBusId_v2", "0000:09:00.0").0,
            6
        );
        assert_eq!(found("nvmlDeviceGetHandleByPciBusId_v2", "no").0, 2);
        assert_eq!(found("nvmlDeviceGetHandleByUUID", "GPU-1"), (0, word(1)));
        assert_eq!(found("nvmlDeviceGetHandleByUUID", "GPU-9").0, 6);
    }
}
