//! `fermata_info`.

use fermata_app::Status;

/// The structure; its layout is the header's.
#[repr(C)]
#[derive(Default)]
pub struct Info {
    size_of_this: usize,
    recoverable: i32,
    busy: i32,
    recoverable_id: i64,
    checkpoints: u64,
    failed: u64,
    last_id: i64,
    last_level: i32,
    recovery_level: i32,
    last_bytes: u64,
    last_written: u64,
    last_blocked: f64,
    last_total: f64,
    recovery_bytes: u64,
    recovery_integrity: f64,
    recovery_data: f64,
    interval: f64,
    waste: f64,
    last_moved: f64,
    last_predicted: f64,
}

impl Info {
    /// Bytes that a caller says it has room for.
    ///
    /// # Safety
    /// `info` can be read up to its first field.
    pub(crate) unsafe fn room(info: *const Self) -> usize {
        // SAFETY: the caller vouches for the first field.
        unsafe { (&raw const (*info).size_of_this).read() }
    }

    pub(crate) fn of(status: &Status, room: usize) -> Self {
        let last = status.last.unwrap_or_default();
        let recovery = status.recovery.unwrap_or_default();
        Self {
            size_of_this: room,
            recoverable: i32::from(status.recoverable.is_some()),
            busy: i32::from(status.busy),
            recoverable_id: status.recoverable.unwrap_or(0),
            checkpoints: status.checkpoints,
            failed: status.failed,
            last_id: last.id,
            last_level: i32::from(last.level),
            recovery_level: i32::from(recovery.level),
            last_bytes: last.bytes,
            last_written: last.written_bytes,
            last_blocked: last.blocked_seconds,
            last_total: last.total_seconds,
            recovery_bytes: recovery.bytes,
            recovery_integrity: recovery.integrity_seconds,
            recovery_data: recovery.data_seconds,
            interval: status.interval_seconds.unwrap_or(0.0),
            waste: status.waste.unwrap_or(0.0),
            last_moved: last.moved_seconds,
            last_predicted: last.predicted_seconds,
        }
    }
}
