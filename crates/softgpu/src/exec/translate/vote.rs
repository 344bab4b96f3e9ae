//! Decides which untyped 32- and 64-bit registers hold floats.
//!
//! Newer compilers declare every register `.b32` or `.b64`. Keeping a float in an integer register
//! costs a move at each use, so the uses vote.

use std::collections::{HashMap, HashSet};

use fermata_ptx::ast::{Instruction, Name, Operand, Space, Statement, Type};

use crate::exec::layout::walk;

/// Registers to be kept as floats.
pub fn floats(body: &[Statement]) -> HashSet<Name> {
    let mut votes: HashMap<Name, i32> = HashMap::new();
    let mut declared = HashSet::new();
    walk(body, &mut |s| match s {
        Statement::Instruction(i) => count(i, &mut votes),
        // Integer-typed and half-typed ranges cannot be told from names here; they never vote float.
        Statement::Variable(v)
            if v.space == Space::Reg && matches!(v.ty, Type::F32 | Type::F64) =>
        {
            declared.insert(v.name.clone());
        }
        _ => {}
    });
    votes
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .map(|(name, _)| name)
        .chain(declared)
        .collect()
}

fn count(i: &Instruction, votes: &mut HashMap<Name, i32>) {
    let mut types = i.modifiers.iter().filter_map(|m| Type::from_name(m));
    let (first, second) = (types.next(), types.next());
    let neutral = matches!(
        &*i.opcode,
        "mov" | "ld" | "ldu" | "st" | "selp" | "shfl" | "call" | "atom" | "red"
    );
    for (index, operand) in i.operands.iter().enumerate() {
        let ty = match (&*i.opcode, index) {
            ("cvt" | "set", 1..) => second,
            ("setp", 0) => None,
            ("slct", 3) => second,
            _ => first,
        };
        let weight = match ty {
            Some(Type::F32 | Type::F64) => 1,
            Some(_) if neutral => 0,
            Some(_) => -1,
            None => 0,
        };
        let mut vote = |name: &Name| {
            if weight != 0 {
                *votes.entry(name.clone()).or_default() += weight;
            }
        };
        match operand {
            Operand::Name(name) => vote(name),
            Operand::Vector(list) => list.iter().for_each(|o| {
                if let Operand::Name(name) = o {
                    vote(name);
                }
            }),
            Operand::Address {
                base: Some(base), ..
            } => *votes.entry(base.clone()).or_default() -= 1,
            _ => {}
        }
    }
}
