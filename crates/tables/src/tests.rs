//! The tables as a library sees them: through the addresses in their slots.

use core::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;

/// A driver with two devices and one context.
struct Fake {
    code: CodeCache,
    told: Mutex<Vec<String>>,
}

const CONTEXT: usize = 0xc0;
const MODULE: usize = 0x30;

fn pointer<T>(address: usize) -> *mut T {
    core::ptr::without_provenance_mut(address)
}

impl Driver for Fake {
    fn call(&self, body: &mut dyn FnMut() -> Result) -> sys::CUresult {
        body().err().unwrap_or(sys::CUDA_SUCCESS)
    }

    fn version(&self) -> i32 {
        13000
    }

    fn devices(&self) -> Vec<Identity> {
        let device = |n: u8| Identity {
            uuid: [n; 16],
            pci: [0, i32::from(n), 0],
        };
        vec![device(1), device(2)]
    }

    fn current(&self) -> sys::CUcontext {
        pointer(CONTEXT)
    }

    fn primary(&self, device: sys::CUdevice) -> Result<sys::CUcontext> {
        if device == 0 {
            Ok(pointer(CONTEXT))
        } else {
            Err(sys::CUDA_ERROR_INVALID_DEVICE)
        }
    }

    fn context_id(&self, context: sys::CUcontext) -> Result<u64> {
        Ok(context.addr() as u64 + 1)
    }

    fn stream_id(&self, _: sys::CUcontext, stream: sys::CUstream) -> Result<u64> {
        Ok(stream.addr() as u64 + 2)
    }

    fn functions(&self, module: sys::CUmodule) -> Result<Vec<sys::CUfunction>> {
        if module.addr() == MODULE {
            Ok(vec![pointer(0x10), pointer(0x20)])
        } else {
            Err(sys::CUDA_ERROR_INVALID_HANDLE)
        }
    }

    unsafe fn load(&self, image: *const c_void) -> Result<sys::CUmodule> {
        if image.is_null() {
            Err(sys::CUDA_ERROR_INVALID_IMAGE)
        } else {
            Ok(pointer(MODULE))
        }
    }

    fn places(&self) -> Result<Places> {
        Ok(Places {
            clusters: vec![0, 1, 2],
            indices: vec![3, 4, 5],
        })
    }

    fn code(&self) -> Option<&CodeCache> {
        Some(&self.code)
    }

    fn refused(&self, what: &str) {
        self.told.lock().push(what.to_owned());
    }
}

/// The driver of all tests of this process, as a process has one.
fn fake() -> &'static Fake {
    static FAKE: OnceLock<Fake> = OnceLock::new();
    FAKE.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("fermata-tables-{}", std::process::id()));
        Fake {
            code: CodeCache::new(folder, 1 << 20),
            told: Mutex::default(),
        }
    })
}

fn uuid(bytes: [u8; 16]) -> sys::CUuuid {
    sys::CUuuid {
        bytes: bytes.map(|byte| byte.cast_signed()),
    }
}

/// The slots of a served table.
fn table(id: [u8; 16]) -> &'static [usize; 128] {
    let found = serve(fake(), &uuid(id)).expect("a table");
    // SAFETY: tables have that many slots, and live as long as the process.
    unsafe { &*found.cast() }
}

/// The function in a slot.
macro_rules! slot {
    ($id:expr, $at:expr, fn($($arg:ty),*) $(-> $result:ty)?) => {{
        let address: *const c_void = core::ptr::with_exposed_provenance(table($id)[$at]);
        // SAFETY: the slot holds a function of this type, as its module says.
        unsafe { core::mem::transmute::<*const c_void, extern "C" fn($($arg),*) $(-> $result)?>(address) }
    }};
}

#[test]
fn tables_begin_with_their_size_but_for_the_storage() {
    let slots = [
        (runtime::ID, 13),
        (hooks::ID, 7),
        (thread_state::ID, 3),
        (checks::ID, 15),
        (handshake::ID, 3),
        (contexts::ID, 94),
        (modules::ID, 99),
        (places::ID, 17),
        (cache::ID, 7),
        (log::ID, 3),
    ];
    for (id, count) in slots {
        assert_eq!(table(id)[0], 8 * count, "{}", name(&id));
    }
    assert!(table(storage::ID)[0] > 8 * 128);
}

