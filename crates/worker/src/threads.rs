//! How threads that call the driver are made, and how they pause.

use std::time::Duration;

/// The thread that serves, and the one that loads.
pub(crate) fn serving_thread() -> std::thread::Builder {
    std::thread::Builder::new()
        .name("serve".to_owned())
        .stack_size(2 << 20)
}

/// A pause of the serving thread between two looks at the device, while nothing is taken off the ring. Polled: the driver
/// does not signal that an event has completed, and the doorbell only signals the program's messages.
pub(crate) fn pause_beside_device(time: Duration) {
    std::thread::sleep(time);
}
