//! Binds a module's variables to those of another module: the text of an instrumented module then works on the variables
//! of the module that it stands in for.
//!
//! ```text
//!  mov.u64 %rd1, total;              ──► mov.u64 %rd1, 139637976727552;
//!  ld.const.f32 %f1, [table+8];      ──► { mov.u64 %b, 139637976728576; ld.global.f32 %f1, [%b+8]; }
//!  .global .u32 total; .const …      ──► gone
//! ```
//! Constants are read through their addresses in global memory, where the driver keeps them too.

use std::collections::{HashMap, HashSet};

use super::PassError;
use super::check::statements;
use super::reach::{Made, Troubles, reduce};
use crate::ast::{
    Function, Init, Instruction, Item, Linkage, Module, Name, Operand, Space, Statement, Type,
    Variable,
};

/// The register that holds the address of a variable for one instruction.
const REGISTER: &str = "%fermata_b";

/// How a module variable is dealt with.
enum Fate {
    /// It lies there.
    Bound(u64),
    /// Nobody else can name or change it, so a copy is as good.
    Kept,
    /// Kernels that use it are refused.
    Refused(&'static str),
}

/// Binds each variable in global and constant memory to the address that `address_of` gives for its name.
/// Kernels that use others are left out and named.
pub fn bind(module: Module, address_of: &dyn Fn(&str) -> Option<u64>) -> Made {
    let mut fates: HashMap<Name, Fate> = HashMap::new();
    for item in &module.items {
        if let Item::Variable(v) = item
            && matches!(v.space, Space::Global | Space::Const)
        {
            fates.insert(v.name.clone(), fate(v, address_of(&v.name)));
        }
    }
    let (mut troubles, mut items) = (Troubles::new(), Vec::new());
    for item in module.items {
        match item {
            Item::Variable(v)
                if !fates
                    .get(&v.name)
                    .is_none_or(|fate| matches!(fate, Fate::Kept)) => {}
            Item::Function(mut f) => {
                if let Err(error) = (Binder::new(&f, &fates)).function(&mut f) {
                    troubles.insert(f.name.clone(), error);
                }
                items.push(Item::Function(f));
            }
            other => items.push(other),
        }
    }
    let bound = Module { items, ..module };
    reduce(bound, &|_| true, troubles)
}

fn fate(v: &Variable, address: Option<u64>) -> Fate {
    if matches!(v.ty, Type::Texref | Type::Samplerref | Type::Surfref) {
        return Fate::Refused("is a texture, sampler or surface");
    }
    match address {
        Some(address) => Fate::Bound(address),
        None if is_text(v) => Fate::Kept,
        None => Fate::Refused("is not known to the driver"),
    }
}

/// Strings of the source: bytes with a value, named by the compiler, which the host has no name for.
fn is_text(v: &Variable) -> bool {
    let bytes = matches!(v.ty, Type::B8 | Type::U8 | Type::S8);
    let plain = match &v.init {
        Some(Init::List(list)) => list.iter().all(
            |it| matches!(it, Init::Value(value) if matches!(value, crate::ast::Constant::Int(_))),
        ),
        _ => false,
    };
    bytes && plain && v.linkage == Linkage::Local && v.space == Space::Global
}

struct Binder<'b> {
    fates: &'b HashMap<Name, Fate>,
    /// Names that mean something else in this function.
    own: HashSet<Name>,
    function: Name,
}

impl<'b> Binder<'b> {
    fn new(function: &Function, fates: &'b HashMap<Name, Fate>) -> Self {
        let mut own: HashSet<Name> = HashSet::new();
        own.extend(function.params.iter().map(|v| v.name.clone()));
        own.extend(function.returns.iter().map(|v| v.name.clone()));
        declared(function.body.as_deref().unwrap_or_default(), &mut own);
        Self {
            fates,
            own,
            function: function.name.clone(),
        }
    }

    fn function(&self, function: &mut Function) -> Result<(), PassError> {
        if let Some(body) = &function.body {
            function.body = Some(self.body(body.clone())?);
        }
        Ok(())
    }

