//! The driver as a test's program has it.

use std::ffi::c_void;
use std::sync::OnceLock;

use fermata_app::Memory;
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

/// The driver: loaded and initialised.
pub struct Cuda {
    pub library: Library,
}

macro_rules! call {
    ($cuda:expr, $name:literal, $type:ty, $($arg:expr),*) => {{
        // SAFETY: the function of this name has this type; the arguments are live locals or plain values.
        let code = unsafe { ($cuda.library.get::<$type>($name.as_bytes()).unwrap())($($arg),*) };
        assert_eq!(code, 0, $name);
    }};
}

pub(crate) use call;

impl Cuda {
    /// With a context of device 0 current.
    pub fn get() -> &'static Self {
        let cuda = Self::load();
        cuda.use_device(0);
        cuda
    }

    /// With no context yet.
    pub fn load() -> &'static Self {
        static CUDA: OnceLock<Cuda> = OnceLock::new();
        CUDA.get_or_init(|| {
            let here = std::env::current_exe().unwrap();
            let folder = here.parent().unwrap();
            let found = ["libfermata_softgpu.so", "../libfermata_softgpu.so"]
                .map(|name| folder.join(name))
                .into_iter()
                .find(|p| p.exists());
            let path = std::env::var_os("FERMATA_TEST_DRIVER")
                .map(Into::into)
                .or(found);
            let path = path.expect("softgpu's library beside the test");
            // SAFETY: a driver library, meant to be loaded.
            let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
            let cuda = Cuda { library };
            call!(cuda, "cuInit", unsafe extern "C" fn(u32) -> i32, 0);
            cuda
        })
    }

    /// Makes a device the thread's current one.
    pub fn use_device(&self, device: i32) {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> i32;
        let mut context = std::ptr::null_mut();
        call!(
            self,
            "cuDevicePrimaryCtxRetain",
            Retain,
            &mut context,
            device
        );
        call!(
            self,
            "cuCtxSetCurrent",
            unsafe extern "C" fn(*mut c_void) -> i32,
            context
        );
    }

    pub fn device(&self, bytes: usize) -> u64 {
        let mut address = 0;
        call!(
            self,
            "cuMemAlloc_v2",
            unsafe extern "C" fn(*mut u64, usize) -> i32,
            &mut address,
            bytes
        );
        address
    }

    pub fn managed(&self, bytes: usize) -> u64 {
        type Alloc = unsafe extern "C" fn(*mut u64, usize, u32) -> i32;
        let mut address = 0;
        call!(self, "cuMemAllocManaged", Alloc, &mut address, bytes, 1);
        address
    }

    pub fn free(&self, address: u64) {
        call!(
            self,
            "cuMemFree_v2",
            unsafe extern "C" fn(u64) -> i32,
            address
        );
    }

    pub fn write(&self, to: u64, data: &[u8]) {
        type Copy = unsafe extern "C" fn(u64, *const u8, usize) -> i32;
        call!(self, "cuMemcpyHtoD_v2", Copy, to, data.as_ptr(), data.len());
    }

    /// Writes over it without the link to the host.
    pub fn wipe(&self, at: u64, bytes: usize) {
        type Set = unsafe extern "C" fn(u64, u8, usize) -> i32;
        call!(self, "cuMemsetD8_v2", Set, at, 0xaa, bytes);
        type Wait = unsafe extern "C" fn(*mut c_void) -> i32;
        call!(self, "cuStreamSynchronize", Wait, std::ptr::null_mut());
    }

    pub fn read(&self, from: u64, bytes: usize) -> Vec<u8> {
        type Copy = unsafe extern "C" fn(*mut u8, u64, usize) -> i32;
        let mut data = vec![0; bytes];
        call!(
            self,
            "cuMemcpyDtoH_v2",
            Copy,
            data.as_mut_ptr(),
            from,
            bytes
        );
        data
    }
}

/// Device memory as protected memory.
pub fn at(address: u64, bytes: usize) -> Memory {
    // SAFETY: the tests keep device memory while it is protected, or expect to be refused.
    unsafe { Memory::new(address as *mut c_void, bytes as u64) }
}
