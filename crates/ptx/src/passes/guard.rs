//! Twin kernels: a module whose kernels check every global access against a table of ranges and
//! report the first one outside (PhoenixOS, section 4.1, validation).
//!
//! Every kernel of the twin takes one more parameter, the last: the address of a table in global
//! memory,
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | number of ranges n |
//! | 8 | 8 | violations counted by the kernel; 0 before the launch |
//! | 16 | 8 | address of the first violation |
//! | 24 | 8 | its size in bytes |
//! | 32 | 16 n | ranges: first byte, one past the last byte; sorted, disjoint |
//!
//! Names, other parameters and results stay the same, so the twin can run in the kernel's place.
//! The table's address waits in a shared variable of the block, where called functions find it; each
//! thread writes it before it first reads it, so no barrier is needed.

use crate::ast::{
    Function, Instruction, Item, Linkage, Module, Operand, Space, Statement, Type, Variable,
};
use crate::parse;

/// Bytes of the table before the first range.
pub const TABLE_HEADER_BYTES: u64 = 32;

/// Which accesses a twin checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guard {
    /// Stores, atomics and reductions: for checkpoints.
    Writes,
    /// Loads and atomics: for restores.
    Reads,
}

/// A module that has no twin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// Addresses of 32 bits.
    #[error("the module has {0}-bit addresses; twin kernels need 64")]
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
}

/// The checking function, the variable it finds the table through, and nothing else.
const PRELUDE: &str = "
.shared .align 8 .b64 __fermata_table;
.func __fermata_check(.param .b64 address, .param .b32 bytes)
{
    .reg .pred %p<3>;
    .reg .b64 %rd<12>;
    .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    ld.param.u32 %r1, [bytes];
    isspacep.local %p1, %rd1;
    @%p1 bra DONE;
    isspacep.shared %p1, %rd1;
    @%p1 bra DONE;
    cvt.u64.u32 %rd0, %r1;
    add.s64 %rd2, %rd1, %rd0;
    ld.shared.u64 %rd3, [__fermata_table];
    mov.u64 %rd5, 0;
    ld.global.u64 %rd6, [%rd3];
SEARCH:
    setp.ge.u64 %p1, %rd5, %rd6;
    @%p1 bra FOUND;
    add.s64 %rd7, %rd5, %rd6;
    shr.u64 %rd7, %rd7, 1;
    shl.b64 %rd8, %rd7, 4;
    add.s64 %rd9, %rd3, %rd8;
    ld.global.u64 %rd10, [%rd9+32];
    setp.le.u64 %p2, %rd10, %rd1;
    @%p2 add.s64 %rd5, %rd7, 1;
    @!%p2 mov.u64 %rd6, %rd7;
    bra SEARCH;
FOUND:
    setp.eq.u64 %p1, %rd5, 0;
    @%p1 bra OUTSIDE;
    shl.b64 %rd8, %rd5, 4;
    add.s64 %rd9, %rd3, %rd8;
    ld.global.u64 %rd10, [%rd9+24];
    setp.le.u64 %p1, %rd2, %rd10;
    @%p1 bra DONE;
OUTSIDE:
    atom.global.add.u64 %rd11, [%rd3+8], 1;
    setp.ne.u64 %p1, %rd11, 0;
    @%p1 bra DONE;
    st.global.u64 [%rd3+16], %rd1;
    st.global.u64 [%rd3+24], %rd0;
DONE:
    ret;
}
";

/// The twin of a module.
///
/// # Errors
/// The module has accesses that the text does not show; then content validation has to do.
pub fn guard(module: &Module, what: Guard) -> Result<Module, GuardError> {
    if module.address_size != 64 {
        return Err(GuardError::AddressSize(module.address_size));
    }
    let mut twin = Module {
        items: prelude(),
        ..module.clone()
    };
    for item in &module.items {
        twin.items.push(match item {
            Item::Function(f) if f.body.is_some() => Item::Function(guarded(f, what)?),
            other => other.clone(),
        });
    }
    Ok(twin)
}

