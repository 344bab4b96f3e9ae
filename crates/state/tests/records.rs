//! A session survives being written and read, holds live objects only, and no wrong bit is accepted.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use fermata_abi::op::{
    Address, ArrayId, ContextId, DEVICE_BASE, EventId, FunctionId, HOST_BASE, HeldImageId,
    HostKind, MemoryId, Mipmap, MipmapId, ModuleId, Op, Resource, StreamId, Texture, TextureId,
};
use fermata_abi::sys::driver as cu;
use fermata_state::records::{self, RecordError};
use fermata_state::{
    Allocation, Context, Deferred, Device, Event, Fetched, Function, HostRegion, IMAGE_BUFFERS,
    ImageBytes, ImageFacts, ImageId, Mapping, Memory, Places, Queued, ReferenceKey, Reservation,
    STORED_FROM, Session, Shared, Sharing, Stream, TextureKey,
};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Context(u32),
    DropContext(usize),
    Module(usize, Vec<u8>),
    DropModule(usize),
    Hold(Vec<u8>),
    ReleaseImage(usize),
    Again(usize, Vec<u8>),
    GiveUp,
    Function(usize),
    Stream(usize),
    DropStream(usize),
    Event(usize),
    Alloc(usize, u64),
    Free(usize),
    Host(u64),
    Map(u64),
    Unmap(usize),
    Release(usize),
    Variable(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pick = any::<usize>();
    prop_oneof![
        (0u32..2).prop_map(Step::Context),
        pick.prop_map(Step::DropContext),
        (pick, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(a, b)| Step::Module(a, b)),
        pick.prop_map(Step::DropModule),
        prop::collection::vec(any::<u8>(), 0..3).prop_map(Step::Hold),
        pick.prop_map(Step::ReleaseImage),
        (pick, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(a, b)| Step::Again(a, b)),
        Just(Step::GiveUp),
        pick.prop_map(Step::Function),
        pick.prop_map(Step::Stream),
        pick.prop_map(Step::DropStream),
        pick.prop_map(Step::Event),
        (pick, 0u64..5000).prop_map(|(a, b)| Step::Alloc(a, b)),
        pick.prop_map(Step::Free),
        (1u64..5000).prop_map(Step::Host),
        (1u64..5000).prop_map(Step::Map),
        pick.prop_map(Step::Unmap),
        pick.prop_map(Step::Release),
        pick.prop_map(Step::Variable),
    ]
}

fn nth<T: fermata_state::Kind>(table: &fermata_state::Table<T>, pick: usize) -> Option<T::Key> {
    (!table.is_empty()).then(|| table.iter().nth(pick % table.len()).unwrap().0)
}

fn device() -> Device {
    Device {
        name: "soft".into(),
        uuid: [7; 16],
        memory: 1 << 30,
        compute_capability: 90,
    }
}

fn run(steps: Vec<Step>) -> Session {
    let mut s = Session::new(vec![device(), device()]);
    let mut handle = 0x100;
    let mut address = 0;
    for step in steps {
        handle += 1;
        address += 8192;
        let buffer = s.number_buffer();
        let _ = apply(&mut s, step, handle, address, buffer);
    }
    s
}

