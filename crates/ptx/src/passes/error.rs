//! Why a kernel cannot be made over.

/// What a pass cannot deal with in a kernel, or in a function that the kernel calls.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PassError {
    /// Addresses of 32 bits.
    #[error("the module has {0}-bit addresses; instrumented kernels need 64")]
    AddressSize(u32),
    /// An instruction whose accesses cannot be checked from the text.
    #[error("line {line}, in `{function}`: the accesses of `{instruction}` cannot be checked")]
    Instruction {
        /// Line, from 1.
        line: u32,
        /// The function it stands in.
        function: String,
        /// Opcode and modifiers.
        instruction: String,
    },
    /// A call that leads out of the text, or an address of a function.
    #[error(
        "line {line}, in `{function}`: {what}, and code that is not in the text cannot be checked"
    )]
    Call {
        /// Line, from 1.
        line: u32,
        /// The function it stands in.
        function: String,
        /// What was found there.
        what: String,
    },
    /// A module variable that the loaded module does not show, or that cannot be bound.
    #[error("in `{function}`: variable `{variable}` of the module {why}")]
    Variable {
        /// The function that uses it.
        function: String,
        /// The variable.
        variable: String,
        /// Why not.
        why: &'static str,
    },
}
