//! What tests of the compiler share: memory in the device window, a host that collects output.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use fermata_softgpu::exec::texture::Texture;
use fermata_softgpu::exec::{Fault, Host, Launch, LinkedModule, Reach, UnlinkedModule, VarSpace};

/// Collects what kernels print; nothing outside the window may be touched.
#[derive(Default)]
pub struct Collector(pub Mutex<Vec<u8>>, pub Vec<Arc<Texture>>);

impl Host for Collector {
    fn reach(&self, _: u64) -> Option<Reach> {
        None
    }

    fn texture(&self, handle: u64, level: u32) -> Option<Texture> {
        let found = self.1.get(handle as usize).filter(|_| level == 0);
        found.map(|it| Texture::clone(it))
    }

    fn print(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend(bytes);
    }

    fn complain(&self, line: &[u8]) {
        self.print(line);
    }
}

static NEXT: AtomicU64 = AtomicU64::new(0x2000_0000_0000);

/// A piece of device memory with unmapped pages around it.
pub struct Memory {
    pub address: u64,
    pub len: usize,
    mapped: usize,
}

impl Memory {
    pub fn new(len: usize) -> Self {
        let mapped = len.max(1).next_multiple_of(4096);
        let address = NEXT
            .fetch_add(mapped as u64 + (1 << 20), Ordering::Relaxed)
            .next_multiple_of(4096);
        // SAFETY: a range that only this test process hands out, never over an existing mapping.
        let got = unsafe {
            libc::mmap(
                address as *mut _,
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            )
        };
        assert_eq!(got as u64, address, "cannot map test memory");
        Self {
            address,
            len,
            mapped,
        }
    }

    pub fn with(bytes: &[u8]) -> Self {
        let memory = Self::new(bytes.len());
        memory.bytes_mut().copy_from_slice(bytes);
        memory
    }

    pub fn of<T: Copy>(values: &[T]) -> Self {
        // SAFETY: plain numbers.
        Self::with(unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values))
        })
    }

    #[allow(clippy::mut_from_ref)]
    pub fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: mapped by `new`; tests use it only while no kernel runs.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.len) }
    }

    pub fn read<T: Copy>(&self) -> Vec<T> {
        // SAFETY: plain numbers, page-aligned.
        unsafe { std::slice::from_raw_parts(self.address as *const T, self.len / size_of::<T>()) }
            .to_vec()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.address as *mut _, self.mapped) };
    }
}

/// A module with its variables placed and initialised.
pub struct Loaded {
    pub module: LinkedModule,
    pub variables: Vec<(String, Memory)>,
}

pub fn load(ptx: &str) -> Loaded {
    let module = UnlinkedModule::load(ptx).unwrap_or_else(|e| panic!("{e}"));
    let variables: Vec<_> = module.variables().to_vec();
    let placed: Vec<(String, Memory)> = variables
        .iter()
        .map(|v| (v.name.clone(), Memory::with(&v.init)))
        .collect();
    let find = |name: &str| {
        placed
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, m)| m.address)
    };
    let module = module.link(&find).unwrap_or_else(|e| panic!("{e}"));
    for (v, (_, memory)) in variables.iter().zip(&placed) {
        for r in &v.relocations {
            let address = find(&r.symbol)
                .or_else(|| module.function_address(&r.symbol))
                .expect("symbol");
            let bytes = address.wrapping_add_signed(r.addend).to_le_bytes();
            memory.bytes_mut()[r.offset..r.offset + r.size].copy_from_slice(&bytes[..r.size]);
        }
        assert!(matches!(v.space, VarSpace::Global | VarSpace::Const));
    }
    Loaded {
        module,
        variables: placed,
    }
}

/// Parameters packed with natural alignment.
#[derive(Default)]
pub struct Params(pub Vec<u8>);

impl Params {
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
    }

    pub fn ptr(mut self, memory: &Memory) -> Self {
        self.push(&memory.address.to_le_bytes());
        self
    }

    pub fn i32(mut self, value: i32) -> Self {
        self.push(&value.to_le_bytes());
        self
    }

    pub fn f32(mut self, value: f32) -> Self {
        self.push(&value.to_le_bytes());
        self
    }
}

/// Launches; the outcome and what was printed.
pub fn launch(
    l: &Loaded,
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: &[u8],
) -> (Result<(), Fault>, Vec<u8>) {
    launch_with(l, kernel, grid, block, shared, params, Vec::new())
}

/// As [`launch`], with textures whose handles are their numbers.
pub fn launch_with(
    l: &Loaded,
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: &[u8],
    textures: Vec<Arc<Texture>>,
) -> (Result<(), Fault>, Vec<u8>) {
    let host = Arc::new(Collector(Mutex::default(), textures));
    let stop = AtomicBool::new(false);
    let result = l.module.launch(
        kernel,
        &Launch {
            grid,
            block,
            dynamic_shared: shared,
            params,
            multiprocessors: 4,
            processors: 0xf,
            grid_id: 7,
            limit_seconds: 600,
            resident: 32,
            cooperative: None,
            block_wait: 0,
            stop: &stop,
            host: host.clone(),
        },
    );
    let printed = std::mem::take(&mut *host.0.lock().unwrap());
    (result, printed)
}
