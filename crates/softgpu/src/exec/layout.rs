//! The layout of kernel parameters, shared variables, and module variables with their initial bytes.
//!
//! Shared memory of a kernel: `[common variables][its own variables][dynamic]`. The common part holds
//! the module's shared variables and those of device functions at offsets that are the same for all
//! kernels, so that a function is compiled once; a kernel that can reach none of them has no such part.

use std::collections::{HashMap, HashSet};

use fermata_ptx::ast::{
    Constant, Function, Init, Instruction, Item, Linkage, Module, Name, Operand, Space, Statement,
    Type, Variable,
};

use super::descriptor::{self, FUNCTIONS};
use super::{GlobalVar, KernelInfo, LoadError, ParamInfo, Referent, Relocation, VarSpace};

/// The largest variable that is accepted, bytes.
const MAX_BYTES: u64 = 1 << 33;
/// The largest initialised variable that is accepted, bytes.
const MAX_INIT: u64 = 1 << 31;

/// Everything about a module that does not depend on where its variables are placed.
pub(super) struct Layout {
    /// Functions with a body.
    pub functions: HashMap<Name, usize>,
    /// `.alias`, and the functions it stands for.
    pub aliases: HashMap<Name, Name>,
    /// Per kernel.
    pub kernels: Vec<KernelInfo>,
    /// Per variable that the driver part places.
    pub variables: Vec<GlobalVar>,
    /// `.extern` variables, placed elsewhere.
    pub externs: Vec<Name>,
    /// Offset and bytes of the module's shared variables.
    pub shared: HashMap<Name, (u32, u64)>,
    /// Likewise of those that a function declares, in order of declaration: several scopes may use one name.
    pub own_shared: HashMap<Name, Vec<(u32, u64)>>,
    /// References among the placed variables.
    pub references: HashMap<Name, Referent>,
    /// Bytes of each placed variable, by name.
    pub variable_sizes: HashMap<String, u64>,
    /// Device functions whose address is stored in a variable or moved to a register.
    pub address_taken: HashSet<Name>,
    /// Shared arrays whose size the launch gives.
    pub dynamic: HashSet<Name>,
}

/// Calls `visit` for every statement of a body, inner scopes included.
pub(super) fn walk<'a>(body: &'a [Statement], visit: &mut dyn FnMut(&'a Statement)) {
    for statement in body {
        visit(statement);
        if let Statement::Block(inner) = statement {
            walk(inner, visit);
        }
    }
}

/// Every name that an instruction's operands mention.
pub(super) fn names<'a>(instruction: &'a Instruction, visit: &mut dyn FnMut(&'a Name)) {
    fn operand<'a>(o: &'a Operand, visit: &mut dyn FnMut(&'a Name)) {
        match o {
            Operand::Name(n) | Operand::Field(n, _) | Operand::Not(n) | Operand::Offset(n, _) => {
                visit(n)
            }
            Operand::Pair(a, b) => {
                operand(a, visit);
                operand(b, visit);
            }
            Operand::Address { base, rest, .. } => {
                base.iter().for_each(&mut *visit);
                rest.iter().for_each(|o| operand(o, visit));
            }
            Operand::Vector(list) | Operand::List(list) => {
                list.iter().for_each(|o| operand(o, visit))
            }
            Operand::Int(_) | Operand::F32(_) | Operand::F64(_) => {}
        }
    }
    instruction.operands.iter().for_each(|o| operand(o, visit));
}

