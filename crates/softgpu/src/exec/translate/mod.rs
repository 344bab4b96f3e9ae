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
mod matrix;
mod mbarrier;
mod memory;
mod mma;
mod modifiers;
mod nested;
mod operand;
mod place;
mod refused;
mod scope;
mod special;
mod texture;
mod translator;
mod video;
mod vote;

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{self, Block, InstBuilder, TrapCode, types};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use fermata_ptx::ast::{Function, Instruction, Operand, Space, Statement};

use self::modifiers::Modifiers;
use self::place::{Place, Scope};
use self::refused::{Refused, Step};
use self::translator::Translator;
pub use self::translator::{Unit, signature};
use super::interface::LoadError;
use super::layout::{reserve, size_of, walk};
use super::runtime::context::{DeviceThread, FUEL};
use super::runtime::helpers;

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
        placed: HashSet::new(),
        floats: HashSet::new(),
        fuel,
        carry,
        verified: HashMap::new(),
        frame: context,
        frame_bytes: 0,
        frame_offsets: Vec::new(),
        next_offset: 0,
        next_shared: 0,
        line: function.line,
        site: 0,
    };
    let body = function.body.as_deref().unwrap_or_default();
    t.prepare(body)?;
    t.prologue();
    let result = t.statements(body);
    if result.is_err() {
        // The half-built function is thrown away; its scratch space must still be cleared.
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
    /// Finds the frame's layout and the classes of registers.
    fn prepare(&mut self, body: &'a [Statement]) -> Result<(), LoadError> {
        self.floats = vote::floats(body);
        let mut used = 0u64;
        let mut result = Ok(());
        let offsets = &mut self.frame_offsets;
        walk(body, &mut |s| match s {
            Statement::Variable(v) if matches!(v.space, Space::Local | Space::Param) => {
                match reserve(v, &mut used) {
                    Ok(offset) => offsets.push(offset),
                    Err(error) => result = Err(error),
                }
            }
            // Room for registers and constants that a call takes as parameters.
            Statement::Instruction(i) if &*i.opcode == "call" => {
                offsets.push(used.next_multiple_of(16) as u32);
                used = used.next_multiple_of(16) + 16 * operands(i) as u64;
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

    /// What stands between the braces of the innermost scope.
    fn statements(&mut self, body: &'a [Statement]) -> Result<(), LoadError> {
        self.announce_labels(body);
        for statement in body {
            match statement {
                Statement::Variable(v) => self.declare(v)?,
                Statement::Label(name) => {
                    let block = self.label(name).map_err(|_| LoadError::Undefined {
                        name: name.to_string(),
                    })?;
                    self.placed.insert(block);
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
            "ldmatrix" | "stmatrix" => self.matrix(i, m),
            "mma" => self.product(i, m),
            "wmma" => self.whole_warp_matrix(i, m),
            "nanosleep" => {
                self.polls();
                self.yield_now();
                Ok(())
            }
            name if name.starts_with('v') => self.video(i, m),
            _ => Err(Refused::Unsupported),
        }
    }
}

/// How many operands the lists of a call hold.
fn operands(i: &Instruction) -> usize {
    i.operands
        .iter()
        .map(|o| {
            if let Operand::List(list) = o {
                list.len()
            } else {
                0
            }
        })
        .sum()
}
