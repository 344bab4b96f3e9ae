//! States of every format version must be read for ever.
//!
//! `golden/N.state` is a state as version N wrote it. It is never written again: a change that needs it changed is a change
//! that loses users' images.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use fermata_abi::op::{
    Address, ArrayId, ContextId, DEVICE_BASE, EventId, FunctionId, HOST_BASE, HeldImageId,
    HostKind, MemoryId, Mipmap, MipmapId, ModuleId, Op, Resource, SM_REST, SmQuestion, SmResource,
    SmSplit, StreamId, Texture, TextureId,
};
use fermata_state::records;
use fermata_state::{
    Allocation, Context, ContextPlace, Deferred, Device, Event, Function, HostRegion, ImageBytes,
    ImageFacts, Mapping, Memory, Places, Queued, Reservation, Session, Stream, TextureKey,
};

/// A session with objects of most kinds.
fn session() -> Session {
    let device = Device {
        name: "soft".into(),
        uuid: [7; 16],
        memory: 1 << 30,
        compute_capability: 90,
    };
    let mut s = Session::new(vec![device.clone(), device]);
    let (context, peer) = (ContextId::from_raw(0x101), ContextId::from_raw(0x102));
    for (number, id, peers) in [(0, context, None), (1, peer, Some(context))] {
        let made = Context {
            device: number,
            flags: 0,
            primary: false,
            limits: BTreeMap::from([(1, 2)]),
            peers: peers.into_iter().collect::<BTreeSet<_>>(),
        };
        s.contexts.insert(id, made).unwrap();
    }
    code(&mut s, context);
    let stream = Stream {
        context,
        flags: 1,
        priority: -1,
    };
    s.streams.insert(StreamId::from_raw(0x121), stream).unwrap();
    let event = Event {
        context,
        flags: 0,
        recorded: true,
    };
    s.events.insert(EventId::from_raw(0x122), event).unwrap();
    memory(&mut s, context);
    textures(&mut s, context);
    let places = Places {
        clusters: vec![0, 0, 1],
        indices: vec![0, 1, 0],
    };
    s.places.insert(1, places);
    s.queued.push(Queued {
        operation: postcard::to_stdvec(&Op::Drain).unwrap().into(),
        answer: Some((3, 7, 64, 4096)),
    });
    s.deferred.push(Deferred {
        context,
        code: 700,
        text: "x".to_owned(),
    });
    s
}

fn code(s: &mut Session, context: ContextId) {
    let (module, gone) = (ModuleId::from_raw(0x111), ModuleId::from_raw(0x112));
    for (id, bytes) in [(module, vec![1, 2, 3]), (gone, vec![6])] {
        s.add_module(id, context, ImageBytes::from(bytes).named())
            .unwrap();
    }
    let function = Function {
        module,
        name: "k".into(),
        attributes: BTreeMap::new(),
    };
    let id = FunctionId::from_raw(0x113);
    s.functions.insert(id, function).unwrap();
    s.add_variable(module, "v", Address::from_raw(0x7000), 64, true)
        .unwrap();
    s.retire_module(gone, true).unwrap();
    let (id, image) = ImageBytes::from(vec![4, 5]).named();
    let held = HeldImageId::from_raw(0x114);
    s.hold_image(held, id, &image).unwrap();
    let facts = ImageFacts {
        prints: true,
        ..ImageFacts::default()
    };
    s.set_facts(id, facts);
}

fn memory(s: &mut Session, context: ContextId) {
    let allocation = Allocation {
        context,
        device: 0,
        size: 5000,
        buffer: s.number_buffer(),
    };
    let at = DEVICE_BASE + 8192;
    s.allocations.insert(at, allocation).unwrap();
    let region = HostRegion {
        size: 4096,
        kind: HostKind::Pinned,
        flags: 0,
        context,
        buffer: s.number_buffer(),
    };
    s.host_regions.insert(HOST_BASE + 8192, region).unwrap();
    let at = DEVICE_BASE + (1 << 40);
    s.reservations
        .insert(at, Reservation { size: 300 })
        .unwrap();
    let memory = Memory {
        device: 1,
        size: 300,
        flags: 0,
        released: false,
        buffer: s.number_buffer(),
    };
    let id = MemoryId::from_raw(0x131);
    s.memories.insert(id, memory).unwrap();
    let mapping = Mapping {
        size: 300,
        offset: 0,
        memory: id,
        access: BTreeMap::from([(0, 3), (1, 1)]),
    };
    s.mappings.insert(at, mapping).unwrap();
}