fn apply(s: &mut Session, step: Step, handle: u64, address: u64, buffer: u64) -> Option<()> {
    match step {
        Step::Context(device) => {
            let peers = s
                .contexts
                .iter()
                .map(|(peer, _)| peer)
                .collect::<BTreeSet<_>>();
            let limits = BTreeMap::from([(1, 2)]);
            let id = ContextId::from_raw(handle);
            let made = Context {
                device,
                flags: 0,
                primary: false,
                limits,
                peers,
            };
            let place = s.next_context_place();
            s.contexts.insert(id, made).ok()?;
            s.context_places.insert(id, place);
            Some(())
        }
        Step::DropContext(pick) => s.remove_context(nth(&s.contexts, pick)?).ok().map(drop),
        Step::Module(pick, image) => s
            .add_module(
                ModuleId::from_raw(handle),
                nth(&s.contexts, pick)?,
                ImageBytes::from(image).named(),
            )
            .ok(),
        Step::DropModule(pick) => {
            let module = nth(&s.modules, pick)?;
            s.retire_module(module, pick % 3 > 0).ok().map(drop)
        }
        Step::Hold(image) => {
            let (id, image) = ImageBytes::from(image).named();
            let facts = ImageFacts {
                prints: true,
                ..ImageFacts::default()
            };
            s.hold_image(HeldImageId::from_raw(handle), id, &image)
                .ok()?;
            s.set_facts(id, facts);
            Some(())
        }
        Step::ReleaseImage(pick) => {
            let held: Vec<HeldImageId> = s.held_images().map(|it| it.0).collect();
            s.release_image(*held.get(pick % held.len().max(1))?);
            Some(())
        }
        Step::Again(pick, image) => {
            let context = nth(&s.contexts, pick)?;
            let _ = s.rewind(context, &ImageId::of(&image));
            s.add_module(
                ModuleId::from_raw(handle),
                context,
                ImageBytes::from(image).named(),
            )
            .ok()
        }
        Step::GiveUp => {
            s.give_up_kept();
            Some(())
        }
        Step::Function(pick) => {
            let function = Function {
                module: nth(&s.modules, pick)?,
                name: "k".into(),
                attributes: BTreeMap::new(),
            };
            s.functions
                .insert(FunctionId::from_raw(handle), function)
                .ok()
        }
        Step::Stream(pick) => {
            let context = nth(&s.contexts, pick)?;
            s.streams
                .insert(
                    StreamId::from_raw(handle),
                    Stream {
                        context,
                        flags: 1,
                        priority: -1,
                    },
                )
                .ok()
        }
        Step::DropStream(pick) => s.streams.remove(nth(&s.streams, pick)?).ok().map(drop),
        Step::Event(pick) => {
            let context = nth(&s.contexts, pick)?;
            s.events
                .insert(
                    EventId::from_raw(handle),
                    Event {
                        context,
                        flags: 0,
                        recorded: true,
                    },
                )
                .ok()
        }
        Step::Alloc(pick, size) => {
            let context = nth(&s.contexts, pick)?;
            let device = s.contexts.get(context).ok()?.device;
            s.allocations
                .insert(
                    DEVICE_BASE + address,
                    Allocation {
                        context,
                        device,
                        size,
                        buffer,
                    },
                )
                .ok()
        }
        Step::Free(pick) => s
            .allocations
            .remove(nth(&s.allocations, pick)?)
            .ok()
            .map(drop),
        Step::Host(size) => {
            let region = HostRegion {
                size,
                kind: HostKind::Pinned,
                flags: 0,
                context: ContextId::from_raw(0x100),
                buffer,
            };
            s.host_regions.insert(HOST_BASE + address, region).ok()
        }
        Step::Map(size) => {
            let at = DEVICE_BASE + (1 << 40) + address;
            s.reservations.insert(at, Reservation { size }).ok()?;
            s.memories
                .insert(
                    MemoryId::from_raw(handle),
                    Memory {
                        device: 1,
                        size,
                        flags: 0,
                        released: false,
                        buffer,
                    },
                )
                .ok()?;
            let access = BTreeMap::from([(0, 3), (1, 1)]);
            s.mappings
                .insert(
                    at,
                    Mapping {
                        size,
                        offset: 0,
                        memory: MemoryId::from_raw(handle),
                        access,
                    },
                )
                .ok()
        }
        Step::Unmap(pick) => s.remove_mapping(nth(&s.mappings, pick)?).ok().map(drop),
        Step::Release(pick) => s.release_memory(nth(&s.memories, pick)?).ok().map(drop),
        Step::Variable(pick) => {
            let module = nth(&s.modules, pick)?;
            s.add_variable(
                module,
                "v",
                Address::from_raw(0x7000 + address),
                64,
                pick % 2 == 0,
            )
            .ok()
        }
    }
}

/// The `state` file of a session.
fn encode(session: &Session) -> Result<Vec<u8>, RecordError> {
    records::encode(session).map(|it| it.bytes)
}

