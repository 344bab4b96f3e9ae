//! What Fermata costs on this machine, measured in sessions like any user's, with a daemon and images of their own.
//!
//! | bench | figure | question |
//! | --- | --- | --- |
//! | `pool` | PhoenixOS 19 | how long a checkpoint holds the program, by the size of the pool |
//! | `moment` | PhoenixOS 20 | the same, by the moment within an iteration |
//! | `validator` | PhoenixOS 15 | a step's time while a checkpoint is copied, by validator |
//! | `overhead` | | a step's time outside of checkpoints, beside the native program's |
//! | `restore` | gCROP 11 | how soon a restored program is at work, by the order of its data |
//! | `start` | gCROP 9, 11, 14, 15 | how soon a model's first result is there, by its size and the way it starts |
//!
//! A bench asks Fermata as its users do, by the `fermata` command, and prints nothing: it returns [`Findings`].
#![forbid(unsafe_code)]

mod error;
mod findings;
mod moment;
mod native;
mod overhead;
mod pool;
mod program;
mod restore;
mod sandbox;
mod settings;
mod stall;
mod start;
mod validator;

pub use error::BenchError;
pub use findings::{Cell, Findings};
pub use settings::Settings;
pub use start::{StartSettings, run as start};

/// Which bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bench {
    /// How long a checkpoint holds a program, by the size of its pool.
    Pool,
    /// How long a checkpoint holds a program, by its moment within an iteration.
    Moment,
    /// How much slower steps are while a checkpoint is copied, by validator.
    Validator,
    /// How much slower steps are under Fermata while nothing is checkpointed.
    Overhead,
    /// How soon a restored program is at work, by the order in which its data comes.
    Restore,
}

impl Bench {
    /// Runs it; `note` is called with what is being done.
    ///
    /// # Errors
    /// When a session cannot be had, or behaves otherwise than the bench needs.
    pub fn run(self, settings: &Settings, note: &dyn Fn(&str)) -> Result<Findings, BenchError> {
        match self {
            Self::Pool => pool::run(settings, note),
            Self::Moment => moment::run(settings, note),
            Self::Validator => validator::run(settings, note),
            Self::Overhead => overhead::run(settings, note),
            Self::Restore => restore::run(settings, note),
        }
    }
}