impl Layout {
    /// Lays out `module`.
    ///
    /// # Errors
    /// Variables that overflow, and initialisers that are not understood.
    pub fn new(module: &Module) -> Result<Self, LoadError> {
        let mut layout = Self {
            functions: HashMap::new(),
            aliases: HashMap::new(),
            kernels: Vec::new(),
            variables: Vec::new(),
            externs: Vec::new(),
            shared: HashMap::new(),
            own_shared: HashMap::new(),
            references: HashMap::new(),
            variable_sizes: HashMap::new(),
            address_taken: HashSet::new(),
            dynamic: HashSet::new(),
        };
        let mut common = 0u64;
        for (index, item) in module.items.iter().enumerate() {
            match item {
                Item::Alias { alias, target } => {
                    layout.aliases.insert(alias.clone(), target.clone());
                }
                Item::Function(f) => {
                    if f.body.is_some() {
                        layout.functions.insert(f.name.clone(), index);
                    }
                }
                Item::Variable(v) => layout.module_variable(v, &mut common)?,
            }
        }
        let functions: Vec<&Function> = module
            .items
            .iter()
            .filter_map(|i| match i {
                Item::Function(f) if f.body.is_some() => Some(f),
                _ => None,
            })
            .collect();
        for function in functions.iter().filter(|f| !f.entry) {
            layout.own_shared(function, &mut common)?;
        }
        layout.take_addresses(module.items.len(), &functions);
        let reach = layout.reach(&functions);
        let consts = layout
            .variables
            .iter()
            .filter(|v| v.space == VarSpace::Const)
            .map(|v| v.size)
            .sum::<usize>();
        let target = module
            .targets
            .first()
            .and_then(|t| target_number(t))
            .unwrap_or(0);
        for kernel in functions.iter().filter(|f| f.entry) {
            let mut shared = if reach.contains(&kernel.name) {
                common
            } else {
                0
            };
            layout.own_shared(kernel, &mut shared)?;
            let version = module.version.0 * 10 + module.version.1;
            let info = kernel_info(kernel, shared as u32, consts as u32, target, version)?;
            layout.kernels.push(info);
        }
        Ok(layout)
    }

    fn module_variable(&mut self, v: &Variable, common: &mut u64) -> Result<(), LoadError> {
        match v.space {
            Space::Shared if v.linkage == Linkage::Extern || v.bytes(0) == Some(0) => {
                self.dynamic.insert(v.name.clone());
            }
            Space::Shared => {
                let offset = reserve(v, common)?;
                self.shared.insert(v.name.clone(), (offset, size_of(v)?));
            }
            Space::Global | Space::Const if v.linkage == Linkage::Extern => {
                self.externs.push(v.name.clone())
            }
            Space::Global | Space::Const => {
                let variable = global(v)?;
                if let Some(reference) = variable.reference {
                    self.references.insert(v.name.clone(), reference);
                }
                self.variable_sizes
                    .insert(variable.name.clone(), variable.size as u64);
                self.variables.push(variable);
            }
            _ => return Err(unsupported(v, "a variable of this space at module level")),
        }
        Ok(())
    }

    fn own_shared(&mut self, f: &Function, used: &mut u64) -> Result<(), LoadError> {
        let mut result = Ok(());
        let mut places = Vec::new();
        walk(f.body.as_deref().unwrap_or_default(), &mut |s| {
            if let Statement::Variable(v) = s
                && v.space == Space::Shared
                && result.is_ok()
            {
                if v.linkage == Linkage::Extern || v.bytes(0) == Some(0) {
                    self.dynamic.insert(v.name.clone());
                } else {
                    result = reserve(v, used).and_then(|offset| {
                        places.push((offset, size_of(v)?));
                        Ok(())
                    });
                }
            }
        });
        self.own_shared.insert(f.name.clone(), places);
        result
    }

    fn take_addresses(&mut self, items: usize, functions: &[&Function]) {
        let mut taken = HashSet::new();
        let mut take = |name: &str| {
            let name = self.aliases.get(name).map_or(name, |n| &**n);
            if let Some((name, _)) = self.functions.get_key_value(name) {
                taken.insert(name.clone());
            }
        };
        self.variables
            .iter()
            .flat_map(|v| &v.relocations)
            .for_each(|r| take(&r.symbol));
        for function in functions {
            walk(function.body.as_deref().unwrap_or_default(), &mut |s| {
                if let Statement::Instruction(i) = s
                    && &*i.opcode != "call"
                {
                    names(i, &mut |n| take(n));
                }
            });
        }
        if !taken.is_empty() {
            // The last of the variables, so that it moves none of them.
            self.variables.push(GlobalVar {
                name: FUNCTIONS.to_owned(),
                space: VarSpace::Global,
                size: items * descriptor::SIZE as usize,
                align: descriptor::SIZE as usize,
                init: Vec::new(),
                relocations: Vec::new(),
                managed: false,
                reference: None,
            });
        }
        self.address_taken = taken;
    }

