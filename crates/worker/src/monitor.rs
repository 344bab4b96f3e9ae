//! The monitor: the worker's executable as a process that describes the machine's GPUs and their state, and serves no
//! program.
//!
//! It asks NVIDIA's management library where there is one, else the CUDA driver, once. It makes no context, so it takes
//! no device memory. It ends when the daemon closes the socket.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use fermata_abi::sys::driver as cu;
use fermata_control::worker::{MONITOR_ARGUMENT, MONITOR_SOFT};
use fermata_device::{DeviceFacts, Driver};
use fermata_nvml::Forward;
use fermata_nvml::ask::{MOST_BYTES, Outcome, Question, decode, encode};
use fermata_nvml::code::Code;
use fermata_nvml::facts::{Card, Machine, parse_bus};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::output;

/// Which libraries a monitor asks.
pub struct Monitor {
    soft: bool,
    driver: PathBuf,
    nvml: Option<PathBuf>,
}

/// The library that answers.
enum Source {
    Nvml(Forward),
    Driver(Machine),
    Nobody,
}

/// Whether this process is to be a monitor, by its arguments.
pub fn wanted() -> Option<Monitor> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == MONITOR_ARGUMENT).then_some(())?;
    Some(Monitor {
        soft: arguments.next()? == MONITOR_SOFT,
        driver: arguments.next()?.into(),
        nvml: arguments.next().map(PathBuf::from),
    })
}

impl Monitor {
    /// Answers questions until the daemon has gone.
    pub fn answer(&self, socket: &OwnedFd) {
        let source = self.source();
        let mut room = vec![0; MOST_BYTES];
        loop {
            let bytes = match recv(socket, &mut room[..], RecvFlags::empty()) {
                Ok((0, _)) => return,
                Ok((bytes, _)) => bytes,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let Some(question) = room.get(..bytes).and_then(decode::<Question>) else {
                return;
            };
            let outcome = match &source {
                Source::Nvml(nvml) => nvml.answer(&question.call),
                Source::Driver(machine) => machine.answer(&question.call, question.own.as_ref()),
                Source::Nobody => Outcome::failed(Code::DRIVER_NOT_LOADED),
            };
            if send(socket, &encode(&outcome), SendFlags::NOSIGNAL).is_err() {
                return;
            }
        }
    }

    fn source(&self) -> Source {
        if let Some(path) = &self.nvml {
            match Forward::open(path) {
                Ok(nvml) => return Source::Nvml(nvml),
                Err(error) => output::tell(&format!("the monitor goes on without NVML: {error}")),
            }
        }
        match machine(&self.driver, self.soft) {
            Ok(machine) => Source::Driver(machine),
            Err(error) => {
                output::tell(&format!("the monitor has no driver: {error:#}"));
                Source::Nobody
            }
        }
    }
}

/// The machine as its driver describes it.
fn machine(path: &Path, soft: bool) -> anyhow::Result<Machine> {
    let driver = Driver::load(path)?;
    let mut devices = Vec::new();
    for index in 0..driver.device_count() {
        devices.push(card(&driver.device_facts(index)?));
    }
    // Softgpu has no kernel driver: its version is this release's, and its work is done on this process's processors.
    let version = match soft {
        true => env!("CARGO_PKG_VERSION").to_owned(),
        false => fs::read_to_string("/sys/module/nvidia/version").unwrap_or_default(),
    };
    Ok(Machine {
        driver: version.trim().to_owned(),
        cuda: driver.version(),
        devices,
        processors: if soft { processors() } else { Vec::new() },
    })
}

fn card(facts: &DeviceFacts) -> Card {
    let attribute = |id: u32| facts.attributes.get(id as usize).copied();
    let number = |id: u32| attribute(id).and_then(|value| u32::try_from(value).ok());
    let capability = facts.compute_capability();
    Card {
        name: facts.name.clone(),
        uuid: facts.uuid_text(),
        memory: facts.memory,
        bus: parse_bus(&facts.bus_id).unwrap_or_default(),
        capability: (capability / 10, capability % 10),
        compute_mode: number(cu::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
        bus_width: number(cu::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        peers: facts.peers.clone(),
    }
}

fn processors() -> Vec<u64> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    let mut words = Vec::new();
    for cpu in (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)) {
        words.resize(cpu / 64 + 1, 0);
        words[cpu / 64] |= 1 << (cpu % 64);
    }
    words
}