/// The session in a `state` file that leaves no image to the store.
fn decode(bytes: &[u8]) -> Result<Session, RecordError> {
    records::decode(bytes)?.complete(Vec::new())
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(steps in prop::collection::vec(step(), 0..80)) {
        let session = run(steps);
        prop_assert_eq!(session.validate(), Ok(()));
        prop_assert_eq!(&decode(&encode(&session).unwrap()).unwrap(), &session);
    }

    #[test]
    fn only_live_objects_are_left(steps in prop::collection::vec(step(), 0..80)) {
        let mut session = run(steps);
        let contexts: Vec<ContextId> = session.contexts.iter().map(|(handle, _)| handle).collect();
        for context in contexts {
            session.remove_context(context).unwrap();
        }
        let held: Vec<HeldImageId> = session.held_images().map(|it| it.0).collect();
        for image in held {
            session.release_image(image);
        }
        prop_assert_eq!(session.images().count(), 0);
        prop_assert_eq!(session.object_count(), 0);
        prop_assert!(session.functions.is_empty() && session.allocations.is_empty() && session.arrays.is_empty());
        let empty = Session::new(vec![device(), device()]);
        let images = encode(&session).unwrap().len();
        prop_assert!(session.host_regions.iter().count() > 0 || session.memories.iter().count() > 0
            || session.reservations.iter().count() > 0 || images <= encode(&empty).unwrap().len() + 20);
    }

    #[test]
    fn a_flipped_bit_is_refused(steps in prop::collection::vec(step(), 0..20), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let mut bytes = encode(&run(steps)).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(decode(&bytes).is_err());
    }

    #[test]
    fn hostile_bodies_are_refused_or_valid(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"FERMSTAT\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
        let sum = *blake3::Hasher::new().update(&bytes).update(&body).finalize().as_bytes();
        bytes.extend_from_slice(&sum);
        bytes.extend_from_slice(&body);
        if let Ok(session) = decode(&bytes) {
            prop_assert_eq!(session.validate(), Ok(()));
        }
    }
}

#[test]
fn states_of_older_versions_have_none_of_what_came_later() {
    let mut session = run(vec![Step::Context(0), Step::Stream(0)]);
    session.context_places.clear();
    let bytes = encode(&session).unwrap();
    for (version, missing) in [
        (1, 20),
        (2, 19),
        (3, 17),
        (4, 16),
        (5, 15),
        (6, 14),
        (7, 11),
        (8, 8),
        (9, 7),
        (10, 5),
        (11, 4),
        (12, 3),
        (13, 2),
    ] {
        let (body, end) = bytes.split_at(bytes.len() - missing);
        assert!(end.iter().all(|byte| *byte == 0), "empty lists");
        let mut older = body.to_vec();
        older[8] = version;
        let body = (older.len() - 56) as u64;
        older[16..24].copy_from_slice(&body.to_le_bytes());
        let sum = *blake3::Hasher::new()
            .update(&older[..24])
            .update(&older[56..])
            .finalize()
            .as_bytes();
        older[24..56].copy_from_slice(&sum);
        assert_eq!(decode(&older).unwrap(), session, "version {version}");
    }
    let context = session.contexts.iter().next().unwrap().0;
    session.deferred.push(Deferred {
        context,
        code: 700,
        text: "x".to_owned(),
    });
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    session.deferred[0].context = ContextId::from_raw(0x9990);
    assert!(session.validate().is_err());
}

#[test]
fn textures_are_read_back_and_go_with_their_context() {
    let mut session = run(vec![Step::Context(0), Step::Stream(0)]);
    let context = session.contexts.iter().next().unwrap().0;
    let key = TextureKey {
        context,
        surface: true,
        object: TextureId::from_raw(5),
    };
    let surface = Texture {
        resource: Resource::Array(ArrayId::from_raw(0x7770)),
        sampler: None,
        view: None,
    };
    session.textures.insert(key, surface.clone());
    session
        .tensor_maps
        .add([3; 128], Address::from_raw(0x1000), 64);
    let pointer = DEVICE_BASE + 0x4000;
    session
        .pointers
        .write(DEVICE_BASE, &pointer.raw().to_le_bytes());
    let read = decode(&encode(&session).unwrap()).unwrap();
    assert_eq!(read, session);
    assert_eq!(read.pointers.within(DEVICE_BASE, 8).count(), 1);
    let elsewhere = TextureKey {
        context: ContextId::from_raw(0x9990),
        ..key
    };
    session.textures.insert(elsewhere, surface);
    assert!(session.validate().is_err());
    session.textures.remove(&elsewhere);
    assert_eq!(session.remove_context(context).unwrap().textures, [key]);
    assert!(session.textures.is_empty());
}

