//! A job's session: what is protected, what has been checkpointed, what can be recovered.
//!
//! ```text
//!  init ─► protect ... ─► recover? ─► work, snapshot | checkpoint ... ─► finalize
//!    └ integrity of the newest checkpoint, by all ranks together
//! ```
//! The calls named collective must be made by all ranks in the same order. No call takes the program down,
//! and a failed checkpoint leaves the program and the older checkpoints as they were.

mod loading;
mod making;
mod recovering;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fermata_store::StoreError;
use parking_lot::Mutex;

use self::loading::Ahead;
use self::making::Running;
use crate::capture::Target;
use crate::comm::{Comm, numbers, together};
use crate::costs::Measured;
use crate::gpu::{Gpu, Place, locate};
use crate::layout::Lock;
use crate::maps::Maps;
use crate::memory::Memory;
use crate::object::Objects;
use crate::peers::Peers;
use crate::search::{Found, search};
use crate::site::Site;
use crate::staging::PlainPool;
use crate::status::Status;
use crate::variable::{ElementType, Variable, VariableId};
use crate::{AppError, Config, Level, Result};

/// Where a rank's checkpoints are.
type Places = (Lock, Site, Vec<Site>, Option<Objects>);

/// A session; see the top of this file.
pub struct Session {
    pub(crate) config: Config,
    pub(crate) comm: Box<dyn Comm>,
    local: Site,
    /// Our place among the ranks; `None` if there is one only.
    peers: Option<Arc<Peers>>,
    /// A second channel between the ranks, for what happens behind the program.
    beside: Option<Arc<Mutex<Box<dyn Comm>>>>,
    /// Whether the ranks share the room on their devices.
    shares: bool,
    further: Vec<Site>,
    /// Our place in an object store.
    objects: Option<Arc<Objects>>,
    gpu: Option<Arc<Gpu>>,
    plain: PlainPool,
    variables: BTreeMap<VariableId, Variable>,
    /// Number of the newest checkpoint begun, by any run of the job.
    sequence: u64,
    /// Number of the newest that this rank has completed in this run.
    committed: u64,
    running: Option<Running>,
    found: Option<Found>,
    /// A checkpoint that is read before it is asked for.
    ahead: Option<Ahead>,
    /// Sequence numbers by the program's numbers, as far as they were needed.
    numbers: BTreeMap<i64, u64>,
    refused: Vec<String>,
    pub(crate) measured: Measured,
    status: Status,
    /// The program's number of the newest checkpoint begun or found.
    newest_id: Option<i64>,
    pub(crate) clock: crate::snapshot::Clock,
    _lock: Lock,
}

impl Session {
    /// Begins a session: locks the rank's folder, and checks the newest checkpoint if the configuration
    /// asks for recovery. Collective.
    ///
    /// # Errors
    /// `Busy` when another process uses the folder, `Mismatch` when the checkpoints are of a job of
    /// another size, `Io` and `Store`.
    pub fn init(config: Config, comm: Box<dyn Comm>) -> Result<Self> {
        let opened = Self::open(&config, &*comm);
        let (lock, local, further, objects) = together(&*comm, opened)?;
        let peers = Peers::new(&*comm, &local, &config, &node(&config))?;
        let beside = second_channel(&*comm)?;
        let shares = shares_room(&*comm, &config)?;
        let listed = newest(std::iter::once(&local).chain(&further));
        let mut listed = together(&*comm, listed)?;
        // A store that cannot be reached is told of by the search, if nothing else is found.
        let there = objects.as_ref().and_then(|o| o.glance().ok()?.pop());
        listed = listed.max(there.unwrap_or(0));
        let newest = numbers(&*comm, listed)?.into_iter().max().unwrap_or(0);
        let mut session = Self {
            plain: PlainPool::new(config.staging_bytes),
            config,
            comm,
            local,
            peers: peers.map(Arc::new),
            beside: beside.map(|comm| Arc::new(Mutex::new(comm))),
            shares,
            further,
            objects: objects.map(Arc::new),
            gpu: None,
            variables: BTreeMap::new(),
            sequence: newest,
            committed: 0,
            running: None,
            found: None,
            ahead: None,
            numbers: BTreeMap::new(),
            refused: Vec::new(),
            measured: Measured::default(),
            status: Status::default(),
            newest_id: None,
            clock: crate::snapshot::Clock::new(),
            _lock: lock,
        };
        if session.config.recover {
            session.look()?;
        }
        Ok(session)
    }

