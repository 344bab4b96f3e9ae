//! Which contexts have kernels that may print: what they print appears when the driver synchronises.
//!
//! Whether an image mentions device `printf` is found by looking through all of it, unpacked, which takes
//! seconds for the libraries that programs load. So it is found once for each image in a worker's life, for
//! large ones behind the program, and for all images of a restored session at once. Until it is known, an
//! image counts as one that prints.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;

use fermata_abi::op::Handle;
use fermata_state::{ImageId, Session};

/// The device side of `printf`, as compilers name it.
const NAME: &[u8] = b"vprintf";

/// Images from this size on are looked through behind the program.
const LARGE: usize = 1 << 20;

/// Contexts and those of their images that may print.
#[derive(Debug, Default)]
pub(crate) struct Printing(HashMap<Handle, BTreeSet<ImageId>>);

impl Printing {
    /// Of a session that is there already. What is not known of its images is found now, by all processors.
    pub fn of(session: &Session) -> Self {
        let mut contexts: HashMap<Handle, BTreeSet<ImageId>> = HashMap::new();
        for (_, module) in session.modules.iter() {
            let images = contexts.entry(module.context).or_default();
            images.insert(module.image);
        }
        let images: BTreeSet<ImageId> = contexts.values().flatten().copied().collect();
        let unknown: Vec<(ImageId, &[u8])> = images
            .into_iter()
            .filter(|id| !known().contains_key(id))
            .filter_map(|id| Some((id, session.image(&id)?)))
            .collect();
        look_through(&unknown);
        Self(contexts)
    }

    /// Notes an image that was loaded into a context.
    pub fn add(&mut self, context: Handle, id: ImageId, image: &[u8]) {
        self.0.entry(context).or_default().insert(id);
        if known().contains_key(&id) {
            return;
        }
        if image.len() < LARGE {
            look_through(&[(id, image)]);
            return;
        }
        let copy = image.to_vec();
        let look = move || look_through(&[(id, &copy)]);
        // Without a thread the image goes on to count as one that prints, which costs time only.
        let _ = thread::Builder::new().name("look".to_owned()).spawn(look);
    }

    /// Whether a kernel of this context may print.
    pub fn contains(&mut self, context: Handle) -> bool {
        let Some(images) = self.0.get_mut(&context) else {
            return false;
        };
        let known = known();
        images.retain(|id| known.get(id) != Some(&false));
        !images.is_empty()
    }

    /// Forgets a context.
    pub fn remove(&mut self, context: Handle) {
        self.0.remove(&context);
    }
}

/// What has been found of images, in this process.
fn known() -> MutexGuard<'static, HashMap<ImageId, bool>> {
    static KNOWN: LazyLock<Mutex<HashMap<ImageId, bool>>> = LazyLock::new(Mutex::default);
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn look_through(images: &[(ImageId, &[u8])]) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some((id, image)) = images.get(next.fetch_add(1, Ordering::Relaxed)) {
            let prints = fermata_engine::mentions(image, NAME);
            known().insert(*id, prints);
        }
    };
    let more = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(images.len());
    thread::scope(|scope| {
        for _ in 1..more {
            // One fewer is no loss but of time.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: Handle = 0x10;

    fn add(printing: &mut Printing, image: &[u8]) {
        printing.add(CONTEXT, ImageId::of(image), image);
    }

    #[test]
    fn small_images_are_known_at_once_and_large_ones_count_until_they_are() {
        let mut printing = Printing::default();
        assert!(!printing.contains(CONTEXT));
        add(&mut printing, b"nothing of the kind");
        assert!(!printing.contains(CONTEXT));
        let mut large = vec![b'x'; LARGE];
        add(&mut printing, &large);
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while printing.contains(CONTEXT) {
            assert!(std::time::Instant::now() < end, "never known");
            thread::yield_now();
        }
        large.extend(NAME);
        add(&mut printing, &large);
        assert!(printing.contains(CONTEXT));
        printing.remove(CONTEXT);
        assert!(!printing.contains(CONTEXT));
    }

    #[test]
    fn a_restored_sessions_images_are_known_before_it_is_served() {
        let mut session = Session::default();
        for context in [CONTEXT, 0x20] {
            let made = fermata_state::Context {
                device: 0,
                flags: 0,
                primary: false,
                limits: Default::default(),
                peers: Default::default(),
            };
            session.contexts.insert(context, made).expect("a context");
        }
        session
            .add_module(0x100, CONTEXT, b".extern .func vprintf")
            .expect("a module");
        session
            .add_module(0x200, 0x20, b".visible .entry quiet()")
            .expect("a module");
        let mut printing = Printing::of(&session);
        assert!(printing.contains(CONTEXT));
        assert!(!printing.contains(0x20));
    }
}
