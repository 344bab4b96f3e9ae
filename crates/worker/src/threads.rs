//! Threads that call the driver.

use std::time::Duration;

/// The thread that serves, and the one that loads.
pub(crate) fn serving_thread() -> std::thread::Builder {
    std::thread::Builder::new()
        .name("serve".to_owned())
        .stack_size(2 << 20)
}

/// A pause of the thread that serves, between two looks at the device while nothing is taken off the ring. Polled: a driver
/// tells nobody that an event has passed, and messages of the program, which ring the doorbell, are not what is waited for.
pub(crate) fn pause_beside_device(time: Duration) {
    std::thread::sleep(time);
}
