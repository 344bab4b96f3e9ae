//! Barriers and operations among the lanes of a warp.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::{Refused, Step, Translator};
use crate::exec::runtime::barrier::{self, mode};
use crate::exec::runtime::context::DeviceThread;
use crate::exec::runtime::helpers;
use crate::exec::runtime::warp::kind;

impl<'a> Translator<'a, '_> {
    pub(super) fn barrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if m.flag("warp") {
            m.flag("sync");
            m.done()?;
            let mask = self.value(i, 0, Type::U32)?;
            self.among_lanes(kind::SYNC, mask, None, None)?;
            return Ok(());
        }
        m.skip(&["cta", "aligned"], &[]);
        if m.flag("cluster") {
            return self.cluster_barrier(m);
        }
        let action = m.first()?;
        if action == "red" {
            return self.reducing_barrier(i, m);
        }
        m.done()?;
        let id = self.value(i, 0, Type::U32)?;
        let count = self.thread_count(i.operands.get(1))?;
        let mode = match action {
            "sync" => mode::SYNC,
            "arrive" => mode::ARRIVE,
            _ => return Err(Refused::Unsupported),
        };
        self.at_barrier(id, count, mode, None)?;
        Ok(())
    }

    /// Clusters have one block: arriving means nothing, waiting is for the block.
    fn cluster_barrier(&mut self, m: &mut Modifiers<'a>) -> Step {
        let action = m.first()?;
        m.skip(&["acquire", "release", "relaxed", "aligned"], &[]);
        m.done()?;
        if action == "wait" {
            let id = self.b.ins().iconst(types::I32, barrier::CLUSTER as i64);
            let count = self.b.ins().iconst(types::I32, 0);
            self.at_barrier(id, count, mode::SYNC, None)?;
        }
        Ok(())
    }

    fn thread_count(&mut self, operand: Option<&Operand>) -> Step<Value> {
        match operand {
            Some(operand) => self.read(operand, Type::U32),
            None => Ok(self.b.ins().iconst(types::I32, 0)),
        }
    }

    fn reducing_barrier(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let mode = match m.first()? {
            "popc" => mode::POPC,
            "and" => mode::AND,
            "or" => mode::OR,
            _ => return Err(Refused::Unsupported),
        };
        m.skip(&["u32", "pred"], &[]);
        m.done()?;
        let id = self.value(i, 1, Type::U32)?;
        let last = i.operands.len() - 1;
        let count = self.thread_count(if last == 3 { i.operands.get(2) } else { None })?;
        let truth = self.value(i, last, Type::Pred)?;
        let value = self.at_barrier(id, count, mode, Some(truth))?;
        let ty = if mode == mode::POPC {
            types::I32
        } else {
            types::I8
        };
        let value = self.b.ins().ireduce(ty, value);
        self.result(i, 0, value, false)
    }

    /// All threads of the block wait for one another.
    pub(super) fn block_barrier(&mut self) -> Step {
        let zero = self.b.ins().iconst(types::I32, 0);
        self.at_barrier(zero, zero, mode::SYNC, None)?;
        Ok(())
    }

    fn at_barrier(
        &mut self,
        id: Value,
        count: Value,
        mode: u32,
        truth: Option<Value>,
    ) -> Step<Value> {
        let (id, count) = (self.widen(id, types::I64), self.widen(count, types::I64));
        let mode = self.b.ins().iconst(types::I64, i64::from(mode));
        let truth = match truth {
            Some(truth) => self.b.ins().uextend(types::I64, truth),
            None => self.b.ins().iconst(types::I64, 0),
        };
        let helper = helpers::barrier as *const () as usize;
        self.call_helper(helper, &[id, count, mode, truth], Some(types::I64))
            .ok_or(Refused::Unsupported)
    }

    /// An operation of the lanes of `mask`; the first result.
    pub(super) fn among_lanes(
        &mut self,
        kind: u32,
        mask: Value,
        value: Option<Value>,
        other: Option<Value>,
    ) -> Step<Value> {
        let zero = self.b.ins().iconst(types::I64, 0);
        let site = i64::from(self.site) << 32;
        let kind = self.b.ins().iconst(types::I64, i64::from(kind) | site);
        let [mask, value, other] =
            [Some(mask), value, other].map(|v| v.map_or(zero, |v| self.widen(v, types::I64)));
        let helper = helpers::warp as *const () as usize;
        self.call_helper(helper, &[kind, mask, value, other], Some(types::I64))
            .ok_or(Refused::Unsupported)
    }

    /// The second result of the last operation, as a predicate.
    fn second_result(&mut self) -> Value {
        self.field(types::I8, offset_of!(DeviceThread, flag))
    }

    /// Writes `d` or `d|p`.
    fn results(&mut self, i: &'a Instruction, value: Value) -> Step {
        match self.operand(i, 0)? {
            Operand::Pair(d, p) => {
                let flag = self.second_result();
                self.write(d, value, false)?;
                self.write(p, flag, false)
            }
            d => self.write(d, value, false),
        }
    }

    pub(super) fn collective(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        if &*i.opcode == "activemask" {
            m.flag("b32");
            m.done()?;
            let site = self.b.ins().iconst(types::I64, i64::from(i.span.start) + 1);
            let helper = helpers::activemask as *const () as usize;
            let value = self
                .call_helper(helper, &[site], Some(types::I64))
                .ok_or(Refused::Unsupported)?;
            let value = self.b.ins().ireduce(types::I32, value);
            return self.result(i, 0, value, false);
        }
        if !m.flag("sync") {
            return Err(Refused::Unsupported);
        }
        match &*i.opcode {
            "shfl" => self.shuffle(i, m),
            "vote" => self.vote(i, m),
            "elect" => {
                m.done()?;
                let mask = self.value(i, 1, Type::U32)?;
                let leader = self.among_lanes(kind::ELECT, mask, None, None)?;
                let leader = self.b.ins().ireduce(types::I32, leader);
                self.results(i, leader)
            }
            name => {
                let word = m.first()?;
                let ty = m.ty()?;
                m.done()?;
                let kind = match (name, word, ty.is_signed()) {
                    ("match", "any", _) => kind::MATCH_ANY,
                    ("match", "all", _) => kind::MATCH_ALL,
                    (_, "add", _) => kind::REDUX_ADD,
                    (_, "min", true) => kind::REDUX_MIN_S,
                    (_, "max", true) => kind::REDUX_MAX_S,
                    (_, "min", false) => kind::REDUX_MIN_U,
                    (_, "max", false) => kind::REDUX_MAX_U,
                    (_, "and", _) => kind::REDUX_AND,
                    (_, "or", _) => kind::REDUX_OR,
                    (_, "xor", _) => kind::REDUX_XOR,
                    _ => return Err(Refused::Unsupported),
                };
                if ty.is_float() {
                    return Err(Refused::Unsupported);
                }
                let (value, mask) = (self.value(i, 1, ty)?, self.value(i, 2, Type::U32)?);
                let value = self.among_lanes(kind, mask, Some(value), None)?;
                let value = self.b.ins().ireduce(types::I32, value);
                self.results(i, value)
            }
        }
    }

    fn shuffle(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let kind = match m.first()? {
            "up" => kind::SHFL_UP,
            "down" => kind::SHFL_DOWN,
            "bfly" => kind::SHFL_BFLY,
            "idx" => kind::SHFL_IDX,
            _ => return Err(Refused::Unsupported),
        };
        m.flag("b32");
        m.done()?;
        let value = self.value(i, 1, Type::B32)?;
        let (lane, clamp, mask) = (
            self.value(i, 2, Type::U32)?,
            self.value(i, 3, Type::U32)?,
            self.value(i, 4, Type::U32)?,
        );
        let (lane, clamp) = (self.widen(lane, types::I64), self.widen(clamp, types::I64));
        let clamp = self.b.ins().ishl_imm_u(clamp, 32);
        let lane = self.b.ins().band_imm_u(lane, 0xFFFF_FFFF);
        let other = self.b.ins().bor(lane, clamp);
        let value = self.among_lanes(kind, mask, Some(value), Some(other))?;
        let value = self.b.ins().ireduce(types::I32, value);
        self.results(i, value)
    }

    fn vote(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let word = m.first()?;
        m.skip(&["pred", "b32"], &[]);
        m.done()?;
        let kind = match word {
            "all" => kind::VOTE_ALL,
            "any" => kind::VOTE_ANY,
            "uni" => kind::VOTE_UNI,
            "ballot" => kind::VOTE_BALLOT,
            _ => return Err(Refused::Unsupported),
        };
        let (truth, mask) = (self.value(i, 1, Type::Pred)?, self.value(i, 2, Type::U32)?);
        let value = self.among_lanes(kind, mask, Some(truth), None)?;
        let ty = if word == "ballot" {
            types::I32
        } else {
            types::I8
        };
        let value = self.b.ins().ireduce(ty, value);
        self.result(i, 0, value, false)
    }
}
