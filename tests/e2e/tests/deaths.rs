//! Whoever dies at whichever step of a checkpoint behind the program: the attempt ends, there is no wrong image, older
//! ones stay whole, and nothing is left.

use anyhow::{Context, Result, anyhow, ensure};
use fermata_e2e::case::{Device, Mode};
use fermata_e2e::held::HeldCriu;
use fermata_e2e::scene::{Scene, TRIES, Which, kill_nine, wait_until};

/// Two fields of 8 MiB.
const WIDE: &[&str] = &["--steps", "400000", "--pause-ms", "20", "--size", "1024"];
/// Bytes a second to the host, and to storage: what lies on the device takes seconds.
const SLOW_LINK: (&str, &str) = ("FERMATA_SOFTGPU_HOST_LINK", "4000000");
const SLOW_DISK: (&str, &str) = ("FERMATA_WRITE_RATE", "4000000");

/// What a checkpoint does when somebody dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It copies ahead of the stop.
    Ahead,
    /// It hashes what is on the device, while the program stands still.
    Hash,
    /// CRIU is about to dump the program.
    Dump,
    /// It copies behind the program.
    Behind,
    /// Everything has been copied, and is written behind the program.
    Writing,
}

const CASES: [(Mode, Step); 5] = [
    (Mode::Recopy, Step::Ahead),
    (Mode::Cow, Step::Hash),
    (Mode::Cow, Step::Dump),
    (Mode::Snapshot, Step::Behind),
    (Mode::Stop, Step::Writing),
];

/// Has `victim` die at that step; false if the checkpoint was over by then.
fn dies(victim: Which, (mode, step): (Mode, Step)) -> Result<bool> {
    let scene = Scene::new()?;
    scene.make_image("older")?;
    let (criu, slow) = match step {
        Step::Dump => (Some(HeldCriu::install(&scene)?), None),
        Step::Writing => (None, Some(SLOW_DISK)),
        _ => (None, Some(SLOW_LINK)),
    };
    let variables: Vec<_> = slow.into_iter().collect();
    let program = scene.tree().program("heat2d")?;
    let fermata = scene.fermata();
    fermata.run_with(&variables, "heat", Device::Soft, &program, WIDE)?;
    scene.wait_steps("heat", 2)?;
    let victim = scene.process("heat", victim)?;
    criu.iter().try_for_each(HeldCriu::hold)?;
    let reached = || match (&criu, step) {
        (Some(criu), _) => criu.wait(),
        (None, Step::Ahead) => scene.wait_begun("newer"),
        (None, Step::Hash) => wait_until("the program stands still", || {
            let stopped = fermata.session("heat")?.state == "stopped";
            Ok(stopped || fermata.image("newer").exists())
        }),
        _ => scene.wait_behind("heat", "newer"),
    };
    let attempt = std::thread::scope(|scope| {
        let attempt = scope.spawn(|| scene.fermata().checkpoint("heat", "newer", mode));
        let killed = reached().and_then(|()| kill_nine(&victim));
        let released = criu.iter().try_for_each(HeldCriu::release);
        let attempt = attempt.join().map_err(|_| anyhow!("checkpoint thread"));
        killed.and(released).and(attempt)
    })?;
    let whole = fermata.image("newer").exists();
    ensure!(whole || attempt.is_err(), "no image: {attempt:?}");
    if whole {
        fermata
            .call(&["images", "verify", "newer"])?
            .success("fermata images verify")?;
        scene.check_restorable("newer")?;
    }
    scene.check_restorable("older")?;
    // Without a GPU the program cannot go on; whether it has noticed is its own affair.
    fermata.call(&["kill", "heat"]).ok();
    scene.close()?;
    // What has been read from a program that was whole is an image although that has died since.
    Ok(!whole || step == Step::Writing)
}

fn die_everywhere(victim: Which) -> Result<()> {
    for case in CASES {
        let mut tries = 0;
        while !dies(victim, case).with_context(|| format!("{case:?}"))? {
            tries += 1;
            ensure!(tries < TRIES, "{case:?}: it was always over");
        }
    }
    Ok(())
}

#[test]
fn a_program_that_dies_at_any_step_leaves_no_wrong_image() -> Result<()> {
    die_everywhere(Which::Program)
}

#[test]
fn a_worker_that_dies_at_any_step_leaves_no_wrong_image() -> Result<()> {
    die_everywhere(Which::Worker)
}