    /// Kernels that can reach a common shared variable. One that calls through a pointer may reach all.
    fn reach(&self, functions: &[&Function]) -> HashSet<Name> {
        let mut touches: HashSet<Name> = HashSet::new();
        let mut callers: HashMap<Name, Vec<Name>> = HashMap::new();
        for f in functions {
            walk(f.body.as_deref().unwrap_or_default(), &mut |s| match s {
                Statement::Instruction(i) => {
                    names(i, &mut |n| {
                        if self.shared.contains_key(n) {
                            touches.insert(f.name.clone());
                        } else if self.functions.contains_key(n) || self.aliases.contains_key(n) {
                            let callee = self.aliases.get(n).unwrap_or(n).clone();
                            callers.entry(callee).or_default().push(f.name.clone());
                        }
                    });
                    // The prototype is a call's last operand: the callee is unknown.
                    if &*i.opcode == "call"
                        && matches!(i.operands.last(), Some(Operand::Name(n)) if !self.functions.contains_key(n))
                        && i.operands.len() > 1
                    {
                        touches.insert(f.name.clone());
                    }
                }
                Statement::Variable(v) if v.space == Space::Shared && !f.entry => {
                    touches.insert(f.name.clone());
                }
                _ => {}
            });
        }
        let mut todo: Vec<Name> = touches.iter().cloned().collect();
        while let Some(name) = todo.pop() {
            for caller in callers.remove(&name).unwrap_or_default() {
                if touches.insert(caller.clone()) {
                    todo.push(caller);
                }
            }
        }
        touches
    }
}