#[test]
fn references_are_read_back_and_go_with_their_module() {
    let mut session = run(vec![Step::Context(0), Step::Module(0, vec![1])]);
    let module = session.modules.iter().next().unwrap().0;
    let key = ReferenceKey {
        module,
        surface: true,
        name: "out".to_owned(),
    };
    let bound = Texture {
        resource: Resource::Array(ArrayId::from_raw(0x7770)),
        sampler: None,
        view: None,
    };
    session.references.insert(key.clone(), bound.clone());
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    let elsewhere = ReferenceKey {
        module: ModuleId::from_raw(0x9990),
        ..key
    };
    session.references.insert(elsewhere.clone(), bound);
    assert!(session.validate().is_err(), "there is no such module");
    session.references.remove(&elsewhere);
    let context = session.contexts.iter().next().unwrap().0;
    session.remove_context(context).unwrap();
    assert!(session.references.is_empty());
}

#[test]
fn mipmaps_are_read_back_with_their_levels_and_go_with_them() {
    let mut session = run(vec![Step::Context(0)]);
    let context = session.contexts.iter().next().unwrap().0;
    let shape = Mipmap {
        width: 8,
        height: 4,
        depth: 0,
        format: 32,
        channels: 1,
        flags: 0,
        levels: vec![
            ArrayId::from_raw(0x8010),
            ArrayId::from_raw(0x8020),
            ArrayId::from_raw(0x8030),
        ],
    };
    let bytes = [128, 32, 8];
    session
        .add_mipmap(MipmapId::from_raw(0x8000), context, shape.clone(), &bytes)
        .unwrap();
    assert_eq!(
        session.arrays.get(ArrayId::from_raw(0x8020)).unwrap().width,
        4
    );
    assert!(
        session.is_level(ArrayId::from_raw(0x8030)) && !session.is_level(ArrayId::from_raw(0x8000))
    );
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    session
        .arrays
        .get_mut(ArrayId::from_raw(0x8020))
        .unwrap()
        .width = 5;
    assert!(session.validate().is_err(), "no level has this size");
    session
        .arrays
        .get_mut(ArrayId::from_raw(0x8020))
        .unwrap()
        .width = 4;
    let removed = session.clone().remove_context(context).unwrap();
    assert_eq!(
        removed.mipmaps,
        [(MipmapId::from_raw(0x8000), shape.levels)]
    );
    assert!(removed.arrays.is_empty(), "levels are none of their own");
    session.remove_mipmap(MipmapId::from_raw(0x8000)).unwrap();
    assert!(session.arrays.is_empty());
}

#[test]
fn places_of_multiprocessors_are_read_back_and_are_whole() {
    let mut session = run(vec![Step::Context(0)]);
    let places = Places {
        clusters: vec![0, 0, 1],
        indices: vec![0, 1, 0],
    };
    session.places.insert(1, places.clone());
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    session.places.insert(2, places);
    assert!(session.validate().is_err(), "there are two devices");
    session.places.remove(&2);
    session.places.get_mut(&1).unwrap().indices.pop();
    assert!(matches!(
        decode(&encode(&session).unwrap()),
        Err(RecordError::Inconsistent(_))
    ));
}

#[test]
fn a_cut_or_newer_file_is_refused() {
    let bytes = encode(&run(vec![Step::Context(0), Step::Stream(0)])).unwrap();
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_err());
    }
    let mut newer = bytes.clone();
    newer[8] = 15;
    let sum = *blake3::Hasher::new()
        .update(&newer[..24])
        .update(&newer[56..])
        .finalize()
        .as_bytes();
    newer[24..56].copy_from_slice(&sum);
    assert!(
        decode(&newer)
            .unwrap_err()
            .to_string()
            .contains("version 15")
    );
}

#[test]
fn mappings_outside_their_reservation_are_refused() {
    let mut session = run(vec![Step::Map(100)]);
    let (address, _) = session.mappings.iter().next().unwrap();
    session.mappings.get_mut(address).unwrap().size = 101;
    assert!(decode(&encode(&session).unwrap()).is_err());
}

