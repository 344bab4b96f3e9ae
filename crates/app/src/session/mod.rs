//! A job's session: what is protected, what has been checkpointed, what can be recovered.
//!
//! ```text
//!  init ─► protect ... ─► recover? ─► work, snapshot | checkpoint ... ─► finalize
//!    └ integrity of the newest checkpoint, by all ranks together
//! ```
//! The calls named collective must be made by all ranks in the same order. No call takes the program down,
//! and a failed checkpoint leaves the program and the older checkpoints as they were.

mod ahead;
mod clock;
mod job;
mod loading;
mod making;
mod recovering;
mod running;
pub(crate) mod snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use self::ahead::Ahead;
use self::clock::Clock;
use self::running::Running;
use crate::buffer::PlainPool;
use crate::checkpoint::found::Found;
use crate::checkpoint::layout::{Lock, hostname};
use crate::checkpoint::site::Site;
use crate::costs::Measured;
use crate::gpu::{Gpu, Place, locate};
use crate::levels::level::Newest;
use crate::levels::object::Objects;
use crate::levels::peers::Peers;
use crate::maps::Maps;
use crate::memory::Memory;
use crate::ranks::comm::{Comm, exchange, numbers, together};
use crate::ranks::roll::{Call, roll};
use crate::recovery::search::{Harm, search};
use crate::status::Status;
use crate::target::Target;
use crate::variable::{ElementType, Variable, VariableId};
use crate::{AppError, Config, Level, Result};

/// Where a rank's checkpoints are.
type Places = (Vec<Lock>, Site, Vec<Site>, Option<Objects>);

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
    /// Number of this run; see [`crate::checkpoint::record::Record`].
    run: u64,
    /// The newest that this rank has completed in this run, by level.
    done: Newest,
    /// The newest that all ranks have completed in this run, by level.
    complete: Newest,
    running: Option<Running>,
    found: Option<Found>,
    /// The newest checkpoint begun when `found` was looked for.
    looked: u64,
    /// A checkpoint that is read before it is asked for.
    ahead: Option<Ahead>,
    /// Sequence numbers by the program's numbers, as far as they were needed.
    numbers: BTreeMap<i64, u64>,
    refused: Vec<String>,
    pub(crate) measured: Measured,
    status: Status,
    /// The program's number of the newest checkpoint begun or found.
    newest_id: Option<i64>,
    pub(crate) clock: Clock,
    /// The process that began it: a child that it forks has no part in it.
    process: u32,
    /// Whether the last wait was in vain, and another one would be.
    given_up: bool,
    locks: Vec<Lock>,
}

impl Session {
    /// Begins a session: locks the rank's folder, and checks the newest checkpoint if the configuration
    /// asks for recovery. Collective.
    ///
    /// # Errors
    /// `Busy` when another process uses the folder, `Config` when the ranks are not configured alike, `OtherSize`
    /// when the checkpoints are of a job of another size, `Io` and `Store`.
    pub fn init(config: Config, comm: Box<dyn Comm>) -> Result<Self> {
        Self::begin(Ok(config), comm)
    }