fn textures(s: &mut Session, context: ContextId) {
    let mipmap = Mipmap {
        width: 8,
        height: 4,
        depth: 0,
        format: 32,
        channels: 1,
        flags: 0,
        levels: vec![ArrayId::from_raw(0x8010), ArrayId::from_raw(0x8020)],
    };
    let id = MipmapId::from_raw(0x8000);
    s.add_mipmap(id, context, mipmap, &[128, 32]).unwrap();
    let key = TextureKey {
        context,
        surface: true,
        object: TextureId::from_raw(5),
    };
    let texture = Texture {
        resource: Resource::Array(ArrayId::from_raw(0x8010)),
        sampler: None,
        view: None,
    };
    s.textures.insert(key, texture);
    s.tensor_maps.add([3; 128], Address::from_raw(0x1000), 64);
}

fn greens(s: &mut Session) {
    let context = ContextId::from_raw(0x103);
    let primary = Context {
        device: 1,
        flags: 0,
        primary: true,
        limits: BTreeMap::new(),
        peers: BTreeSet::new(),
    };
    s.contexts.insert(context, primary).unwrap();
    let stream = StreamId::from_raw(0x8031);
    let made = Stream {
        context,
        flags: 1,
        priority: 0,
    };
    s.streams.insert(stream, made).unwrap();
    let whole = SmResource::whole(1);
    let split = SmSplit {
        groups: 1,
        flags: 2,
        minimum: 8,
    };
    let rest = whole.part(split, SM_REST).unwrap();
    let mut green = s.new_green(context, rest);
    green.streams.insert(stream);
    let id = ContextId::from_raw(0x8030);
    s.greens.contexts.insert(id, green).unwrap();
    let told = &mut s.greens.told;
    told.insert((whole.clone(), SmQuestion::Counts), vec![132, 8, 8]);
    let groups = SmQuestion::Groups {
        flags: 0,
        minimum: 16,
    };
    told.insert((whole.clone(), groups), vec![8]);
    let parts = vec![124, 8, 8, 8, 8, 8];
    told.insert((whole, SmQuestion::Split(split)), parts);
}

/// The versions of the golden states.
const VERSIONS: [u8; 3] = [12, 13, 14];

/// The session as a version has it.
fn session_of(version: u8) -> Session {
    let mut s = session();
    if version >= 13 {
        let place = ContextPlace {
            after: 1,
            slot: 2,
            kernels: true,
        };
        s.context_places.insert(ContextId::from_raw(0x102), place);
    }
    if version >= 14 {
        greens(&mut s);
    }
    s
}

#[test]
fn every_version_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    VERSIONS.iter().for_each(|version| {
        let golden = std::fs::read(folder.join(format!("{version}.state"))).unwrap();
        assert_eq!(golden[8], *version);
        let read = records::decode(&golden).unwrap();
        let read = read.complete(Vec::new()).unwrap();
        assert_eq!(read, session_of(*version), "version {version}");
    });
}

/// `FERMATA_GOLDEN=$PWD/crates/state/tests/golden cargo test -p fermata-state --test golden -- --ignored`
#[test]
#[ignore = "writes a golden state; only for a new format version"]
fn write_golden() {
    let folder = std::env::var_os("FERMATA_GOLDEN").unwrap();
    let path = Path::new(&folder).join(format!("{}.state", records::VERSION));
    let newest = session_of(records::VERSION as u8);
    std::fs::write(path, records::encode(&newest).unwrap().bytes).unwrap();
}