    fn open(config: &Config, comm: &dyn Comm) -> Result<Places> {
        let rank = comm.rank();
        let folders = &config.local;
        let folder = folders
            .get(rank as usize % folders.len().max(1))
            .ok_or_else(|| AppError::Config {
                from: "session".into(),
                what: "`local.folders` names no folder".into(),
            })?;
        let layout = crate::layout::Layout::new(folder, &config.name, rank);
        let lock = Lock::take(&layout.rank)?;
        let local = Site::open(Level::Local, folder, config, rank)?;
        let mut further = Vec::new();
        if let Some(shared) = &config.shared {
            further.push(Site::open(Level::Shared, shared, config, rank)?);
        }
        let objects = config.object.as_ref();
        let objects = objects.map(|o| Objects::new(o, &config.name, rank));
        Ok((lock, local, further, objects.transpose()?))
    }

    /// Searches for the checkpoint to recover from, unless the one at hand is the newest.
    fn look(&mut self) -> Result<()> {
        let newest = self.found.as_ref().map(|f| f.record.sequence);
        if newest.is_some() && newest >= Some(self.committed) {
            return Ok(());
        }
        let sites: Vec<_> = std::iter::once(&self.local)
            .chain(&self.further)
            .cloned()
            .collect();
        let search = search(
            &*self.comm,
            &sites,
            self.peers.as_deref(),
            self.objects.as_deref(),
        )?;
        if search.note.is_some() {
            self.status.last_failure = search.note;
        }
        self.salvage(search.harmed)?;
        self.found = search.found;
        self.refused = search.refused;
        self.status.recoverable = self.found.as_ref().map(|f| f.record.id);
        self.newest_id = self.newest_id.or(self.status.recoverable);
        Ok(())
    }

    /// After damage anywhere, every rank's local store forgets what it cannot read: a new checkpoint with the
    /// same content must not refer to it.
    fn salvage(&self, harmed: bool) -> Result<()> {
        let said = numbers(&*self.comm, u64::from(harmed))?;
        if !said.contains(&1) {
            return Ok(());
        }
        let salvaged = match self.local.store.salvage() {
            // Another rank of this node is at it.
            Ok(_) | Err(StoreError::Locked { .. }) => Ok(()),
            Err(e) => Err(AppError::store("look through the store after damage")(e)),
        };
        together(&*self.comm, salvaged)
    }

    /// Protects a variable, or protects it anew with another address, count or type. Device and managed
    /// memory is told from host memory by the driver.
    ///
    /// # Errors
    /// `Variable` when not all of it is there.
    pub fn protect(&mut self, id: u32, memory: Memory, element: ElementType) -> Result<()> {
        if self.gpu.is_none() {
            self.gpu = Gpu::of_process(self.config.staging_bytes)?;
        }
        let mut variable = Variable {
            id: VariableId(id),
            element,
            memory,
            on_device: false,
        };
        let place = locate(self.gpu.as_deref(), &Maps::now()?, &variable, true)?;
        variable.on_device = place != Place::Host;
        self.variables.insert(variable.id, variable);
        Ok(())
    }

    /// Ends the protection of a variable, whose memory may be freed then. What is being written of it was
    /// captured before.
    ///
    /// # Errors
    /// `Variable` when it is not protected.
    pub fn unprotect(&mut self, id: u32) -> Result<()> {
        match self.variables.remove(&VariableId(id)) {
            Some(_) => Ok(()),
            None => Err(AppError::Variable {
                id,
                what: "it is not protected".into(),
            }),
        }
    }

