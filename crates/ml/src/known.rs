//! What cannot change while the machine runs is asked once: names, numbers and places of devices, versions, what they
//! can at most.
//!
//! A restored program may be on another machine, or on one with other devices. Every restore gives it a PID namespace of
//! its own, and every boot of a machine has an identifier: where either differs from what it was, nothing is known any more.

use std::sync::Mutex;

use fermata_nvml::ask::{Call, Outcome};
use fermata_nvml::code::Code;

use crate::ask;

/// Functions whose answer stays.
const CONSTANT: &[&str] = &[
    "nvmlDeviceGetArchitecture",
    "nvmlDeviceGetBoardId",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetBusType",
    "nvmlDeviceGetCount",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetGpuMaxPcieLinkGeneration",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetHandleByPciBusId",
    "nvmlDeviceGetHandleByPciBusId_v2",
    "nvmlDeviceGetHandleBySerial",
    "nvmlDeviceGetHandleByUUID",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetIrqNum",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetMemoryBusWidth",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetMultiGpuBoard",
    "nvmlDeviceGetName",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetNumGpuCores",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetPciInfo_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetPciInfoExt",
    "nvmlDeviceGetPcieLinkMaxSpeed",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetTopologyCommonAncestor",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceOnSameBoard",
    "nvmlSystemGetCudaDriverVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
];

/// The most answers that are kept; a program that asks for more begins anew.
const MOST: usize = 1024;

/// Where the process is: the machine's boot and the PID namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    boot: Vec<u8>,
    processes: Vec<u8>,
}

impl Place {
    fn now() -> Option<Self> {
        let boot = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let processes = rustix::fs::readlink("/proc/self/ns/pid", Vec::new()).ok()?;
        Some(Self {
            boot,
            processes: processes.into_bytes(),
        })
    }
}

/// Answers, good for one place.
#[derive(Debug, Default)]
struct Known {
    place: Option<Place>,
    answers: Vec<(Call, Outcome)>,
}

impl Known {
    fn find(&self, place: &Place, call: &Call) -> Option<Outcome> {
        if self.place.as_ref() != Some(place) {
            return None;
        }
        let mut found = self.answers.iter().filter(|(of, _)| of == call);
        found.next().map(|(_, outcome)| outcome.clone())
    }

    fn keep(&mut self, place: Place, call: Call, outcome: &Outcome) {
        if self.place.as_ref() != Some(&place) || self.answers.len() >= MOST {
            self.answers.clear();
        }
        self.place = Some(place);
        self.answers.push((call, outcome.clone()));
    }
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    place: None,
    answers: Vec::new(),
});

/// As [`ask::ask`], by what is known already where that stays.
///
/// # Errors
/// As there.
pub fn ask(call: Call) -> Result<Outcome, Code> {
    if !CONSTANT.contains(&call.function.as_str()) {
        return ask::ask(call);
    }
    let Some(place) = Place::now() else {
        return ask::ask(call);
    };
    // Never waited for: in a forked child the lock may be held by a thread that is not there.
    if let Ok(known) = KNOWN.try_lock()
        && let Some(outcome) = known.find(&place, &call)
    {
        return Ok(outcome);
    }
    let outcome = ask::ask(call.clone())?;
    // It may have been restored meanwhile.
    if outcome.code == Code::SUCCESS
        && Place::now().as_ref() == Some(&place)
        && let Ok(mut known) = KNOWN.try_lock()
    {
        known.keep(place, call, &outcome);
    }
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use fermata_nvml::ask::Given;
    use fermata_nvml::table;

    use super::*;

    fn call(number: u64) -> Call {
        Call {
            function: "nvmlDeviceGetName".to_owned(),
            given: vec![Given::Number(number)],
        }
    }

    fn place(boot: &str, processes: &str) -> Place {
        Place {
            boot: boot.into(),
            processes: processes.into(),
        }
    }

    #[test]
    fn what_is_known_is_not_told_after_a_restore_or_on_another_machine() {
        let (mut known, here) = (Known::default(), place("a", "pid:[1]"));
        let told = Outcome {
            code: Code::SUCCESS,
            filled: vec![b"one".to_vec()],
        };
        assert_eq!(known.find(&here, &call(0)), None);
        known.keep(here.clone(), call(0), &told);
        assert_eq!(known.find(&here, &call(0)), Some(told.clone()));
        assert_eq!(known.find(&here, &call(1)), None);
        let (restored, elsewhere) = (place("a", "pid:[2]"), place("b", "pid:[1]"));
        assert_eq!(known.find(&restored, &call(0)), None);
        assert_eq!(known.find(&elsewhere, &call(0)), None);
        known.keep(restored.clone(), call(1), &told);
        assert_eq!(known.find(&restored, &call(0)), None);
        assert_eq!(known.find(&restored, &call(1)), Some(told));
    }

    #[test]
    fn this_process_is_somewhere() {
        let place = Place::now().expect("a boot and a namespace");
        assert_eq!(Place::now(), Some(place.clone()));
        assert!(place.boot.len() >= 32 && place.processes.starts_with(b"pid:["));
    }

    #[test]
    fn every_function_whose_answer_stays_is_in_the_table() {
        for name in CONSTANT {
            assert!(table::find(name).is_some(), "{name}");
        }
    }
}
