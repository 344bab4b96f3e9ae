//! `fermata function create`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use fermata_control::user::{
    Checkpoint, Checkpointed, Endpoint, FromDaemon, Mode, SessionState, Then, Validate, Verb,
};
use fermata_function::{FunctionRecord, Functions, RecordError};
use fermata_report::units;
use fermata_store::image::{self, Image};
use signal_hook::iterator::Signals;

use super::super::run::{self, Program};
use super::seconds::seconds;
use crate::daemon::{Daemon, Waiting, question, unexpected};
use crate::failure::{Failure, INTERRUPTED, USER};
use crate::printer::Printer;
use crate::progress::Progress;
use crate::{attend, place};

/// How often the program is looked at.
const TURN: Duration = Duration::from_millis(50);

/// Run a program until it can answer, take its image, and end it.
///
/// It can answer when it listens on a TCP or a Unix socket; with --ready, when it also has called `fermata.ready()`
/// (`fermata_program_ready()` in C). A TCP socket must listen at 127.0.0.1, `::1` or all addresses; a Unix socket may be
/// abstract (`@NAME`) or have a path. `fermata logs function-NAME` shows what the program prints.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  fermata function create llama -- python server.py --port 8000
  fermata function create llama --ready -- python server.py     loads its model after it listens
  fermata function create llama --replace --at 8000 -- python server.py")]
pub struct Args {
    /// Name of the function.
    name: String,
    /// Wait until the program says that it is ready, too.
    #[arg(long)]
    ready: bool,
    /// The socket that answers requests, where the program listens at several: a port, a path, or `@NAME`.
    #[arg(long, value_name = "PORT|PATH")]
    at: Option<String>,
    /// How long the program may take until it can answer.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = seconds)]
    within: Duration,
    /// Replace a function of that name; its image is removed when the new one is complete.
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    program: Program,
}

/// Does it.
pub fn call(args: Args, printer: &Printer) -> Result<u8, Failure> {
    let functions = Functions::of(&place::images());
    let old = match functions.load(&args.name) {
        Err(RecordError::NotFound(_)) => None,
        Err(RecordError::Damaged { .. }) if args.replace => None,
        Ok(old) if args.replace => Some(old),
        Ok(_) => {
            let text = format!("there is a function `{}` already", args.name);
            return Err(Failure::new(USER, text).hint("`--replace` replaces it"));
        }
        Err(error) => return Err(error.into()),
    };
    let session = format!("function-{}", args.name);
    let base = format!("{}-function", args.name);
    let name = image::next_name(&place::images(), &base)?;
    let verb = run::request(args.program, Some(session.clone()), 0, Vec::new())?;
    let mut signals = attend::catch()?;
    let daemon = Daemon::reach(printer)?;
    run::start(&daemon, verb, false, printer)?;
    let begun = Instant::now();
    let made = until_it_listens(
        &session,
        args.ready,
        args.at.as_deref(),
        args.within,
        &mut signals,
        printer,
    )
    .and_then(|listens| {
        let loaded = begun.elapsed();
        let taken = checkpoint(&session, &name, printer)?;
        Ok((listens, loaded, taken))
    });
    let (listens, loaded, taken) = made.inspect_err(|_| end(&session))?;
    let image = Image::open(&taken.image)?;
    let manifest = image.manifest();
    let created = manifest.created.clone();
    let record = FunctionRecord {
        argv: manifest.program.argv.clone(),
        cwd: manifest.program.cwd.clone(),
        ..FunctionRecord::new(&args.name, &taken.image, listens, created)
    };
    functions.save(&record)?;
    if let Some(old) = old.filter(|it| it.image != record.image) {
        remove_image(&old.image, printer);
    }
    if printer.is_json() {
        printer.document(&record)?;
        return Ok(0);
    }
    printer.note(&format!(
        "function `{}` listens at {}: it was ready after {}; its image, `{}`, has {} of device and {} of host memory",
        record.name,
        record.listens,
        units::seconds(loaded.as_secs_f64()),
        record.image.display(),
        units::bytes(taken.device.device_bytes),
        units::bytes(taken.host_bytes),
    ));
    printer.data(&format!("{}\n", record.name))?;
    Ok(0)
}

/// Waits until the program listens, and is ready if that is asked for.
fn until_it_listens(
    session: &str,
    ready: bool,
    at: Option<&str>,
    within: Duration,
    signals: &mut Signals,
    printer: &Printer,
) -> Result<Endpoint, Failure> {
    let asked = |verb: &Verb| question(verb, printer);
    let name = session.to_owned();
    let until = Instant::now() + within;
    let mut waiting = Waiting::new(session, printer)?;
    loop {
        let state = match asked(&Verb::Session { name: name.clone() })? {
            FromDaemon::Session(session) => session,
            other => return Err(unexpected(&other)),
        };
        if state.state == SessionState::Exited {
            let status = state
                .exit_status
                .map_or("no status".to_owned(), |it| it.to_string());
            let text = format!("the program ended with {status} before it could answer");
            let hint = format!("`fermata logs {session}` shows what it has printed");
            return Err(Failure::new(USER, text).hint(hint));
        }
        let all = match asked(&Verb::Listening { name: name.clone() })? {
            FromDaemon::Listening(all) => all,
            other => return Err(unexpected(&other)),
        };
        let found = matching(&all, at);
        if (state.ready || !ready) && !found.is_empty() {
            return choose(&found);
        }
        if Instant::now() > until {
            return Err(late(ready && !state.ready, &all, within));
        }
        if signals.pending().next().is_some() {
            return Err(Failure::new(INTERRUPTED, "interrupted; no image was taken"));
        }
        // Polled: no message of the daemon tells that a program listens. Its end ends the pause.
        waiting.poll(TURN)?;
    }
}

