//! The syntax tree of a PTX module.
//!
//! Names are shared strings: one allocation per distinct name of a module. Instructions keep their
//! opcode, modifiers and operands as written, with the line and the byte range they came from, so
//! that a pass can edit the text and leave the rest byte-identical.

use std::ops::Range;
use std::sync::Arc;

/// A name; equal names of one module share storage.
pub type Name = Arc<str>;

/// A parsed module.
#[derive(Debug, Clone, PartialEq)]
pub struct Module {
    /// `.version` as (major, minor).
    pub version: (u32, u32),
    /// `.target` list; the first is `sm_XX`.
    pub targets: Vec<Name>,
    /// `.address_size`, 32 or 64.
    pub address_size: u32,
    /// Variables, functions and aliases in order.
    pub items: Vec<Item>,
}

/// Something at module level.
#[derive(Debug, Clone, PartialEq)]
pub enum Item {
    /// A variable.
    Variable(Variable),
    /// A function or kernel, defined or only declared.
    Function(Function),
    /// `.alias alias, target;`
    Alias {
        /// The new name.
        alias: Name,
        /// What it stands for.
        target: Name,
    },
}

/// Visibility of a symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// None given: local to the module.
    Local,
    /// `.visible`
    Visible,
    /// `.weak`
    Weak,
    /// `.extern`
    Extern,
    /// `.common`
    Common,
}

/// State space of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// `.reg`
    Reg,
    /// `.const`
    Const,
    /// `.global`
    Global,
    /// `.local`
    Local,
    /// `.shared`
    Shared,
    /// `.param`
    Param,
}

/// A fundamental type as written, without the dot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    B128,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
    Texref,
    Samplerref,
    Surfref,
}

impl Type {
    const ALL: [(&'static str, Type, u32); 23] = [
        ("pred", Type::Pred, 1),
        ("b8", Type::B8, 1),
        ("b16", Type::B16, 2),
        ("b32", Type::B32, 4),
        ("b64", Type::B64, 8),
        ("b128", Type::B128, 16),
        ("u8", Type::U8, 1),
        ("u16", Type::U16, 2),
        ("u32", Type::U32, 4),
        ("u64", Type::U64, 8),
        ("s8", Type::S8, 1),
        ("s16", Type::S16, 2),
        ("s32", Type::S32, 4),
        ("s64", Type::S64, 8),
        ("f16", Type::F16, 2),
        ("f16x2", Type::F16x2, 4),
        ("bf16", Type::Bf16, 2),
        ("bf16x2", Type::Bf16x2, 4),
        ("f32", Type::F32, 4),
        ("f64", Type::F64, 8),
        ("texref", Type::Texref, 8),
        ("samplerref", Type::Samplerref, 8),
        ("surfref", Type::Surfref, 8),
    ];

    /// The type of that name (without the dot).
    pub fn from_name(name: &str) -> Option<Type> {
        Self::ALL
            .iter()
            .find(|(n, ..)| *n == name)
            .map(|(_, t, _)| *t)
    }

    /// Its name without the dot.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].0
    }

    /// Bytes in memory; a predicate counts as 1.
    pub fn bytes(self) -> u32 {
        Self::ALL[self as usize].2
    }

    /// `.s8` to `.s64`.
    pub fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    /// A floating-point type, packed ones included.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 | Type::F32 | Type::F64
        )
    }
}

/// A variable, parameter or register declaration of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Variable {
    /// Visibility.
    pub linkage: Linkage,
    /// State space.
    pub space: Space,
    /// `.align`, bytes.
    pub align: Option<u32>,
    /// Vector length: 1, 2 or 4.
    pub vector: u32,
    /// Element type.
    pub ty: Type,
    /// Name; `_` in prototypes.
    pub name: Name,
    /// Array dimensions, outermost first; `None` is `[]`.
    pub dims: Vec<Option<u64>>,
    /// `<N>`: stands for `name0` to `name(N-1)`. Registers only.
    pub count: Option<u32>,
    /// Initialiser.
    pub init: Option<Init>,
    /// `.attribute(.managed)`
    pub managed: bool,
    /// Line in the text, from 1.
    pub line: u32,
}

impl Variable {
    /// Bytes of one element (vector included).
    pub fn element_bytes(&self) -> u64 {
        u64::from(self.ty.bytes()) * u64::from(self.vector)
    }

