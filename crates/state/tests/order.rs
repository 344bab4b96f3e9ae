//! The order of modules: what keeps its place, what comes to its place again, and where a gap is.

#![allow(clippy::unwrap_used)]

use fermata_abi::op::{
    Address, ContextId, ModuleId, SmCut, SmQuestion, SmResource, SmSplit, StreamId,
};
use std::collections::{BTreeMap, BTreeSet};

use fermata_state::{
    Context, ContextPlace, Device, ImageBytes, ImageId, KEPT_BYTES, KEPT_MODULES, Loaded, Session,
    Stream,
};

const CONTEXT: ContextId = ContextId::from_raw(0x100);
const OTHER: ContextId = ContextId::from_raw(0x101);

fn session() -> Session {
    let device = Device {
        name: "soft".into(),
        uuid: [7; 16],
        memory: 1 << 30,
        compute_capability: 90,
    };
    let mut session = Session::new(vec![device]);
    for handle in [CONTEXT, OTHER] {
        let context = Context {
            device: 0,
            flags: 0,
            primary: false,
            limits: BTreeMap::new(),
            peers: BTreeSet::new(),
        };
        session.contexts.insert(handle, context).unwrap();
    }
    session
}

fn image(bytes: &[u8]) -> (ImageId, ImageBytes) {
    ImageBytes::from(bytes).named()
}

/// Loads a module whose image is its letter, with a variable of this size.
fn load(session: &mut Session, handle: u64, letter: u8, size: u64) -> Vec<u64> {
    let again = session.rewind(CONTEXT, &ImageId::of(&[letter]));
    session
        .add_module(ModuleId::from_raw(handle), CONTEXT, image(&[letter]))
        .unwrap();
    let name = format!("of_{}", letter as char);
    session
        .add_variable(
            ModuleId::from_raw(handle),
            &name,
            Address::from_raw(0x1000 * handle),
            size,
            true,
        )
        .unwrap();
    again
}

fn unload(session: &mut Session, handle: u64) -> Option<u64> {
    session
        .retire_module(ModuleId::from_raw(handle), true)
        .unwrap()
        .kept
}

#[test]
fn an_unloaded_module_keeps_its_place_for_a_restore() {
    let mut session = session();
    load(&mut session, 0x201, b'a', 4);
    load(&mut session, 0x202, b'b', 4);
    assert_eq!(unload(&mut session, 0x201), Some(1));
    load(&mut session, 0x203, b'c', 4);
    let order = [
        Loaded::Kept(1),
        Loaded::Module(ModuleId::from_raw(0x202)),
        Loaded::Module(ModuleId::from_raw(0x203)),
    ];
    assert_eq!(session.load_order(), order);
    let kept = &session.kept()[&1];
    assert_eq!(session.image(&kept.image), Some(&b"a"[..]));
    assert_eq!(session.unsettled_variable(), None);
    assert_eq!(session.kept_variables(0), 4);
    assert_eq!(session.validate(), Ok(()));
}

#[test]
fn modules_that_are_loaded_again_and_again_take_no_more_room() {
    let mut session = session();
    load(&mut session, 0x200, b'x', 4);
    for turn in 0..KEPT_MODULES as u64 {
        let again = load(&mut session, 0x300 + 2 * turn, b'a', 4);
        assert_eq!(again.len(), if turn == 0 { 0 } else { 2 });
        assert!(again.is_sorted_by(|one, next| one > next), "the last first");
        let again = load(&mut session, 0x301 + 2 * turn, b'b', 4);
        assert!(again.is_empty());
        // In the order in which they came, and in the other one.
        unload(&mut session, 0x300 + 2 * turn + turn % 2).unwrap();
        unload(&mut session, 0x301 + 2 * turn - turn % 2).unwrap();
        assert_eq!(session.kept().len(), 2);
    }
    assert_eq!(session.unsettled_variable(), None);
}

#[test]
fn what_does_not_fit_leaves_a_gap_before_later_modules_only() {
    let mut session = session();
    load(&mut session, 0x201, b'a', 4);
    load(&mut session, 0x202, b'b', KEPT_BYTES);
    assert_eq!(unload(&mut session, 0x202), None);
    assert_eq!(session.unsettled_variable(), None, "nothing came after it");
    load(&mut session, 0x203, b'b', KEPT_BYTES);
    load(&mut session, 0x204, b'c', 4);
    assert_eq!(unload(&mut session, 0x203), None);
    assert_eq!(session.unsettled_variable(), Some("of_c"));
    assert_eq!(session.image(&ImageId::of(b"b")), None, "nobody needs it");
    assert_eq!(session.validate(), Ok(()));
    let mut restored = session.clone();
    restored.forget_gap();
    assert_eq!(restored.unsettled_variable(), None);
    // With what came after it, the gap is gone.
    unload(&mut session, 0x204).unwrap();
    session.give_up_kept();
    load(&mut session, 0x205, b'd', 4);
    assert_eq!(session.unsettled_variable(), None);
}

#[test]
fn a_context_takes_its_modules_along_and_leaves_gaps_before_those_of_others() {
    let mut session = session();
    load(&mut session, 0x201, b'a', 4);
    session
        .add_module(ModuleId::from_raw(0x202), OTHER, image(b"o"))
        .unwrap();
    session
        .add_variable(
            ModuleId::from_raw(0x202),
            "of_o",
            Address::from_raw(0x9000),
            4,
            true,
        )
        .unwrap();
    load(&mut session, 0x203, b'b', 4);
    unload(&mut session, 0x201).unwrap();
    let removed = session.remove_context(CONTEXT).unwrap();
    assert_eq!(
        (removed.kept, removed.modules),
        (vec![1], vec![ModuleId::from_raw(0x203)])
    );
    assert_eq!(session.unsettled_variable(), Some("of_o"));
    assert_eq!(session.validate(), Ok(()));
    session.remove_context(OTHER).unwrap();
    assert_eq!(session.load_order(), []);
}