fn late(unready: bool, all: &[Endpoint], within: Duration) -> Failure {
    let seconds = within.as_secs_f64();
    let places: Vec<_> = all.iter().map(Endpoint::to_string).collect();
    let (what, hint) = match (unready, places.is_empty()) {
        (true, _) => (
            "the program has not said that it is ready".to_owned(),
            "it says so by `fermata.ready()`; without `--ready` it need only listen",
        ),
        (false, true) => (
            "the program listens at no socket".to_owned(),
            "a function is a server; `--within` gives it more time",
        ),
        (false, false) => (
            format!(
                "the program does not listen there, but at {}",
                places.join(", ")
            ),
            "name one of them with `--at`",
        ),
    };
    Failure::new(USER, format!("{what} after {seconds} s")).hint(hint)
}

/// Those that `--at` means; one for each port.
fn matching(all: &[Endpoint], at: Option<&str>) -> Vec<Endpoint> {
    let meant = |it: &&Endpoint| match (at, it) {
        (None, _) => true,
        (Some(at), Endpoint::Tcp(address)) => {
            at == address.port().to_string() || at == address.to_string()
        }
        (Some(at), Endpoint::Unix(path)) => at == path.lossy(),
    };
    let mut found: Vec<Endpoint> = all.iter().filter(meant).cloned().collect();
    // The same port for both families is one server's. Addresses of IPv4 come first.
    let port = |it: &Endpoint| match it {
        Endpoint::Tcp(address) => Some(address.port()),
        Endpoint::Unix(_) => None,
    };
    found.dedup_by(|b, a| port(a).is_some() && port(a) == port(b));
    found
}

/// The one socket, which an instance can have in a network of its own.
fn choose(found: &[Endpoint]) -> Result<Endpoint, Failure> {
    let [one] = found else {
        let all: Vec<_> = found.iter().map(Endpoint::to_string).collect();
        let text = format!("the program listens at several sockets: {}", all.join(", "));
        return Err(Failure::new(USER, text).hint("name one of them with `--at`"));
    };
    match one {
        Endpoint::Tcp(address) if !is_everywhere(address) => {
            let text =
                format!("the program listens at {address}, which only this machine's network has");
            let hint = "let it listen at 127.0.0.1, at `::1`, or at all addresses (0.0.0.0)";
            Err(Failure::new(USER, text).hint(hint))
        }
        one => Ok(one.clone()),
    }
}

fn is_everywhere(address: &SocketAddr) -> bool {
    let ip: IpAddr = address.ip();
    ip.is_loopback() || ip.is_unspecified()
}

fn checkpoint(session: &str, name: &str, printer: &Printer) -> Result<Checkpointed, Failure> {
    let verb = Verb::Checkpoint(Checkpoint {
        session: session.to_owned(),
        output: Some(name.into()),
        mode: Mode::Stop,
        then: Then::Stop,
        pool_bytes: None,
        validate: Validate::default(),
        tcp_close: false,
    });
    match Daemon::reach(printer)?.ask(verb, &Progress::new(printer))? {
        FromDaemon::Checkpointed(taken) => Ok(taken),
        other => Err(unexpected(&other)),
    }
}

/// Ends the program of a function that is not made.
fn end(session: &str) {
    let silent = Printer::new(false, true);
    let verb = Verb::Kill {
        name: session.to_owned(),
        signal: rustix::process::Signal::KILL.as_raw(),
    };
    if let Some(daemon) = Daemon::find() {
        // It may have ended already.
        let _ = daemon.ask(verb, &Progress::new(&silent));
    }
}

/// Removes the image of a function that is none any more; one that cannot be removed is told.
pub(super) fn remove_image(path: &Path, printer: &Printer) {
    let removed = super::super::images::remove(path);
    if let Err(failure) = removed
        && failure.status != crate::failure::NOT_FOUND
    {
        printer.warn(&format!(
            "image `{}` stays: {}",
            path.display(),
            failure.message
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> Endpoint {
        Endpoint::Tcp(text.parse().expect(text))
    }

    #[test]
    fn one_server_at_two_families_is_one_socket_and_two_servers_have_to_be_told_apart() {
        let both = [tcp("0.0.0.0:80"), tcp("[::]:80")];
        assert_eq!(matching(&both, None), [tcp("0.0.0.0:80")]);
        let two = [
            tcp("0.0.0.0:80"),
            tcp("127.0.0.1:81"),
            Endpoint::Unix("/x".into()),
        ];
        assert_eq!(matching(&two, None).len(), 3);
        assert!(
            choose(&two)
                .expect_err("several")
                .message
                .contains("127.0.0.1:81")
        );
        for (at, expected) in [("81", &two[1]), ("127.0.0.1:81", &two[1]), ("/x", &two[2])] {
            assert_eq!(
                matching(&two, Some(at)),
                std::slice::from_ref(expected),
                "{at}"
            );
        }
        assert_eq!(matching(&two, Some("82")), []);
    }

    #[test]
    fn an_address_of_the_machine_is_refused() {
        for good in ["127.0.0.1:80", "0.0.0.0:80", "[::1]:80", "[::]:80"] {
            assert!(choose(&[tcp(good)]).is_ok(), "{good}");
        }
        let failure = choose(&[tcp("10.1.2.3:80")]).expect_err("refused");
        assert!(
            failure.message.contains("10.1.2.3:80"),
            "{}",
            failure.message
        );
    }
}