#[test]
fn what_is_unknown_is_refused_and_named_once() {
    let told = |part: &str| {
        fake()
            .told
            .lock()
            .iter()
            .filter(|line| line.contains(part))
            .count()
    };
    for _ in 0..3 {
        assert_eq!(serve(fake(), &uuid([0x5a; 16])), None);
    }
    assert_eq!(
        told("5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a was asked for"),
        1
    );
    // One inside, the first that a newer runtime may know, and the last that there is.
    for at in [1, 94, 127] {
        let unknown = slot!(contexts::ID, at, fn(usize) -> sys::CUresult);
        for _ in 0..3 {
            assert_eq!(unknown(0), sys::CUDA_ERROR_NOT_SUPPORTED);
        }
        assert_eq!(
            told(&format!(
                "slot {at} of the driver's undocumented table 21318c60-9714"
            )),
            1
        );
    }
}

#[test]
fn the_runtime_asks_for_contexts_and_loads_modules() {
    let primary = slot!(
        runtime::ID,
        2,
        fn(*mut sys::CUcontext, c_int) -> sys::CUresult
    );
    let mut context = core::ptr::null_mut();
    assert_eq!(primary(&mut context, 0), sys::CUDA_SUCCESS);
    assert_eq!(context.addr(), CONTEXT);
    assert_eq!(primary(&mut context, 7), sys::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(
        primary(core::ptr::null_mut(), 0),
        sys::CUDA_ERROR_INVALID_VALUE
    );
    let image = [0_u8; 24];
    let mut module: sys::CUmodule = core::ptr::null_mut();
    let load = slot!(
        runtime::ID,
        1,
        fn(*mut sys::CUmodule, *const c_void) -> sys::CUresult
    );
    assert_eq!(load(&mut module, image.as_ptr().cast()), sys::CUDA_SUCCESS);
    assert_eq!(module.addr(), MODULE);
    let other = slot!(
        runtime::ID,
        8,
        fn(*const c_void, *mut sys::CUmodule) -> sys::CUresult
    );
    assert_eq!(
        other(core::ptr::null(), &mut module),
        sys::CUDA_ERROR_INVALID_IMAGE
    );
}

#[test]
fn hooks_are_empty_and_have_room_for_what_is_written_behind_their_end() {
    for (at, entries) in [(2, 1024), (6, 14)] {
        let get = slot!(
            hooks::ID,
            at,
            fn(*mut *mut u64, *mut usize) -> sys::CUresult
        );
        let (mut buffer, mut count) = (core::ptr::null_mut(), 0);
        assert_eq!(get(&mut buffer, &mut count), sys::CUDA_SUCCESS);
        assert_eq!(count, entries);
        // SAFETY: the buffer has eight bytes for each entry.
        let found = unsafe { core::slice::from_raw_parts(buffer, entries) };
        assert!(found.iter().all(|it| *it == 0));
    }
}

#[test]
fn values_stay_with_their_context_until_it_goes() {
    static DESTROYED: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn destroy(context: sys::CUcontext, key: *mut c_void, value: *mut c_void) {
        DESTROYED.fetch_add(
            context.addr() + key.addr() + value.addr(),
            Ordering::Relaxed,
        );
    }
    type Destructor = Option<extern "C" fn(sys::CUcontext, *mut c_void, *mut c_void)>;
    let put = slot!(
        storage::ID,
        0,
        fn(sys::CUcontext, *mut c_void, *mut c_void, Destructor) -> sys::CUresult
    );
    let forget = slot!(
        storage::ID,
        1,
        fn(sys::CUcontext, *mut c_void) -> sys::CUresult
    );
    let get = slot!(
        storage::ID,
        2,
        fn(*mut *mut c_void, sys::CUcontext, *mut c_void) -> sys::CUresult
    );
    let read = |context, key| {
        let mut value = core::ptr::null_mut();
        (
            get(&mut value, pointer(context), pointer(key)),
            value.addr(),
        )
    };
    let (ok, absent) = (sys::CUDA_SUCCESS, sys::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(read(CONTEXT, 1), (absent, 0));
    // A null context is the current one.
    assert_eq!(put(pointer(0), pointer(1), pointer(100), Some(destroy)), ok);
    assert_eq!(put(pointer(0xd0), pointer(1), pointer(200), None), ok);
    assert_eq!(
        put(pointer(0xd0), pointer(2), pointer(300), Some(destroy)),
        ok
    );
    assert_eq!(read(CONTEXT, 1), (ok, 100));
    assert_eq!(read(0, 1), (ok, 100));
    assert_eq!(read(0xd0, 1), (ok, 200));
    assert_eq!(forget(pointer(0xd0), pointer(2)), ok);
    assert_eq!(read(0xd0, 2), (absent, 0));
    context_gone(pointer(0xd0));
    assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
    assert_eq!(read(0xd0, 1), (absent, 0));
    context_gone(pointer(CONTEXT));
    assert_eq!(DESTROYED.load(Ordering::Relaxed), CONTEXT + 1 + 100);
    assert_eq!(read(CONTEXT, 1), (absent, 0));
    // A value that was stored too late.
    assert_eq!(put(pointer(0), pointer(1), pointer(100), Some(destroy)), ok);
    forget_context(pointer(CONTEXT));
    assert_eq!(DESTROYED.load(Ordering::Relaxed), CONTEXT + 1 + 100);
    assert_eq!(read(CONTEXT, 1), (absent, 0));
}

#[test]
fn contexts_streams_and_checks_answer_as_the_documented_functions() {
    let mut number = 7;
    let id = slot!(
        contexts::ID,
        4,
        fn(sys::CUcontext, *mut u64) -> sys::CUresult
    );
    assert_eq!(id(pointer(5), &mut number), sys::CUDA_SUCCESS);
    assert_eq!(number, 6);
    let id = slot!(
        contexts::ID,
        39,
        fn(sys::CUcontext, sys::CUstream, *mut u64) -> sys::CUresult
    );
    assert_eq!(id(pointer(5), pointer(8), &mut number), sys::CUDA_SUCCESS);
    assert_eq!(number, 10);
    let same = slot!(
        contexts::ID,
        51,
        fn(sys::CUcontext, sys::CUstream, *mut sys::CUstream) -> sys::CUresult
    );
    for (given, expected) in [(0, 1), (64, 64)] {
        let mut stream = core::ptr::null_mut();
        assert_eq!(
            same(pointer(5), pointer(given), &mut stream),
            sys::CUDA_SUCCESS
        );
        assert_eq!(stream.addr(), expected);
    }
    let mut found = 7_u32;
    let check = slot!(
        checks::ID,
        2,
        fn(sys::CUcontext, *mut u32, usize) -> sys::CUresult
    );
    assert_eq!(check(pointer(5), &mut found, 0), sys::CUDA_SUCCESS);
    assert_eq!(found, 0);
    let mut context = core::ptr::null_mut();
    let current = slot!(
        thread_state::ID,
        2,
        fn(*mut sys::CUcontext) -> sys::CUresult
    );
    assert_eq!(current(&mut context), sys::CUDA_SUCCESS);
    assert_eq!(context.addr(), CONTEXT);
}

#[test]
fn every_function_of_a_module_is_visited() {
    extern "C" fn visit(seen: *mut c_void, function: sys::CUfunction) {
        // SAFETY: the argument is the vector below.
        unsafe { &mut *seen.cast::<Vec<usize>>() }.push(function.addr());
    }
    type Each = Option<extern "C" fn(*mut c_void, sys::CUfunction)>;
    let each = slot!(
        modules::ID,
        7,
        fn(sys::CUcontext, sys::CUmodule, Each, *mut c_void) -> c_int
    );
    let mut seen: Vec<usize> = Vec::new();
    let argument: *mut c_void = core::ptr::from_mut(&mut seen).cast();
    assert_eq!(each(pointer(0), pointer(MODULE), Some(visit), argument), 2);
    assert_eq!(each(pointer(0), pointer(1), Some(visit), argument), 0);
    assert_eq!(each(pointer(0), pointer(MODULE), None, argument), 0);
    assert_eq!(seen, [0x10, 0x20]);
}

#[test]
fn places_are_arrays_that_are_given_back() {
    let get = slot!(
        places::ID,
        4,
        fn(*mut *mut u8, *mut *mut u8) -> sys::CUresult
    );
    let give_back = slot!(places::ID, 13, fn(*mut u8, *mut u8) -> sys::CUresult);
    let (mut clusters, mut indices) = (core::ptr::null_mut(), core::ptr::null_mut());
    assert_eq!(get(&mut clusters, &mut indices), sys::CUDA_SUCCESS);
    // SAFETY: three bytes each, as the driver above says.
    let both = unsafe { [clusters, indices].map(|it| core::slice::from_raw_parts(it, 3).to_vec()) };
    assert_eq!(both, [[0, 1, 2], [3, 4, 5]]);
    assert_eq!(give_back(clusters, indices), sys::CUDA_SUCCESS);
    assert_eq!(
        get(core::ptr::null_mut(), &mut indices),
        sys::CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
fn code_is_kept_under_all_it_was_compiled_from() {
    type Text = *const core::ffi::c_char;
    type Handle = *mut c_void;
    let create = slot!(
        cache::ID,
        1,
        fn(*mut Handle, u32, *const u8, usize, Text, Text, Text, u32) -> sys::CUresult
    );
    let destroy = slot!(cache::ID, 2, fn(Handle) -> sys::CUresult);
    let read = slot!(
        cache::ID,
        3,
        fn(Handle, usize, *mut *mut u8, *mut u32) -> sys::CUresult
    );
    let write = slot!(
        cache::ID,
        4,
        fn(Handle, usize, *const u8, usize) -> sys::CUresult
    );
    let free = slot!(cache::ID, 6, fn(*mut u8) -> sys::CUresult);
    let name = |options: &core::ffi::CStr| {
        let mut handle = core::ptr::null_mut();
        let (key, platform) = (b"key", c"HOST64".as_ptr());
        let made = create(
            &mut handle,
            1,
            key.as_ptr(),
            3,
            options.as_ptr(),
            platform,
            platform,
            90,
        );
        assert_eq!(made, sys::CUDA_SUCCESS);
        handle
    };
    let get = |handle| {
        let (mut data, mut bytes) = (core::ptr::null_mut(), 0);
        let status = read(handle, 0, &mut data, &mut bytes);
        if status != sys::CUDA_SUCCESS {
            return Err(status);
        }
        // SAFETY: as long as the call has said.
        let copy = unsafe { core::slice::from_raw_parts(data, bytes as usize) }.to_vec();
        assert_eq!(free(data), sys::CUDA_SUCCESS);
        Ok(copy)
    };
    let (one, other) = (name(c"-arch=sm_90"), name(c"-arch=sm_80"));
    assert_eq!(get(one), Err(sys::CUDA_ERROR_NOT_FOUND));
    assert_eq!(write(one, 0, b"code".as_ptr(), 4), sys::CUDA_SUCCESS);
    assert_eq!(get(one).as_deref(), Ok(&b"code"[..]));
    assert_eq!(get(other), Err(sys::CUDA_ERROR_NOT_FOUND));
    for handle in [one, other] {
        assert_eq!(destroy(handle), sys::CUDA_SUCCESS);
    }
    assert_eq!(
        destroy(core::ptr::null_mut()),
        sys::CUDA_ERROR_INVALID_HANDLE
    );
    let _ = std::fs::remove_dir_all(
        std::env::temp_dir().join(format!("fermata-tables-{}", std::process::id())),
    );
}
