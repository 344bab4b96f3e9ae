//! The filter of system calls (seccomp) that programs of Fermata start with: `io_uring_setup` fails with `ENOSYS`, as in a
//! kernel without it, and all other calls pass. It is here because a process with any other filter cannot be tracked.

/// An instruction of classic BPF as the kernel has it in memory (`struct sock_filter`): operation, how many to skip if the
/// comparison holds and if not, operand.
const fn instruction(operation: u16, then: u8, or: u8, operand: u32) -> u64 {
    operation as u64 | (then as u64) << 16 | (or as u64) << 24 | (operand as u64) << 32
}

/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD: u16 = 0x20;
/// `BPF_ALU | BPF_AND | BPF_K`.
const AND: u16 = 0x54;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const EQUAL: u16 = 0x15;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;
/// Where the number of the call is in `struct seccomp_data`.
const NUMBER: u32 = 0;
/// All but the bit that marks calls of the x32 ABI.
const PLAIN: u32 = 0xbfff_ffff;
/// `io_uring_setup`, which has one number in all ABIs.
const IO_URING_SETUP: u32 = libc::SYS_io_uring_setup as u32;

/// The program. The kernel keeps in mind which calls it lets pass, and does not run it for them.
pub const WITHOUT_IO_URING: [u64; 5] = [
    instruction(LOAD, 0, 0, NUMBER),
    instruction(AND, 0, 0, PLAIN),
    instruction(EQUAL, 0, 1, IO_URING_SETUP),
    instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
    instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
];
