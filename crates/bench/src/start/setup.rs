//! What one model is measured with: settings, daemon and folders.

use std::time::Duration;

use super::model::Model;
use super::results::StartSettings;
use crate::sandbox::Sandbox;
use crate::settings::Settings;

/// A driver takes seconds to give back what a killed worker held.
const REST: Duration = Duration::from_secs(1);

/// What is measured of one model.
pub struct Cases<'a> {
    pub settings: &'a Settings,
    pub asked: &'a StartSettings,
    pub sandbox: &'a Sandbox,
    pub model: &'a Model,
    pub note: &'a dyn Fn(&str),
}

impl Cases<'_> {
    /// Says what is being done.
    pub fn note(&self, way: &str) {
        (self.note)(&format!("{} billion parameters: {way}", self.model.size));
    }

    /// How long the machine is left alone between two starts.
    pub fn rest(&self) -> Duration {
        match self.settings.is_soft {
            true => Duration::ZERO,
            false => REST,
        }
    }
}
