//! The wake block: memory by which the daemon summons an agent that holds no socket.
//!
//! The daemon writes into it from outside the process, so every byte is read as volatile.

use std::cell::UnsafeCell;

use std::sync::atomic::{AtomicU32, Ordering};

use fermata_control::agent::{WAKE_IDLE, WAKE_REATTACH, WAKE_SAYS, WAKE_WAITING, wake_block};

#[repr(C, align(64))]
struct Block(UnsafeCell<[u8; wake_block::BYTES]>);

// SAFETY: reached through volatile accesses only, by one thread of this process at a time.
unsafe impl Sync for Block {}

static BLOCK: Block = Block(UnsafeCell::new([0; wake_block::BYTES]));

/// A summons of the daemon: where to connect, and with which token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summons {
    /// Path of the daemon's agent socket.
    pub socket: String,
    /// The session's token.
    pub token: String,
}

/// Writes the magic, so that the daemon can tell that the address is right.
pub fn prepare() {
    for (at, byte) in wake_block::MAGIC.iter().enumerate() {
        put(at, *byte);
    }
    for (n, byte) in WAKE_SAYS.to_le_bytes().into_iter().enumerate() {
        put(wake_block::SAYS as usize + n, byte);
    }
    reset();
}

/// Writes that the agent waits for a summons, unless one has come.
pub fn wait() {
    let state = BLOCK.0.get().cast::<u8>();
    // SAFETY: the word lies in the block, at a multiple of its size, and lives for ever; the daemon writes it whole.
    let state = unsafe { AtomicU32::from_ptr(state.add(wake_block::STATE as usize).cast()) };
    let (idle, waiting) = (WAKE_IDLE.to_le(), WAKE_WAITING.to_le());
    let _ = state.compare_exchange(idle, waiting, Ordering::AcqRel, Ordering::Acquire);
}

/// Address of the block.
pub fn address() -> u64 {
    BLOCK.0.get().expose_provenance() as u64
}

/// The summons, if the daemon has written one.
pub fn summons() -> Option<Summons> {
    let at = wake_block::STATE as usize;
    let state = u32::from_le_bytes(std::array::from_fn(|n| byte(at + n)));
    if state != WAKE_REATTACH {
        return None;
    }
    Some(Summons {
        socket: string(wake_block::SOCKET as usize, wake_block::SOCKET_BYTES),
        token: string(wake_block::TOKEN as usize, wake_block::TOKEN_BYTES),
    })
}

/// Clears the block for the next summons.
pub fn reset() {
    for (n, byte) in WAKE_IDLE.to_le_bytes().into_iter().enumerate() {
        put(wake_block::STATE as usize + n, byte);
    }
}

fn string(at: usize, room: usize) -> String {
    let bytes: Vec<u8> = (at..at + room)
        .map(byte)
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn byte(at: usize) -> u8 {
    assert!(at < wake_block::BYTES);
    // SAFETY: inside the block by the line above.
    unsafe { BLOCK.0.get().cast::<u8>().add(at).read_volatile() }
}

fn put(at: usize, value: u8) {
    assert!(at < wake_block::BYTES);
    // SAFETY: inside the block by the line above.
    unsafe { BLOCK.0.get().cast::<u8>().add(at).write_volatile(value) };
}
