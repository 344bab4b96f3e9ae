//! The model that is started: Fermata's own program, or the user's.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::BenchError;
use crate::native::Native;
use crate::program::Program;
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// How long loading may take, and how long a result.
const LOAD: Duration = Duration::from_secs(600);

/// A model of one size.
pub struct Model {
    /// Billions of parameters.
    pub size: f64,
    /// The program, with the files it shares with the bench.
    pub program: Program,
    /// The file of weights.
    weights: PathBuf,
}

impl Model {
    /// About how many bytes of device memory a model takes.
    pub fn bytes(size: f64) -> u64 {
        (size * 2e9) as u64 + (64 << 20)
    }

    /// The model of `size` billion parameters, with its file of weights. In the user's command `{}` stands for the size.
    pub fn new(settings: &Settings, sandbox: &Sandbox, size: f64) -> Result<Self, BenchError> {
        let weights = sandbox.file_beside_images("weights");
        let millions = (size * 1e3).to_string();
        let path = weights.to_string_lossy();
        let options = ["--millions", &millions, "--weights", &path];
        let mut program = Program::new("model", settings, sandbox, &options)?;
        if settings.command.is_empty() {
            let make = ["--millions", &millions, "--make", &path].map(OsString::from);
            let words = [program.words[0].clone()].into_iter().chain(make);
            let maker = program.with_words(words.collect());
            let mut made = Native::start(settings, &maker, &sandbox.file("printed"))?;
            sandbox.wait(LOAD, "the weights are not made", || Ok(made.has_ended()))?;
            if !weights.is_file() {
                let message = format!("no weights in `{}`", weights.display());
                return Err(BenchError::program(message));
            }
        } else {
            let size = size.to_string();
            let word = |it: &OsString| match it.to_str() {
                Some(text) => text.replace("{}", &size).into(),
                None => it.clone(),
            };
            program = program.with_words(program.words.iter().map(word).collect());
        }
        Ok(Self {
            size,
            program,
            weights,
        })
    }

    /// Removes the weights: who is restored needs them no more.
    pub fn forget_weights(&self) {
        // It is not there where the program is the user's.
        let _ = fs::remove_file(&self.weights);
    }

    /// Waits until the program has loaded, by what it has printed.
    pub fn loaded(&self, sandbox: &Sandbox, printed: &Path) -> Result<(), BenchError> {
        sandbox.wait(LOAD, "the model is not loaded", || {
            let text = fs::read_to_string(printed).unwrap_or_default();
            Ok(text.lines().any(|it| it == "ready"))
        })
    }

    /// Waits until `count` results are there; milliseconds since `begin` of the first and the last.
    pub fn results(
        &self,
        sandbox: &Sandbox,
        begin: f64,
        count: usize,
    ) -> Result<(f64, f64), BenchError> {
        sandbox.wait(LOAD, "there is no result", || {
            Ok(self.program.steps().len() >= count)
        })?;
        let ends = || {
            self.program
                .steps()
                .into_iter()
                .map(|it| (it.end - begin) / 1e3)
        };
        let first = ends().fold(f64::INFINITY, f64::min);
        Ok((first, ends().fold(0.0, f64::max)))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.forget_weights();
    }
}

/// What a program has said of its result.
pub fn digests(printed: &str) -> BTreeSet<String> {
    let lines = printed.lines().filter(|it| it.starts_with("digest"));
    lines.map(str::to_owned).collect()
}
