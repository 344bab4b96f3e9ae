//! Every exported function, called with nothing but zeros and null pointers, answers with an error code or does what it does
//! without results, and never follows a null pointer. `nulls.txt` holds each answer.

#![allow(clippy::unwrap_used)]

// Each test binary uses a part of it.
#[allow(dead_code)]
mod support;

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;

use fermata_abi::sys::driver::*;
use fermata_abi::table::{DRIVER, symbols};
use fermata_client as _;
use support::Stage;

/// Where the program writes what every function has answered.
const ANSWERS: &str = "NULLS_ANSWERS";

/// The longest line of the list.
const WIDTH: usize = 118;

/// The shared library, as cargo has built it beside this test.
struct Library(*mut c_void);

impl Library {
    fn load() -> Self {
        let test = std::env::current_exe().unwrap();
        let path = test.parent().unwrap().join("libfermata_client.so");
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a path.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "{path:?}");
        Self(library)
    }

    fn symbol(&self, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: a library that is loaded, and a name.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    fn name_of(&self, status: CUresult) -> String {
        type GetErrorName = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
        let mut name = std::ptr::null();
        // SAFETY: the function of this name has this type; what it gives is a string of the library's.
        let name = unsafe {
            let get: GetErrorName = std::mem::transmute(self.symbol("cuGetErrorName"));
            assert_eq!(get(status, &mut name), CUDA_SUCCESS);
            CStr::from_ptr(name)
        };
        name.to_str().unwrap().to_owned()
    }
}

/// Calls with zeros in every register and place of the stack from which a function may take an argument.
fn call_with_zeros(function: *mut c_void) -> CUresult {
    type Eighteen = unsafe extern "C" fn(
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
        usize,
    ) -> CUresult;
    // SAFETY: no function has more parameters, and of zeros each one takes as many as it has.
    unsafe {
        let function: Eighteen = std::mem::transmute(function);
        function(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    }
}

#[test]
#[ignore = "a program for its stage"]
fn calls_with_nothing() {
    let library = Library::load();
    let mut answers: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: the functions of these names have these types.
    let set_current = unsafe {
        let init: unsafe extern "C" fn(u32) -> CUresult =
            std::mem::transmute(library.symbol("cuInit"));
        assert_eq!(init(0), CUDA_SUCCESS);
        let create: unsafe extern "C" fn(*mut CUcontext, u32, CUdevice) -> CUresult =
            std::mem::transmute(library.symbol("cuCtxCreate_v2"));
        assert_eq!(create(&mut context, 0, 0), CUDA_SUCCESS);
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(CUcontext) -> CUresult>(
            library.symbol("cuCtxSetCurrent"),
        )
    };
    // A capture that begins changes the answers of the functions after it.
    for name in symbols(DRIVER).filter(|name| !name.starts_with("cuStreamBeginCapture")) {
        // SAFETY: a living context.
        assert_eq!(unsafe { set_current(context) }, CUDA_SUCCESS, "{name}");
        let status = call_with_zeros(library.symbol(name));
        answers
            .entry(library.name_of(status))
            .or_default()
            .push(name);
    }
    std::fs::write(std::env::var_os(ANSWERS).unwrap(), list(answers)).unwrap();
}

/// The functions of each answer, in lines.
fn list(answers: BTreeMap<String, Vec<&str>>) -> String {
    let mut text = String::new();
    for (answer, mut names) in answers {
        names.sort_unstable();
        text.push_str(&format!("[{answer}]\n"));
        let mut line = 0;
        for name in names {
            if line > 0 && line + name.len() >= WIDTH {
                text.push('\n');
                line = 0;
            }
            let gap = if line > 0 { " " } else { "" };
            text.push_str(&format!("{gap}{name}"));
            line += gap.len() + name.len();
        }
        text.push('\n');
    }
    text
}

#[test]
fn no_function_follows_a_null_pointer_and_each_says_what_it_always_said() {
    let to =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("nulls-{}", std::process::id()));
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.env(ANSWERS, &to);
    program.args(["--exact", "calls_with_nothing", "--ignored", "--nocapture"]);
    let config = fermata_wire::Config::default();
    let mut stage = Stage::start_program("nulls", &mut program, config);
    stage.hello();
    stage.welcome(true);
    assert!(stage.finish(), "the program has failed");
    let answers = std::fs::read_to_string(&to).unwrap();
    let same = answers == include_str!("nulls.txt");
    assert!(same, "compare `{}` with `tests/nulls.txt`", to.display());
    std::fs::remove_file(to).unwrap();
}
