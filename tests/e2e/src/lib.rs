//! End-to-end runner.
