//! Hostile neighbours: bytes that are no message, and users who are not the owner.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fermata_e2e::command;
use fermata_e2e::fermata::COMMAND_LIMIT;
use fermata_e2e::scene::Scene;

/// Frames that no client sends: length fields that lie, text that is not JSON,
/// JSON that is no request, and noise.
fn hostile_messages() -> Vec<Vec<u8>> {
    let frame = |body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&length.to_le_bytes()[..], body].concat()
    };
    let mut noise = vec![0u8; 4096];
    for (i, byte) in noise.iter_mut().enumerate() {
        *byte = (i.wrapping_mul(2_654_435_761) >> 13) as u8;
    }
    vec![
        Vec::new(),
        vec![1],
        u32::MAX.to_le_bytes().to_vec(),
        1000u32.to_le_bytes().to_vec(),
        frame(b""),
        frame(b"{"),
        frame(b"\xff\xfe\xfd"),
        frame(br#"{"protocol":1,"verb":"NoSuchVerb"}"#),
        frame(br#"{"protocol":4294967295,"verb":"Ps"}"#),
        frame(br#"{"protocol":1,"verb":{"Kill":{"name":"../../etc","signal":-1}}}"#),
        frame("[".repeat(100_000).as_bytes()),
        noise,
    ]
}

#[test]
fn hostile_bytes_on_the_control_socket_harm_nobody() -> Result<()> {
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    let path = scene.sandbox().runtime().join("fermatad.sock");
    let mut held_open = Vec::new();
    for message in hostile_messages() {
        let mut socket = UnixStream::connect(&path).context("control socket")?;
        socket.set_write_timeout(Some(Duration::from_secs(5)))?;
        socket.write_all(&message).ok();
        held_open.push(socket);
    }
    scene.check_goes_on("heat")?;
    drop(held_open);
    scene.check_goes_on("heat")?;
    ensure!(scene.sandbox().daemon().is_some(), "the daemon died");
    scene.fermata().kill("heat")?;
    scene.close()
}

/// Numbers from a seed.
struct Dice(u64);

impl Dice {
    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        // xorshift64*, whose state is never 0.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16;
        (number % limit as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = self.below(most);
        (0..count).map(|_| self.below(256) as u8).collect()
    }

    /// A message that some peer sends, with a few bytes changed, cut, or in a frame that says another length.
    fn message(&mut self) -> Vec<u8> {
        const SOUND: [&str; 8] = [
            r#"{"protocol":1,"verb":"Ps"}"#,
            r#"{"protocol":1,"verb":{"Session":{"name":"heat"}}}"#,
            r#"{"protocol":1,"verb":{"Wait":{"name":"heat"}}}"#,
            r#"{"Hello":{"protocol":1,"pid":1,"token":"0123456789abcdef","wake_block":4096,"reattach":true}}"#,
            r#"{"Back":{"protocol":1,"pid":1,"token":"0123456789abcdef","wake_block":0}}"#,
            r#"{"Quiesced":{"threads":4294967295,"nanoseconds":18446744073709551615}}"#,
            r#"{"Back":{"protocol":1,"session":"heat","driver":"/x","soft":true,"devices":[]}}"#,
            r#"{"Lost":{"reason":"x"}}"#,
        ];
        let mut body = match self.below(4) {
            0 => self.bytes(2000),
            _ => SOUND[self.below(SOUND.len())].as_bytes().to_vec(),
        };
        for _ in 0..self.below(4) {
            if !body.is_empty() {
                let at = self.below(body.len());
                body[at] = self.below(256) as u8;
            }
        }
        if self.below(4) == 0 {
            body.truncate(self.below(body.len() + 1));
        }
        let length = match self.below(6) {
            0 => self.below(1 << 32) as u32,
            _ => body.len() as u32,
        };
        [&length.to_le_bytes()[..], &body].concat()
    }
}

#[test]
fn random_bytes_on_every_socket_harm_nobody() -> Result<()> {
    let seed = std::env::var("FERMATA_FUZZ_SEED").ok();
    let seed = seed.and_then(|it| it.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |it| it.as_nanos() as u64)
    });
    println!("FERMATA_FUZZ_SEED={seed}");
    let mut dice = Dice(seed | 1);
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    for round in 0..100 {
        for name in ["fermatad.sock", "agent.sock", "worker.sock"] {
            let path = scene.sandbox().runtime().join(name);
            let mut socket = UnixStream::connect(&path)
                .with_context(|| format!("`{name}` in round {round}, FERMATA_FUZZ_SEED={seed}"))?;
            socket.set_write_timeout(Some(Duration::from_secs(5)))?;
            for _ in 0..1 + dice.below(3) {
                // A daemon that has closed the connection already has done right.
                socket.write_all(&dice.message()).ok();
            }
        }
    }
    scene.check_goes_on("heat")?;
    ensure!(
        scene.sandbox().daemon().is_some(),
        "the daemon died, FERMATA_FUZZ_SEED={seed}"
    );
    scene.fermata().kill("heat")?;
    scene.close()
}

#[test]
fn another_user_cannot_see_or_end_a_session() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "only root can act as another user"
    );
    let scene = Scene::new()?;
    scene.start_slow("heat")?;
    for words in [
        &["ps"][..],
        &["kill", "heat"],
        &["checkpoint", "heat"],
        &["logs", "heat"],
    ] {
        let mut stranger = Command::new("setpriv");
        stranger.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        stranger.arg(scene.tree().fermata()).args(words);
        scene.sandbox().enter(&mut stranger);
        stranger.current_dir("/");
        let done = command::run(stranger, COMMAND_LIMIT)?;
        ensure!(
            done.status != 0,
            "another user could `fermata {}`",
            words.join(" ")
        );
        ensure!(
            !done.stderr.trim().is_empty(),
            "`fermata {}` says nothing",
            words.join(" ")
        );
    }
    scene.check_goes_on("heat")?;
    scene.fermata().kill("heat")?;
    scene.close()
}
