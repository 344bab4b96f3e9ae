//! The access analysis: a fixed point over provenances of registers, calls included.
//!
//! Flow-insensitive within a function (a register's provenance is the union over its definitions),
//! context-insensitive over calls (a formal's provenance is the union over its call sites), one pool
//! each for what is stored to local and to shared memory. All of that only adds roots.
//!
//! One thing takes roots away: what was loaded in parts of fewer than eight bytes, or multiplied, counts as
//! an index as long as there is an address that it is added to.

use std::collections::{BTreeSet, HashMap};

use super::provenance::Provenance;
use super::summary::{ParamSlot, Summary};
use crate::ast::{Function, Instruction, Name, Operand, Space, Statement, Type};

/// A register, parameter or local variable of one function.
type Place = (Name, Name);

pub(super) struct Solver<'m> {
    functions: &'m HashMap<&'m str, &'m Function>,
    variables: &'m HashMap<Name, Space>,
    places: HashMap<Place, Provenance>,
    /// What was stored to local memory, and to shared memory.
    pools: [Provenance; 2],
    summary: Summary,
    changed: bool,
    /// Provenances are final: accesses are noted now. Before, a register may seem to come from nowhere.
    settled: bool,
}

/// Functions the CUDA runtime provides to kernels that write no buffer of the program.
const HARMLESS: [&str; 4] = ["vprintf", "__assertfail", "free", "cudaGraphSetConditional"];

/// Instructions without memory access whose result's provenance is that of their sources.
const SILENT: [&str; 12] = [
    "bar",
    "barrier",
    "membar",
    "fence",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "nanosleep",
    "prefetch",
    "prefetchu",
];

/// Instructions with accesses that this analysis does not follow.
const UNREAD: [&str; 12] = [
    "tex",
    "tld4",
    "suld",
    "sust",
    "sured",
    "txq",
    "suq",
    "multimem",
    "tensormap",
    "wgmma",
    "tcgen05",
    "mbarrier",
];

impl<'m> Solver<'m> {
    /// For one kernel of a module with these functions and variables.
    pub fn new(
        functions: &'m HashMap<&'m str, &'m Function>,
        variables: &'m HashMap<Name, Space>,
    ) -> Self {
        Solver {
            functions,
            variables,
            places: HashMap::new(),
            pools: Default::default(),
            summary: Summary::default(),
            changed: false,
            settled: false,
        }
    }

    /// The summary of a kernel.
    pub fn kernel(mut self, kernel: &'m Function) -> Summary {
        for (index, param) in kernel.params.iter().enumerate() {
            let address = Provenance {
                param_addresses: BTreeSet::from([index]),
                ..Provenance::default()
            };
            self.places
                .insert((kernel.name.clone(), param.name.clone()), address);
        }
        loop {
            self.changed = false;
            let mut seen = BTreeSet::from([&*kernel.name]);
            let mut queue = vec![kernel];
            while let Some(function) = queue.pop() {
                let mut calls = Vec::new();
                self.statements(
                    function,
                    function.body.as_deref().unwrap_or_default(),
                    &mut calls,
                );
                for callee in calls {
                    if let Some(callee) = self.functions.get(&*callee)
                        && seen.insert(&callee.name)
                    {
                        queue.push(callee);
                    }
                }
            }
            if self.settled {
                return self.summary;
            }
            self.settled = !self.changed;
        }
    }

    fn statements(&mut self, function: &Function, body: &[Statement], calls: &mut Vec<Name>) {
        for statement in body {
            match statement {
                Statement::Block(inner) => self.statements(function, inner, calls),
                Statement::Instruction(instruction) => {
                    self.instruction(function, instruction, calls)
                }
                Statement::Variable(v) if matches!(v.space, Space::Local | Space::Shared) => {
                    self.define(function, &v.name, Provenance::private());
                }
                _ => {}
            }
        }
    }

