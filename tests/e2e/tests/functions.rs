//! `fermata function`: requests are answered as the program itself answers them, by instances that are restored for them;
//! what goes wrong is told to the client, and nothing is left behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use fermata_e2e::case::{Device, Mode, PROGRAM_LIMIT};
use fermata_e2e::command::{self, Finished};
use fermata_e2e::hold::{COPIES, Hold};
use fermata_e2e::processes;
use fermata_e2e::programs::python_package;
use fermata_e2e::scene::{Scene, kill_nine, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The front of a function; killed when it is dropped.
struct Front {
    child: Child,
    address: String,
    errors: PathBuf,
}

/// What a client got.
#[derive(Debug)]
struct Got {
    status: u16,
    head: String,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        let mut found = lines.filter(|(its, _)| its.eq_ignore_ascii_case(name));
        found.next().map_or("", |(_, value)| value)
    }
}

impl Front {
    fn start(scene: &Scene, name: &str, options: &[&str]) -> Result<Self> {
        let errors = scene.sandbox().work().join("front-errors");
        let mut command = Command::new(scene.tree().fermata());
        command.args(["function", "serve", name, "--port", "0"]);
        command.args(options);
        scene.sandbox().enter(&mut command);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&errors)?)
            .spawn()?;
        let mut line = String::new();
        let out = child.stdout.take().context("its output")?;
        BufReader::new(out).read_line(&mut line)?;
        let address = line.trim().strip_prefix("http://").map(str::to_owned);
        let told = fs::read_to_string(&errors)?;
        let address = address.with_context(|| format!("it does not serve: {told}"))?;
        Ok(Self {
            child,
            address,
            errors,
        })
    }

    fn get(&self, path: &str) -> Result<Got> {
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PROGRAM_LIMIT))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok(Got {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }

    /// As [`Self::get`], where the answer must be the program's own.
    fn answered(&self, scene: &Scene, x: u32, options: &str) -> Result<Got> {
        let got = self.get(&format!("/{x}{options}"))?;
        let expected = straight(scene, x)?;
        ensure!(
            got.status == 200 && got.body == expected,
            "{got:?} instead of `{expected}`: {}",
            self.told()?
        );
        Ok(got)
    }

    /// The value of a metric, whose labels must contain this.
    fn metric(&self, name: &str, label: &str) -> Result<f64> {
        let all = self.get("/-/metrics")?.body;
        let mut lines = all
            .lines()
            .filter(|it| it.starts_with(&format!("{name}{{")));
        let line = lines.find(|it| it.contains(label));
        let value = line.and_then(|it| it.rsplit(' ').next()?.parse().ok());
        value.with_context(|| format!("no {name} with {label} in: {all}"))
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("its number")?, signal)?)
    }

    fn end(&mut self) -> Result<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return status.code().context("a signal");
            }
            ensure!(
                begun.elapsed() < PROGRAM_LIMIT,
                "it does not end: {}",
                self.told()?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn told(&self) -> Result<String> {
        Ok(fs::read_to_string(&self.errors)?)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the program itself answers.
fn straight(scene: &Scene, x: u32) -> Result<String> {
    straight_with(scene, &["--straight", &x.to_string()])
}

fn straight_with(scene: &Scene, options: &[&str]) -> Result<String> {
    let mut program = Command::new(scene.tree().program("web")?);
    program
        .args(options)
        .env("LD_LIBRARY_PATH", scene.tree().library_path(Device::Soft));
    let done = command::run(program, PROGRAM_LIMIT)?.success("web")?;
    let line = done.stdout.lines().last().context("no answer")?;
    Ok(format!("{line}\n"))
}

/// How many ports are tried: another program may take one that was free a moment ago.
const PORTS: u32 = 5;

/// What comes of `make` at a port that is free.
fn at_free_port(make: impl Fn(&str) -> Result<Finished>) -> Result<String> {
    let mut last = None;
    for _ in 0..PORTS {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port().to_string();
        drop(listener);
        let done = make(&port)?;
        if done.status == 0 {
            return Ok(port);
        }
        last = Some(done);
    }
    bail!("no function was made: {last:?}")
}

fn create(scene: &Scene, name: &str, flags: &[&str], options: &[&str]) -> Result<Finished> {
    let program = scene.tree().program("web")?;
    let program = program.to_str().context("path")?;
    let mut words = vec!["function", "create", name, "--device", "soft"];
    words.extend(flags);
    words.extend(["--", program]);
    words.extend(options);
    scene.fermata().call(&words)
}

/// Makes function `web`.
fn make(scene: &Scene) -> Result<()> {
    at_free_port(|port| create(scene, "web", &[], &["--port", port])).map(drop)
}

/// Sessions that have not ended.
fn living(scene: &Scene) -> Result<Vec<Value>> {
    let listed = scene.fermata().call(&["ps", "--running", "--json"])?;
    let listed: Value = serde_json::from_str(&listed.success("fermata ps")?.stdout)?;
    Ok(listed["sessions"].as_array().cloned().unwrap_or_default())
}

fn pid_of(scene: &Scene, instance: &str) -> Result<i32> {
    let living = living(scene)?;
    let found = living.iter().find(|it| it["name"] == instance);
    let pid = found
        .and_then(|it| it["pid"].as_i64())
        .context("no such instance")?;
    Ok(pid.try_into()?)
}

fn no_instance_is_left(scene: &Scene) -> Result<()> {
    wait_until("the instances end", || Ok(living(scene)?.is_empty()))
}

#[test]
fn requests_are_answered_as_the_program_answers_them_cold_warm_and_at_once() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let mut front = Front::start(&scene, "web", &["--most", "3"])?;
    let cold = front.answered(&scene, 7, "")?;
    ensure!(cold.header("fermata-start") == "cold", "{cold:?}");
    let warm = front.answered(&scene, 8, "")?;
    ensure!(warm.header("fermata-start") == "warm", "{warm:?}");
    ensure!(
        warm.header("fermata-instance") == cold.header("fermata-instance"),
        "{warm:?}"
    );
    // All instances listen at one port.
    let answers = std::thread::scope(|scope| {
        let one = |x| {
            let (front, scene) = (&front, &scene);
            scope.spawn(move || front.answered(scene, x, "?1500"))
        };
        let threads: Vec<_> = (0..6).map(one).collect();
        let joined = threads.into_iter().map(|it| it.join());
        joined
            .map(|it| it.map_err(|_| anyhow!("a client"))?)
            .collect::<Result<Vec<_>>>()
    })?;
    let mut instances: Vec<_> = answers
        .iter()
        .map(|it| it.header("fermata-instance"))
        .collect();
    instances.sort_unstable();
    instances.dedup();
    ensure!((2..=3).contains(&instances.len()), "{instances:?}");
    ensure!(front.metric("fermata_function_requests_total", "200")? == 8.0);
    let cold = front.metric("fermata_function_request_seconds_count", "cold")?;
    let warm = front.metric("fermata_function_request_seconds_count", "warm")?;
    ensure!(
        cold + warm == 8.0 && cold >= 2.0,
        "{cold} cold and {warm} warm"
    );
    let idle = front.metric("fermata_function_instances", "idle")?;
    ensure!(idle == living(&scene)?.len() as f64, "{idle} are idle");
    front.signal(Signal::TERM)?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    ensure!(living(&scene)?.is_empty(), "{:?}", living(&scene)?);
    scene.close()
}

#[test]
fn a_front_that_is_told_to_end_finishes_the_request_under_way() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let mut front = Front::start(&scene, "web", &[])?;
    std::thread::scope(|scope| {
        let held = scope.spawn(|| front.answered(&scene, 5, "?3000"));
        wait_until("it answers", || {
            Ok(front.metric("fermata_function_instances", "busy")? == 1.0 || held.is_finished())
        })?;
        front.signal(Signal::TERM)?;
        held.join().map_err(|_| anyhow!("a client"))?
    })?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    no_instance_is_left(&scene)?;
    scene.close()
}

