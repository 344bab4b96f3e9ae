//! Checkpoint and restore protocols over a session's device data.
