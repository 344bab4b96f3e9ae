//! Which GPUs a process of a session sees: what its worker finds in its environment.
//!
//! The worker has the devices that its program sees, in the program's order, and no others. Both read the same list:
//!
//! | `CUDA_VISIBLE_DEVICES` at `fermata run` | of the process | `--gpus` | of its worker |
//! | --- | --- | --- | --- |
//! | not set | not set | | not set |
//! | `2,3` | `2,3` | | `2,3` |
//! | `2,3` | `3` | | `3` |
//! | `2,3` | `2,3` | `0,1` | `0,1` |
//! | `2,3` | `3` | `0,1` | `1` |
//!
//! With `--gpus` a program still goes by the names it began with: each stands for the GPU at its place in the new list.
//! The software GPU has a variable of its own, since `CUDA_VISIBLE_DEVICES` names a machine's real GPUs: its worker gets
//! the list there.

use std::ffi::OsString;

use fermata_control::agent::{FIRST_DEVICE, Sight, Visible, first_among};
use fermata_control::worker::FailureKind;

use crate::failure::{Hint as _, Result, fail};
use crate::worker::{Variables, Worker};

/// What NVIDIA's driver reads.
const CUDA: &str = "CUDA_VISIBLE_DEVICES";
/// A list of no GPU: an empty setting of ours counts as not set.
const NONE: &str = "-1";
/// What a user sets for workers alone.
const WORKERS: &str = "FERMATA_WORKER_CUDA_VISIBLE_DEVICES";
/// What the software GPU reads.
const SOFT: &str = "FERMATA_SOFTGPU_VISIBLE_DEVICES";

/// What the worker of a process finds in its environment, in a session with these variables and, if it was given other GPUs
/// than it began with, that list of them. Of a process that does not say what it sees, an earlier release's library finds its
/// devices among all of the session's.
pub fn variables_of_process(
    session: &Variables,
    gpus: Option<&str>,
    soft: bool,
    process: Option<&Sight>,
) -> Variables {
    let text = |name| {
        session
            .get(name)
            .map(|it| it.to_string_lossy().into_owned())
    };
    let mut variables = session.clone();
    let mut set = |name: &str, list: String| variables.insert(name.into(), OsString::from(list));
    match (gpus, process.map(|it| &it.devices)) {
        (Some(gpus), Some(Visible::Listed(chosen))) => {
            let list = at_their_places(chosen, text(CUDA).as_deref(), gpus);
            set(CUDA, list.clone());
            set(SOFT, list);
        }
        (Some(gpus), _) => {
            set(CUDA, gpus.to_owned());
            set(SOFT, gpus.to_owned());
        }
        (None, Some(Visible::Listed(chosen))) => {
            if soft {
                let list = match text(SOFT) {
                    Some(all) => at_their_places(chosen, None, &all),
                    None => chosen.clone(),
                };
                set(SOFT, list);
            }
            set(CUDA, chosen.clone());
        }
        (None, Some(Visible::All)) => {
            variables.remove(CUDA);
        }
        (None, None) => {}
    }
    if let Some(first) = process.map(|it| it.first).filter(|it| *it > 0) {
        variables.insert(FIRST_DEVICE.into(), OsString::from(first.to_string()));
    }
    variables
}

/// Checks that a worker has begun with the GPU with which the former one of its process had: what it makes first has the same
/// addresses then.
///
/// # Errors
/// It sees too few GPUs.
pub fn check_first(process: Option<&Sight>, worker: &Worker) -> Result<()> {
    let (first, count) = (process.map_or(0, |it| it.first), worker.devices.len());
    if first_among(first, count) == first {
        return Ok(());
    }
    let message = format!(
        "a rank of the program has begun with its GPU {first}, and of those that it is given here there are only {count}"
    );
    let hint = format!("restore onto at least {} GPUs (`--gpus`)", first + 1);
    Err(fail(FailureKind::Host, message).hint(hint))
}

/// The list that a session's user gave its workers alone, if there is one. In `variables` the one that its programs find takes
/// its place.
pub fn of_workers_alone<'a>(
    variables: &mut Variables,
    environment: impl Iterator<Item = (&'a str, OsString)>,
) -> Option<String> {
    let (mut alone, mut programs) = (None, None);
    for (name, value) in environment {
        match name {
            WORKERS => alone = Some(value.to_string_lossy().into_owned()),
            CUDA => programs = Some(value),
            _ => {}
        }
    }
    if alone.is_some() {
        match programs {
            Some(list) => variables.insert(CUDA.into(), list),
            None => variables.remove(CUDA),
        };
    }
    alone
}