#[test]
fn instances_end_with_a_front_that_is_killed_and_when_they_are_kept_no_longer() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let mut front = Front::start(&scene, "web", &[])?;
    front.answered(&scene, 1, "")?;
    front.signal(Signal::KILL)?;
    front.child.wait()?;
    no_instance_is_left(&scene)?;
    let front = Front::start(&scene, "web", &["--keep", "0.2"])?;
    front.answered(&scene, 2, "")?;
    no_instance_is_left(&scene)?;
    ensure!(front.answered(&scene, 3, "")?.header("fermata-start") == "cold");
    drop(front);
    let front = Front::start(&scene, "web", &["--keep", "0"])?;
    for x in [4, 5] {
        let got = front.answered(&scene, x, "")?;
        ensure!(got.header("fermata-start") == "cold", "{got:?}");
    }
    no_instance_is_left(&scene)?;
    drop(front);
    scene.close()
}

#[test]
fn an_instance_that_dies_is_told_once_and_replaced() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let front = Front::start(&scene, "web", &[])?;
    let first = front.answered(&scene, 1, "")?;
    let died = front.get("/die")?;
    ensure!(died.status == 502, "{died:?}");
    ensure!(
        died.body.contains(first.header("fermata-instance")),
        "{died:?}"
    );
    let next = front.answered(&scene, 2, "")?;
    ensure!(next.header("fermata-start") == "cold", "{next:?}");
    // One that is killed while nobody asks it: no client sees that.
    let pid = pid_of(&scene, next.header("fermata-instance"))?;
    kill_nine(&processes::look_up(pid).context("the instance")?)?;
    let after = front.answered(&scene, 3, "")?;
    ensure!(after.header("fermata-start") == "cold", "{after:?}");
    drop(front);
    scene.close()
}