    fn instruction(&mut self, function: &Function, i: &Instruction, calls: &mut Vec<Name>) {
        let opcode = &*i.opcode;
        match opcode {
            "ld" | "ldu" => self.load(function, i),
            "st" => self.store(function, i),
            "atom" | "red" => self.atomic(function, i),
            "cp" => self.copy(function, i),
            "discard" => self.discard(function, i),
            "call" => self.call(function, i, calls),
            _ if SILENT.contains(&opcode) => {}
            _ if UNREAD.contains(&opcode)
                || opcode.starts_with("wmma") && (has(i, "load") || has(i, "store")) =>
            {
                self.opaque();
            }
            _ => self.arithmetic(function, i),
        }
    }

    /// The result comes from all sources. Products are no addresses, and parts can be put together.
    fn arithmetic(&mut self, function: &Function, i: &Instruction) {
        let mut result = Provenance::default();
        for (at, operand) in i.operands.iter().enumerate().skip(1) {
            let mut source = self.value(function, operand);
            let factor = match &*i.opcode {
                "mul" | "mul24" | "shl" | "div" | "rem" => true,
                "mad" | "mad24" => at < 3,
                _ => false,
            };
            if factor {
                source = source.narrowed();
            } else if matches!(operand, Operand::Vector(_)) {
                source = source.packed();
            }
            result.join(&source);
        }
        if &*i.opcode == "ldmatrix" {
            result.join(&self.pools[1].clone().narrowed());
        }
        if let Some(target) = i.operands.first() {
            self.assign(function, target, &result);
        }
    }

    fn load(&mut self, function: &Function, i: &Instruction) {
        let (Some(target), Some(address)) = (i.operands.first(), i.operands.get(1)) else {
            return;
        };
        let base = self.value(function, address);
        let mut result = Provenance::default();
        if has(i, "param") || has(i, "param::entry") || has(i, "param::func") {
            return self.load_parameter(function, i, target, address, &base);
        } else if has(i, "shared") || has(i, "shared::cta") || has(i, "shared::cluster") {
            result = self.pools[1].clone();
        } else if has(i, "local") {
            result = self.pools[0].clone();
        } else {
            if base.private || !base.param_addresses.is_empty() {
                // A generic address may be local, shared or a parameter's.
                result.join(&self.pools[0].clone());
                result.join(&self.pools[1].clone());
                result.join(&self.any_slot(&base));
            }
            self.access(&base, true, false);
            result.loaded |= reaches_global(&base);
        }
        if element_bytes(i) < 8 {
            result = result.narrowed();
        }
        self.assign(function, target, &result);
    }

    /// `ld.param`: each element of a vector comes from its own place.
    fn load_parameter(
        &mut self,
        function: &Function,
        i: &Instruction,
        target: &Operand,
        address: &Operand,
        base: &Provenance,
    ) {
        let bytes = element_bytes(i);
        let targets = match target {
            Operand::Vector(items) => items.as_slice(),
            one => std::slice::from_ref(one),
        };
        for (nth, target) in targets.iter().enumerate() {
            let first = nth as i64 * i64::from(bytes);
            // A part of 16 bytes may be either pointer in it.
            for at in (first..first + i64::from(bytes.max(1))).step_by(8) {
                let mut value = self.parameter(function, address, at, base);
                if bytes < 8 {
                    value = value.narrowed();
                }
                self.assign(function, target, &value);
            }
        }
    }

    fn store(&mut self, function: &Function, i: &Instruction) {
        let (Some(address), Some(value)) = (i.operands.first(), i.operands.get(1)) else {
            return;
        };
        let value = self.value(function, value);
        if has(i, "param") {
            // An argument of a call that follows, or a return value.
            if let Operand::Address {
                base: Some(name), ..
            } = address
            {
                self.define(function, name, value);
            }
            return;
        }
        let base = self.value(function, address);
        let explicit = [has(i, "local"), has(i, "shared") || has(i, "shared::cta")];
        for (pool, explicit) in explicit.into_iter().enumerate() {
            let generic = base.private && !has(i, "global");
            if explicit || generic {
                self.changed |= self.pools[pool].join(&value);
            }
        }
        if explicit == [false, false] {
            self.access(&base, false, true);
        }
    }

