//! `fermata-worker`: the daemon starts it with its socket as descriptor 3, as a worker, as the monitor of GPUs, or as
//! the helper that checkpoints foreign programs.

use std::os::fd::{FromRawFd, OwnedFd};
use std::process::ExitCode;

use anyhow::Context;
use fermata_control::Connection;
use fermata_worker::{conversation, foreign, monitor, output};

/// The descriptor the daemon leaves open for the conversation.
const CONTROL: i32 = 3;

fn main() -> anyhow::Result<ExitCode> {
    fermata_worker::layout::fix();
    // SAFETY: fcntl on a number that may be no descriptor only answers with an error.
    let open = unsafe { libc::fcntl(CONTROL, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    anyhow::ensure!(
        open,
        "fermata-worker is started by fermatad, with its socket as descriptor 3"
    );
    // SAFETY: the descriptor is open, and nothing else in this process knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(CONTROL) };
    if let Some(monitor) = monitor::wanted() {
        monitor.answer(&socket);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(foreign) = foreign::wanted() {
        output::keep_log().context("the helper's log")?;
        foreign.serve(&Connection::new(socket, "daemon"));
        return Ok(ExitCode::SUCCESS);
    }
    fermata_worker::files::raise_limit();
    output::keep_log().context("the worker's log")?;
    let ended = conversation::run(Connection::new(socket, "daemon"));
    if let Err(error) = &ended {
        output::tell(&format!("the conversation with the daemon: {error:#}"));
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}