#[test]
fn an_image_that_is_gone_or_damaged_is_told_and_warm_instances_go_on() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let front = Front::start(&scene, "web", &["--most", "2"])?;
    front.answered(&scene, 1, "")?;
    let image = scene.fermata().image("web-function-1");
    let aside = image.with_file_name("aside");
    fs::rename(&image, &aside)?;
    std::thread::scope(|scope| -> Result<()> {
        let warm = scope.spawn(|| front.answered(&scene, 2, "?gate"));
        let busy = wait_until("it answers", || {
            Ok(front.metric("fermata_function_instances", "busy")? == 1.0 || warm.is_finished())
        });
        let refused = busy.and_then(|()| front.get("/3"));
        // Only now the warm one becomes free again.
        fs::write(scene.sandbox().work().join("gate"), "")?;
        let refused = refused?;
        ensure!(refused.status == 503, "{refused:?}");
        ensure!(refused.body.contains("is gone"), "{refused:?}");
        ensure!(refused.body.contains("hint: "), "{refused:?}");
        warm.join().map_err(|_| anyhow!("a client"))?.map(drop)
    })?;
    drop(front);
    // Without its image it is not served at all.
    let done = scene
        .fermata()
        .call(&["function", "serve", "web", "--port", "0"])?;
    ensure!(
        done.status == 10 && done.stderr.contains("hint: "),
        "{done:?}"
    );
    fs::rename(&aside, &image)?;
    let state = image.join("state");
    let mut bytes = fs::read(&state)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&state, bytes)?;
    let front = Front::start(&scene, "web", &[])?;
    let refused = front.get("/1")?;
    ensure!(
        refused.status == 503 && refused.body.contains("state"),
        "{refused:?}"
    );
    no_instance_is_left(&scene)?;
    drop(front);
    scene.close()
}

#[test]
fn a_daemon_that_dies_takes_no_instance_with_it_and_the_next_one_is_used() -> Result<()> {
    let scene = Scene::new()?;
    make(&scene)?;
    let mut front = Front::start(&scene, "web", &["--most", "2"])?;
    let first = front.answered(&scene, 1, "")?;
    scene.kill_daemon()?;
    // Connections go to the program itself.
    let warm = front.answered(&scene, 2, "")?;
    ensure!(
        warm.header("fermata-instance") == first.header("fermata-instance"),
        "{warm:?}"
    );
    let two = std::thread::scope(|scope| -> Result<_> {
        let held = scope.spawn(|| front.answered(&scene, 3, "?2000"));
        wait_until("it answers", || {
            Ok(front.metric("fermata_function_instances", "busy")? == 1.0 || held.is_finished())
        })?;
        let cold = front.answered(&scene, 4, "")?;
        held.join().map_err(|_| anyhow!("a client"))??;
        Ok(cold)
    })?;
    ensure!(two.status == 200);
    front.signal(Signal::TERM)?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    no_instance_is_left(&scene)?;
    scene.close()
}

/// Elements of a model of which each buffer is one of its own to a restore.
const LARGE: &str = "600000";
const LARGE_BUFFER: u64 = 2_400_000;

