//! `fermata run`: start a program and, unless told otherwise, stay with it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use fermata_control::privileges;
use fermata_control::user::{self, FromDaemon, Verb};
use rustix::fs::Access;

use super::Device;
use crate::attend;
use crate::daemon::{Daemon, unexpected};
use crate::failure::{Failure, NO_PROGRAM, NOT_EXECUTABLE, USER};
use crate::input::Input;
use crate::printer::Printer;
use crate::progress::Progress;

/// Start a program under Fermata.
///
/// The program runs as a session of the daemon, which is started if none runs. Its output comes to
/// this terminal, its input comes from here, interrupts go to it, and its exit status becomes this
/// command's: 128+n for signal n, 127 when there is no such program, 126 when it cannot be executed, 125 when Fermata fails before
/// the program starts, 124 when Fermata cannot follow it any more: it may still run.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata run -- ./heat2d --steps 1000             on the GPU, or the software GPU if there is none
  fermata run --device soft --name heat -- ./heat2d
  fermata run --detach --name heat -- ./heat2d     and see it with `fermata logs -f heat`
  fermata run -- ./solve < input.txt
  generate | fermata run -- ./solve | less         files, pipes and terminals are passed on")]
pub struct Args {
    /// Name of the session; made from the program's if absent.
    #[arg(long)]
    name: Option<String>,
    /// Priority: a session that lacks device memory gets that of sessions of lower priority, which are paused meanwhile.
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-1000..=1000))]
    priority: i32,
    /// Return as soon as the program runs, and print the session's name. Its standard input is empty, or a file.
    #[arg(long, short)]
    detach: bool,
    #[command(flatten)]
    program: Program,
}

// The program that a verb starts, and its device. No doc comment: clap would show it in place of the verb's own help.
#[derive(Debug, clap::Args)]
pub struct Program {
    /// Which device the program gets.
    #[arg(long, value_enum, default_value_t)]
    device: Device,
    /// The program and its arguments.
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
    command: Vec<OsString>,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    check_name(args.name.as_deref())?;
    let verb = request(args.program, args.name, args.priority, Vec::new())?;
    let signals = attend::catch()?;
    let daemon = Daemon::reach(printer)?;
    let session = start(&daemon, verb, !args.detach, printer)?;
    // The daemon belongs to the same user.
    if let Some(lacking) = privileges::lacking() {
        printer.advise(&format!(
            "session `{}` cannot be checkpointed: {}",
            session.name, lacking.what
        ));
    }
    if args.detach {
        if printer.is_json() {
            printer.document(&session)?;
        } else {
            printer.data(&format!("{}\n", session.name))?;
        }
        return Ok(0);
    }
    let attended = || {
        let ended = attend::attend(&session, signals, printer)?;
        if printer.is_json() {
            printer.document(&ended)?;
        }
        attend::status(&ended, printer)
    };
    attended().map_err(Failure::after_start)
}

/// Runs a program with more variables and stays with it; its exit status.
pub fn attended(
    program: Program,
    variables: Vec<(OsString, OsString)>,
    printer: &Printer,
) -> Result<u8, Failure> {
    let verb = request(program, None, 0, variables)?;
    let signals = attend::catch()?;
    let daemon = Daemon::reach(printer)?;
    let session = start(&daemon, verb, true, printer)?;
    let ended = attend::attend(&session, signals, printer);
    let status = ended.and_then(|ended| attend::status(&ended, printer));
    status.map_err(Failure::after_start)
}

/// The request that starts a program with this process's environment and `variables`.
///
/// # Errors
/// There is no such program, or it cannot be executed.
pub fn request(
    Program { device, command }: Program,
    name: Option<String>,
    priority: i32,
    variables: Vec<(OsString, OsString)>,
) -> Result<Verb, Failure> {
    check_program(&command[0])?;
    let cwd = std::env::current_dir().map_err(|e| Failure::io("find the working folder", &e))?;
    Ok(Verb::Run(user::Run {
        argv: command.into_iter().map(Into::into).collect(),
        cwd: cwd.as_path().into(),
        env: std::env::vars_os()
            .chain(variables)
            .map(|(k, v)| (k.into(), v.into()))
            .collect(),
        name,
        device: device.into(),
        umask: own_umask(),
        priority,
    }))
}

/// This process's file mode creation mask, which can otherwise only be read by setting it.
fn own_umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|it| it.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Starts it, with this command's input if it is `attended`.
///
/// # Errors
/// Those of the daemon.
pub fn start(
    daemon: &Daemon,
    verb: Verb,
    attended: bool,
    printer: &Printer,
) -> Result<user::Session, Failure> {
    let input = Input::for_start(attended)?;
    let fds: Vec<_> = input.descriptor().into_iter().collect();
    match daemon.ask_with(verb, &fds, &Progress::new(printer))? {
        FromDaemon::Session(session) => {
            input.given(&session.name);
            Ok(session)
        }
        other => Err(unexpected(&other)),
    }
}

/// Tells a missing program and one that cannot be executed apart before anything is started.
fn check_program(program: &OsStr) -> Result<(), Failure> {
    let shown = program.to_string_lossy();
    if program.is_empty() {
        return Err(Failure::new(NO_PROGRAM, "the program's name is empty"));
    }
    let executable = |p: &Path| p.is_file() && rustix::fs::access(p, Access::EXEC_OK).is_ok();
    let candidates: Vec<PathBuf> = if program.as_encoded_bytes().contains(&b'/') {
        vec![program.into()]
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|p| p.join(program))
            .collect()
    };
    if candidates.iter().any(|p| executable(p)) {
        return Ok(());
    }
    if candidates.iter().any(|p| p.exists()) {
        return Err(
            Failure::new(NOT_EXECUTABLE, format!("`{shown}` cannot be executed"))
                .hint("is it a program, and does its mode permit you to execute it?"),
        );
    }
    let failure = Failure::new(NO_PROGRAM, format!("there is no program `{shown}`"));
    Err(match candidates.len() {
        1 => failure,
        _ => failure.hint("a program in this folder is written `./PROGRAM`"),
    })
}

/// The name of a session must survive being a file name and an argument.
pub fn check_name(name: Option<&str>) -> Result<(), Failure> {
    match name.map(fermata_store::image::check_name) {
        Some(Err(_)) => {
            let text = format!(
                "`{}` cannot be the name of a session",
                name.unwrap_or_default()
            );
            Err(Failure::new(USER, text).hint("use letters, digits, dots and dashes"))
        }
        _ => Ok(()),
    }
}
