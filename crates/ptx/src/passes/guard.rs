//! Instrumented kernels: a module whose kernels check every global access against a table of ranges and
//! report the first one outside (PhoenixOS, section 4.1, validation).
//!
//! Every kernel of the instrumented module takes one more parameter, the last: the address of a table in global
//! memory,
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 8 | written by kernels, which report while it is 0 |
//! | 8 | 8 | where the first violation is written: its address, then its size in bytes |
//! | 16 | 8 | not used |
//! | 24 | 8 | number of ranges n |
//! | 32 | 16 n | ranges: first byte, one past the last byte; sorted, disjoint |
//!
//! Names, other parameters and results stay the same, so the instrumented kernel can run in the place
//! of the original.
//! Functions that a kernel calls find the table's address in a shared variable of the block; each thread
//! writes it before it first reads it, so no barrier is needed.

use super::PassError;
use super::check::{Guard, check, functions, ordered, shared_variable, statements};
use super::reach::{Made, Troubles, each, reduce};
use crate::ast::{Function, Item, Linkage, Module, Space, Statement, Type, Variable};

/// Bytes of the table before the first range.
pub const TABLE_HEADER_BYTES: u64 = 32;

/// The instrumented form of a module, with the kernels that `wanted` picks. Its variables are still its own: see
/// [`super::bind()`].
///
/// # Errors
/// No kernel of the module can be instrumented. Single kernels that cannot are named in the answer; for those,
/// content validation has to do.
pub fn guard(
    module: &Module,
    what: Guard,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Made, PassError> {
    if module.address_size != 64 {
        return Err(PassError::AddressSize(module.address_size));
    }
    let called = |item: &Item| matches!(item, Item::Function(f) if !f.entry && f.body.is_some());
    let called = module.items.iter().any(called);
    let (mut troubles, mut items) = (Troubles::new(), functions(what));
    if called {
        items.extend(shared_variable());
    }
    for item in &module.items {
        items.push(match item {
            Item::Function(f) if f.body.is_some() => match guarded(f, what, called) {
                Ok(instrumented) => Item::Function(instrumented),
                Err(error) => {
                    troubles.insert(f.name.clone(), error);
                    item.clone()
                }
            },
            other => other.clone(),
        });
    }
    // Compilers want debug information where it is announced, and an instrumented module has none.
    let targets = module.targets.iter().filter(|it| &***it != "debug");
    let instrumented = Module {
        items,
        version: module.version,
        targets: targets.cloned().collect(),
        address_size: module.address_size,
    };
    Ok(reduce(instrumented, wanted, troubles))
}

/// `called`: whether the module has functions that kernels call.
fn guarded(function: &Function, what: Guard, called: bool) -> Result<Function, PassError> {
    let mut instrumented = function.clone();
    let original = function.body.as_deref().unwrap_or_default();
    let mut body = Vec::new();
    if function.entry {
        let name = format!("{}_fermata_ranges", function.name);
        let mut text = format!(".reg .b64 %fermata_t; ld.param.u64 %fermata_t, [{name}];");
        let mut calls = false;
        each(original, &mut |i| calls |= &*i.opcode == "call");
        if calls && called {
            text += "st.shared.u64 [__fermata_table], %fermata_t;";
        }
        body.extend(statements(&text));
        instrumented
            .params
            .push(table_parameter(&name, function.line));
    } else {
        let text = ".reg .b64 %fermata_t; ld.shared.u64 %fermata_t, [__fermata_table];";
        body.extend(statements(text));
    }
    body.extend(guarded_body(function, original, what)?);
    instrumented.body = Some(body);
    Ok(instrumented)
}

fn table_parameter(name: &str, line: u32) -> Variable {
    Variable {
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
        line,
    }
}

fn guarded_body(
    function: &Function,
    body: &[Statement],
    what: Guard,
) -> Result<Vec<Statement>, PassError> {
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
                let ordered = ordered(instruction, what).map(Statement::Instruction);
                out.push(ordered.unwrap_or_else(|| statement.clone()));
            }
            other => out.push(other.clone()),
        }
    }
    Ok(out)
}