#[test]
fn a_queue_is_read_back_and_holds_operations_only() {
    let mut session = run(vec![Step::Context(0), Step::Stream(0)]);
    let operation = postcard::to_stdvec(&Op::Drain).unwrap();
    session.queued.push(Queued {
        operation: operation.into(),
        answer: Some((3, 7, 64, 4096)),
    });
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    session.queued[0].operation = vec![0xff; 4].into();
    let encoded = encode(&session).unwrap();
    assert!(matches!(
        decode(&encoded),
        Err(RecordError::Inconsistent(_))
    ));
}

/// A session with a long image as module and library, and a short one as a library alone.
fn with_images(long: &ImageBytes) -> Session {
    let mut session = run(vec![Step::Context(0)]);
    let context = session.contexts.iter().next().unwrap().0;
    let (id, long) = long.clone().named();
    session
        .add_module(ModuleId::from_raw(0x900), context, (id, long))
        .unwrap();
    let (id, long) = session.images().next().unwrap();
    let (id, long) = (*id, long.clone());
    session
        .hold_image(HeldImageId::from_raw(0x901), id, &long)
        .unwrap();
    let (id, short) = ImageBytes::from(&b"short"[..]).named();
    session
        .hold_image(HeldImageId::from_raw(0x902), id, &short)
        .unwrap();
    session
}

#[test]
fn a_long_image_is_left_to_the_store_under_a_number_that_its_content_gives() {
    let long = ImageBytes::from(vec![7; STORED_FROM]);
    let session = with_images(&long);
    let encoded = records::encode(&session).unwrap();
    assert!(encoded.bytes.len() < STORED_FROM / 4);
    let [(number, image)] = &encoded.images[..] else {
        panic!("{:?}", encoded.images);
    };
    // Bits 48 to 62 are left to the number of a process.
    assert!((IMAGE_BUFFERS..IMAGE_BUFFERS + (1 << 48)).contains(number) && *image == long);
    let decoded = records::decode(&encoded.bytes).unwrap();
    let [stored] = decoded.stored() else {
        panic!("{:?}", decoded.stored());
    };
    assert_eq!((stored.buffer, stored.bytes), (*number, STORED_FROM as u64));
    assert_eq!(decoded.complete(vec![long.clone()]).unwrap(), session);

    // The same number in another session.
    let mut other = with_images(&long);
    other.release_image(HeldImageId::from_raw(0x902));
    assert_eq!(records::encode(&other).unwrap().images[0].0, *number);

    let refused = |images: Vec<ImageBytes>| {
        let decoded = records::decode(&encoded.bytes).unwrap();
        decoded.complete(images).is_err()
    };
    assert!(refused(Vec::new()));
    assert!(refused(vec![ImageBytes::from(vec![7; STORED_FROM - 1])]));
}

#[test]
fn images_whose_hashes_would_give_the_same_number_have_different_ones() {
    let long = ImageBytes::from(vec![7; STORED_FROM]);
    let mut session = Session::default();
    for last in 0..3 {
        let mut hash = [0xff; 32];
        hash[31] = last;
        let handle = 0x900 + u64::from(last);
        session
            .hold_image(HeldImageId::from_raw(handle), ImageId(hash), &long)
            .unwrap();
    }
    let encoded = records::encode(&session).unwrap();
    let numbers: Vec<u64> = encoded.images.iter().map(|it| it.0).collect();
    let last = IMAGE_BUFFERS + (1 << 48) - 1;
    assert_eq!(numbers, [last, IMAGE_BUFFERS, IMAGE_BUFFERS + 1]);
    let decoded = records::decode(&encoded.bytes).unwrap();
    assert_eq!(decoded.complete(vec![long; 3]).unwrap(), session);
}

#[test]
fn an_image_goes_with_the_last_that_refers_to_it() {
    let long = ImageBytes::from(vec![7; STORED_FROM]);
    let mut session = with_images(&long);
    let (id, _) = session.held_image(HeldImageId::from_raw(0x901)).unwrap();
    session.set_facts(id, ImageFacts::default());
    session.release_image(HeldImageId::from_raw(0x901));
    assert!(session.image(&id).is_some() && session.facts(&id).is_some());
    assert_eq!(
        session
            .retire_module(ModuleId::from_raw(0x900), false)
            .unwrap()
            .kept,
        None
    );
    assert!(session.image(&id).is_none() && session.facts(&id).is_none());
    assert_eq!(session.images().count(), 1);
}

