//! The daemon's record in an image's manifest, for its own use at a restore (`extra.daemon`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fermata_control::agent::Sight;
use fermata_control::user::Text;
use fermata_control::worker::FailureKind;
use fermata_store::image::{Manifest, part_name};
use serde::{Deserialize, Serialize};

use crate::failure::{OrFail, Result, fail};

/// Name in `extra`.
const KEY: &str = "daemon";
/// Name of the copy of the session's log in an image.
pub const LOG: &str = "log";

/// The daemon's part of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// Root of the dumped tree, as its namespace has it.
    pub root: u32,
    /// Path of the log that the program had open.
    #[serde(with = "fermata_control::text::path")]
    pub log: PathBuf,
    /// Its working folder, if that is not UTF-8.
    pub folder: Option<Text>,
    /// Bytes in it at the checkpoint; the image's `log` holds them.
    pub log_length: u64,
    /// The first process that uses CUDA; none if none did.
    pub agent: Option<AgentRecord>,
    /// The other processes that use CUDA.
    pub others: Vec<AgentRecord>,
    /// Whether it ran on softgpu.
    pub soft: Option<bool>,
    /// Its priority.
    pub priority: i32,
    /// Variables of its worker.
    pub variables: BTreeMap<String, Text>,
    /// The GPUs that it had been given in the place of those that its programs name.
    pub gpus: Option<String>,
    /// Whether its worker had our kernels before the program's modules; a restore's worker does the same.
    pub kernels_first: bool,
    /// Ends of TCP connections that are whole in the image; none in images of releases that closed them.
    pub connections: Option<u32>,
    /// CRIU's number of the pipe that is its standard input, if more could come through it.
    pub input: Option<u32>,
}

/// A process with an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Its process id in its namespace.
    pub pid: u32,
    /// Address of its wake block.
    pub wake_block: u64,
    /// Whether its worker had our kernels before the program's modules; of the first process [`Record`] says it.
    #[serde(default)]
    pub kernels_first: bool,
    /// Which GPUs it is to see; images of releases in which the library in the program saw to that lack it.
    #[serde(default)]
    pub visible: Option<Sight>,
}

/// A process of the image that uses CUDA, and where its device part is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The process.
    pub agent: AgentRecord,
    /// Folder of its `state` and `chunks` below the image's; empty for that of the image itself.
    pub part: String,
}

impl Place {
    /// That folder.
    pub fn folder(&self, image: &Path) -> PathBuf {
        match self.part.as_str() {
            "" => image.to_owned(),
            part => image.join(part),
        }
    }

    /// Path of a file of it, as manifests name it.
    pub fn file(&self, name: &str) -> String {
        match self.part.as_str() {
            "" => name.to_owned(),
            part => format!("{part}/{name}"),
        }
    }
}

impl Record {
    /// The processes that use CUDA, and where their device parts are.
    pub fn places(&self) -> Vec<Place> {
        let first = self.agent.clone().map(|agent| AgentRecord {
            kernels_first: self.kernels_first,
            ..agent
        });
        let agents = first.into_iter().chain(self.others.iter().cloned());
        let place = |(at, agent)| Place {
            agent,
            part: part_name(at),
        };
        agents.enumerate().map(place).collect()
    }

    /// Puts it into `manifest`.
    ///
    /// # Errors
    /// A path in it is not UTF-8.
    pub fn store(&self, manifest: &mut Manifest) -> Result<()> {
        let value = serde_json::to_value(self).or_fail(FailureKind::NotCheckpointable, || {
            "cannot record the session".into()
        })?;
        manifest.extra.insert(KEY.into(), value);
        Ok(())
    }

    /// Takes it out of `manifest`.
    ///
    /// # Errors
    /// `Damaged` when it is not there.
    pub fn load(manifest: &Manifest) -> Result<Self> {
        let missing = || {
            let message = format!("image `{}` lacks the record of its session", manifest.name);
            fail(FailureKind::Damaged, message)
        };
        let value = manifest.extra.get(KEY).ok_or_else(missing)?;
        serde_json::from_value(value.clone()).or_fail(FailureKind::Damaged, || {
            format!("the record in image `{}`", manifest.name)
        })
    }
}

#[cfg(test)]
mod tests {
    use fermata_control::agent::Visible;

    use super::*;

    #[test]
    fn a_record_survives_the_manifest() {
        let record = Record {
            root: 17,
            log: "/run/x/log".into(),
            folder: Some("/x".into()),
            log_length: 5,
            agent: Some(AgentRecord {
                pid: 18,
                wake_block: 1 << 40,
                kernels_first: false,
                visible: Some(Sight {
                    devices: Visible::All,
                    first: 0,
                }),
            }),
            others: vec![AgentRecord {
                pid: 19,
                wake_block: 1 << 41,
                kernels_first: false,
                visible: Some(Sight {
                    devices: Visible::Listed("1".into()),
                    first: 2,
                }),
            }],
            soft: Some(true),
            priority: -7,
            variables: [("A".to_owned(), "b".into())].into(),
            gpus: Some("1,0".into()),
            kernels_first: true,
            connections: Some(2),
            input: Some(3),
        };
        let mut manifest = Manifest::default();
        assert!(Record::load(&manifest).is_err());
        record.store(&mut manifest).expect("stored");
        assert_eq!(Record::load(&manifest).expect("loaded"), record);
        let places = record.places();
        let found: Vec<_> = places
            .iter()
            .map(|it| (it.agent.pid, it.file("state")))
            .collect();
        assert_eq!(
            found,
            [(18, "state".to_owned()), (19, "process-2/state".to_owned())]
        );
        // That of the first stands in the record itself.
        assert!(places[0].agent.kernels_first && !places[1].agent.kernels_first);
    }
}
