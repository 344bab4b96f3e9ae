//! PTX to Cranelift IR, one function at a time, in scalar per-thread form.
//!
//! A compiled function takes the thread's context and the addresses of its return and call parameters.
//! Registers become variables of the frontend, which makes SSA form of them. Everything a function
//! keeps in memory (`.local` variables, parameters of the calls it makes) is one frame on the thread's
//! local memory. Translation is also the check at load time: what it cannot translate is refused.

mod atomic;
mod bits;
mod collective;
mod compare;
mod control;
mod convert;
mod copy;
mod float;
mod half;
mod integer;
mod mbarrier;
mod memory;
mod modifiers;
mod operand;
mod scope;
mod special;
mod texture;
mod video;
mod vote;

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    self, AbiParam, Block, InstBuilder, MemFlagsData, Signature, TrapCode, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};
use fermata_ptx::ast::{Function, Instruction, Module, Name, Space, Statement};

use self::modifiers::Modifiers;
use self::scope::{Place, Scope};
use super::LoadError;
use super::layout::{Layout, reserve, size_of, walk};
use super::runtime::context::{DeviceThread, FUEL};
use super::runtime::helpers;

/// Why an instruction was not translated.
#[derive(Debug)]
pub enum Refused {
    /// It, or one of its modifiers or operands, is not executed here.
    Unsupported,
    /// As before, and there is a name for what is missing.
    Missing(String),
    /// It names something unknown.
    Undefined(Name),
}

/// Outcome of a step of translation.
pub type Step<T = ()> = Result<T, Refused>;

/// What translation needs to know of the module.
pub struct Unit<'a> {
    /// The syntax tree.
    pub ast: &'a Module,
    /// Where things lie.
    pub layout: &'a Layout,
    /// Address of a placed variable.
    pub address: &'a dyn Fn(&str) -> Option<u64>,
    /// Address of the first function descriptor; see [`descriptor`].
    pub descriptors: u64,
    /// What kernels see as the address of that: where the module has [`FUNCTIONS`], in device memory, so that it
    /// is the same in a later process. There is nothing.
    pub functions: u64,
    /// Target of the generated code.
    pub target: TargetFrontendConfig,
}

/// A function as code refers to it: address of the compiled code (0 if not compiled), and its shape.
pub mod descriptor {
    /// Bytes per descriptor.
    pub const SIZE: u64 = 16;

    /// The second word: numbers of return parameters and parameters.
    pub fn shape(returns: usize, params: usize) -> u64 {
        (returns as u64) << 32 | params as u64
    }
}

/// A variable that no PTX can name, in place of the functions whose address may be taken.
pub const FUNCTIONS: &str = "%functions";

impl Unit<'_> {
    /// What kernels see as the address of the function at `index` in the module.
    pub fn function_address(&self, index: usize) -> u64 {
        self.functions + index as u64 * descriptor::SIZE
    }

    /// The descriptor of the function at `index` in the module.
    pub fn descriptor(&self, index: usize) -> u64 {
        self.descriptors + index as u64 * descriptor::SIZE
    }

    /// Index of a function that has a body.
    pub fn function(&self, name: &Name) -> Option<usize> {
        let name = self.layout.aliases.get(name).unwrap_or(name);
        self.layout.functions.get(name).copied()
    }
}

/// The signature of a compiled function.
pub fn signature(function: &Function) -> Signature {
    let mut signature = Signature::new(CallConv::SystemV);
    for _ in 0..1 + function.returns.len() + function.params.len() {
        signature.params.push(AbiParam::new(types::I64));
    }
    if function.entry {
        signature.params.truncate(1);
    }
    signature
}

struct Translator<'a, 'f> {
    b: FunctionBuilder<'f>,
    unit: &'a Unit<'a>,
    function: &'a Function,
    context: Value,
    scopes: Vec<Scope>,
    labels: HashMap<Name, Block>,
    /// Labels that have been placed: jumps to them go back.
    placed: HashSet<Name>,
    floats: HashSet<Name>,
    fuel: Variable,
    carry: Variable,
    /// Addresses that have been checked on every way here: base, and offset and bytes of the access.
    verified: HashMap<Value, (i64, u32)>,
    /// Base of the frame, and its bytes.
    frame: Value,
    frame_bytes: u64,
    /// Where each variable and call parameter lies in the frame, in order of declaration.
    frame_offsets: Vec<u32>,
    next_offset: usize,
    line: u32,
    /// Where the instruction that is being translated stands in the text.
    site: u32,
}

