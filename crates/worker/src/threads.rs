//! Threads that call the driver.

/// The thread that serves, and the one that loads.
pub(crate) fn serving_thread() -> std::thread::Builder {
    std::thread::Builder::new()
        .name("serve".to_owned())
        .stack_size(2 << 20)
}