    fn body(&self, body: Vec<Statement>) -> Result<Vec<Statement>, PassError> {
        body.into_iter()
            .map(|statement| match statement {
                Statement::Block(inner) => Ok(Statement::Block(self.body(inner)?)),
                Statement::Instruction(i) => self.instruction(i),
                other => Ok(other),
            })
            .collect()
    }

    /// The address of a variable, if `name` is one.
    fn address(&self, name: &Name) -> Result<Option<u64>, PassError> {
        if self.own.contains(name) {
            return Ok(None);
        }
        match self.fates.get(name) {
            None | Some(Fate::Kept) => Ok(None),
            Some(Fate::Bound(address)) => Ok(Some(*address)),
            Some(Fate::Refused(why)) => Err(PassError::Variable {
                function: self.function.to_string(),
                variable: name.to_string(),
                why,
            }),
        }
    }

    fn is_variable(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Name(name) => !matches!(self.address(name), Ok(None)),
            _ => false,
        }
    }

    fn instruction(&self, mut i: Instruction) -> Result<Statement, PassError> {
        let constant = i.modifiers.iter().any(|m| &**m == "const");
        if constant {
            self.leave_constant_space(&mut i)?;
        }
        let (mut found, mut in_list) = (None, false);
        for operand in &mut i.operands {
            match operand {
                Operand::Name(name) => {
                    if let Some(address) = self.address(name)? {
                        found = Some((address, name.clone()));
                        *operand = Operand::Name(REGISTER.into());
                    }
                }
                Operand::Offset(name, offset) => {
                    if let Some(address) = self.address(name)? {
                        let address = address.wrapping_add_signed(*offset);
                        found = Some((address, name.clone()));
                        *operand = Operand::Name(REGISTER.into());
                    }
                }
                Operand::Address {
                    base: Some(name),
                    rest,
                    ..
                } => {
                    if let Some(address) = self.address(name)? {
                        found = Some((address, name.clone()));
                        *name = REGISTER.into();
                        in_list |= !rest.is_empty();
                    }
                }
                Operand::Vector(items) | Operand::List(items) => {
                    in_list |= items.iter().any(|item| self.is_variable(item));
                }
                _ => {}
            }
        }
        let Some((address, name)) = found else {
            return match in_list {
                false => Ok(Statement::Instruction(i)),
                true => Err(self.refuse(&"of a list".into(), "stands in a list of operands")),
            };
        };
        if in_list {
            return Err(self.refuse(&name, "stands in a list of operands"));
        }
        if matches!(&*i.opcode, "mov" | "cvta") {
            // The value is the address, whatever the space was called.
            i.opcode = "mov".into();
            i.modifiers = vec!["u64".into()];
            i.operands.truncate(1);
            i.operands.push(Operand::Int(address as i64));
            return Ok(Statement::Instruction(i));
        }
        let text = format!(
            ".reg .b64 {REGISTER}; mov.u64 {REGISTER}, {};",
            address as i64
        );
        let mut block = statements(&text);
        block.push(Statement::Instruction(i));
        Ok(Statement::Block(block))
    }

    /// Constants lie in global memory now.
    fn leave_constant_space(&self, i: &mut Instruction) -> Result<(), PassError> {
        match &*i.opcode {
            "ld" | "ldu" => {
                for m in i.modifiers.iter_mut().filter(|m| &***m == "const") {
                    *m = "global".into();
                }
                Ok(())
            }
            "cvta" => {
                i.opcode = "mov".into();
                i.modifiers = vec!["u64".into()];
                Ok(())
            }
            _ => Err(self.refuse(&i.opcode, "works on the constant space as such")),
        }
    }

    fn refuse(&self, variable: &Name, why: &'static str) -> PassError {
        PassError::Variable {
            function: self.function.to_string(),
            variable: variable.to_string(),
            why,
        }
    }
}

fn declared(body: &[Statement], own: &mut HashSet<Name>) {
    for statement in body {
        match statement {
            Statement::Variable(v) => {
                own.insert(v.name.clone());
            }
            Statement::Label(name) => {
                own.insert(name.clone());
            }
            Statement::Block(inner) => declared(inner, own),
            _ => {}
        }
    }
}
