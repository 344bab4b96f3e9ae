//! `mbarrier`, barriers in shared memory; see `runtime::mbarrier`.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};
use crate::exec::runtime::mbarrier::{self, action};

impl<'a> Translator<'a, '_> {
    pub(super) fn mbarrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let verb = m.first()?;
        m.skip(&["relaxed", "acquire", "release", "cta", "cluster"], &[]);
        let space = Self::space(m);
        m.flag("b64");
        match verb {
            "init" | "inval" | "expect_tx" | "complete_tx" => {
                m.done()?;
                let at = self.barrier_word(self.operand(i, 0)?, space)?;
                let action = match verb {
                    "expect_tx" => action::EXPECT,
                    "complete_tx" => action::COMPLETE,
                    _ => action::INIT,
                };
                self.act_on(at, action, i.operands.get(1))?;
                Ok(())
            }
            "arrive" | "arrive_drop" => {
                let expects = m.flag("expect_tx");
                m.flag("noComplete");
                m.done()?;
                let at = self.barrier_word(self.operand(i, 1)?, space)?;
                let action = match (verb, expects) {
                    ("arrive", false) => action::ARRIVE,
                    ("arrive", true) => action::ARRIVE_EXPECT,
                    (_, false) => action::DROP,
                    (_, true) => action::DROP_EXPECT,
                };
                let state = self.act_on(at, action, i.operands.get(2))?;
                self.result(i, 0, state, false)
            }
            "test_wait" | "try_wait" => self.barrier_wait(i, m, space),
            "pending_count" => {
                m.done()?;
                let state = self.value(i, 1, Type::B64)?;
                let count = mbarrier::pending_count as *const () as usize;
                let count = self.call_plain(count, &[state], Some(types::I32));
                self.result(i, 0, count.ok_or(Refused::Unsupported)?, false)
            }
            _ => Err(Refused::Unsupported),
        }
    }

    /// `cp.async.mbarrier.arrive`: the copies are done, so it is an arrival; without `noinc` one that
    /// was expected nowhere, which changes nothing.
    pub(super) fn copies_arrive(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        m.flag("arrive");
        let counted = m.flag("noinc");
        let space = Self::space(m);
        m.flag("b64");
        m.done()?;
        let at = self.barrier_word(self.operand(i, 0)?, space)?;
        if counted {
            self.act_on(at, action::ARRIVE, None)?;
        }
        Ok(())
    }

    /// Tells a barrier that `bytes` bytes have come.
    pub(super) fn bytes_came(&mut self, barrier: &Operand, bytes: Value) -> Step {
        let at = self.barrier_word(barrier, "shared")?;
        self.call_action(at, action::COMPLETE, bytes)?;
        Ok(())
    }

    fn barrier_word(&mut self, operand: &Operand, space: &str) -> Step<Value> {
        let target = self.target(operand, space, 8)?;
        Ok(self.pointer(target, 8, true))
    }

    /// The number is 1 if not given.
    fn act_on(&mut self, at: Value, action: u32, number: Option<&Operand>) -> Step<Value> {
        let number = match number {
            Some(operand) => self.read(operand, Type::U32)?,
            None => self.b.ins().iconst(types::I32, 1),
        };
        self.call_action(at, action, number)
    }

    /// The barrier's state before.
    fn call_action(&mut self, at: Value, action: u32, number: Value) -> Step<Value> {
        let old = self.barrier_state(at);
        let action = self.b.ins().iconst(types::I32, i64::from(action));
        let act = mbarrier::act as *const () as usize;
        let new = self.call_plain(act, &[old, action, number], Some(types::I64));
        let new = new.ok_or(Refused::Unsupported)?;
        self.b.ins().store(MemFlagsData::new(), new, at, 0);
        Ok(old)
    }

    fn barrier_state(&mut self, at: Value) -> Value {
        self.b.ins().load(types::I64, MemFlagsData::new(), at, 0)
    }

    /// The predicate says whether the phase is over; if not, others get their turn first.
    fn barrier_wait(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>, space: &str) -> Step {
        let parity = m.flag("parity");
        m.done()?;
        let at = self.barrier_word(self.operand(i, 1)?, space)?;
        let (test, state) = if parity {
            let test = mbarrier::is_parity_over as *const () as usize;
            (test, self.value(i, 2, Type::U32)?)
        } else {
            let test = mbarrier::is_over as *const () as usize;
            (test, self.value(i, 2, Type::B64)?)
        };
        let now = self.barrier_state(at);
        let over = self.call_plain(test, &[now, state], Some(types::I32));
        let over = over.ok_or(Refused::Unsupported)?;
        let waits = self.b.ins().icmp_imm_s(IntCC::Equal, over, 0);
        self.if_rarely(waits, Self::yield_now);
        let over = self.b.ins().icmp_imm_s(IntCC::NotEqual, over, 0);
        self.result(i, 0, over, false)
    }
}
