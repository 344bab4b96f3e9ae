//! Looks for what stands in the way of a checkpoint several times: a program and the kernel's tables change while they are read.

use std::time::Duration;

use fermata_control::wait;

/// How often is looked, unless nothing is found.
const LOOKS: u32 = 3;
/// Between two looks.
const TURN: Duration = Duration::from_millis(10);

/// What the last look finds, of [`LOOKS`] unless one finds nothing. Each look has to read the processes of the program anew.
pub fn settled<T>(mut look: impl FnMut() -> Vec<T>) -> Vec<T> {
    let free = || match look() {
        found if found.is_empty() => Ok(()),
        found => Err(found),
    };
    settles(free).err().unwrap_or_default()
}

/// What the last look says, of [`LOOKS`] unless one succeeds. Each look has to read the processes of the program anew.
///
/// # Errors
/// That of the last look.
pub fn settles<T, E>(mut look: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    let mut left = LOOKS;
    // Polled: the kernel tells nobody of a change to its tables.
    let last = wait::until(Duration::MAX, TURN, || {
        let said = look();
        left -= 1;
        (said.is_ok() || left == 0).then_some(said)
    });
    last.expect("the wait ends with the last look")
}

#[cfg(test)]
pub(crate) mod scene {
    use std::time::Duration;

    use fermata_control::wait;

    const LIMIT: Duration = Duration::from_secs(120);
    const TURN: Duration = Duration::from_millis(1);

    /// What `look` finds once it `holds`, or else at the deadline. Descriptors have to be looked for so: a child that another test
    /// starts has what this process has open until it executes its program, and keeps it open that long when this process has
    /// closed it.
    pub fn soon<T>(mut look: impl FnMut() -> T, holds: impl Fn(&T) -> bool) -> T {
        // Polled: the kernel tells nobody that a descriptor is closed, nor that a word has been written.
        let found = wait::until(LIMIT, TURN, || {
            let found = look();
            holds(&found).then_some(found)
        });
        found.unwrap_or_else(look)
    }
}