/// The entries of `list` that stand where `names` has those of `chosen`, or at these numbers if there are no names. As in
/// CUDA, what follows one that is none is not seen.
fn at_their_places(chosen: &str, names: Option<&str>, list: &str) -> String {
    let entries =
        |text: &'_ str| -> Vec<String> { text.split(',').map(|it| it.trim().to_owned()).collect() };
    let (names, list) = (names.map(entries), entries(list));
    let place = |entry: &String| match &names {
        Some(names) => names.iter().position(|it| it == entry),
        None => entry.parse().ok(),
    };
    let chosen = entries(chosen);
    let found = chosen.iter().map_while(|entry| list.get(place(entry)?));
    let found: Vec<_> = found.cloned().collect();
    match found.is_empty() {
        true => NONE.to_owned(),
        false => found.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists of a worker, as CUDA and as the software GPU read them.
    fn lists(
        session: &[(&str, &str)],
        gpus: Option<&str>,
        soft: bool,
        process: Option<Sight>,
    ) -> (Option<String>, Option<String>) {
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), OsString::from(value));
        let session = session.iter().map(pair).collect();
        let variables = variables_of_process(&session, gpus, soft, process.as_ref());
        let text = |name| {
            variables
                .get(name)
                .map(|it| it.to_string_lossy().into_owned())
        };
        (text(CUDA), text(SOFT))
    }

    fn sight(devices: Visible) -> Option<Sight> {
        Some(Sight { devices, first: 0 })
    }

    fn listed(list: &str) -> Option<Sight> {
        sight(Visible::Listed(list.into()))
    }

    fn some(list: &str) -> Option<String> {
        Some(list.into())
    }

    #[test]
    fn a_worker_sees_what_its_process_says() {
        let begun = [(CUDA, "2,3")];
        assert_eq!(lists(&[], None, false, sight(Visible::All)), (None, None));
        assert_eq!(lists(&[], None, false, listed("1")), (some("1"), None));
        assert_eq!(
            lists(&begun, None, false, listed("2,3")),
            (some("2,3"), None)
        );
        assert_eq!(lists(&begun, None, false, listed("3")), (some("3"), None));
        assert_eq!(
            lists(&begun, None, false, sight(Visible::All)),
            (None, None)
        );
        assert_eq!(lists(&begun, None, false, None), (some("2,3"), None));
    }

    #[test]
    fn a_worker_begins_with_the_device_of_its_rank() {
        let first = |first| {
            let devices = Visible::All;
            let sight = Sight { devices, first };
            let variables = variables_of_process(&Variables::new(), None, false, Some(&sight));
            variables.get(FIRST_DEVICE).cloned()
        };
        assert_eq!(first(3), Some("3".into()));
        // Any other worker begins with the first, and spare ones do.
        assert_eq!(first(0), None);
    }

    #[test]
    fn the_software_gpu_reads_the_list_in_its_own_variable() {
        let both = |cuda: &str, soft: &str| (some(cuda), some(soft));
        assert_eq!(lists(&[], None, true, listed("1")), both("1", "1"));
        // Those that its user gave the session are what a program counts.
        let given = [(SOFT, "2,0")];
        assert_eq!(lists(&given, None, true, listed("1")), both("1", "0"));
        assert_eq!(
            lists(&given, None, true, listed("1,2,0")),
            both("1,2,0", "0")
        );
        assert_eq!(
            lists(&given, None, true, sight(Visible::All)),
            (None, some("2,0"))
        );
    }

    #[test]
    fn a_list_for_workers_alone_takes_the_place_of_what_programs_name() {
        let environment = [(WORKERS, "3"), (CUDA, "0")];
        let all = || {
            environment
                .map(|(name, value)| (name, value.into()))
                .into_iter()
        };
        let mut variables = crate::worker::variables(all());
        assert_eq!(
            of_workers_alone(&mut variables, all()).as_deref(),
            Some("3")
        );
        assert_eq!(variables[CUDA], "0");
        let one = variables_of_process(&variables, Some("3"), false, listed("0").as_ref());
        assert_eq!(one[CUDA], "3");
        let none = [(CUDA, OsString::from("0"))];
        assert_eq!(of_workers_alone(&mut variables, none.into_iter()), None);
        assert_eq!(variables[CUDA], "0");
    }

    #[test]
    fn other_gpus_stand_for_those_that_a_program_names() {
        let to = |session: &[_], process| lists(session, Some("5,GPU-x"), false, process).0;
        assert_eq!(to(&[], sight(Visible::All)), some("5,GPU-x"));
        assert_eq!(to(&[], None), some("5,GPU-x"));
        assert_eq!(to(&[], listed("1")), some("GPU-x"));
        assert_eq!(to(&[], listed("1, 0")), some("GPU-x,5"));
        let begun = [(CUDA, "2, 3")];
        assert_eq!(to(&begun, listed("2, 3")), some("5,GPU-x"));
        assert_eq!(to(&begun, listed("3")), some("GPU-x"));
        // Of one that it did not have nothing is known.
        assert_eq!(to(&begun, listed("0")), some("-1"));
    }
}
