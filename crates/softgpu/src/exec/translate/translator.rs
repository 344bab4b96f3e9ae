//! The translator of one function: its builder, its state, and calls out of generated code.

use std::collections::{HashMap, HashSet};

use cranelift_codegen::ir::{
    self, AbiParam, Block, InstBuilder, MemFlagsData, Signature, TrapCode, Value, types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, Variable};
use fermata_ptx::ast::{Function, Module, Name};

use super::place::Scope;
use crate::exec::descriptor;
use crate::exec::layout::Layout;
use crate::exec::runtime::helpers;

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
    /// What kernels see as the address of that: where the module has [`descriptor::FUNCTIONS`], in device memory, so that it
    /// is the same in a later process. There is nothing.
    pub functions: u64,
    /// Target of the generated code.
    pub target: TargetFrontendConfig,
}

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

/// A function that is being translated.
pub struct Translator<'a, 'f> {
    pub(super) b: FunctionBuilder<'f>,
    pub(super) unit: &'a Unit<'a>,
    pub(super) function: &'a Function,
    pub(super) context: Value,
    pub(super) scopes: Vec<Scope>,
    /// Blocks of labels that have been placed: jumps to them go back.
    pub(super) placed: HashSet<Block>,
    pub(super) floats: HashSet<Name>,
    pub(super) fuel: Variable,
    pub(super) carry: Variable,
    /// Addresses that have been checked on every way here: base, and offset and bytes of the access.
    pub(super) verified: HashMap<Value, (i64, u32)>,
    /// Base of the frame, and its bytes.
    pub(super) frame: Value,
    pub(super) frame_bytes: u64,
    /// Where each variable and call parameter lies in the frame, in order of declaration.
    pub(super) frame_offsets: Vec<u32>,
    pub(super) next_offset: usize,
    /// How many of the function's own shared variables have been declared.
    pub(super) next_shared: usize,
    pub(super) line: u32,
    /// Where the instruction that is being translated stands in the text.
    pub(super) site: u32,
}

impl Translator<'_, '_> {
    /// Reads a context field that may change during the thread.
    pub(super) fn field(&mut self, ty: ir::Type, offset: usize) -> Value {
        self.b
            .ins()
            .load(ty, MemFlagsData::trusted(), self.context, offset as i32)
    }

    /// Reads a context field that stays the same for the thread.
    pub(super) fn constant_field(&mut self, ty: ir::Type, offset: usize) -> Value {
        let flags = MemFlagsData::trusted().with_readonly().with_can_move();
        self.b.ins().load(ty, flags, self.context, offset as i32)
    }

    pub(super) fn set_field(&mut self, value: Value, offset: usize) {
        self.b
            .ins()
            .store(MemFlagsData::trusted(), value, self.context, offset as i32);
    }

    /// Calls a helper at a fixed address: context first, then `arguments`.
    pub(super) fn call_helper(
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
    pub(super) fn call_plain(
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
    pub(super) fn fresh_block(&mut self) {
        let block = self.b.create_block();
        self.go_on_in(block);
        self.verified.clear();
    }

    /// Goes on in `block`, all of whose predecessors are known.
    pub(super) fn go_on_in(&mut self, block: Block) {
        self.b.seal_block(block);
        self.b.switch_to_block(block);
    }

    /// Runs the code of `cold`, out of the way, when `condition` is true. It must leave registers
    /// alone (see `call_quietly`), for the sake of those that live across it.
    pub(super) fn if_rarely(&mut self, condition: Value, cold: impl FnOnce(&mut Self)) {
        let (rare, after) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(rare);
        self.b.ins().brif(condition, rare, &[], after, &[]);
        self.go_on_in(rare);
        cold(self);
        self.b.ins().jump(after, &[]);
        self.go_on_in(after);
    }

    /// Ends the launch by `fatal`, out of the way, when `condition` is true.
    pub(super) fn fault_if(&mut self, condition: Value, fatal: impl FnOnce(&mut Self)) {
        let (bad, good) = (self.b.create_block(), self.b.create_block());
        self.b.set_cold_block(bad);
        self.b.ins().brif(condition, bad, &[], good, &[]);
        self.go_on_in(bad);
        fatal(self);
        self.b.ins().trap(TrapCode::unwrap_user(1));
        self.go_on_in(good);
    }

    /// Calls a helper that preserves all registers: context first, then `arguments`.
    pub(super) fn call_quietly(&mut self, address: usize, arguments: &[Value]) {
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

    pub(super) fn illegal(&mut self, reason: u64) {
        let reason = self.b.ins().iconst(types::I64, reason as i64);
        self.call_helper(helpers::illegal as *const () as usize, &[reason], None);
    }
}
