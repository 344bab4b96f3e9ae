//! Stops and resumes the program's threads, with the allocator and signal handling that this needs; notices the exit.

pub mod alloc;
pub mod block;
pub mod exact;
pub mod exit;
pub mod gate;
pub mod mask;
pub mod quiet;
pub mod restart;
pub mod signal;
pub mod tally;
pub mod threads;

#[cfg(test)]
pub mod scene {
    use std::process::Command;

    /// Runs an ignored test of this crate in a process of its own, in which it must succeed; returns what it writes to its standard
    /// error.
    pub fn alone(test: &str) -> String {
        let mut program = Command::new(std::env::current_exe().expect("a path"));
        program.args(["--exact", test, "--ignored", "--nocapture"]);
        let said = program.output().expect("it runs");
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        assert!(said.status.success(), "{said:?}");
        errors
    }
}
