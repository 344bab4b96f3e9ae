//! Places: what a name in PTX refers to.

use std::collections::HashMap;

use cranelift_codegen::ir::{self, Block, Value, types};
use cranelift_frontend::Variable;
use fermata_ptx::ast::{Name, Type};

use super::refused::{Refused, Step};

/// A register.
#[derive(Debug, Clone, Copy)]
pub struct Register {
    /// Its variable in the frontend.
    pub var: Variable,
    /// Type of that variable.
    pub ty: ir::Type,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub enum Place {
    /// A register.
    Register(Register),
    /// A vector register.
    Vector(Vec<Register>),
    /// A variable or call parameter in the frame.
    Frame { offset: u32, size: u64 },
    /// A parameter of the kernel.
    Kernel { offset: u32, size: u64 },
    /// A parameter of the function, at that address.
    Pointer { value: Value, size: u64 },
    /// A shared variable.
    Shared { offset: u32, size: u64 },
    /// Dynamic shared memory.
    Dynamic,
    /// A module variable at a fixed address.
    Fixed { address: u64, size: u64 },
    /// A function: the address of its descriptor.
    Function { index: usize },
    /// Shape of an indirect call.
    Prototype { returns: usize, params: usize },
    /// Targets of an indexed branch or indirect call.
    Targets { targets: Vec<Name>, calls: bool },
}

/// Names of one `{ … }`.
#[derive(Default)]
pub struct Scope {
    /// Known names.
    pub places: HashMap<Name, Place>,
    /// Its own labels, also those that are yet to come.
    pub(super) labels: HashMap<Name, Block>,
    /// `%r<10>` and the like, by prefix.
    pub(super) ranges: HashMap<Name, (u32, Type)>,
    /// Registers that are return parameters, and where their values go.
    pub returned: Vec<(Register, Value)>,
}

/// The type of Cranelift that holds a PTX type.
pub fn natural(ty: Type) -> Step<ir::Type> {
    Ok(match ty {
        Type::Pred | Type::B8 | Type::U8 | Type::S8 => types::I8,
        Type::B16 | Type::U16 | Type::S16 | Type::F16 | Type::Bf16 => types::I16,
        Type::B32 | Type::U32 | Type::S32 | Type::F16x2 | Type::Bf16x2 => types::I32,
        Type::B64 | Type::U64 | Type::S64 => types::I64,
        Type::B128 => types::I128,
        Type::F32 => types::F32,
        Type::F64 => types::F64,
        Type::Texref | Type::Samplerref | Type::Surfref => return Err(Refused::Unsupported),
    })
}

impl Scope {
    /// The type of a register that a range such as `%r<10>` declares.
    pub(super) fn ranged(&self, name: &str) -> Option<Type> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let digits = &name[prefix.len()..];
        // A prefix may itself end in digits: the longest declared one counts.
        (prefix.len()..name.len()).find_map(|cut| {
            let (count, ty) = self.ranges.get(&name[..cut])?;
            let digits = &digits[cut - prefix.len()..];
            let index: u32 = digits.parse().ok()?;
            (index < *count && (digits.len() == 1 || !digits.starts_with('0'))).then_some(*ty)
        })
    }
}