#[test]
fn a_context_that_is_made_between_modules_keeps_its_place() {
    let mut session = session();
    load(&mut session, 0x201, b'a', 4);
    let place = session.next_context_place();
    session.context_places.insert(OTHER, place);
    load(&mut session, 0x202, b'b', 4);
    let modules = [0x201, 0x202].map(|it| Loaded::Module(ModuleId::from_raw(it)));
    let order = [modules[0], Loaded::Context(OTHER), modules[1]];
    assert_eq!(session.load_order(), order);
    assert_eq!(session.validate(), Ok(()));
    assert_eq!(session.next_context_place().slot, place.slot + 1);
    for wrong in [
        ContextPlace { after: 3, ..place },
        ContextPlace { slot: 0, ..place },
    ] {
        session.context_places.insert(OTHER, wrong);
        assert!(session.validate().is_err(), "{wrong:?}");
    }
    session.context_places.insert(CONTEXT, place);
    session.context_places.insert(OTHER, place);
    assert!(session.validate().is_err(), "one slot for two");
    session.context_places.remove(&CONTEXT);
    session.remove_context(OTHER).unwrap();
    assert_eq!(session.load_order(), modules);
    assert_eq!(session.validate(), Ok(()));
}

#[test]
fn green_contexts_keep_their_place_and_go_with_their_streams_and_their_context() {
    let mut session = session();
    session.contexts.get_mut(CONTEXT).unwrap().primary = true;
    let whole = SmResource::whole(0);
    let greens = [0x300, 0x310].map(ContextId::from_raw);
    load(&mut session, 0x201, b'a', 4);
    let place = session.next_context_place();
    session.context_places.insert(OTHER, place);
    for (green, stream) in greens.into_iter().zip([0x301, 0x311]) {
        let mut made = session.new_green(CONTEXT, whole.clone());
        let record = Stream {
            context: CONTEXT,
            flags: 1,
            priority: 0,
        };
        let stream = StreamId::from_raw(stream);
        session.streams.insert(stream, record).unwrap();
        made.streams.insert(stream);
        session.greens.contexts.insert(green, made).unwrap();
        assert_eq!(session.greens.of_stream(stream), Some(green));
    }
    load(&mut session, 0x202, b'b', 4);
    let [first, last] = [0x201, 0x202].map(|it| Loaded::Module(ModuleId::from_raw(it)));
    let [one, two] = greens.map(Loaded::Green);
    let order = [first, Loaded::Context(OTHER), one, two, last];
    assert_eq!(session.load_order(), order);
    assert_eq!(session.validate(), Ok(()));

    let gone = session.remove_green(greens[0]).unwrap();
    assert_eq!(gone.streams.len(), 1);
    assert!(!session.streams.contains(StreamId::from_raw(0x301)));
    let stream = StreamId::from_raw(0x311);
    session.remove_stream(stream).unwrap();
    assert_eq!(session.greens.of_stream(stream), None);
    assert_eq!(session.validate(), Ok(()));
    let removed = session.remove_context(CONTEXT).unwrap();
    assert_eq!(removed.greens, [greens[1]]);
    assert_eq!(session.validate(), Ok(()));
}

#[test]
fn green_contexts_that_contradict_the_rest_are_refused() {
    let sound = || {
        let mut session = session();
        session.contexts.get_mut(CONTEXT).unwrap().primary = true;
        let green = session.new_green(CONTEXT, SmResource::whole(0));
        let id = ContextId::from_raw(0x300);
        session.greens.contexts.insert(id, green).unwrap();
        (session, id)
    };
    let wrong: [fn(&mut Session, ContextId); 6] = [
        |session, _| session.contexts.get_mut(CONTEXT).unwrap().primary = false,
        |session, id| session.greens.contexts.get_mut(id).unwrap().after = 9,
        |session, id| {
            let green = session.greens.contexts.get_mut(id).unwrap();
            green.resource.device = 1;
        },
        |session, id| {
            let green = session.greens.contexts.get_mut(id).unwrap();
            green.streams.insert(StreamId::from_raw(0x999));
        },
        |session, id| {
            let green = session.greens.contexts.get_mut(id).unwrap();
            let (groups, flags, minimum) = (1, 0, 8);
            let split = SmSplit {
                groups,
                flags,
                minimum,
            };
            let parts = Vec::new();
            green.resource.cuts.push(SmCut { split, parts });
        },
        |session, _| {
            let key = (SmResource::whole(7), SmQuestion::Counts);
            session.greens.told.insert(key, vec![1, 1, 1]);
        },
    ];
    assert_eq!(sound().0.validate(), Ok(()));
    for (index, change) in wrong.into_iter().enumerate() {
        let (mut session, id) = sound();
        change(&mut session, id);
        assert!(session.validate().is_err(), "change {index}");
    }
}

#[test]
fn memory_that_is_needed_is_given_up_from_the_end() {
    let mut session = session();
    for handle in 0x201..0x205 {
        load(&mut session, handle, handle as u8, 4);
    }
    unload(&mut session, 0x201).unwrap();
    unload(&mut session, 0x203).unwrap();
    assert_eq!(session.give_up_kept(), [3, 1]);
    assert!(session.unsettled_variable().is_some());
    assert_eq!(session.load_order().len(), 2);
}