    /// As [`Session::init`], with a configuration that this rank may not have been able to read: then all ranks
    /// are told, which would wait for it otherwise. Collective.
    ///
    /// # Errors
    /// As [`Session::init`], and why the configuration could not be read.
    pub fn begin(config: Result<Config>, comm: Box<dyn Comm>) -> Result<Self> {
        let config = together(&*comm, config)?;
        alike(&*comm, &config)?;
        let opened = Self::open(&config, &*comm);
        let (locks, local, further, objects) = together(&*comm, opened)?;
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
            run: 0,
            done: Newest::default(),
            complete: Newest::default(),
            running: None,
            found: None,
            looked: 0,
            ahead: None,
            numbers: BTreeMap::new(),
            refused: Vec::new(),
            measured: Measured::default(),
            status: Status::default(),
            newest_id: None,
            clock: Clock::new(),
            process: std::process::id(),
            given_up: false,
            locks,
        };
        if session.config.recover {
            session.look()?;
        } else if let Some(peers) = &session.peers {
            let kept = peers.kept(&*session.comm)?.highest();
            session.sequence = session.sequence.max(kept);
        }
        session.run = session.new_run()?;
        Ok(session)
    }

    /// A number for this run: the time on rank 0, and in any case more than that of the checkpoint that was found.
    fn new_run(&self) -> Result<u64> {
        let time = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut number = time.map_or(0, |t| t.as_nanos() as u64).to_le_bytes();
        self.comm.broadcast(&mut number, 0)?;
        let before = self.found.as_ref().map_or(0, |f| f.record.run);
        Ok(u64::from_le_bytes(number).max(before + 1))
    }

    /// Refuses in a process that the session's own has forked: it has neither its threads nor its locks.
    fn own(&self, op: &'static str) -> Result<()> {
        match self.process == std::process::id() {
            true => Ok(()),
            false => Err(AppError::Misuse {
                op,
                what: format!(
                    "the session is that of process {}, which has forked this one",
                    self.process
                ),
            }),
        }
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
        let layout = crate::checkpoint::layout::Layout::new(folder, &config.name, rank);
        let mut locks = vec![Lock::take(&layout.rank)?];
        let local = Site::open(Level::Local, folder, config, rank)?;
        let mut further = Vec::new();
        if let Some(shared) = &config.shared {
            let layout = crate::checkpoint::layout::Layout::new(shared, &config.name, rank);
            // Two jobs can be on different nodes and meet here.
            locks.push(Lock::take(&layout.rank)?);
            further.push(Site::open(Level::Shared, shared, config, rank)?);
        }
        let objects = config.object.as_ref();
        let objects = objects.map(|o| Objects::new(o, &config.name, rank));
        Ok((locks, local, further, objects.transpose()?))
    }

    /// Searches for the checkpoint to recover from, unless none was begun since the one at hand was found. That
    /// is the same on all ranks, whatever has become of their checkpoints. Collective.
    fn look(&mut self) -> Result<()> {
        if self.found.is_some() && self.looked == self.sequence {
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
        self.salvage(search.harm)?;
        // Numbers go on behind what is seen only now, or it would be taken for newer than what comes.
        self.sequence = self.sequence.max(search.highest);
        self.looked = self.sequence;
        self.found = search.found;
        self.refused = search.refused;
        self.status.recoverable = self.found.as_ref().map(|f| f.record.id);
        self.newest_id = self.newest_id.or(self.status.recoverable);
        Ok(())
    }

    /// After damage anywhere, every rank's local store forgets what it cannot read: a new checkpoint with the
    /// same content must not refer to it. Stores of other levels, which all ranks use, are rank 0's to look through
    /// if any rank has found damage there; a job that cannot do so, for want of space say, recovers all the same.
    fn salvage(&mut self, harm: Harm) -> Result<()> {
        let mine = u64::from(harm.own) | u64::from(harm.further) << 1;
        let said = numbers(&*self.comm, mine)?;
        let said = said.into_iter().fold(0, |all, one| all | one);
        if said == 0 {
            return Ok(());
        }
        if said & 2 != 0 && self.comm.rank() == 0 {
            for site in &self.further {
                if let Err(e) = site.salvage() {
                    self.status.last_failure = Some(e.text());
                }
            }
        }
        together(&*self.comm, self.local.salvage())
    }

    /// Protects a variable, or protects it anew with another address, count or type. Device and managed
    /// memory is told from host memory by the driver.
    ///
    /// # Errors
    /// `Variable` when not all of it is there.
    pub fn protect(&mut self, id: u32, memory: Memory, element: ElementType) -> Result<()> {
        self.own("protect a variable")?;
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
        self.own("end the session")?;
        let waited = self.join(self.deadline());
        self.given_up = matches!(waited, Err(AppError::Deadline { .. }));
        roll(&*self.comm, Call::Finalize { remove }, 0)?;
        together(&*self.comm, waited)?;
        if remove && !self.config.keep_at_end {
            for site in std::iter::once(&self.local).chain(&self.further) {
                site.prune(u64::MAX, 0)?;
            }
            if let Some(peers) = &self.peers {
                peers.remove()?;
            }
            if let Some(objects) = &self.objects {
                objects.prune(u64::MAX, 0)?;
            }
        }
        Ok(())
    }

    /// Longest wait for a step.
    fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.config.deadline)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let locks = std::mem::take(&mut self.locks);
        if self.process != std::process::id() {
            // A forked child: threads and locks are its parent's.
            std::mem::forget((self.running.take(), locks));
            return;
        }
        // A thread that is still writing is let finish: its checkpoint is good.
        if self.running.is_some() && !self.given_up {
            let _ = self.join(self.deadline());
        }
        if let Some(running) = self.running.take() {
            // The program waits for it no more. As it may go on, the folders stay this process's.
            running.abandon();
            std::mem::forget(locks);
        }
    }
}

/// Refuses when the ranks have set something differently that says who waits for whom. Collective.
fn alike(comm: &dyn Comm, config: &Config) -> Result<()> {
    let said = exchange(comm, config.alike().as_bytes())?;
    let Some((first, others)) = said.split_first() else {
        return Ok(());
    };
    let first = String::from_utf8_lossy(first).into_owned();
    for (other, rank) in others.iter().zip(1..) {
        let other = String::from_utf8_lossy(other);
        if let Some((one, two)) = first.lines().zip(other.lines()).find(|(a, b)| a != b) {
            return Err(AppError::Config {
                from: "session".into(),
                what: format!(
                    "ranks of a job need the same: rank 0 has `{one}`, rank {rank} `{two}`"
                ),
            });
        }
    }
    Ok(())
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
    config.node.clone().unwrap_or_else(hostname)
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
