//! Module images that come in files: read once, held, and in the image of a checkpoint whatever becomes of the file.

use std::fs::File;
use std::os::fd::AsFd;

use crate::common::content::table;
use crate::common::{
    Answer, CONTEXT, ImageFolder, LEGACY, PTX, Program, Worker, load_anew, started, words,
};
use fermata_abi::op::{Blob, FileId, FunctionId, HeldImageId, ImageRef, ModuleId, Op};
use fermata_abi::sys::driver as cu;
use fermata_control::worker::FromWorker;
use fermata_state::records::VERSION;
use fermata_store::image::{ChunkTable, ChunkTableWriter};
use fermata_wire::FromProgram;

/// Where an image begins in its file.
const AT: u64 = 4096 + 100;
const HELD: HeldImageId = HeldImageId::from_raw(0x300);
const FIRST: ModuleId = ModuleId::from_raw(0x2f0);
const SECOND: ModuleId = ModuleId::from_raw(0x301);
const SECOND_ADD: FunctionId = FunctionId::from_raw(0x302);

fn file_with(path: &std::path::Path, image: &[u8]) -> File {
    let mut bytes = vec![0xee; AT as usize];
    bytes.extend(image);
    // Something that is no part of it.
    bytes.extend([0xee; 100]);
    std::fs::write(path, bytes).unwrap();
    File::open(path).unwrap()
}

/// Asks for an image in a file to be held.
fn hold(program: &Program, held: HeldImageId, file: impl AsFd, len: u64) -> Answer {
    let file_number = FileId::from_raw(0x1000 + held.raw());
    program
        .side
        .send_region(&FromProgram::File { file: file_number }, file.as_fd())
        .unwrap();
    program.ask(&Op::ImageHold {
        image: held,
        from: ImageRef::File {
            file: file_number,
            offset: AT,
            len,
        },
    })
}

fn load_held(program: &Program, module: ModuleId) -> Answer {
    program.ask(&Op::ModuleLoad {
        module,
        context: CONTEXT,
        image: ImageRef::Held { image: HELD },
        beside: false,
    })
}

fn move_over(worker: Worker, program: Program) -> (Worker, Program) {
    let (mut worker, loaded) = load_anew(worker, program);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    (worker, program)
}

/// Finds the kernel of a module and has it work.
fn works(program: &Program, (module, function): (ModuleId, FunctionId)) {
    let get = Op::FunctionGet {
        function: FunctionId::from_raw(function.raw()),
        module: ModuleId::from_raw(module.raw()),
        name: "add",
    };
    assert!(matches!(program.ask(&get), Answer::Function(_)));
    runs(program, FunctionId::from_raw(function.raw()));
}

fn runs(program: &Program, function: FunctionId) {
    let device = program.alloc(64);
    program.write(device, &[0; 64]);
    program.launch_adding(function, (device, 7, 16), LEGACY);
    assert_eq!(words(&program.read(device, 64)), [7; 16]);
}

/// [`PTX`] as an image of at least so many bytes.
fn text(len: usize) -> Vec<u8> {
    let end = PTX.iter().position(|byte| *byte == 0).unwrap_or(PTX.len());
    let mut text = PTX[..end].to_vec();
    if text.len() < len {
        text.extend(b"\n// ");
        text.resize(len, b'x');
    }
    text.push(b'\n');
    text
}

/// `read` returns when all of the image has been read.
fn a_restore_needs_no_file(len: usize, read: impl FnOnce(&Program)) {
    let (worker, program) = started();
    let folder = tempfile::tempdir().unwrap();
    let (path, image) = (folder.path().join("library"), text(len));
    let file = file_with(&path, &image);
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    read(&program);
    // What was read stays as it was.
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10)
        .unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
    let names = program.ask(&Op::ModuleFunctions { module: SECOND });
    assert!(matches!(&names, Answer::Module(names) if names.iter().any(|it| it == "add")));
    let (worker, program) = move_over(worker, program);
    runs(&program, SECOND_ADD);
    // The program still holds the image, and may make another module of it.
    assert_eq!(load_held(&program, ModuleId::from_raw(0x310)), Answer::None);
    works(
        &program,
        (ModuleId::from_raw(0x310), FunctionId::from_raw(0x311)),
    );
    program.post(&Op::ImageRelease { image: HELD });
    assert!(matches!(
        load_held(&program, ModuleId::from_raw(0x320)),
        Answer::Error(..)
    ));
    let (_worker, program) = move_over(worker, program);
    runs(&program, SECOND_ADD);
    runs(&program, FunctionId::from_raw(0x311));
    assert!(matches!(
        load_held(&program, ModuleId::from_raw(0x320)),
        Answer::Error(..)
    ));
}