/// Translates `function` into `out`.
///
/// # Errors
/// The first instruction that is not supported, or names something unknown.
pub fn translate(
    unit: &Unit<'_>,
    function: &Function,
    out: &mut ir::Function,
    scratch: &mut FunctionBuilderContext,
) -> Result<(), LoadError> {
    out.signature = signature(function);
    let mut b = FunctionBuilder::new(out, scratch);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let context = b.block_params(entry)[0];
    let fuel = b.declare_var(types::I64);
    let carry = b.declare_var(types::I64);
    let mut t = Translator {
        b,
        unit,
        function,
        context,
        scopes: vec![Scope::default()],
        labels: HashMap::new(),
        placed: HashSet::new(),
        floats: HashSet::new(),
        fuel,
        carry,
        verified: HashMap::new(),
        frame: context,
        frame_bytes: 0,
        frame_offsets: Vec::new(),
        next_offset: 0,
        line: function.line,
        site: 0,
    };
    let body = function.body.as_deref().unwrap_or_default();
    t.prepare(body)?;
    t.prologue();
    let result = t.statements(body);
    if result.is_err() {
        // The half-built function is thrown away; its scratch space must still be cleared.
        t.labels.clear();
        *scratch = FunctionBuilderContext::new();
        return result;
    }
    t.leave();
    t.b.seal_all_blocks();
    let target = unit.target;
    t.b.finalize(target);
    Ok(())
}

