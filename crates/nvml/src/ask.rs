//! A question to NVML as it travels: from the library in the program to the daemon in one datagram, which brings the end
//! of a pipe for the answer, and from the daemon to the monitor.
//!
//! ```text
//!  program: library ── Ask ──► daemon ── Question ──► monitor ──► NVIDIA's NVML, or what the CUDA driver says
//!                   ◄ Answer ─        ◄─ Outcome ───
//! ```
//! No connection, because a program may be stopped and dumped in the middle of a call: a pipe can be dumped and restored,
//! and its owner then asks again. What a peer wrote is hostile: lengths are bounded.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::table::Kind;

/// Version of the messages; an [`Ask`] and an [`Answer`] begin with it.
pub const VERSION: u32 = 1;
/// Name of the daemon's socket, in the folder of its socket for agents.
pub const SOCKET: &str = "nvml.sock";
/// The most bytes of a message: a pipe takes them at once.
pub const MOST_BYTES: usize = 64 << 10;
/// The most elements of a list.
pub const MOST_ELEMENTS: u32 = 1024;
/// The most bytes of a string or a set.
const MOST_TEXT: u32 = 8 << 10;

/// One call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The function.
    pub function: String,
    /// What the caller gives, one for each of the function's [`Kind`]s; see [`Given`].
    pub given: Vec<Given>,
}

/// What the caller gives of a parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Given {
    /// The place of a device, a number, or how much room there is; 0 for what is only filled.
    Number(u64),
    /// A string without its end, or what is read and filled.
    Bytes(Vec<u8>),
}

/// What a call has come to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// What the function returns.
    pub code: Code,
    /// What is filled, one for each of the function's [`Kind`]s:
    ///
    /// | kind | bytes |
    /// | --- | --- |
    /// | `Handle` | the device's place, 4 bytes |
    /// | `Out`, `Versioned`, `Text`, `Words`, `Values` | those of the caller's memory |
    /// | `List`, `Processes` | the count, 4 bytes, and then the elements |
    /// | others | none |
    pub filled: Vec<Vec<u8>>,
}

impl Outcome {
    /// Nothing is filled.
    pub fn failed(code: Code) -> Self {
        Self {
            code,
            filled: Vec::new(),
        }
    }
}

/// From the library to the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the question.
    pub id: u64,
    /// The session's token, as far as the program knows it.
    pub token: String,
    /// What is asked.
    pub call: Call,
}

/// From the daemon to the library.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// [`VERSION`].
    pub version: u32,
    /// Number of the question.
    pub id: u64,
    /// The answer.
    pub outcome: Outcome,
}

/// From the daemon to the monitor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What is asked.
    pub call: Call,
    /// What the session has on the devices, if it uses any: where nothing but the session knows, it is all that is used.
    pub own: Option<Own>,
}

/// What a session has on its devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Own {
    /// The number of its program, as the program sees it.
    pub process: u32,
    /// Bytes by the device's UUID.
    pub memory: Vec<(String, u64)>,
}

/// The bytes of a message.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    // Fails for types that have no fixed form, which these are not.
    postcard::to_stdvec(message).unwrap_or_default()
}

/// The message in these bytes, if it is one.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

/// Version and number of an [`Ask`] of any version.
pub fn head(bytes: &[u8]) -> Option<(u32, u64)> {
    let (head, _) = postcard::take_from_bytes(bytes).ok()?;
    Some(head)
}

