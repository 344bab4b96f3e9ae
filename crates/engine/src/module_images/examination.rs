//! The thread that examines module images while the program runs: finds their hash, the names of their variables, and
//! whether their kernels print.
//!
//! ```text
//!  an image is recorded by a name ─► queue ─► thread: hashes, unpacks, reads ─► done ─► settle: the session's records
//!                                                                                  └─ finish: before a checkpoint
//! ```
//! Libraries have compressed fat binaries of hundreds of megabytes, for every architecture. No operation of the program
//! waits for their examination. A checkpoint does, up to a limit, and fails if the examination has failed, because the
//! image could lack a variable.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fermata_state::{ImageBytes, ImageFacts, ImageId, Session};
use parking_lot::{Condvar, Mutex};

use super::names;
use crate::EngineError;

/// Images up to this size are hashed at once.
pub(super) const HASHED_AT_ONCE: usize = 8 << 20;
/// Images up to this size are searched for device `printf` at once.
pub(super) const PRINTS_AT_ONCE: usize = 256 << 10;
/// The device side of `printf`, as compilers name it.
const PRINTS: &[u8] = b"vprintf";
/// How long a checkpoint waits for the examination.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The function that examines an image; tests replace it.
pub(super) type Look = fn(&[u8], Option<u32>) -> Found;

/// What is found in an image.
#[derive(Default)]
pub(super) struct Found {
    /// See [`ImageFacts::prints`].
    prints: bool,
    /// See [`ImageFacts::names`].
    names: BTreeSet<String>,
    /// Why the variables of a part that the device may run are not known, if there is such a part.
    unread: Option<String>,
}

/// An image to be examined.
pub(super) struct Request {
    pub name: ImageId,
    pub image: ImageBytes,
    /// See [`ImageFacts::sm`].
    pub sm: Option<u32>,
    pub look: Look,
}

/// An image that has been examined: the name it was queued by, the hash of its content, and the facts, or why there are
/// none.
struct Examination {
    name: ImageId,
    content: ImageId,
    facts: Result<ImageFacts, String>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Request>,
    done: Vec<Examination>,
    /// Whether a thread works on the queue.
    busy: bool,
}

/// What a session and the thread that examines its images share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    idle: Condvar,
}

/// The examination of a session's images. What it finds becomes part of the session.
#[derive(Default)]
pub(crate) struct Examinations {
    /// Images that are queued or being examined.
    pub(super) queued: BTreeSet<ImageId>,
    /// Images whose examination has failed, and why.
    pub(super) failed: BTreeMap<ImageId, String>,
    /// Whether images that have not been examined print, where that is known already.
    pub(super) printing: BTreeMap<ImageId, bool>,
    shared: Arc<Shared>,
    /// Provisional names given so far.
    pub(super) named: u64,
}

impl Examinations {
    pub(super) fn queue(&mut self, request: Request) {
        if !self.queued.insert(request.name) {
            return;
        }
        self.failed.remove(&request.name);
        let mut state = self.shared.state.lock();
        state.queue.push_back(request);
        if std::mem::replace(&mut state.busy, true) {
            return;
        }
        drop(state);
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("examine".to_owned());
        if thread.spawn(move || shared.work()).is_err() {
            // Without a thread the work is done here.
            self.shared.work();
        }
    }

    /// Records the results in the session. True if there were any.
    pub(super) fn settle(&mut self, session: &mut Session) -> bool {
        let mut state = self.shared.state.lock();
        let done = std::mem::take(&mut state.done);
        let idle = !state.busy;
        drop(state);
        let any = !done.is_empty();
        for Examination {
            name,
            content,
            facts,
        } in done
        {
            self.queued.remove(&name);
            self.printing.remove(&name);
            if name != content {
                session.rename_image(&name, content);
            }
            match facts {
                Ok(facts) => session.set_facts(content, facts),
                Err(why) => {
                    self.failed.insert(content, why);
                }
            }
        }
        if idle {
            // The thread has ended without examining these.
            for name in std::mem::take(&mut self.queued) {
                let why = "the thread that examines images has failed";
                self.failed.insert(name, why.to_owned());
            }
        }
        // So that the map does not grow without bound in a program that loads and unloads images for weeks.
        self.failed.retain(|id, _| session.image(id).is_some());
        self.printing.retain(|id, _| session.image(id).is_some());
        any
    }