impl<'a> Translator<'a, '_> {
    /// Finds labels, the frame's layout and the classes of registers.
    fn prepare(&mut self, body: &'a [Statement]) -> Result<(), LoadError> {
        self.floats = vote::floats(body);
        let mut used = 0u64;
        let mut result = Ok(());
        let (labels, offsets) = (&mut self.labels, &mut self.frame_offsets);
        let builder = &mut self.b;
        walk(body, &mut |s| match s {
            Statement::Label(name) => {
                labels.insert(name.clone(), builder.create_block());
            }
            Statement::Variable(v) if matches!(v.space, Space::Local | Space::Param) => {
                match reserve(v, &mut used) {
                    Ok(offset) => offsets.push(offset),
                    Err(error) => result = Err(error),
                }
            }
            // Room for registers and constants that a call takes as parameters.
            Statement::Instruction(i) if &*i.opcode == "call" => {
                offsets.push(used.next_multiple_of(16) as u32);
                used = used.next_multiple_of(16) + 16 * control::operands(i) as u64;
            }
            _ => {}
        });
        self.frame_bytes = used.next_multiple_of(16);
        result
    }

    /// Checks stack and fuel, takes the frame, and names the parameters.
    fn prologue(&mut self) {
        let fuel = self.b.ins().iconst(types::I64, FUEL);
        self.b.def_var(self.fuel, fuel);
        let zero = self.b.ins().iconst(types::I64, 0);
        self.b.def_var(self.carry, zero);
        if !self.function.entry {
            self.check_stack();
            self.burn_call_fuel();
        }
        if self.frame_bytes > 0 {
            self.frame = self.field(types::I64, std::mem::offset_of!(DeviceThread, local_top));
            let top = self.b.ins().iadd_imm_s(self.frame, self.frame_bytes as i64);
            let end =
                self.constant_field(types::I64, std::mem::offset_of!(DeviceThread, local_end));
            let over = self.b.ins().icmp(IntCC::UnsignedGreaterThan, top, end);
            self.fault_if(over, |t| t.illegal(helpers::reason::STACK));
            self.set_field(top, std::mem::offset_of!(DeviceThread, local_top));
        }
        let values = self
            .b
            .block_params(
                self.b
                    .func
                    .layout
                    .entry_block()
                    .unwrap_or(Block::from_u32(0)),
            )
            .to_vec();
        let function = self.function;
        let all = function.returns.iter().chain(&function.params);
        let mut offset = 0u64;
        for (index, parameter) in all.enumerate() {
            let size = size_of(parameter).unwrap_or(0);
            let place = if function.entry {
                let at = reserve(parameter, &mut offset).unwrap_or(0);
                Place::Kernel { offset: at, size }
            } else {
                let value = values.get(index + 1).copied().unwrap_or(self.context);
                Place::Pointer { value, size }
            };
            if parameter.space == Space::Reg && !function.entry {
                self.register_parameter(parameter, place, index < function.returns.len());
            } else {
                self.scopes[0].places.insert(parameter.name.clone(), place);
            }
        }
    }

    fn statements(&mut self, body: &'a [Statement]) -> Result<(), LoadError> {
        for statement in body {
            match statement {
                Statement::Variable(v) => self.declare(v)?,
                Statement::Label(name) => {
                    let block = self.labels[name];
                    self.placed.insert(name.clone());
                    self.b.ins().jump(block, &[]);
                    self.b.switch_to_block(block);
                    self.verified.clear();
                }
                Statement::Block(inner) => {
                    self.scopes.push(Scope::default());
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Statement::Prototype {
                    name,
                    returns,
                    params,
                } => {
                    let place = Place::Prototype {
                        returns: returns.len(),
                        params: params.len(),
                    };
                    self.insert(name, place);
                }
                Statement::Targets {
                    name,
                    targets,
                    calls,
                } => {
                    let place = Place::Targets {
                        targets: targets.clone(),
                        calls: *calls,
                    };
                    self.insert(name, place);
                }
                Statement::Instruction(i) => {
                    self.line = i.line;
                    self.site = i.span.start;
                    self.guarded(i)
                        .map_err(|refused| self.explain(i, refused))?;
                }
            }
        }
        Ok(())
    }

    fn explain(&self, i: &Instruction, refused: Refused) -> LoadError {
        let instruction = match refused {
            Refused::Undefined(name) => {
                return LoadError::Undefined {
                    name: name.to_string(),
                };
            }
            Refused::Unsupported => format!("`{i}`"),
            Refused::Missing(what) => what,
        };
        LoadError::Unsupported {
            line: i.line,
            function: self.function.name.to_string(),
            instruction,
        }
    }

    /// An instruction under its guard.
    fn guarded(&mut self, i: &'a Instruction) -> Step {
        let Some(guard) = &i.guard else {
            return self.instruction(i);
        };
        let condition = self.predicate(&guard.register)?;
        if matches!(&*i.opcode, "bra") {
            return self.branch(i, Some((condition, guard.negated)));
        }
        let (run, after) = (self.b.create_block(), self.b.create_block());
        let (yes, no) = if guard.negated {
            (after, run)
        } else {
            (run, after)
        };
        self.b.ins().brif(condition, yes, &[], no, &[]);
        self.go_on_in(run);
        let verified = self.verified.clone();
        self.instruction(i)?;
        self.verified = verified;
        self.b.ins().jump(after, &[]);
        self.go_on_in(after);
        Ok(())
    }

    fn instruction(&mut self, i: &'a Instruction) -> Step {
        let mut m = Modifiers::new(i);
        let m = &mut m;
        // 128 bits are moved and exchanged, never computed with.
        if m.has("b128") && !matches!(&*i.opcode, "mov" | "ld" | "st" | "atom") {
            return Err(Refused::Unsupported);
        }
        match &*i.opcode {
            "mov" => self.mov(i, m),
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "abs" | "neg" | "min"
            | "max" => self.arithmetic(i, m),
            "addc" | "subc" | "madc" => self.with_carry(i, m),
            "mul24" | "mad24" | "sad" | "dp4a" | "dp2a" => self.small_multiply(i, m),
            "and" | "or" | "xor" | "not" | "cnot" | "lop3" | "shl" | "shr" | "shf" | "popc"
            | "clz" | "bfind" | "brev" | "bfe" | "bfi" | "fns" | "szext" | "bmsk" | "prmt" => {
                self.bits(i, m)
            }
            "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" | "copysign"
            | "testp" => self.float_unary(i, m),
            "setp" => self.setp(i, m),
            "set" => self.set(i, m),
            "selp" => self.selp(i, m),
            "slct" => self.slct(i, m),
            "cvt" => self.cvt(i, m),
            "cvta" => self.cvta(i, m),
            "isspacep" => self.isspacep(i, m),
            "mapa" | "getctarank" => Err(Refused::Unsupported),
            "ld" | "ldu" => self.load(i, m),
            "st" => self.store(i, m),
            "atom" | "red" => self.atomic(i, m),
            "membar" | "fence" => {
                self.b.ins().fence();
                Ok(())
            }
            // Hints: nothing observable happens.
            "prefetch" | "prefetchu" | "discard" | "applypriority" | "createpolicy"
            | "griddepcontrol" | "setmaxnreg" | "pmevent" => self.hint(i),
            "cp" => self.cp(i, m),
            "bra" => self.branch(i, None),
            "brx" => self.indexed_branch(i, m),
            "call" => self.call(i, m),
            "ret" => {
                self.leave();
                self.fresh_block();
                Ok(())
            }
            "exit" => self.exit(),
            "trap" | "brkpt" => {
                self.call_helper(helpers::trap as *const () as usize, &[], None);
                self.b.ins().trap(TrapCode::unwrap_user(1));
                self.fresh_block();
                Ok(())
            }
            "bar" | "barrier" => self.barrier(i, m),
            "mbarrier" => self.mbarrier(i, m),
            "tex" | "tld4" | "suld" | "sust" | "txq" | "suq" => self.texture(i, m),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.collective(i, m),
            "nanosleep" => {
                self.polls();
                self.yield_now();
                Ok(())
            }
            name if name.starts_with('v') => self.video(i, m),
            _ => Err(Refused::Unsupported),
        }
    }

    /// Reads a context field that may change during the thread.
    fn field(&mut self, ty: ir::Type, offset: usize) -> Value {
        self.b
            .ins()
            .load(ty, MemFlagsData::trusted(), self.context, offset as i32)
    }

    /// Reads a context field that stays the same for the thread.
    fn constant_field(&mut self, ty: ir::Type, offset: usize) -> Value {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        self.b.ins().load(ty, flags, self.context, offset as i32)
    }

    fn set_field(&mut self, value: Value, offset: usize) {
        self.b
            .ins()
            .store(MemFlagsData::trusted(), value, self.context, offset as i32);
    }

    /// Calls a helper at a fixed address: context first, then `arguments`.
    fn call_helper(
        &mut self,
        address: usize,
        arguments: &[Value],
        result: Option<ir::Type>,
    ) -> Option<Value> {
        let mut all = vec![self.context];
        all.extend(arguments);
        self.call_plain(address, &all, result)
    }

    /// Calls a C function at a fixed address.
    fn call_plain(
        &mut self,
        address: usize,
        arguments: &[Value],
        result: Option<ir::Type>,
    ) -> Option<Value> {
        let mut signature = Signature::new(CallConv::SystemV);
        for &argument in arguments {
            signature
                .params
                .push(AbiParam::new(self.b.func.dfg.value_type(argument)));
        }
        signature.returns.extend(result.map(AbiParam::new));
        let signature = self.b.import_signature(signature);
        let callee = self.b.ins().iconst(types::I64, address as i64);
        let call = self.b.ins().call_indirect(signature, callee, arguments);
        result.map(|_| self.b.inst_results(call)[0])
    }

    /// Goes on in a new block after a terminator; what follows can only be reached by a label.
    fn fresh_block(&mut self) {
        let block = self.b.create_block();
        self.go_on_in(block);
        self.verified.clear();
    }

    /// Goes on in `block`, all of whose predecessors are known.
    fn go_on_in(&mut self, block: Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// Runs the code of `cold`, out of the way, when `condition` is true. It must leave registers
    /// alone (see `call_quietly`), for the sake of those that live across it.
    fn if_rarely(&mut self, condition: Value, cold: impl FnOnce(&mut Self)) {
        let (rare, after) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(rare);
        self.b.ins().brif(condition, rare, &[], after, &[]);
        self.go_on_in(rare);
        cold(self);
        self.b.ins().jump(after, &[]);
        self.go_on_in(after);
    }

    /// Ends the launch by `fatal`, out of the way, when `condition` is true.
    fn fault_if(&mut self, condition: Value, fatal: impl FnOnce(&mut Self)) {
        let (bad, good) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(bad);
        self.b.ins().brif(condition, bad, &[], good, &[]);
        self.go_on_in(bad);
        fatal(self);
        self.b.ins().trap(TrapCode::unwrap_user(1));
        self.go_on_in(good);
    }

    /// Calls a helper that preserves all registers: context first, then `arguments`.
    fn call_quietly(&mut self, address: usize, arguments: &[Value]) {
        let mut signature = Signature::new(CallConv::PreserveAll);
        signature
            .params
            .resize(1 + arguments.len(), AbiParam::new(types::I64));
        let signature = self.b.import_signature(signature);
        let callee = self.b.ins().iconst(types::I64, address as i64);
        let mut all = vec![self.context];
        all.extend(arguments);
        self.b.ins().call_indirect(signature, callee, &all);
    }

    fn illegal(&mut self, reason: u64) {
        let reason = self.b.ins().iconst(types::I64, reason as i64);
        self.call_helper(helpers::illegal as *const () as usize, &[reason], None);
    }
}