    /// Bytes in all, `[]` counted as `unsized_len` elements; `None` when that overflows.
    pub fn bytes(&self, unsized_len: u64) -> Option<u64> {
        let count = self
            .dims
            .iter()
            .try_fold(1u64, |n, d| n.checked_mul(d.unwrap_or(unsized_len)))?;
        count.checked_mul(self.element_bytes())
    }

    /// Alignment in bytes: as written, else natural.
    pub fn alignment(&self) -> u32 {
        self.align.unwrap_or(self.element_bytes() as u32).max(1)
    }
}

/// An initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Init {
    /// One value.
    Value(Constant),
    /// `{ … }`
    List(Vec<Init>),
}

/// A constant in an initialiser.
#[derive(Debug, Clone, PartialEq)]
pub enum Constant {
    /// Integer, two's complement.
    Int(i64),
    /// Bits of an f32 (`0f…`).
    F32(u32),
    /// Bits of an f64 (`0d…` or decimal).
    F64(u64),
    /// Address of a symbol.
    Symbol {
        /// Variable or function.
        name: Name,
        /// Added to the address.
        addend: i64,
        /// `generic(name)`: the generic address of a variable.
        generic: bool,
        /// `0xFF00(name)`: the byte of the address that this mask selects.
        mask: Option<u64>,
    },
}

/// A function or kernel.
#[derive(Debug, Clone, PartialEq)]
pub struct Function {
    /// Visibility.
    pub linkage: Linkage,
    /// `.entry` (a kernel) rather than `.func`.
    pub entry: bool,
    /// Name.
    pub name: Name,
    /// Return parameters.
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
    /// `.noreturn`
    pub noreturn: bool,
    /// Tuning directives such as `maxntid`, with their numbers.
    pub tuning: Vec<(Name, Vec<u32>)>,
    /// Body; `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    /// Line of its name.
    pub line: u32,
}

/// Something in a body.
#[derive(Debug, Clone, PartialEq)]
pub enum Statement {
    /// Register or variable declaration.
    Variable(Variable),
    /// `name:`
    Label(Name),
    /// An instruction.
    Instruction(Instruction),
    /// `{ … }`, a scope of its own.
    Block(Vec<Statement>),
    /// `name: .callprototype …`
    Prototype {
        /// Label.
        name: Name,
        /// Return parameters.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
    },
    /// `name: .branchtargets a, b;` or `.calltargets`.
    Targets {
        /// Label.
        name: Name,
        /// Labels or functions.
        targets: Vec<Name>,
        /// `.calltargets` rather than `.branchtargets`.
        calls: bool,
    },
}

/// The condition of an instruction, `@p` or `@!p`.
#[derive(Debug, Clone, PartialEq)]
pub struct GuardPredicate {
    /// Predicate register.
    pub register: Name,
    /// Runs when it is false.
    pub negated: bool,
}

/// An instruction as written.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// `@p`
    pub guard: Option<GuardPredicate>,
    /// First word.
    pub opcode: Name,
    /// Dotted words after it, without dots.
    pub modifiers: Vec<Name>,
    /// Operands in order; a call's lists are one operand each.
    pub operands: Vec<Operand>,
    /// Line in the text, from 1.
    pub line: u32,
    /// Bytes of the text, semicolon included.
    pub span: Range<u32>,
}

/// An operand.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// Register, symbol, label, special register or `_`.
    Name(Name),
    /// `name.field`: part of a vector or of a special register.
    Field(Name, Name),
    /// `!p`
    Not(Name),
    /// Integer, two's complement.
    Int(i64),
    /// Bits of an f32.
    F32(u32),
    /// Bits of an f64.
    F64(u64),
    /// `a|b`
    Pair(Box<Operand>, Box<Operand>),
    /// `symbol+offset` outside brackets.
    Offset(Name, i64),
    /// `[base+offset]`; `base` is `None` for an absolute address. Further operands inside the
    /// brackets (texture coordinates) follow in `rest`.
    Address {
        /// Register or symbol.
        base: Option<Name>,
        /// Added bytes.
        offset: i64,
        /// After a comma inside the brackets.
        rest: Vec<Operand>,
    },
    /// `{a, b, …}`
    Vector(Vec<Operand>),
    /// `(a, b, …)` of a call.
    List(Vec<Operand>),
}