fn prelude() -> Vec<Item> {
    let text = format!(".version 6.3\n.target sm_75\n.address_size 64\n{PRELUDE}");
    parse(&text).expect("the prelude is PTX").items
}

/// Statements of a text that stands in a body.
fn statements(text: &str) -> Vec<Statement> {
    let text = format!(".version 6.3\n.target sm_75\n.address_size 64\n.func f()\n{{ {text} }}");
    match parse(&text).expect("a pass writes PTX").items.pop() {
        Some(Item::Function(Function {
            body: Some(body), ..
        })) => body,
        _ => Vec::new(),
    }
}

fn guarded(function: &Function, what: Guard) -> Result<Function, GuardError> {
    let mut twin = function.clone();
    let mut body = Vec::new();
    if function.entry {
        let name = format!("{}_fermata_ranges", function.name);
        body.extend(statements(&format!(
            "{{ .reg .b64 %fermata_t; ld.param.u64 %fermata_t, [{name}];
               st.shared.u64 [__fermata_table], %fermata_t; }}"
        )));
        twin.params.push(Variable {
            linkage: Linkage::Local,
            space: Space::Param,
            align: None,
            vector: 1,
            ty: Type::U64,
            name: name.into(),
            dims: Vec::new(),
            count: None,
            init: None,
            managed: false,
            line: function.line,
        });
    }
    body.extend(guarded_body(
        function,
        function.body.as_deref().unwrap_or_default(),
        what,
    )?);
    twin.body = Some(body);
    Ok(twin)
}

fn guarded_body(
    function: &Function,
    body: &[Statement],
    what: Guard,
) -> Result<Vec<Statement>, GuardError> {
    let mut out = Vec::with_capacity(body.len());
    for statement in body {
        match statement {
            Statement::Block(inner) => {
                out.push(Statement::Block(guarded_body(function, inner, what)?))
            }
            Statement::Instruction(instruction) => {
                if let Some(check) = check(function, instruction, what)? {
                    out.extend(check);
                }
                out.push(statement.clone());
            }
            other => out.push(other.clone()),
        }
    }
    Ok(out)
}

/// State spaces whose accesses are not to global memory.
const ELSEWHERE: [&str; 6] = [
    "param",
    "param::entry",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
];

/// What an instruction does to global memory, as far as a guard cares.
enum Effect {
    None,
    Access,
    Unreadable,
}

fn effect(i: &Instruction, what: Guard) -> Effect {
    let has = |m: &str| i.modifiers.iter().any(|x| &**x == m);
    let elsewhere = ELSEWHERE.iter().any(|space| has(space)) || has("const");
    let reads = what == Guard::Reads;
    match &*i.opcode {
        "ld" | "ldu" if reads && !elsewhere => Effect::Access,
        "st" if !reads && !elsewhere && (has("async") || has("bulk")) => Effect::Unreadable,
        "st" if !reads && !elsewhere => Effect::Access,
        "atom" | "red" if !elsewhere && has("async") => Effect::Unreadable,
        "atom" | "red" if !elsewhere => Effect::Access,
        "cp" if has("bulk") || has("reduce") => Effect::Unreadable,
        "cp" if reads && has("async") && i.operands.len() >= 2 => Effect::Access,
        "sust" | "sured" | "multimem" if !reads => Effect::Unreadable,
        "wmma" if has(if reads { "load" } else { "store" }) => Effect::Unreadable,
        "tex" | "tld4" | "suld" | "multimem" if reads => Effect::Unreadable,
        _ => Effect::None,
    }
}

