//! Ranks as processes of their own, which talk over sockets in a folder.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use fermata_app::{Comm, Result};

const PATIENCE: Duration = Duration::from_secs(300);

/// One process's end of the sockets to all the others.
pub struct Processes {
    rank: u32,
    /// By rank; to itself a pair of its own.
    to: Vec<RefCell<UnixStream>>,
    from: Vec<RefCell<UnixStream>>,
    /// Sockets that may be used at the same time as these.
    beside: RefCell<Option<Box<Self>>>,
}

impl Processes {
    /// Meets the other ranks in `folder`, with a second channel between them.
    pub fn meet_beside(folder: &Path, rank: u32, ranks: u32) -> Self {
        let second = folder.join("beside");
        std::fs::create_dir_all(&second).unwrap();
        let first = Self::meet(folder, rank, ranks);
        let second = Self::meet(&second, rank, ranks);
        *first.beside.borrow_mut() = Some(Box::new(second));
        first
    }

    /// Meets the other ranks in `folder`.
    pub fn meet(folder: &Path, rank: u32, ranks: u32) -> Self {
        let place = |rank: u32| folder.join(format!("rank-{rank}"));
        let listener = UnixListener::bind(place(rank)).unwrap();
        let until = Instant::now() + PATIENCE;
        let connect = |to| loop {
            match UnixStream::connect(place(to)) {
                Ok(mut stream) => {
                    stream.write_all(&rank.to_le_bytes()).unwrap();
                    return RefCell::new(stream);
                }
                Err(e) => assert!(Instant::now() < until, "rank {to}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let to = (0..ranks).map(connect).collect();
        let mut from: Vec<Option<UnixStream>> = (0..ranks).map(|_| None).collect();
        for _ in 0..ranks {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut who = [0; 4];
            stream.read_exact(&mut who).unwrap();
            from[u32::from_le_bytes(who) as usize] = Some(stream);
        }
        let from = from.into_iter().map(|s| RefCell::new(s.unwrap()));
        Self {
            rank,
            to,
            from: from.collect(),
            beside: RefCell::default(),
        }
    }
}

impl Comm for Processes {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.to.len() as u32
    }

    fn barrier(&self) -> Result<()> {
        super::ranks::barrier(self)
    }

    fn broadcast(&self, bytes: &mut [u8], root: u32) -> Result<()> {
        super::ranks::broadcast(self, bytes, root)
    }

    fn gather(&self, mine: &[u8], all: &mut [u8], root: u32) -> Result<()> {
        super::ranks::gather(self, mine, all, root)
    }

    fn send(&self, bytes: &[u8], to: u32) -> Result<()> {
        self.to[to as usize].borrow_mut().write_all(bytes).unwrap();
        Ok(())
    }

    fn receive(&self, bytes: &mut [u8], from: u32) -> Result<()> {
        let mut stream = self.from[from as usize].borrow_mut();
        stream.read_exact(bytes).unwrap();
        Ok(())
    }

    fn behind(&self) -> Result<Option<Box<dyn Comm>>> {
        let beside = self.beside.borrow_mut().take();
        Ok(beside.map(|b| -> Box<dyn Comm> { b }))
    }
}
