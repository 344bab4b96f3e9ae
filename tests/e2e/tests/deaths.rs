//! A process is killed at each step of a checkpoint or restore: the attempt ends, there is no wrong image, older ones stay
//! whole, nobody else is harmed, and nothing is left. Here every step with every victim, and with every protocol that
//! has it; `e2e deaths` has every victim at every step of every protocol.

use anyhow::Result;
use fermata_e2e::case::Mode;
use fermata_e2e::deaths::{Death, bringing, perform, taking};

fn while_an_image_is_taken(mode: Mode) -> Result<()> {
    let deaths = taking::chosen().into_iter().filter(|it| it.mode == mode);
    perform(deaths.map(Death::Taking), |_, _| {})
}

#[test]
fn a_death_at_any_step_of_a_stopped_image() -> Result<()> {
    while_an_image_is_taken(Mode::Stop)
}

#[test]
fn a_death_at_any_step_of_a_snapshot() -> Result<()> {
    while_an_image_is_taken(Mode::Snapshot)
}

#[test]
fn a_death_at_any_step_of_an_image_copied_on_write() -> Result<()> {
    while_an_image_is_taken(Mode::Cow)
}

#[test]
fn a_death_at_any_step_of_an_image_copied_ahead() -> Result<()> {
    while_an_image_is_taken(Mode::Recopy)
}

#[test]
fn a_death_at_any_step_of_a_restore() -> Result<()> {
    perform(bringing::all().into_iter().map(Death::Bringing), |_, _| {})
}
