//! Pointers that copies bring into device memory are remembered, whichever way they come, in the image too.
use crate::common::{Answer, ImageFolder, LEGACY, Program, Worker};
use fermata_abi::op::{Address, Blob, DEVICE_BASE, DEVICE_END, HOST_BASE, Op, Place};
use fermata_state::records;

fn copy(program: &Program, to: u64, from: Place<'_>, len: u64) {
    let copy = Op::Copy {
        to: Place::Address(Address::from_raw(to)),
        from,
        len,
        stream: LEGACY,
        answered: true,
    };
    assert_eq!(program.ask(&copy), Answer::None);
}

/// As a copy of more than a message holds is sent.
fn copy_staged(program: &Program, to: u64, bytes: &[u8]) {
    let room = program.producer.stage(bytes.len() as u64).unwrap();
    // SAFETY: the range has as many bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.address(), bytes.len()) };
    let (offset, len) = (room.offset(), bytes.len() as u64);
    copy(program, to, Place::Blob(Blob::Staged { offset, len }), len);
}

fn bytes(pointers: &[u64]) -> Vec<u8> {
    pointers.iter().flat_map(|it| it.to_le_bytes()).collect()
}

#[test]
fn pointers_are_remembered_however_they_are_copied() {
    let mut worker = Worker::start();
    let program = worker.attach();
    program.set_up();
    let [target, inline, staged, pinned, onwards, gone] = [4096; 6].map(|size| program.alloc(size));
    program.write(inline, &bytes(&[target, 1, target + 8]));
    let mut long = vec![0; 8192];
    long[248..256].copy_from_slice(&(target + 16).to_le_bytes());
    let table = program.alloc(8192);
    copy_staged(&program, table, &long);
    copy_staged(&program, staged, &bytes(&[target + 24]));
    let host = program.host_alloc(HOST_BASE.raw(), 4096);
    host.write(512, &bytes(&[target + 32, HOST_BASE.raw()]));
    copy(&program, pinned, Place::Address(HOST_BASE + 512), 16);
    copy(
        &program,
        onwards + 8,
        Place::Address(Address::from_raw(pinned)),
        8,
    );
    // Written over by a copy without pointers, and by a fill; and memory that is freed.
    program.write(inline, &[0; 8]);
    let fill = Op::Fill {
        address: Address::from_raw(staged),
        pitch: 0,
        element: 4,
        value: 1,
        width: 2,
        height: 1,
        stream: LEGACY,
        answered: true,
    };
    assert_eq!(program.ask(&fill), Answer::None);
    program.write(gone, &bytes(&[target]));
    assert_eq!(
        program.ask(&Op::MemFree {
            address: Address::from_raw(gone)
        }),
        Answer::None
    );

    worker.detach(program);
    let image = ImageFolder::new();
    image.save(&mut worker);
    let state = std::fs::read(image.path("image/state")).unwrap();
    let decoded = records::decode(&state).unwrap();
    let session = decoded.complete(Vec::new()).unwrap();
    let known = |at: u64| {
        let found = session.pointers.within(Address::from_raw(at), 8192);
        found
            .map(|(at, pointer)| (at.raw(), pointer.raw()))
            .collect::<Vec<_>>()
    };
    assert_eq!(known(inline)[0], (inline + 16, target + 8));
    assert_eq!(known(table)[0], (table + 248, target + 16));
    assert_eq!(
        known(pinned)[..2],
        [(pinned, target + 32), (pinned + 8, HOST_BASE.raw())]
    );
    assert_eq!(known(onwards)[0], (onwards + 8, target + 32));
    let all = session
        .pointers
        .within(DEVICE_BASE, DEVICE_END - DEVICE_BASE)
        .count();
    assert_eq!(all, 5, "{:?}", session.pointers);
}
