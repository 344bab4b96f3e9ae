//! A driver older than the oldest that is supported: programs are refused with the reason, and nothing crashes.

use anyhow::{Context, Result, ensure};
use fermata_e2e::scene::Scene;

const VERSION: &str = "FERMATA_SOFTGPU_CUDA_VERSION";

#[test]
fn a_driver_that_is_too_old_is_named_and_the_program_ends_with_an_error() -> Result<()> {
    let scene = Scene::new()?;
    let heat = scene.tree().program("heat2d")?;
    let heat = heat.to_str().context("path")?;
    let run = |version: &str| {
        let words = ["run", "--device", "soft", "--", heat, "--steps", "10"];
        scene.fermata().call_with(&words, &[(VERSION, version)])
    };
    let refused = run("12.8")?;
    // Neither ended by a signal nor by Fermata itself.
    ensure!(!matches!(refused.status, 0 | 125..), "{refused:?}");
    for part in ["is of CUDA 12.8", "CUDA 13.0 or newer", "driver 580"] {
        ensure!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    // A newer one is used: what it has more, programs are not told of.
    run("13.4")?.success("heat2d on a newer driver")?;
    scene.close()
}
