//! Background threads: they run only on cores that nothing else needs.

/// Makes the calling thread run only where no other thread wants to (`SCHED_IDLE`, sched(7)), and give way at
/// once. There is no way back without privileges. False if the system does not let it.
pub fn stand_back() -> bool {
    // SAFETY: all zeros are a priority of 0, the only one that this policy takes.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread; the structure is read during the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const none) == 0 }
}

#[cfg(test)]
mod tests {
    use super::stand_back;

    #[test]
    fn only_the_calling_thread_stands_back() {
        // SAFETY: 0 is the calling thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let after = std::thread::spawn(move || (stand_back(), policy())).join();
        assert_eq!(after.ok(), Some((true, libc::SCHED_IDLE)));
        assert_eq!(policy(), before);
    }
}
