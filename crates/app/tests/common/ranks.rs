//! Ranks as threads of one process, which talk over channels; collective calls out of messages.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use fermata_app::{Comm, Result};

/// One rank's end of all channels.
pub struct Threads {
    rank: u32,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Mutex<Receiver<Vec<u8>>>>,
    /// Channels that may be used at the same time as these.
    beside: Mutex<Option<Box<Threads>>>,
}

impl Threads {
    /// Runs `work` on so many ranks at once; what each returns, by rank.
    pub fn run<T: Send>(ranks: u32, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
        Self::on(Self::mesh(ranks), work)
    }

    /// The same with a second channel between the ranks.
    pub fn run_beside<T: Send>(ranks: u32, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
        let mut ends = Self::mesh(ranks);
        for (end, beside) in ends.iter_mut().zip(Self::mesh(ranks)) {
            end.beside = Mutex::new(Some(Box::new(beside)));
        }
        Self::on(ends, work)
    }

    /// The ends of two ranks.
    pub fn pair() -> Vec<Threads> {
        Self::mesh(2)
    }

    fn mesh(ranks: u32) -> Vec<Threads> {
        let n = ranks as usize;
        let mut senders: Vec<Vec<_>> = (0..n).map(|_| Vec::new()).collect();
        let mut receivers: Vec<Vec<_>> = (0..n).map(|_| Vec::new()).collect();
        for sender in &mut senders {
            for receiver in &mut receivers {
                let (tx, rx) = channel();
                sender.push(tx);
                receiver.push(Mutex::new(rx));
            }
        }
        let ends = senders.into_iter().zip(receivers).zip(0..ranks);
        ends.map(|((to, from), rank)| Threads {
            rank,
            to,
            from,
            beside: Mutex::default(),
        })
        .collect()
    }

    fn on<T: Send>(ends: Vec<Threads>, work: impl Fn(Threads) -> T + Sync) -> Vec<T> {
        let ready = Barrier::new(ends.len());
        let (work, ready) = (&work, &ready);
        std::thread::scope(|scope| {
            let threads: Vec<_> = ends
                .into_iter()
                .map(|end| {
                    scope.spawn(move || {
                        ready.wait();
                        work(end)
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }
}

impl Comm for Threads {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.to.len() as u32
    }

    fn barrier(&self) -> Result<()> {
        barrier(self)
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        broadcast(self, bytes, root)
    }

    fn gather(&self, mine: &[u8], all: &mut [u8], root: u32) -> Result<()> {
        gather(self, mine, all, root)
    }

    fn send(&self, bytes: &[u8], to: u32) -> Result<()> {
        self.to[to as usize].send(bytes.to_vec()).unwrap();
        Ok(())
    }

    fn receive(&self, bytes: &mut [u8], from: u32) -> Result<()> {
        let channel = self.from[from as usize].lock().unwrap();
        let message = channel.recv_timeout(Duration::from_secs(300)).unwrap();
        bytes.copy_from_slice(&message);
        Ok(())
    }

    fn behind(&self) -> Result<Option<Box<dyn Comm>>> {
        let beside = self.beside.lock().unwrap().take();
        Ok(beside.map(|b| -> Box<dyn Comm> { b }))
    }
}

/// [`Comm::barrier`] out of the others.
pub fn barrier(comm: &dyn Comm) -> Result<()> {
    let mut all = vec![0; comm.size() as usize];
    let into = if comm.rank() == 0 {
        &mut all[..]
    } else {
        &mut []
    };
    comm.gather(&[1], into, 0)?;
    comm.broadcast(&mut [1], 0)
}

/// [`Comm::broadcast`] out of messages.
pub fn broadcast(comm: &dyn Comm, bytes: &mut [u8], root: u32) -> Result<()> {
    if comm.rank() != root {
        return comm.receive(bytes, root);
    }
    let mut others = (0..comm.size()).filter(|r| *r != root);
    others.try_for_each(|r| comm.send(bytes, r))
}

/// [`Comm::gather`] out of messages.
pub fn gather(comm: &dyn Comm, mine: &[u8], all: &mut [u8], root: u32) -> Result<()> {
    if comm.rank() != root {
        return comm.send(mine, root);
    }
    for (rank, part) in all.chunks_mut(mine.len()).enumerate() {
        match rank as u32 == root {
            true => part.copy_from_slice(mine),
            false => comm.receive(part, rank as u32)?,
        }
    }
    Ok(())
}
