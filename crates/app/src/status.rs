//! What a session tells about itself.

/// The newest checkpoint of this run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CheckpointReport {
    /// The program's number.
    pub id: i64,
    /// Level it was made for, 1 to 4.
    pub level: u8,
    /// Bytes protected.
    pub bytes: u64,
    /// Bytes that had changed and were written.
    pub written_bytes: u64,
    /// Seconds for which the program was held.
    pub blocked_seconds: f64,
    /// Seconds until it was complete.
    pub total_seconds: f64,
    /// Seconds in which data went to where it waited on devices, and to the host as far as it did not fit
    /// there; 0 if nothing may wait on devices.
    pub moved_seconds: f64,
    /// Seconds that the schedule gives to what did not fit its own GPU's room.
    pub predicted_seconds: f64,
}

/// The recovery of this run, its phases apart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RecoveryReport {
    /// The program's number of the checkpoint.
    pub id: i64,
    /// Level it was read from, 1 to 4.
    pub level: u8,
    /// Bytes recovered.
    pub bytes: u64,
    /// Seconds for checking that every bit is right.
    pub integrity_seconds: f64,
    /// Seconds for filling the variables.
    pub data_seconds: f64,
}

/// Where a session stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// The program's number of the checkpoint that a recovery would use.
    pub recoverable: Option<i64>,
    /// Checkpoints completed in this run.
    pub checkpoints: u64,
    /// Checkpoints that failed in this run.
    pub failed: u64,
    /// Why the newest of those failed.
    pub last_failure: Option<String>,
    /// Whether one is being written behind the program.
    pub busy: bool,
    /// The newest that is complete.
    pub last: Option<CheckpointReport>,
    /// The recovery, if there was one.
    pub recovery: Option<RecoveryReport>,
    /// Seconds between checkpoints that snapshots keep, if any.
    pub interval_seconds: Option<f64>,
    /// Expected share of time lost to checkpoints and failures at that interval.
    pub waste: Option<f64>,
}
