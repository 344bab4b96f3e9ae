//! What NVML says that processes have of a device, contexts included. It knows processes by the numbers of the machine: one
//! that a container numbers otherwise is not found.

use std::collections::BTreeMap;

use fermata_nvml::ask::{Call, Given, Outcome, Question};
use fermata_nvml::code::Code;

use crate::daemon::Daemon;
use crate::gpu::driver::Driver;
use crate::worker::Variables;

/// Processes of a device that are asked for.
const MOST: u64 = 512;
/// Bytes of an element of NVML's list: the process (4, and 4 of padding), its bytes (8), its partition (8).
const ELEMENT: usize = 24;

/// Bytes of the device `uuid` by process; none if NVML does not say.
pub fn by_process(daemon: &Daemon, driver: &Driver, uuid: &str) -> Option<BTreeMap<u32, u64>> {
    // Softgpu has no NVML.
    driver.nvml(&daemon.paths.home)?;
    let ask = |function: &str, given: Vec<Given>| -> Option<Outcome> {
        let function = function.to_owned();
        let call = Call { function, given };
        let question = Question { call, own: None };
        let outcome = daemon.monitors.ask(driver, &Variables::new(), &question);
        outcome.ok().filter(|it| it.code == Code::SUCCESS)
    };
    let name = Given::Bytes(uuid.as_bytes().to_vec());
    let handle = ask("nvmlDeviceGetHandleByUUID", vec![name, Given::Number(0)])?;
    let handle = u32::from_ne_bytes(*handle.filled.get(1)?.first_chunk()?);
    let listed = ask(
        "nvmlDeviceGetComputeRunningProcesses_v3",
        vec![Given::Number(handle.into()), Given::Number(MOST)],
    )?;
    Some(processes(listed.filled.get(1)?))
}

/// The list, after its count; a number of bytes that NVML does not know is all ones.
fn processes(filled: &[u8]) -> BTreeMap<u32, u64> {
    let Some((_, elements)) = filled.split_first_chunk::<4>() else {
        return BTreeMap::new();
    };
    let one = |element: &[u8]| {
        let process = u32::from_ne_bytes(*element.first_chunk()?);
        let bytes = u64::from_ne_bytes(*element.get(8..)?.first_chunk()?);
        (bytes != u64::MAX).then_some((process, bytes))
    };
    elements.chunks_exact(ELEMENT).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processes_is_read_and_what_is_not_known_left_out() {
        let element = |process: u32, bytes: u64| {
            let parts = [
                u64::from(process).to_ne_bytes(),
                bytes.to_ne_bytes(),
                [0xff; 8],
            ];
            parts.concat()
        };
        let list = [
            2u32.to_ne_bytes().to_vec(),
            element(7, 500 << 20),
            element(8, u64::MAX),
        ];
        assert_eq!(processes(&list.concat()), [(7, 500 << 20)].into());
        assert!(processes(&[1]).is_empty());
        assert!(processes(&[1, 0, 0, 0, 9]).is_empty());
    }
}
