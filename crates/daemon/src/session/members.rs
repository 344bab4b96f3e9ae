//! The processes of a session that use CUDA, found by their numbers.

use std::sync::Arc;

use fermata_control::agent::Sight;

use super::{Inner, Member, Served};
use crate::proc::ProcessId;
use crate::worker::Worker;

impl Inner {
    /// The member with that process.
    pub fn member(&mut self, process: ProcessId) -> Option<&mut Member> {
        self.members.iter_mut().find(|it| it.process == process)
    }

    /// Which GPUs a process is to see, if it has said that.
    pub fn sees(&self, process: ProcessId) -> Option<Sight> {
        let member = self.members.iter().find(|it| it.process == process);
        member?.visible.clone()
    }

    /// The member of a process; a new one if there is none.
    pub fn member_or_new(&mut self, process: ProcessId) -> &mut Member {
        let at = self.members.iter().position(|it| it.process == process);
        let at = at.unwrap_or_else(|| {
            self.members.push(Member::new(process));
            self.members.len() - 1
        });
        &mut self.members[at]
    }

    /// The members that are served, in the order in which they began to use CUDA.
    pub fn served(&self) -> Vec<Served> {
        self.members.iter().filter_map(Member::served).collect()
    }

    /// Numbers of the processes whose agents are connected.
    pub fn agents(&self) -> impl Iterator<Item = u32> {
        let attached = self.members.iter().filter(|it| it.agent.is_some());
        attached.map(|it| it.process.pid)
    }

    /// The workers that are connected.
    pub fn workers(&self) -> Vec<Arc<Worker>> {
        let workers = self.members.iter().filter_map(|it| it.worker.clone());
        workers.collect()
    }
}