#[test]
fn content_of_fetched_memory_is_its_owners_and_what_is_shared_goes_with_its_memory() {
    let mut session = Session::new(vec![device()]);
    for handle in [0x100, 0x110] {
        let memory = Memory {
            device: 0,
            size: 4096,
            flags: 0,
            released: false,
            buffer: session.number_buffer(),
        };
        session
            .memories
            .insert(MemoryId::from_raw(handle), memory)
            .unwrap();
    }
    let from = Fetched {
        sharer: [2; 16],
        buffer: 9,
    };
    session.sharing = Sharing {
        own: Some([1; 16]),
        shared: [(1, Shared::Memory(MemoryId::from_raw(0x100)))].into(),
        fetched: [(MemoryId::from_raw(0x110), from)].into(),
        ..Sharing::default()
    };
    session.validate().unwrap();
    let numbers: Vec<u64> = session.buffers().iter().map(|it| it.number).collect();
    assert_eq!(numbers, [1]);
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    let mut wrong = session.clone();
    wrong
        .sharing
        .shared
        .insert(2, Shared::Memory(MemoryId::from_raw(0x110)));
    assert!(wrong.validate().is_err(), "it is another process's");
    wrong.sharing.shared = [(2, Shared::Memory(MemoryId::from_raw(0x100)))].into();
    assert!(wrong.validate().is_err(), "the number is another's");
    wrong.sharing.shared = [(1, Shared::Memory(MemoryId::from_raw(0x100)))].into();
    wrong.sharing.own = None;
    assert!(wrong.validate().is_err(), "the process has no name");
    session.release_memory(MemoryId::from_raw(0x100)).unwrap();
    session.release_memory(MemoryId::from_raw(0x110)).unwrap();
    assert!(session.sharing.shared.is_empty() && session.sharing.fetched.is_empty());
    session.validate().unwrap();
}

#[test]
fn events_of_several_processes_have_numbers_of_their_own_and_go_with_their_context() {
    let mut session = run(vec![Step::Context(0)]);
    let context = session.contexts.iter().next().unwrap().0;
    let flags = cu::CU_EVENT_INTERPROCESS | cu::CU_EVENT_DISABLE_TIMING;
    let [shared, opened, plain] = [0x1000, 0x1010, 0x1020].map(EventId::from_raw);
    for (event, flags) in [(shared, flags), (opened, flags), (plain, 0)] {
        let event_of = Event {
            context,
            flags,
            recorded: false,
        };
        session.events.insert(event, event_of).unwrap();
    }
    let number = session.number_buffer();
    let from = Fetched {
        sharer: [2; 16],
        buffer: 9,
    };
    session.sharing = Sharing {
        own: Some([1; 16]),
        shared: [(number, Shared::Event(shared))].into(),
        opened: [(opened, from)].into(),
        ..Sharing::default()
    };
    session.validate().unwrap();
    assert_eq!(session.sharing.number_of(shared), Some(number));
    assert_eq!(session.sharing.number_of(opened), None);
    assert_eq!(decode(&encode(&session).unwrap()).unwrap(), session);
    let wrong = |change: &dyn Fn(&mut Sharing)| {
        let mut wrong = session.clone();
        change(&mut wrong.sharing);
        wrong.validate().is_err()
    };
    assert!(wrong(&|it| {
        it.shared.insert(number + 1, Shared::Event(shared));
    }));
    assert!(wrong(&|it| {
        it.shared.insert(number, Shared::Event(opened));
    }));
    assert!(wrong(&|it| {
        it.shared.insert(number, Shared::Event(plain));
    }));
    assert!(wrong(&|it| {
        it.opened.insert(plain, from);
    }));
    assert!(wrong(&|it| {
        it.opened.insert(EventId::from_raw(0x1030), from);
    }));
    let mut without = session.clone();
    without.remove_event(shared).unwrap();
    without.remove_event(opened).unwrap();
    assert!(without.sharing.shared.is_empty() && without.sharing.opened.is_empty());
    session.remove_context(context).unwrap();
    assert!(session.sharing.shared.is_empty() && session.sharing.opened.is_empty());
    session.validate().unwrap();
}