#[test]
fn a_restore_does_not_need_the_file_that_an_image_came_from() {
    // A small one has been read when the program is told that it is held.
    a_restore_needs_no_file(1000, |_| {});
}

/// Its hash is found out behind the program, after it has been recorded by another name.
#[test]
fn a_restore_does_not_need_the_file_of_a_large_image() {
    // A large one is read beside the program; what needs it waits for it.
    let loads = |program: &Program| assert_eq!(load_held(program, FIRST), Answer::None);
    a_restore_needs_no_file(9 << 20, loads);
}

#[test]
fn an_image_that_is_held_and_no_module_yet_is_restored() {
    let (worker, program) = started();
    let image = text(2000);
    let folder = tempfile::tempdir().unwrap();
    let file = file_with(&folder.path().join("library"), &image);
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    let (_worker, program) = move_over(worker, program);
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
}

#[test]
fn what_is_no_file_or_too_short_is_an_error_and_nothing_is_held() {
    let (_worker, program) = started();
    let image = text(2000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library");
    let file = file_with(&path, &image);
    let unreadable = |answer: Answer| match answer {
        Answer::Error(code, text) => {
            assert_eq!(code, cu::CUDA_ERROR_FILE_NOT_FOUND, "{text}");
            assert!(text.contains("cannot be read from its file"), "{text}");
        }
        other => panic!("{other:?}"),
    };
    unreadable(hold(&program, HELD, &file, 1 << 20));
    unreadable(hold(
        &program,
        HELD,
        File::open(folder.path()).unwrap(),
        100,
    ));
    let (read_end, _write_end) = std::io::pipe().unwrap();
    unreadable(hold(&program, HELD, &read_end, 100));
    let writable = File::options().write(true).open(&path).unwrap();
    unreadable(hold(&program, HELD, &writable, 100));
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    unreadable(hold(&program, HELD, &socket, 100));
    unreadable(hold(&program, HELD, File::open("/dev/zero").unwrap(), 100));
    unreadable(hold(
        &program,
        HELD,
        File::open("/proc/self/maps").unwrap(),
        100,
    ));
    assert!(matches!(load_held(&program, SECOND), Answer::Error(..)));
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    assert!(matches!(
        hold(&program, HELD, &file, 100),
        Answer::Error(..)
    ));
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
}

#[test]
fn a_large_image_that_cannot_be_read_fails_what_uses_it() {
    let (_worker, program) = started();
    let image = text(9 << 20);
    let len = image.len() as u64;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("library");
    let file = file_with(&path, &image);
    // A look at the file does not show that.
    let unreadable = || File::options().write(true).open(&path).unwrap();
    assert_eq!(hold(&program, HELD, unreadable(), len), Answer::None);
    for _ in 0..2 {
        let answer = load_held(&program, SECOND);
        let code = cu::CUDA_ERROR_FILE_NOT_FOUND;
        assert!(matches!(answer, Answer::Error(found, _) if found == code));
    }
    program.post(&Op::ImageRelease { image: HELD });
    assert_eq!(hold(&program, HELD, &file, len), Answer::None);
    assert!(matches!(
        hold(&program, HELD, &file, len),
        Answer::Error(..)
    ));
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
}

/// Files that promise more than a worker may read, or cannot keep it.
#[test]
fn a_file_is_read_as_far_as_an_image_may_be_long_and_no_further() {
    let (_worker, program) = started();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hollow");
    let file = file_with(&path, &text(2000));
    file_of(&path).set_len(1 << 40).unwrap();
    let refused = |len: u64, code: u32| {
        let answer = hold(&program, HELD, &file, len);
        assert!(
            matches!(answer, Answer::Error(found, _) if found == code),
            "{len}: {answer:?}"
        );
    };
    refused(1 << 39, cu::CUDA_ERROR_OUT_OF_MEMORY);
    refused((4 << 30) + 1, cu::CUDA_ERROR_OUT_OF_MEMORY);
    refused(u64::MAX - AT + 1, cu::CUDA_ERROR_OUT_OF_MEMORY);
    // It shrinks between the mapping and the reading.
    file_of(&path).set_len(AT + 100).unwrap();
    refused(2000, cu::CUDA_ERROR_FILE_NOT_FOUND);
    // The worker is as before.
    let image = text(2000);
    let file = file_with(&folder.path().join("library"), &image);
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
}

fn file_of(path: &std::path::Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// A fat binary of at least `len` bytes: machine code for devices that do not exist, none of it equal to another part of
/// it, and [`PTX`].
fn fat(len: usize, seed: u64) -> Vec<u8> {
    let mut noise = Vec::with_capacity(len + 8);
    let mut word = seed | 1;
    while noise.len() < len {
        // Xorshift; any noise will do.
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        noise.extend(word.to_le_bytes());
    }
    let mut body = Vec::new();
    for (kind, sm, contents) in [(2u16, 50u32, &noise), (1, 75, &text(0))] {
        let mut head = [0u8; 0x40];
        head[..2].copy_from_slice(&kind.to_le_bytes());
        head[4..8].copy_from_slice(&0x40u32.to_le_bytes());
        let padded = contents.len().next_multiple_of(8);
        head[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        head[0x1c..0x20].copy_from_slice(&sm.to_le_bytes());
        body.extend(head);
        body.extend(contents);
        body.resize(body.len() + padded - contents.len(), 0);
    }
    let mut image = 0xba55_ed50u32.to_le_bytes().to_vec();
    image.extend([1, 0, 16, 0]);
    image.extend((body.len() as u64).to_le_bytes());
    image.extend(body);
    image
}

/// Bytes of the staging area of the ring: what had to pass through it could not be longer.
const STAGING: usize = 64 << 20;

#[test]
fn an_image_longer_than_the_staging_area_is_loaded_and_checkpoints_share_its_bytes() {
    let (mut worker, program) = started();
    let folder = tempfile::tempdir().unwrap();
    let image = fat(STAGING + (5 << 20), 3);
    let file = file_with(&folder.path().join("library"), &image);
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    assert_eq!(load_held(&program, SECOND), Answer::None);
    works(&program, (SECOND, SECOND_ADD));
    worker.detach(program);
    let store = ImageFolder::new();
    let first = store.save(&mut worker);
    assert!(first.written_bytes >= image.len() as u64, "{first:?}");
    let state = std::fs::metadata(store.path("image/state")).unwrap();
    assert!(state.len() < 1 << 20, "{} bytes", state.len());
    let second = store.save(&mut worker);
    assert!(second.written_bytes < 1 << 20, "{second:?}");
    let bytes: u64 = table(&store.path("image"))
        .iter()
        .filter(|it| it.0 >= fermata_state::IMAGE_BUFFERS)
        .map(|it| u64::from(it.2))
        .sum();
    assert_eq!(bytes, image.len() as u64);
    drop(worker);
    let mut worker = Worker::start();
    let loaded = store.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    runs(&program, SECOND_ADD);
}

/// A chunk of a module image is damaged, or the table does not name all of them: the restore says so and makes nothing.
#[test]
fn a_damaged_module_image_in_the_store_is_refused() {
    let (mut worker, program) = started();
    let folder = tempfile::tempdir().unwrap();
    let image = fat(5 << 20, 5);
    let file = file_with(&folder.path().join("library"), &image);
    assert_eq!(
        hold(&program, HELD, &file, image.len() as u64),
        Answer::None
    );
    worker.detach(program);
    let store = ImageFolder::new();
    store.save(&mut worker);
    drop(worker);
    let refused = |what: &str| {
        let loaded = store.load(&mut Worker::start());
        match &loaded {
            FromWorker::Failed(failure) => {
                assert!(failure.message.contains(what), "{}", failure.message);
            }
            other => panic!("{other:?}"),
        }
    };
    let chunks = store.path("image/chunks");
    let whole = std::fs::read(&chunks).unwrap();
    let read = ChunkTable::decode(&whole, std::path::Path::new(&chunks)).unwrap();
    let mut shorter = ChunkTableWriter::new();
    for it in read.records().iter().skip(1) {
        shorter
            .push(it.buffer, it.offset, it.length, it.id)
            .unwrap();
    }
    std::fs::write(&chunks, shorter.encode()).unwrap();
    refused("not all of it");
    std::fs::write(&chunks, &whole).unwrap();

    let packs = std::fs::read_dir(store.path("store/packs")).unwrap();
    for pack in packs {
        let path = pack.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let at = find(&bytes, &image[1 << 20..(1 << 20) + 64]);
        if let Some(at) = at {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
    }
    refused("hash");
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|it| it == wanted)
}

/// Checkpoints of earlier releases hold every module image in `state`, also a long one.
#[test]
fn an_image_of_the_format_before_is_restored_and_its_next_checkpoint_shares_module_images() {
    let (mut worker, program) = started();
    let long = fat(200 << 10, 9);
    let short = text(40);
    let load = |module, image| {
        let image = ImageRef::Blob(Blob::Inline(image));
        let answer = program.ask(&Op::ModuleLoad {
            module,
            context: CONTEXT,
            image,
            beside: false,
        });
        assert_eq!(answer, Answer::None);
    };
    load(SECOND, &short);
    works(&program, (SECOND, SECOND_ADD));
    worker.detach(program);
    let store = ImageFolder::new();
    store.save(&mut worker);
    drop(worker);
    let path = store.path("image/state");
    let new = std::fs::read(&path).unwrap();
    assert_eq!(u32::from(new[8]), VERSION);
    std::fs::write(&path, as_version_6(&new, &short, &long)).unwrap();

    let mut worker = Worker::start();
    let loaded = store.load(&mut worker);
    assert!(matches!(loaded, FromWorker::Loaded { .. }), "{loaded:?}");
    let program = worker.attach();
    runs(&program, SECOND_ADD);
    worker.detach(program);
    store.save(&mut worker);
    assert!(std::fs::metadata(&path).unwrap().len() < long.len() as u64 / 2);

    // And one of a release to come is not.
    let mut newer = std::fs::read(&path).unwrap();
    newer[8] += 1;
    std::fs::write(&path, with_sum(newer)).unwrap();
    let refused = store.load(&mut Worker::start());
    let FromWorker::Failed(failure) = refused else {
        panic!("{refused:?}")
    };
    let named = format!("version {}", VERSION + 1);
    assert!(failure.message.contains(&named), "{failure:?}");
}

/// A `state` file of the present version, as it was written in version 6, with the image `now` where the session had `was`.
fn as_version_6(state: &[u8], was: &[u8], now: &[u8]) -> Vec<u8> {
    let read = postcard::take_from_bytes::<fermata_state::Session>(&state[56..]);
    let (mut session, rest) = read.unwrap();
    let later = "no stored images, nothing shared, no places";
    assert!(rest.iter().all(|it| *it == 0), "{later}: {rest:?}");
    session.forget_facts();
    let mut body = postcard::to_stdvec(&session).unwrap();
    let later = body.split_off(body.len() - 2);
    assert_eq!(later, [0, 0], "no held images, no facts");
    let (old, new) = (blake3::hash(was), blake3::hash(now));
    let bytes = |id: &blake3::Hash, bytes: &[u8]| {
        let packed = postcard::to_stdvec(&bytes).unwrap();
        [id.as_bytes(), &packed[..]].concat()
    };
    let inline = bytes(&old, was);
    let at = find(&body, &inline).unwrap();
    body.splice(at..at + inline.len(), bytes(&new, now));
    // What refers to it.
    while let Some(at) = find(&body, old.as_bytes()) {
        body[at..at + 32].copy_from_slice(new.as_bytes());
    }
    let mut older = [&state[..56], &body].concat();
    older[8] = 6;
    with_sum(older)
}

/// With the length and the checksum that its content has.
fn with_sum(mut state: Vec<u8>) -> Vec<u8> {
    let body = state.len() as u64 - 56;
    state[16..24].copy_from_slice(&body.to_le_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&state[..24]).update(&state[56..]);
    state[24..56].copy_from_slice(hasher.finalize().as_bytes());
    state
}