    /// Waits until everything queued has been examined.
    pub(super) fn wait(&self, patience: Duration) -> Result<(), EngineError> {
        match self.shared.becomes_idle(patience) {
            None => Ok(()),
            Some(left) => Err(EngineError::NotCheckpointable(format!(
                "{left} module images are still being examined after {} s; try again later",
                patience.as_secs()
            ))),
        }
    }

    /// What is being examined, if anything is.
    pub(super) fn under_way(&self) -> Option<Examining> {
        (!self.queued.is_empty()).then(|| Examining(Arc::clone(&self.shared)))
    }
}

/// An examination under way, which can be waited for without the session.
pub struct Examining(Arc<Shared>);

impl Examining {
    /// Waits until it is done; false if it is not within `limit`.
    pub fn ends_within(&self, limit: Duration) -> bool {
        self.0.becomes_idle(limit).is_none()
    }
}

/// Wakes waiting threads when the thread ends, also if it panics.
struct Working<'d>(&'d Shared);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.queue.clear();
        state.busy = false;
        self.0.idle.notify_all();
    }
}

impl Shared {
    /// Waits until nothing is examined any more; returns the number of images left if that takes longer than `limit`.
    fn becomes_idle(&self, limit: Duration) -> Option<usize> {
        let until = Instant::now() + limit;
        let mut state = self.state.lock();
        while state.busy {
            if self.idle.wait_until(&mut state, until).timed_out() && state.busy {
                return Some(state.queue.len() + 1);
            }
        }
        None
    }

    fn work(&self) {
        let working = Working(self);
        loop {
            let mut state = self.state.lock();
            let Some(request) = state.queue.pop_front() else {
                // Under the lock, so that a request that comes now starts a new thread.
                state.busy = false;
                self.idle.notify_all();
                drop(state);
                std::mem::forget(working);
                return;
            };
            drop(state);
            let bytes = request.image.bytes();
            let content = match bytes.len() {
                0..=HASHED_AT_ONCE => request.name,
                _ => ImageId::of(bytes),
            };
            let facts = examine(bytes, request.sm, request.look);
            self.state.lock().done.push(Examination {
                name: request.name,
                content,
                facts,
            });
        }
    }
}

/// Examines an image; a panic becomes an error.
pub(super) fn examine(image: &[u8], sm: Option<u32>, look: Look) -> Result<ImageFacts, String> {
    let said = |panic: &(dyn Any + Send)| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        format!("its examination failed: {}", text.unwrap_or("a panic"))
    };
    let found =
        catch_unwind(AssertUnwindSafe(|| look(image, sm))).map_err(|panic| said(&*panic))?;
    match found.unread {
        Some(why) => Err(why),
        None => Ok(ImageFacts {
            sm,
            prints: found.prints,
            names: found.names,
        }),
    }
}

pub(super) fn look_through(image: &[u8], sm: Option<u32>) -> Found {
    let mut found = Found::default();
    names::for_each(image, sm, |part| {
        // A part that cannot be unpacked may print.
        found.prints |= part.contents().is_none_or(mentions_print);
        if let Err(why) = part.collect(&mut found.names) {
            found.unread = Some(why);
        }
    });
    found
}