fn check(
    function: &Function,
    i: &Instruction,
    what: Guard,
) -> Result<Option<Vec<Statement>>, GuardError> {
    let unreadable = || GuardError::Instruction {
        line: i.line,
        function: function.name.to_string(),
        instruction: i
            .modifiers
            .iter()
            .fold(i.opcode.to_string(), |text, m| format!("{text}.{m}")),
    };
    match effect(i, what) {
        Effect::None => return Ok(None),
        Effect::Unreadable => return Err(unreadable()),
        Effect::Access => {}
    }
    // cp.async reads its second address; the others have only one.
    let mut addresses = i.operands.iter().filter_map(|o| match o {
        Operand::Address { base, offset, .. } => Some((base, *offset)),
        _ => None,
    });
    let nth = if &*i.opcode == "cp" { 1 } else { 0 };
    let (base, offset) = addresses.nth(nth).ok_or_else(unreadable)?;
    let bytes = access_bytes(i).ok_or_else(unreadable)?;
    let address = match base {
        None => format!("mov.u64 %fermata_a, {offset};"),
        Some(name) if name.starts_with('%') || name.starts_with('$') => {
            format!("add.s64 %fermata_a, {name}, {offset};")
        }
        Some(symbol) => {
            format!("mov.u64 %fermata_a, {symbol}; add.s64 %fermata_a, %fermata_a, {offset};")
        }
    };
    let condition = match &i.guard {
        Some(guard) => format!(
            "@{}{} ",
            if guard.negated { "!" } else { "" },
            guard.register
        ),
        None => String::new(),
    };
    Ok(Some(statements(&format!(
        "{{ .reg .b64 %fermata_a; {address}
           {{ .param .b64 fermata_address; st.param.b64 [fermata_address], %fermata_a;
             .param .b32 fermata_bytes; st.param.b32 [fermata_bytes], {bytes};
             {condition}call __fermata_check, (fermata_address, fermata_bytes); }} }}"
    ))))
}

/// Bytes an access covers: type times vector length, or the immediate size of `cp.async`.
fn access_bytes(i: &Instruction) -> Option<u64> {
    if &*i.opcode == "cp" {
        return match i.operands.get(2) {
            Some(Operand::Int(bytes)) => u64::try_from(*bytes).ok(),
            _ => None,
        };
    }
    let ty = i.modifiers.iter().rev().find_map(|m| Type::from_name(m))?;
    let vector = i.modifiers.iter().find_map(|m| match &**m {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    });
    Some(u64::from(ty.bytes()) * vector.unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.0\n.target sm_75\n.address_size 64
        .global .u32 counter;
        .visible .entry k(.param .u64 k_param_0) { .reg .b64 %rd<3>; .reg .pred %p<2>; .reg .f32 %f<5>;
        .shared .f32 tile[4]; ld.param.u64 %rd1, [k_param_0]; setp.eq.u64 %p1, %rd1, 0;
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+16]; st.shared.f32 [tile], %f1;
        @!%p1 st.global.v2.f32 [%rd1+8], {%f1, %f2}; red.global.add.u32 [counter], 1; ret; }";

    fn twin(what: Guard) -> String {
        guard(&parse(TEXT).expect("PTX"), what)
            .expect("it has a twin")
            .to_string()
    }

    #[test]
    fn stores_and_atomics_are_checked_with_their_size_and_condition() {
        let text = twin(Guard::Writes);
        assert_eq!(text.matches("call __fermata_check").count(), 2);
        assert!(text.contains("@!%p1 call __fermata_check"), "{text}");
        assert!(text.contains("st.param.b32 [fermata_bytes], 8"), "{text}");
        assert!(text.contains("k_fermata_ranges"));
        parse(&text).expect("a twin parses again");
    }

    #[test]
    fn loads_are_checked_for_restores() {
        let text = twin(Guard::Reads);
        assert!(text.contains("st.param.b32 [fermata_bytes], 16"), "{text}");
        assert_eq!(text.matches("call __fermata_check").count(), 2);
    }

    #[test]
    fn what_cannot_be_checked_is_refused_by_name() {
        let text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 p)
            { .reg .b64 %rd<3>; cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%rd2], 16; ret; }";
        let error = guard(&parse(text).expect("PTX"), Guard::Writes).expect_err("bulk copies");
        assert!(
            error.to_string().contains("cp.reduce.async.bulk"),
            "{error}"
        );
    }
}