#[test]
fn a_request_whose_instance_was_taken_back_to_its_image_is_answered_all_the_same() -> Result<()> {
    let scene = Scene::new()?;
    let hold = Hold::at(tempfile::tempdir()?);
    let (setting, folder) = hold.variable();
    let program = scene.tree().program("web")?;
    let program = program.to_str().context("path")?;
    let variables = [(setting, folder), ("FERMATA_SOFTGPU_HOST_LINK", "64M")];
    at_free_port(|port| {
        let flags = ["function", "create", "web", "--device", "soft", "--"];
        let options = ["--size", LARGE, "--unpredicted", "1", "--port", port];
        let words = [&flags[..], &[program], &options].concat();
        scene.fermata().call_with(&words, &variables)
    })?;
    let expected = straight_with(&scene, &["--size", LARGE, "--straight", "7"])?;
    // The kernel's buffers come, and the one that its launch does not name does not.
    hold.only(COPIES, 2 * LARGE_BUFFER);
    let mut front = Front::start(&scene, "web", &[])?;
    let answer = std::thread::scope(|scope| -> Result<Got> {
        let request = scope.spawn(|| front.get("/7"));
        wait_until("it is caught", || {
            let stands = living(&scene)?;
            let mut stands = stands.iter().map(|it| &it["arrival"]["stand"]);
            Ok(request.is_finished() || stands.any(|it| it.is_string() && it != "coming"))
        })?;
        hold.release(COPIES);
        request.join().map_err(|_| anyhow!("a client"))?
    })?;
    ensure!(
        answer.status == 200 && answer.body == expected,
        "{answer:?}: {}",
        front.told()?
    );
    ensure!(
        front.metric("fermata_function_repeated_requests_total", "")? == 1.0,
        "{answer:?}"
    );
    front.signal(Signal::TERM)?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    scene.close()
}

#[test]
fn functions_are_listed_shown_replaced_and_removed_with_their_images() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    make(&scene)?;
    let again = create(&scene, "web", &[], &["--port", "1"])?;
    ensure!(
        again.status == 1 && again.stderr.contains("--replace"),
        "{again:?}"
    );
    let port = at_free_port(|port| {
        let flags = ["--replace", "--at", port];
        let options = ["--port", port, "--everywhere", "1"];
        create(&scene, "web", &flags, &options)
    })?;
    let shown = fermata
        .call(&["function", "show", "web", "--json"])?
        .success("show")?;
    let shown: Value = serde_json::from_str(&shown.stdout)?;
    ensure!(shown["listens"] == format!("0.0.0.0:{port}"), "{shown}");
    ensure!(
        !fermata.image("web-function-1").exists(),
        "the old image is left"
    );
    let listed = fermata.call(&["function", "ls"])?.success("ls")?.stdout;
    ensure!(listed.contains("web") && listed.contains(&port), "{listed}");
    let front = Front::start(&scene, "web", &[])?;
    front.answered(&scene, 9, "")?;
    drop(front);
    wait_until("the image is free", || {
        let removed = fermata.call(&["function", "rm", "web"])?;
        Ok(removed.status == 0 || removed.status == 10)
    })?;
    let listed = fermata.call(&["function", "ls"])?.success("ls")?.stdout;
    ensure!(!listed.contains("web"), "{listed}");
    let gone = fermata.call(&["function", "serve", "web", "--port", "0"])?;
    ensure!(
        gone.status == 10 && gone.stderr.contains("no function `web`"),
        "{gone:?}"
    );
    scene.close()
}

/// Listens at two ports.
const TWO: &str = "
import socket, time
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
while True:
    time.sleep(1)
";

/// Listens at two ports, then says that it is ready.
const READY_AT_TWO: &str = "
import socket, sys, time
sys.path.insert(0, sys.argv[1])
import fermata
sockets = [socket.create_server(('127.0.0.1', 0)) for _ in range(2)]
assert fermata.ready()
while True:
    time.sleep(1)
";

