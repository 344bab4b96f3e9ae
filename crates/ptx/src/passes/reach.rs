//! Which functions a kernel's code is made of, and modules reduced to some kernels.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::PassError;
use crate::ast::{Function, Instruction, Item, Module, Name, Operand, Statement};

/// Functions of the CUDA runtime that kernels call, and that change no buffer of the program.
const PROVIDED: [&str; 5] = [
    "vprintf",
    "__assertfail",
    "malloc",
    "free",
    "cudaGraphSetConditional",
];

/// A module with some of its kernels, and the others with what was wrong with them.
#[derive(Debug, Clone)]
pub struct Made {
    /// What is left, with nothing in it that no kernel needs.
    pub module: Module,
    /// Kernels that were asked for and are not in it.
    pub refused: Vec<(Name, PassError)>,
}

impl Made {
    /// Names of the kernels in it.
    pub fn kernels(&self) -> impl Iterator<Item = &Name> {
        self.module.items.iter().filter_map(|item| match item {
            Item::Function(f) if f.entry && f.body.is_some() => Some(&f.name),
            _ => None,
        })
    }
}

/// Troubles of functions, by name; the first of each counts.
pub(super) type Troubles = HashMap<Name, PassError>;

/// All instructions of a body, blocks included.
pub(super) fn each<'b>(body: &'b [Statement], visit: &mut dyn FnMut(&'b Instruction)) {
    for statement in body {
        match statement {
            Statement::Instruction(instruction) => visit(instruction),
            Statement::Block(inner) => each(inner, visit),
            _ => {}
        }
    }
}

/// The functions that `function` calls; those outside the text and addresses of functions are troubles.
fn callees(
    function: &Function,
    defined: &HashSet<&str>,
    aliases: &HashMap<&str, &Name>,
    troubles: &mut Troubles,
) -> BTreeSet<Name> {
    let mut found = BTreeSet::new();
    each(function.body.as_deref().unwrap_or_default(), &mut |i| {
        let mut trouble = |what: String| {
            let error = PassError::Call {
                line: i.line,
                function: function.name.to_string(),
                what,
            };
            troubles.entry(function.name.clone()).or_insert(error);
        };
        let resolve = |name: &Name| aliases.get(&**name).map_or(name.clone(), |n| (*n).clone());
        let names = i.operands.iter().filter_map(|operand| match operand {
            Operand::Name(name) | Operand::Offset(name, _) => Some(resolve(name)),
            _ => None,
        });
        if &*i.opcode != "call" {
            if let Some(name) = names.into_iter().find(|name| defined.contains(&**name)) {
                trouble(format!("it takes the address of `{name}`"));
            }
            return;
        }
        match names.into_iter().next() {
            Some(name) if defined.contains(&*name) => {
                found.insert(name);
            }
            Some(name) if PROVIDED.contains(&&*name) => {}
            Some(name) if name.starts_with('%') => trouble("it calls through a register".into()),
            Some(name) => trouble(format!("it calls `{name}`")),
            None => trouble("it calls something that is not named".into()),
        }
    });
    found
}

/// Reduces `module` to the kernels that `wanted` picks and that reach no trouble.
pub(super) fn reduce(
    module: Module,
    wanted: &dyn Fn(&str) -> bool,
    mut troubles: Troubles,
) -> Made {
    let (mut calls, mut kernels) = (BTreeMap::new(), Vec::new());
    {
        let functions = module.items.iter().filter_map(|item| match item {
            Item::Function(f) if f.body.is_some() => Some(f),
            _ => None,
        });
        let functions: Vec<&Function> = functions.collect();
        let defined: HashSet<&str> = functions.iter().map(|f| &*f.name).collect();
        let aliases = module.items.iter().filter_map(|item| match item {
            Item::Alias { alias, target } => Some((&**alias, target)),
            _ => None,
        });
        let aliases: HashMap<&str, &Name> = aliases.collect();
        for function in functions {
            let callees = callees(function, &defined, &aliases, &mut troubles);
            calls.insert(function.name.clone(), callees);
            if function.entry && wanted(&function.name) {
                kernels.push(function.name.clone());
            }
        }
    }
    let mut kept: BTreeSet<Name> = BTreeSet::new();
    let mut refused = Vec::new();
    for kernel in kernels {
        let reached = closure(&kernel, &calls);
        match reached.iter().find_map(|name| troubles.get(name)) {
            Some(trouble) => refused.push((kernel, trouble.clone())),
            None => kept.extend(reached),
        }
    }
    let mut module = module;
    module.items.retain(|item| match item {
        Item::Function(f) => !calls.contains_key(&f.name) || kept.contains(&f.name),
        Item::Alias { target, .. } => !calls.contains_key(target) || kept.contains(target),
        Item::Variable(_) => true,
    });
    Made { module, refused }
}

fn closure(from: &Name, calls: &BTreeMap<Name, BTreeSet<Name>>) -> BTreeSet<Name> {
    let mut reached = BTreeSet::from([from.clone()]);
    let mut queue = vec![from];
    while let Some(name) = queue.pop() {
        for callee in calls.get(name).into_iter().flatten() {
            if reached.insert(callee.clone()) {
                queue.push(callee);
            }
        }
    }
    reached
}