fn target_number(name: &str) -> Option<u32> {
    let digits: String = name
        .strip_prefix("sm_")?
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn unsupported(v: &Variable, what: &str) -> LoadError {
    LoadError::Unsupported {
        line: v.line,
        function: v.name.to_string(),
        instruction: what.to_owned(),
    }
}

/// Bytes of a variable, within bounds.
pub(super) fn size_of(v: &Variable) -> Result<u64, LoadError> {
    v.bytes(0)
        .filter(|&n| n <= MAX_BYTES)
        .ok_or_else(|| unsupported(v, "a variable of this size"))
}

/// Takes room for `v` at the end of `used`.
pub(super) fn reserve(v: &Variable, used: &mut u64) -> Result<u32, LoadError> {
    let offset = used.next_multiple_of(u64::from(v.alignment()));
    *used = offset + size_of(v)?;
    u32::try_from(offset)
        .ok()
        .filter(|_| *used <= u64::from(u32::MAX))
        .ok_or_else(|| unsupported(v, "shared, local or parameter memory of this size"))
}

fn kernel_info(
    f: &Function,
    shared: u32,
    consts: u32,
    target: u32,
    version: u32,
) -> Result<KernelInfo, LoadError> {
    let mut used = 0u64;
    let mut params = Vec::new();
    for p in &f.params {
        let offset = reserve(p, &mut used)? as usize;
        params.push(ParamInfo {
            offset,
            size: size_of(p)? as usize,
        });
    }
    let (mut local, mut registers) = (0u64, 0u64);
    let mut failed = None;
    walk(f.body.as_deref().unwrap_or_default(), &mut |s| match s {
        Statement::Variable(v) if v.space == Space::Local => {
            failed = reserve(v, &mut local).err();
        }
        Statement::Variable(v) if v.space == Space::Reg && v.ty != Type::Pred => {
            registers += u64::from(v.count.unwrap_or(1)) * u64::from(v.ty.bytes().div_ceil(4));
        }
        _ => {}
    });
    if let Some(error) = failed {
        return Err(error);
    }
    let tuned = |word: &str| f.tuning.iter().find(|(w, _)| &**w == word).map(|(_, n)| n);
    let threads = tuned("reqntid")
        .or(tuned("maxntid"))
        .map(|n| n.iter().fold(1u32, |a, &b| a.saturating_mul(b)));
    Ok(KernelInfo {
        name: f.name.to_string(),
        params,
        param_bytes: used as usize,
        static_shared: shared,
        local_bytes: local as u32,
        const_bytes: consts,
        // Virtual registers are not reused: a quarter of them is nearer to what a GPU would need. More
        // than 64 would forbid blocks of 1024 threads, which this GPU can run.
        registers: (16 + registers / 4).min(64) as u32,
        max_threads: threads.unwrap_or(1024).clamp(1, 1024),
        target,
        ptx_version: version,
        refused: None,
    })
}

/// A module variable with its initial bytes.
fn global(v: &Variable) -> Result<GlobalVar, LoadError> {
    let unsized_len = match &v.init {
        Some(Init::List(list)) => list.len() as u64,
        _ => 0,
    };
    let size = v
        .bytes(unsized_len)
        .filter(|&n| n <= MAX_BYTES)
        .ok_or_else(|| unsupported(v, "a variable of this size"))?;
    if v.init.is_some() && size > MAX_INIT {
        return Err(unsupported(v, "an initialised variable of this size"));
    }
    let mut out = GlobalVar {
        name: v.name.to_string(),
        space: if v.space == Space::Const {
            VarSpace::Const
        } else {
            VarSpace::Global
        },
        size: size as usize,
        align: v.alignment() as usize,
        init: Vec::new(),
        relocations: Vec::new(),
        managed: v.managed,
        reference: match v.ty {
            Type::Texref => Some(Referent::Texture),
            Type::Surfref => Some(Referent::Surface),
            Type::Samplerref => Some(Referent::Sampler),
            _ => None,
        },
    };
    if out.reference.is_some() && v.init.is_some() {
        return Err(unsupported(
            v,
            "initial values of a texture, sampler or surface",
        ));
    }
    if let Some(init) = &v.init {
        out.init = vec![0; size as usize];
        let mut dims: Vec<u64> = v.dims.iter().map(|d| d.unwrap_or(unsized_len)).collect();
        if v.vector > 1 {
            dims.push(u64::from(v.vector));
        }
        fill(v, &mut out, init, &dims, 0)?;
        if let Some(bad) = out.relocations.iter().find(|r| !matches!(r.size, 4 | 8)) {
            return Err(unsupported(
                v,
                &format!("{} bytes of the address of `{}`", bad.size, bad.symbol),
            ));
        }
    } else {
        out.init = vec![0; size as usize];
    }
    Ok(out)
}

/// Writes `init` from element `index` on.
fn fill(
    v: &Variable,
    out: &mut GlobalVar,
    init: &Init,
    dims: &[u64],
    index: u64,
) -> Result<(), LoadError> {
    match init {
        Init::Value(value) => element(v, out, value, index),
        Init::List(list) => {
            let inner: u64 = dims.get(1..).unwrap_or_default().iter().product();
            let flat = list.iter().all(|i| matches!(i, Init::Value(_)));
            for (i, item) in list.iter().enumerate() {
                let step = if flat { 1 } else { inner.max(1) };
                fill(
                    v,
                    out,
                    item,
                    dims.get(1..).unwrap_or_default(),
                    index + i as u64 * step,
                )?;
            }
            Ok(())
        }
    }
}

fn element(
    v: &Variable,
    out: &mut GlobalVar,
    value: &Constant,
    index: u64,
) -> Result<(), LoadError> {
    let width = v.ty.bytes() as usize;
    let at = usize::try_from(index)
        .ok()
        .and_then(|i| i.checked_mul(width))
        .filter(|at| at + width <= out.init.len());
    let Some(at) = at else {
        return Err(unsupported(v, "more initial values than elements"));
    };
    let bits: u64 = match (value, v.ty) {
        (Constant::Int(n), Type::F32) => u64::from((*n as f32).to_bits()),
        (Constant::Int(n), Type::F64) => (*n as f64).to_bits(),
        (Constant::Int(n), _) => *n as u64,
        (Constant::F32(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
        (Constant::F32(bits), _) => u64::from(*bits),
        (Constant::F64(bits), Type::F32) => u64::from((f64::from_bits(*bits) as f32).to_bits()),
        (Constant::F64(bits), _) => *bits,
        (
            Constant::Symbol {
                name, addend, mask, ..
            },
            _,
        ) => {
            let shift = mask.map_or(0, |m| m.trailing_zeros() as usize / 8);
            let last = out.relocations.last_mut();
            match last.filter(|r| {
                shift > 0 && *r.symbol == **name && r.offset + r.size == at && r.size == shift
            }) {
                Some(open) => open.size += width,
                None if shift == 0 => out.relocations.push(Relocation {
                    offset: at,
                    size: width,
                    symbol: name.to_string(),
                    addend: *addend,
                }),
                None => return Err(unsupported(v, "a part of an address")),
            }
            return Ok(());
        }
    };
    let bytes = u128::from(bits).to_le_bytes();
    out.init[at..at + width].copy_from_slice(&bytes[..width]);
    Ok(())
}