    fn atomic(&mut self, function: &Function, i: &Instruction) {
        let at = i
            .operands
            .iter()
            .position(|o| matches!(o, Operand::Address { .. }));
        let Some(at) = at else { return self.opaque() };
        let base = self.value(function, &i.operands[at]);
        let shared = has(i, "shared") || has(i, "shared::cta");
        let mut result = if shared || base.private {
            self.pools[1].clone()
        } else {
            Provenance::default()
        };
        for operand in &i.operands[at + 1..] {
            let value = self.value(function, operand);
            if shared || base.private {
                self.changed |= self.pools[1].join(&value);
            }
        }
        if !shared {
            self.access(&base, true, true);
            result.loaded |= reaches_global(&base);
        }
        if element_bytes(i) < 8 {
            result = result.narrowed();
        }
        if at > 0 {
            self.assign(function, &i.operands[0], &result);
        }
    }

    /// What is discarded has no defined content any more: as good as a store.
    fn discard(&mut self, function: &Function, i: &Instruction) {
        let Some(address) = i.operands.first() else {
            return self.opaque();
        };
        let base = self.value(function, address);
        self.access(&base, false, true);
    }

    /// `cp.async`: from global to shared. Bulk and tensor forms are not followed.
    fn copy(&mut self, function: &Function, i: &Instruction) {
        if !has(i, "async") || has(i, "bulk") {
            return self.opaque();
        }
        if let Some(source) = i.operands.get(1) {
            let base = self.value(function, source);
            self.access(&base, true, false);
            self.changed |= self.pools[1].join(&Provenance::loaded());
        }
    }

    /// `call (results), callee, (arguments) [, prototype]`, results and arguments being optional.
    fn call(&mut self, function: &Function, i: &Instruction, calls: &mut Vec<Name>) {
        let at = i
            .operands
            .iter()
            .position(|o| matches!(o, Operand::Name(_)));
        let Some(Operand::Name(callee)) = at.map(|at| &i.operands[at]) else {
            return self.opaque();
        };
        let list = |operand: Option<&Operand>| match operand {
            Some(Operand::List(items)) => items.clone(),
            _ => Vec::new(),
        };
        let results = if at == Some(0) {
            Vec::new()
        } else {
            list(i.operands.first())
        };
        let arguments = list(at.and_then(|at| i.operands.get(at + 1)));
        let Some(&target) = self.functions.get(&**callee) else {
            if &**callee != "malloc" && !HARMLESS.contains(&&**callee) {
                self.opaque();
            }
            for result in &results {
                self.assign(function, result, &Provenance::loaded());
            }
            return;
        };
        calls.push(callee.clone());
        for (formal, actual) in target.params.iter().zip(&arguments) {
            let value = self.value(function, actual);
            self.define(target, &formal.name, value);
        }
        for (formal, result) in target.returns.iter().zip(&results) {
            let value = self.lookup(target, &formal.name);
            self.assign(function, result, &value);
        }
    }

    /// What `ld.param` gives `more` bytes after its address: a slot of a kernel parameter, or a formal's
    /// provenance.
    fn parameter(
        &self,
        function: &Function,
        address: &Operand,
        more: i64,
        base: &Provenance,
    ) -> Provenance {
        let Operand::Address {
            base: Some(name),
            offset,
            ..
        } = address
        else {
            return self.any_slot(base);
        };
        let index = function.params.iter().position(|p| p.name == *name);
        match index {
            Some(param) if function.entry => {
                let offset = u32::try_from(offset.saturating_add(more)).ok();
                Provenance::param(ParamSlot { param, offset })
            }
            // A formal, a call's result, or a register that holds a parameter's address.
            _ => {
                let mut value = self.any_slot(base);
                value.join(base);
                value.param_addresses.clear();
                value
            }
        }
    }