/// Bytes that a parameter has room for, of what the caller gives.
///
/// # Errors
/// `INVALID_ARGUMENT` for what does not fit the parameter, `ARGUMENT_VERSION_MISMATCH` for a structure whose size is not
/// that of its version.
pub fn room(kind: Kind, given: &Given) -> Result<usize, Code> {
    let count = |limit: u32| match given {
        Given::Number(count) if *count <= u64::from(limit) => Ok(*count as usize),
        _ => Err(Code::INVALID_ARGUMENT),
    };
    match (kind, given) {
        (Kind::Device | Kind::Number | Kind::Long | Kind::Handle, Given::Number(_)) => Ok(0),
        (Kind::Name, Given::Bytes(name)) if name.len() <= MOST_TEXT as usize => Ok(0),
        (Kind::Out(size), Given::Number(_)) => Ok(size as usize),
        (Kind::Versioned(most), Given::Bytes(bytes)) => {
            let version = bytes.first_chunk::<4>().ok_or(Code::INVALID_ARGUMENT)?;
            let size = structure_size(u32::from_ne_bytes(*version), most)?;
            match size == bytes.len() {
                true => Ok(size),
                false => Err(Code::ARGUMENT_VERSION_MISMATCH),
            }
        }
        (Kind::Text, _) => count(MOST_TEXT),
        (Kind::Words, _) => Ok(8 * count(MOST_TEXT / 8)?),
        (Kind::List(size) | Kind::Processes(size), _) => Ok(size as usize * count(MOST_ELEMENTS)?),
        (Kind::Values(size), Given::Bytes(bytes)) => {
            let fits = bytes.len().is_multiple_of(size as usize)
                && bytes.len() <= (size * MOST_ELEMENTS) as usize;
            fits.then_some(bytes.len()).ok_or(Code::INVALID_ARGUMENT)
        }
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

/// The size of a structure that says to be of `version`.
///
/// # Errors
/// `ARGUMENT_VERSION_MISMATCH` for one that is not known.
pub fn structure_size(version: u32, most: u32) -> Result<usize, Code> {
    let size = version & 0x00ff_ffff;
    match (4..=most).contains(&size) {
        true => Ok(size as usize),
        false => Err(Code::ARGUMENT_VERSION_MISMATCH),
    }
}

/// Gives the processes of an outcome the numbers that `named` says; those without one are left out.
pub fn rename_processes(
    parameters: &[Kind],
    outcome: &mut Outcome,
    named: impl Fn(u32) -> Option<u32>,
) {
    for (kind, filled) in parameters.iter().zip(&mut outcome.filled) {
        let Kind::Processes(size) = kind else {
            continue;
        };
        let Some((_, elements)) = filled.split_first_chunk::<4>() else {
            continue;
        };
        let mut kept = Vec::new();
        let mut count = 0u32;
        for element in elements.chunks_exact(*size as usize) {
            let Some((number, rest)) = element.split_first_chunk::<4>() else {
                continue;
            };
            if let Some(name) = named(u32::from_ne_bytes(*number)) {
                kept.extend_from_slice(&name.to_ne_bytes());
                kept.extend_from_slice(rest);
                count += 1;
            }
        }
        if outcome.code == Code::SUCCESS {
            filled.splice(.., count.to_ne_bytes());
            filled.extend(kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_its_parameter_is_refused() {
        let version = |size: u32| Given::Bytes([&size.to_ne_bytes()[..], &[0; 36]].concat());
        assert_eq!(room(Kind::Versioned(40), &version(2 << 24 | 40)), Ok(40));
        let mismatch = Err(Code::ARGUMENT_VERSION_MISMATCH);
        assert_eq!(room(Kind::Versioned(40), &version(44)), mismatch);
        assert_eq!(room(Kind::Versioned(40), &version(36)), mismatch);
        assert_eq!(room(Kind::Versioned(40), &version(0)), mismatch);
        let invalid = Err(Code::INVALID_ARGUMENT);
        assert_eq!(room(Kind::Versioned(40), &Given::Number(1)), invalid);
        assert_eq!(room(Kind::List(24), &Given::Number(u64::MAX)), invalid);
        assert_eq!(room(Kind::Text, &Given::Number(96)), Ok(96));
        assert_eq!(room(Kind::Values(40), &Given::Bytes(vec![0; 41])), invalid);
    }

    #[test]
    fn processes_get_other_numbers_or_go() {
        let element = |pid: u32| [&pid.to_ne_bytes()[..], &[7; 12]].concat();
        let filled = [
            &3u32.to_ne_bytes()[..],
            &element(1),
            &element(2),
            &element(3),
        ]
        .concat();
        let mut outcome = Outcome {
            code: Code::SUCCESS,
            filled: vec![Vec::new(), filled],
        };
        let kinds = [Kind::Device, Kind::Processes(16)];
        rename_processes(&kinds, &mut outcome, |pid| (pid != 2).then_some(pid + 10));
        let left = [&2u32.to_ne_bytes()[..], &element(11), &element(13)].concat();
        assert_eq!(outcome.filled[1], left);
    }

    #[test]
    fn other_bytes_are_no_message() {
        let ask = Ask {
            version: VERSION,
            id: 5,
            token: "t".into(),
            call: Call {
                function: "f".into(),
                given: vec![Given::Number(1), Given::Bytes(vec![1, 2])],
            },
        };
        let bytes = encode(&ask);
        assert_eq!(decode::<Ask>(&bytes), Some(ask));
        assert_eq!(head(&bytes), Some((VERSION, 5)));
        for end in 0..bytes.len() {
            assert_eq!(decode::<Ask>(&bytes[..end]), None);
        }
        assert_eq!(decode::<Ask>(&[0xff; 64]), None);
    }
}