pub(super) fn mentions_print(part: &[u8]) -> bool {
    memchr::memmem::find(part, PRINTS).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fermata_abi::op::HeldImageId;

    const WITHIN: Duration = Duration::from_secs(60);

    fn session_with(image: &ImageBytes, name: ImageId) -> Session {
        let mut session = Session::new(Vec::new());
        session
            .hold_image(HeldImageId::from_raw(0x100), name, image)
            .expect("held");
        session
    }

    fn request(name: ImageId, image: &ImageBytes, look: Look) -> Request {
        let (image, sm) = (image.clone(), None);
        Request {
            name,
            image,
            sm,
            look,
        }
    }

    #[test]
    fn a_large_image_goes_by_its_hash_when_it_is_known() {
        let mut text = b".version 8.0\n.visible .global .align 4 .u32 counter;\n// ".to_vec();
        text.resize(HASHED_AT_ONCE + 10, b'x');
        let image = ImageBytes::from(text);
        let name = ImageId::provisional(7);
        let mut session = session_with(&image, name);
        let mut examined = Examinations::default();
        examined.queue(request(name, &image, look_through));
        examined.wait(WITHIN).expect("examined");
        assert!(examined.settle(&mut session));
        let content = ImageId::of(image.bytes());
        assert_eq!(
            session
                .held_image(HeldImageId::from_raw(0x100))
                .map(|it| it.0),
            Some(content)
        );
        assert!(session.image(&name).is_none());
        assert!(!session.facts(&content).expect("known").prints);
        assert!(examined.queued.is_empty() && examined.failed.is_empty());
    }

    #[test]
    fn what_cannot_be_unpacked_may_print() {
        assert!(look_through(&crate::text::FATBIN_MAGIC, Some(90)).prints);
        assert!(look_through(b".extern .func vprintf", None).prints);
        assert!(!look_through(b".extern .func vprint", None).prints);
    }

    #[test]
    fn an_examination_fails_where_variables_may_be_missed() {
        let why = examine(b"\x7fELF", Some(90), look_through).map(|_| ());
        assert!(why.is_err_and(|why| why.contains("cannot be read")));
        assert!(examine(b".version 8.0", Some(90), look_through).is_ok());
    }

    #[test]
    fn an_examination_that_panics_is_told_to_who_waits_and_the_next_images_are_examined() {
        let (bad, good) = (
            ImageBytes::from(&b"bad"[..]),
            ImageBytes::from(&b"good"[..]),
        );
        let (bad_id, good_id) = (ImageId::of(b"bad"), ImageId::of(b"good"));
        let mut session = session_with(&bad, bad_id);
        session
            .hold_image(HeldImageId::from_raw(0x101), good_id, &good)
            .expect("held");
        let mut examined = Examinations::default();
        examined.queue(request(bad_id, &bad, |_, _| panic!("as the test wants")));
        examined.queue(request(good_id, &good, look_through));
        examined.wait(WITHIN).expect("told");
        examined.settle(&mut session);
        assert!(session.facts(&good_id).is_some() && session.facts(&bad_id).is_none());
        let why = examined.failed.get(&bad_id).expect("told");
        assert!(why.contains("as the test wants"), "{why}");
    }

    #[test]
    fn a_thread_that_dies_leaves_nobody_waiting() {
        let image = ImageBytes::from(&b"image"[..]);
        let id = ImageId::of(b"image");
        let mut session = session_with(&image, id);
        let mut examined = Examinations::default();
        examined.queued.insert(id);
        examined.shared.state.lock().busy = true;
        let shared = Arc::clone(&examined.shared);
        let died = std::thread::spawn(move || {
            let _working = Working(&shared);
            panic!("as the test wants");
        });
        examined.wait(WITHIN).expect("told");
        assert!(died.join().is_err());
        examined.settle(&mut session);
        assert!(examined.failed.contains_key(&id) && examined.queued.is_empty());
    }

    #[test]
    fn an_examination_that_takes_too_long_is_an_error() {
        let examined = Examinations::default();
        examined.shared.state.lock().busy = true;
        let late = examined.wait(Duration::from_millis(10));
        assert!(matches!(late, Err(EngineError::NotCheckpointable(_))));
    }
}
