//! Calls of the device runtime, by which kernels launch kernels.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Name, Operand, Type};

use super::place::Place;
use super::{Refused, Step, Translator};
use crate::exec::runtime::nested;

/// What the compiler puts before the names of these functions.
const PREFIX: &str = "__cudaCDP2";

impl Translator<'_, '_> {
    /// A call of `name`, if it is the runtime's.
    pub(super) fn device_runtime(
        &mut self,
        name: &Name,
        returns: &[Operand],
        params: &[Operand],
    ) -> Step {
        match &**name {
            // The one handle there is: that of the grid.
            "cudaCGGetIntrinsicHandle" => {
                let handle = self.b.ins().iconst(types::I64, 1);
                return self.give(Some(handle), returns);
            }
            "cudaCGSynchronize" => return self.grid_barrier(returns),
            _ => {}
        }
        let Some(word) = name.strip_prefix(PREFIX) else {
            return self.not_of_the_runtime(name);
        };
        let result = match word {
            "GetParameterBufferV2" => {
                let arguments = [
                    self.parameter(params, 0, Type::B64)?,
                    self.parameter_place(params, 1)?,
                    self.parameter_place(params, 2)?,
                    self.parameter(params, 3, Type::B32)?,
                ];
                let arguments = arguments.map(|value| self.widen(value, types::I64));
                self.call_helper(
                    nested::buffer as *const () as usize,
                    &arguments,
                    Some(types::I64),
                )
            }
            "LaunchDeviceV2" | "LaunchDeviceV2_ptsz" => {
                let arguments = [
                    self.parameter(params, 0, Type::B64)?,
                    self.parameter(params, 1, Type::B64)?,
                ];
                self.call_helper(
                    nested::launch as *const () as usize,
                    &arguments,
                    Some(types::I64),
                )
            }
            // Launches run in order, so that every stream is as good as another.
            "StreamCreateWithFlags" => {
                let pointer = self.parameter(params, 0, Type::B64)?;
                let target = self.target_at(pointer);
                let pointer = self.pointer(target, 8, true);
                let stream = self.b.ins().iconst(types::I64, 0);
                self.b.ins().store(MemFlagsData::new(), stream, pointer, 0);
                Some(self.b.ins().iconst(types::I64, 0))
            }
            "StreamDestroy" | "GetLastError" | "PeekAtLastError" => {
                Some(self.b.ins().iconst(types::I64, 0))
            }
            _ => return self.not_of_the_runtime(name),
        };
        self.give(result, returns)
    }

    /// All threads of all blocks wait for one another: those of each block, then one of each block, then those again.
    fn grid_barrier(&mut self, returns: &[Operand]) -> Step {
        self.block_barrier()?;
        self.call_helper(nested::meet as *const () as usize, &[], None);
        self.block_barrier()?;
        let done = self.b.ins().iconst(types::I64, 0);
        self.give(Some(done), returns)
    }

    fn not_of_the_runtime(&self, name: &Name) -> Step {
        if name.starts_with("cuda") || name.starts_with(PREFIX) {
            return Err(Refused::Missing(format!(
                "`{name}`, a kernel that calls the runtime,"
            )));
        }
        Err(Refused::Undefined(name.clone()))
    }

    /// Where a parameter of a call that is a structure lies.
    fn parameter_place(&mut self, params: &[Operand], index: usize) -> Step<Value> {
        let Some(Operand::Name(name)) = params.get(index) else {
            return Err(Refused::Unsupported);
        };
        match self.lookup(name)? {
            place @ (Place::Frame { .. } | Place::Pointer { .. }) => self.place_address(&place),
            _ => Err(Refused::Unsupported),
        }
    }

    /// Puts the result of a call where the caller wants it: an address, or a code of 32 bits.
    fn give(&mut self, result: Option<Value>, returns: &[Operand]) -> Step {
        let (Some(result), Some(Operand::Name(name))) = (result, returns.first()) else {
            return Ok(());
        };
        let place = self.lookup(name)?;
        let Place::Frame { size, .. } = place else {
            return Err(Refused::Unsupported);
        };
        let address = self.place_address(&place)?;
        let result = if size < 8 {
            self.b.ins().ireduce(types::I32, result)
        } else {
            result
        };
        self.b
            .ins()
            .store(MemFlagsData::trusted(), result, address, 0);
        Ok(())
    }
}
