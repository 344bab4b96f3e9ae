//! Branches, calls and ends.

use std::mem::offset_of;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, InstBuilder, JumpTableData, MemFlagsData, Signature, TrapCode, Value, types,
};
use cranelift_codegen::isa::CallConv;
use fermata_ptx::ast::{Instruction, Name, Operand, Statement, Type};

use super::modifiers::Modifiers;
use super::place::Place;
use super::{Refused, Step, Translator};
use crate::exec::descriptor;
use crate::exec::runtime::context::{DeviceThread, FUEL};
use crate::exec::runtime::{helpers, print, quiet};

impl<'a> Translator<'a, '_> {
    /// Makes a block for each label that stands directly in the innermost scope.
    pub(super) fn announce_labels(&mut self, body: &'a [Statement]) {
        let Some(scope) = self.scopes.last_mut() else {
            return;
        };
        for statement in body {
            if let Statement::Label(name) = statement {
                scope.labels.insert(name.clone(), self.b.create_block());
            }
        }
    }

    /// The block of a label: the innermost scope that has one of this name counts.
    pub(super) fn label(&self, name: &Name) -> Step<Block> {
        self.scopes
            .iter()
            .rev()
            .find_map(|scope| scope.labels.get(name))
            .copied()
            .ok_or_else(|| Refused::Undefined(name.clone()))
    }

    /// `bra`, under a condition or always.
    pub(super) fn branch(&mut self, i: &'a Instruction, condition: Option<(Value, bool)>) -> Step {
        let Operand::Name(name) = self.operand(i, 0)? else {
            return Err(Refused::Unsupported);
        };
        let target = self.label(name)?;
        let back = self.placed.contains(&target);
        let Some((condition, negated)) = condition else {
            if back {
                self.spend();
            }
            self.b.ins().jump(target, &[]);
            self.fresh_block();
            return Ok(());
        };
        let next = self.b.create_block();
        let taken = if back { self.b.create_block() } else { target };
        let (yes, no) = if negated {
            (next, taken)
        } else {
            (taken, next)
        };
        self.b.ins().brif(condition, yes, &[], no, &[]);
        if back {
            self.go_on_in(taken);
            self.spend();
            self.b.ins().jump(target, &[]);
        }
        self.go_on_in(next);
        Ok(())
    }

    /// One back-edge: when the fuel is gone, others get their turn.
    fn spend(&mut self) {
        let fuel = self.b.use_var(self.fuel);
        let left = self.b.ins().iadd_imm_s(fuel, -1);
        self.b.def_var(self.fuel, left);
        let empty = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, left, 0);
        self.if_rarely(empty, Self::yield_now);
    }

    /// Lets other threads run, and looks whether the launch must end.
    pub(super) fn yield_now(&mut self) {
        self.call_quietly(quiet::refuel as *const () as usize, &[]);
        let fuel = self.b.ins().iconst(types::I64, FUEL);
        self.b.def_var(self.fuel, fuel);
    }

    /// Calls count too: recursion without a loop must also be stoppable.
    pub(super) fn burn_call_fuel(&mut self) {
        let fuel = self.field(types::I64, offset_of!(DeviceThread, fuel));
        let left = self.b.ins().iadd_imm_s(fuel, -1);
        self.set_field(left, offset_of!(DeviceThread, fuel));
        let empty = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, left, 0);
        self.if_rarely(empty, |t| {
            t.call_quietly(quiet::refuel as *const () as usize, &[])
        });
    }

    pub(super) fn check_stack(&mut self) {
        let pointer = self.b.ins().get_stack_pointer(types::I64);
        let limit = self.constant_field(types::I64, offset_of!(DeviceThread, stack_limit));
        let over = self.b.ins().icmp(IntCC::UnsignedLessThan, pointer, limit);
        self.fault_if(over, |t| t.illegal(helpers::reason::STACK));
    }

    /// Gives the frame back and returns.
    pub(super) fn leave(&mut self) {
        for (register, pointer) in self.scopes[0].returned.clone() {
            let value = self.b.use_var(register.var);
            self.b
                .ins()
                .store(MemFlagsData::trusted(), value, pointer, 0);
        }
        if self.frame_bytes > 0 {
            let frame = self.frame;
            self.set_field(frame, offset_of!(DeviceThread, local_top));
        }
        self.b.ins().return_(&[]);
    }

    pub(super) fn exit(&mut self) -> Step {
        if self.function.entry {
            self.leave();
            self.fresh_block();
        } else {
            self.call_helper(helpers::exit as *const () as usize, &[], None);
        }
        Ok(())
    }

    /// `brx.idx`
    pub(super) fn indexed_branch(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.skip(&["idx", "uni"], &[]);
        m.done()?;
        let index = self.value(i, 0, Type::U32)?;
        let Operand::Name(list) = self.operand(i, 1)? else {
            return Err(Refused::Unsupported);
        };
        let Place::Targets {
            targets,
            calls: false,
        } = self.lookup(list)?
        else {
            return Err(Refused::Unsupported);
        };
        let blocks = targets
            .iter()
            .map(|t| self.label(t))
            .collect::<Step<Vec<_>>>()?;
        if blocks.iter().any(|block| self.placed.contains(block)) {
            self.spend();
        }
        let wrong = self.b.create_block();
        let pool = &mut self.b.func.dfg.value_lists;
        let default = cranelift_codegen::ir::BlockCall::new(wrong, [], pool);
        let calls: Vec<_> = blocks
            .iter()
            .map(|&b| cranelift_codegen::ir::BlockCall::new(b, [], pool))
            .collect();
        let table = self
            .b
            .create_jump_table(JumpTableData::new(default, &calls));
        self.b.ins().br_table(index, table);
        self.go_on_in(wrong);
        self.illegal(helpers::reason::TARGET);
        self.b.ins().trap(TrapCode::unwrap_user(1));
        self.fresh_block();
        Ok(())
    }

    /// `call`, direct, through a pointer, or of something built in.
    pub(super) fn call(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.flag("uni");
        m.done()?;
        let room = self.next_frame_offset();
        let mut rest = i.operands.as_slice();
        let returns: &[Operand] = match rest {
            [Operand::List(list), tail @ ..] => {
                rest = tail;
                list
            }
            _ => &[],
        };
        let [Operand::Name(callee), tail @ ..] = rest else {
            return Err(Refused::Unsupported);
        };
        let (params, prototype): (&[Operand], _) = match tail {
            [Operand::List(list)] => (list, None),
            [Operand::List(list), Operand::Name(prototype)] => (list, Some(prototype)),
            [Operand::Name(prototype)] => (&[], Some(prototype)),
            [] => (&[], None),
            _ => return Err(Refused::Unsupported),
        };
        match self.lookup(callee) {
            Ok(Place::Function { index }) => {
                let function = self.unit.ast.items.get(index);
                let Some(fermata_ptx::ast::Item::Function(function)) = function else {
                    return Err(Refused::Unsupported);
                };
                if function.entry
                    || function.returns.len() != returns.len()
                    || function.params.len() != params.len()
                {
                    return Err(Refused::Unsupported);
                }
                let address = self
                    .b
                    .ins()
                    .iconst(types::I64, self.unit.descriptor(index) as i64);
                let flags = MemFlagsData::trusted().with_readonly().with_can_move();
                let code = self.b.ins().load(types::I64, flags, address, 0);
                self.call_code(code, returns, params, room)
            }
            Ok(Place::Register(register)) => {
                if let Some(prototype) = prototype {
                    match self.lookup(prototype)? {
                        Place::Prototype {
                            returns: r,
                            params: p,
                        } if r == returns.len() && p == params.len() => {}
                        Place::Targets { calls: true, .. } => {}
                        _ => return Err(Refused::Unsupported),
                    }
                }
                let pointer = self.b.use_var(register.var);
                let pointer = self.fit(pointer, types::I64, false)?;
                let code = self.function_behind(pointer, returns.len(), params.len());
                self.call_code(code, returns, params, room)
            }
            Err(Refused::Undefined(_)) => self.builtin(callee, returns, params),
            Ok(_) => Err(Refused::Unsupported),
            Err(refused) => Err(refused),
        }
    }

    /// Code of the function whose address `pointer` is, if it is one's and the shape fits.
    fn function_behind(&mut self, pointer: Value, returns: usize, params: usize) -> Value {
        let distance = self
            .b
            .ins()
            .iadd_imm_s(pointer, (self.unit.functions as i64).wrapping_neg());
        let index = self
            .b
            .ins()
            .rotr_imm_u(distance, i64::from(descriptor::SIZE.trailing_zeros()));
        let count = self.unit.ast.items.len() as i64;
        let wild = self
            .b
            .ins()
            .icmp_imm_s(IntCC::UnsignedGreaterThanOrEqual, index, count);
        self.fault_if(wild, |t| t.illegal(helpers::reason::CALL));
        let flags = MemFlagsData::trusted();
        let descriptor = self
            .b
            .ins()
            .iadd_imm_s(distance, self.unit.descriptors as i64);
        let shape = self.b.ins().load(types::I64, flags, descriptor, 8);
        let other = self.b.ins().icmp_imm_s(
            IntCC::NotEqual,
            shape,
            descriptor::shape(returns, params) as i64,
        );
        let code = self.b.ins().load(types::I64, flags, descriptor, 0);
        let missing = self.b.ins().icmp_imm_s(IntCC::Equal, code, 0);
        let bad = self.b.ins().bor(other, missing);
        self.fault_if(bad, |t| t.illegal(helpers::reason::CALL));
        code
    }

    /// Calls compiled code; parameters go by address.
    fn call_code(
        &mut self,
        code: Value,
        returns: &[Operand],
        params: &[Operand],
        room: u32,
    ) -> Step {
        let mut arguments = vec![self.context];
        let mut results = Vec::new();
        for (index, operand) in returns.iter().chain(params).enumerate() {
            let spare = i64::from(room) + 16 * index as i64;
            let place = match operand {
                Operand::Name(name) => Some(self.lookup(name)?),
                _ => None,
            };
            let address = match place {
                Some(place @ (Place::Frame { .. } | Place::Pointer { .. })) => {
                    self.place_address(&place)?
                }
                Some(Place::Register(register)) => {
                    let address = self.b.ins().iadd_imm_s(self.frame, spare);
                    if index < returns.len() {
                        results.push((register, address));
                    } else {
                        let value = self.b.use_var(register.var);
                        self.b
                            .ins()
                            .store(MemFlagsData::trusted(), value, address, 0);
                    }
                    address
                }
                Some(_) => return Err(Refused::Unsupported),
                None => {
                    let value = self.read(operand, Type::B64)?;
                    let address = self.b.ins().iadd_imm_s(self.frame, spare);
                    self.b
                        .ins()
                        .store(MemFlagsData::trusted(), value, address, 0);
                    address
                }
            };
            arguments.push(address);
        }
        let mut signature = Signature::new(CallConv::SystemV);
        signature
            .params
            .resize(arguments.len(), AbiParam::new(types::I64));
        let signature = self.b.import_signature(signature);
        self.b.ins().call_indirect(signature, code, &arguments);
        for (register, address) in results {
            let value = self
                .b
                .ins()
                .load(register.ty, MemFlagsData::trusted(), address, 0);
            self.b.def_var(register.var, value);
        }
        Ok(())
    }

    /// What the toolkit leaves to the system.
    fn builtin(&mut self, name: &Name, returns: &[Operand], params: &[Operand]) -> Step {
        match &**name {
            "vprintf" => {
                let arguments = [
                    self.parameter(params, 0, Type::B64)?,
                    self.parameter(params, 1, Type::B64)?,
                ];
                let count = self.call_helper(
                    print::vprintf as *const () as usize,
                    &arguments,
                    Some(types::I64),
                );
                if let (Some(count), Some(Operand::Name(name))) = (count, returns.first()) {
                    let place = self.lookup(name)?;
                    let address = self.place_address(&place)?;
                    let count = self.b.ins().ireduce(types::I32, count);
                    self.b
                        .ins()
                        .store(MemFlagsData::trusted(), count, address, 0);
                }
                Ok(())
            }
            "__assertfail" => {
                let line = self.parameter(params, 2, Type::B32)?;
                let line = self.widen(line, types::I64);
                let arguments = [
                    self.parameter(params, 0, Type::B64)?,
                    self.parameter(params, 1, Type::B64)?,
                    line,
                    self.parameter(params, 3, Type::B64)?,
                ];
                self.call_helper(print::assertfail as *const () as usize, &arguments, None);
                Ok(())
            }
            "cudaGraphSetConditional" => {
                let value = self.parameter(params, 1, Type::B32)?;
                let value = self.widen(value, types::I64);
                let arguments = [self.parameter(params, 0, Type::B64)?, value];
                let helper = print::set_condition as *const () as usize;
                self.call_helper(helper, &arguments, None);
                Ok(())
            }
            "malloc" | "free" => Err(Refused::Missing(format!(
                "`{name}`, memory that a kernel allocates,"
            ))),
            _ => self.device_runtime(name, returns, params),
        }
    }

    /// The value of a call's parameter `index`.
    pub(super) fn parameter(&mut self, params: &[Operand], index: usize, ty: Type) -> Step<Value> {
        let operand = params.get(index).ok_or(Refused::Unsupported)?;
        if let Operand::Name(name) = operand {
            let place = self.lookup(name)?;
            if matches!(place, Place::Frame { .. } | Place::Pointer { .. }) {
                let address = self.place_address(&place)?;
                let clif = super::place::natural(ty)?;
                return Ok(self.b.ins().load(clif, MemFlagsData::trusted(), address, 0));
            }
        }
        self.read(operand, ty)
    }
}