#[test]
fn a_program_that_is_no_function_is_ended_with_the_reason() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    let (python, package) = ("/usr/bin/python3", python_package()?);
    let cases: [(&[&str], &str, &str); 4] = [
        (&[], "import sys; sys.exit(7)", "ended with 7"),
        (
            &["--within", "1"],
            "import time; time.sleep(1000)",
            "listens at no socket",
        ),
        (&["--ready", "--within", "60"], READY_AT_TWO, "--at"),
        (
            &["--ready", "--within", "1"],
            TWO,
            "has not said that it is ready",
        ),
    ];
    for (flags, text, expected) in cases {
        let mut words = vec!["function", "create", "none", "--device", "soft"];
        words.extend(flags);
        words.extend(["--", python, "-B", "-c", text, &package]);
        let done = fermata.call(&words)?;
        ensure!(
            done.status == 1 && done.stderr.contains(expected),
            "{expected}: {done:?}"
        );
        ensure!(done.stderr.contains("hint: "), "{done:?}");
        no_instance_is_left(&scene)?;
    }
    let listed = fermata.call(&["function", "ls"])?.success("ls")?.stdout;
    ensure!(!listed.contains("none"), "{listed}");
    if fs::read_dir(scene.sandbox().images())?
        .flatten()
        .any(|it| it.file_name() == "none-function-1")
    {
        bail!("an image is left");
    }
    scene.close()
}

#[test]
fn a_function_can_listen_at_a_unix_socket_without_a_file() -> Result<()> {
    let scene = Scene::new()?;
    let name = format!("fermata-test-{}", std::process::id());
    create(&scene, "web", &[], &["--name", &name])?.success("fermata function create")?;
    let mut front = Front::start(&scene, "web", &["--most", "2"])?;
    std::thread::scope(|scope| -> Result<()> {
        let held = scope.spawn(|| front.answered(&scene, 3, "?1500"));
        front.answered(&scene, 4, "")?;
        held.join().map_err(|_| anyhow!("a client"))?.map(drop)
    })?;
    front.signal(Signal::TERM)?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    scene.close()
}

#[test]
fn copies_with_networks_of_their_own_listen_at_one_port_and_can_be_checkpointed() -> Result<()> {
    let scene = Scene::new()?;
    let fermata = scene.fermata();
    make(&scene)?;
    let words = [
        "restore",
        "web-function-1",
        "--copies",
        "2",
        "--own-network",
        "--name",
        "copy",
    ];
    fermata.call(&words)?.success("fermata restore")?;
    for name in ["copy-1", "copy-2"] {
        fermata.checkpoint(name, &format!("{name}-image"), Mode::Stop)?;
    }
    let words = [
        "restore",
        "copy-2-image",
        "--own-network",
        "--detach",
        "--name",
        "again",
    ];
    fermata.call(&words)?.success("fermata restore")?;
    let pid = pid_of(&scene, "again")?;
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp"))?;
    ensure!(
        table.lines().skip(1).any(|it| it.contains(" 0A ")),
        "{table}"
    );
    let own = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net"));
    ensure!(
        own(&pid.to_string())? != own("self")?,
        "it has this process's network"
    );
    for name in ["copy-1", "copy-2", "again"] {
        fermata.kill(name)?;
    }
    scene.close()
}

/// Answers each request, and writes a line about it to a log that it holds open.
const LOGGED: &str = "
import http.server, socketserver, sys
log = open(sys.argv[2], 'a')
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        print(self.path, file=log, flush=True)
        self.send_response(200)
        self.send_header('content-length', '5')
        self.end_headers()
        self.wfile.write(b'done\\n')
    def log_message(self, *_):
        pass
socketserver.TCPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

#[test]
fn an_instance_starts_although_earlier_ones_have_written_to_the_programs_log() -> Result<()> {
    let scene = Scene::new()?;
    let log = scene.sandbox().work().join("requests");
    let path = log.to_str().context("path")?;
    at_free_port(|port| {
        let words = ["function", "create", "logged", "--device", "soft", "--"];
        let program = ["/usr/bin/python3", "-c", LOGGED, port, path];
        scene.fermata().call(&[&words[..], &program].concat())
    })?;
    // Each request gets an instance of its own.
    let mut front = Front::start(&scene, "logged", &["--keep", "0"])?;
    for request in ["/1", "/2", "/3"] {
        let got = front.get(request)?;
        let done = got.status == 200 && got.body == "done\n";
        ensure!(
            done && got.header("fermata-start") == "cold",
            "{got:?}: {}",
            front.told()?
        );
    }
    ensure!(fs::read_to_string(&log)? == "/1\n/2\n/3\n");
    front.signal(Signal::TERM)?;
    ensure!(front.end()? == 0, "{}", front.told()?);
    scene.close()
}