    fn locate_all(&self, write: bool) -> Result<Vec<Target>> {
        let maps = Maps::now()?;
        self.variables
            .values()
            .map(|variable| {
                Ok(Target {
                    place: locate(self.gpu.as_deref(), &maps, variable, write)?,
                    variable: variable.clone(),
                })
            })
            .collect()
    }

    /// Bytes that a variable has in the checkpoint that a recovery would use: what a program must allocate
    /// before it protects it. `None` if there is no such checkpoint or variable.
    pub fn stored_bytes(&self, id: u32) -> Option<u64> {
        let record = &self.found.as_ref()?.record;
        record.variable(VariableId(id)).map(|v| v.bytes)
    }

    /// The number that a snapshot's checkpoint gets: one more than the newest.
    pub(crate) fn next_id(&self) -> i64 {
        self.newest_id.map_or(1, |id| id.saturating_add(1))
    }

    /// Whether there were checkpoints of which none can be used.
    pub(crate) fn only_unusable(&self) -> Option<AppError> {
        (self.found.is_none() && !self.refused.is_empty()).then(|| self.nothing())
    }

    /// Where the session stands.
    pub fn status(&self) -> Status {
        let interval = self.measured.interval(&self.config);
        Status {
            busy: self
                .running
                .as_ref()
                .is_some_and(|r| !r.complete && !r.thread.is_finished()),
            interval_seconds: interval,
            waste: interval.and_then(|t| self.measured.waste(&self.config, t)),
            ..self.status.clone()
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Ends the session: waits for what is being written, and removes the job's checkpoints if `remove`
    /// and the configuration does not keep them, for a job that is done. Collective.
    ///
    /// # Errors
    /// Why the last checkpoint failed, or why checkpoints could not be removed.
    pub fn finalize(mut self, remove: bool) -> Result<()> {
        let limit = Duration::from_secs_f64(self.config.deadline);
        let waited = self.join(limit);
        together(&*self.comm, waited)?;
        if remove && !self.config.keep_at_end {
            for site in std::iter::once(&self.local).chain(&self.further) {
                site.prune(u64::MAX, 0)?;
            }
            if let Some(peers) = &self.peers {
                peers.prune_to(u64::MAX, 0)?;
            }
            if let Some(objects) = &self.objects {
                objects.prune(u64::MAX, 0)?;
            }
        }
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A thread that is still writing is let finish: its checkpoint is good.
        if let Some(running) = self.running.take() {
            let _ = running.thread.join();
        }
    }
}

/// The number of the newest checkpoint in any of these places, sound or not.
fn newest<'s>(sites: impl Iterator<Item = &'s Site>) -> Result<u64> {
    let mut newest = 0;
    for site in sites {
        newest = newest.max(site.layout.sequences()?.last().copied().unwrap_or(0));
    }
    Ok(newest)
}

/// Where this rank is, as far as the choice of partners is concerned.
fn node(config: &Config) -> String {
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    config.node.clone().unwrap_or_else(host)
}

/// Whether all ranks let data wait on devices. Collective.
fn shares_room(comm: &dyn Comm, config: &Config) -> Result<bool> {
    if comm.size() < 2 {
        return Ok(false);
    }
    let room = config.background && config.stage_bytes > 0;
    Ok(!numbers(comm, u64::from(room))?.contains(&0))
}

/// A second channel, if all ranks have one.
fn second_channel(comm: &dyn Comm) -> Result<Option<Box<dyn Comm>>> {
    if comm.size() < 2 {
        return Ok(None);
    }
    let own = together(comm, comm.behind())?;
    let all = numbers(comm, u64::from(own.is_some()))?;
    Ok(own.filter(|_| !all.contains(&0)))
}
