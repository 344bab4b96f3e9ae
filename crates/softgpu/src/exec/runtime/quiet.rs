//! Wraps helpers on slow paths so that they preserve all registers.
//!
//! Compiled code checks at almost every access and loop. If the slow path of a check could change
//! registers, everything that lives across the check would have to be kept in memory.

use std::arch::naked_asm;

use super::helpers;

macro_rules! quiet {
    ($name:ident, $helper:path) => {
        /// The helper of the same name, preserving all registers that compiled code uses.
        ///
        /// # Safety
        /// As the helper; called by compiled code only.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                "push rbp", "mov rbp, rsp",
                "push rax", "push rcx", "push rdx", "push rsi", "push rdi",
                "push r8", "push r9", "push r10", "push r11",
                "sub rsp, 264", "and rsp, -16",
                "movups [rsp], xmm0", "movups [rsp+16], xmm1", "movups [rsp+32], xmm2", "movups [rsp+48], xmm3",
                "movups [rsp+64], xmm4", "movups [rsp+80], xmm5", "movups [rsp+96], xmm6", "movups [rsp+112], xmm7",
                "movups [rsp+128], xmm8", "movups [rsp+144], xmm9", "movups [rsp+160], xmm10", "movups [rsp+176], xmm11",
                "movups [rsp+192], xmm12", "movups [rsp+208], xmm13", "movups [rsp+224], xmm14", "movups [rsp+240], xmm15",
                "call {helper}",
                "movups xmm0, [rsp]", "movups xmm1, [rsp+16]", "movups xmm2, [rsp+32]", "movups xmm3, [rsp+48]",
                "movups xmm4, [rsp+64]", "movups xmm5, [rsp+80]", "movups xmm6, [rsp+96]", "movups xmm7, [rsp+112]",
                "movups xmm8, [rsp+128]", "movups xmm9, [rsp+144]", "movups xmm10, [rsp+160]", "movups xmm11, [rsp+176]",
                "movups xmm12, [rsp+192]", "movups xmm13, [rsp+208]", "movups xmm14, [rsp+224]", "movups xmm15, [rsp+240]",
                "lea rsp, [rbp-72]",
                "pop r11", "pop r10", "pop r9", "pop r8",
                "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rax",
                "pop rbp", "ret",
                helper = sym $helper,
            )
        }
    };
}

quiet!(access, helpers::access);
quiet!(refuel, helpers::refuel);