    /// Any slot of the parameters whose addresses `base` may hold.
    fn any_slot(&self, base: &Provenance) -> Provenance {
        let slots = base.param_addresses.iter().map(|&param| ParamSlot {
            param,
            offset: None,
        });
        Provenance {
            params: slots.collect(),
            ..Provenance::default()
        }
    }

    fn access(&mut self, base: &Provenance, read: bool, write: bool) {
        if !self.settled {
            return;
        }
        let whole = base.has_address();
        let packed;
        let base = if whole {
            base
        } else {
            packed = base.clone().packed();
            &packed
        };
        let chosen = [
            (read, &mut self.summary.reads),
            (write, &mut self.summary.writes),
        ];
        for (wanted, roots) in chosen {
            if !wanted {
                continue;
            }
            roots.params.extend(&base.params);
            roots.symbols.extend(base.symbols.iter().cloned());
            // An address that comes from nowhere we know is as unknown as a loaded one.
            roots.loaded |= base.loaded || !base.has_address();
        }
    }

    fn opaque(&mut self) {
        self.changed |= !std::mem::replace(&mut self.summary.opaque, true);
    }

    fn lookup(&self, function: &Function, name: &Name) -> Provenance {
        match self.places.get(&(function.name.clone(), name.clone())) {
            Some(value) => value.clone(),
            None => match self.variables.get(name) {
                Some(Space::Global | Space::Const) => Provenance::symbol(name),
                Some(_) => Provenance::private(),
                None => Provenance::default(),
            },
        }
    }

    fn value(&self, function: &Function, operand: &Operand) -> Provenance {
        match operand {
            Operand::Name(name)
            | Operand::Field(name, _)
            | Operand::Not(name)
            | Operand::Offset(name, _) => self.lookup(function, name),
            Operand::Address {
                base: Some(name), ..
            } => self.lookup(function, name),
            Operand::Vector(items) | Operand::List(items) => {
                items.iter().fold(Provenance::default(), |mut all, item| {
                    all.join(&self.value(function, item));
                    all
                })
            }
            Operand::Pair(a, b) => {
                let mut both = self.value(function, a);
                both.join(&self.value(function, b));
                both
            }
            Operand::Address { base: None, .. }
            | Operand::Int(_)
            | Operand::F32(_)
            | Operand::F64(_) => Provenance::default(),
        }
    }

    fn assign(&mut self, function: &Function, target: &Operand, value: &Provenance) {
        match target {
            Operand::Name(name) | Operand::Field(name, _) => {
                self.define(function, name, value.clone())
            }
            Operand::Vector(items) | Operand::List(items) => {
                items
                    .iter()
                    .for_each(|item| self.assign(function, item, value));
            }
            Operand::Pair(a, b) => {
                self.assign(function, a, value);
                self.assign(function, b, value);
            }
            _ => {}
        }
    }

    fn define(&mut self, function: &Function, name: &Name, value: Provenance) {
        let place = self
            .places
            .entry((function.name.clone(), name.clone()))
            .or_default();
        self.changed |= place.join(&value);
    }
}

fn has(instruction: &Instruction, modifier: &str) -> bool {
    instruction.modifiers.iter().any(|m| &**m == modifier)
}

/// Whether a generic access through this base may go to global memory.
fn reaches_global(base: &Provenance) -> bool {
    let halves = !base.has_address() && (!base.halves.is_empty() || base.index);
    !base.params.is_empty() || !base.symbols.is_empty() || base.loaded || halves
}

/// Bytes of one element that a load or an atomic operation gives; 8 if the text does not say.
fn element_bytes(i: &Instruction) -> u32 {
    let ty = i.modifiers.iter().rev().find_map(|m| Type::from_name(m));
    ty.map_or(8, Type::bytes)
}
