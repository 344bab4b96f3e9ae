//! Accesses to textures and surfaces by handle, as calls of a helper.

use std::mem::offset_of;

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, Value, types};
use fermata_ptx::ast::{Instruction, Operand, Type};

use super::modifiers::Modifiers;
use super::place::{Place, natural};
use super::{Refused, Step, Translator};
use crate::exec::Referent;
use crate::exec::runtime::context::DeviceThread;
use crate::exec::runtime::texture::{self, Action, Beyond, Level, Request};

/// Bytes that one access of a surface moves at most.
const MOST: u32 = 16;

impl<'a> Translator<'a, '_> {
    pub(super) fn texture(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        match &*i.opcode {
            "tex" => self.sample(i, m),
            "tld4" => self.gather(i, m),
            "suld" => self.surface_read(i, m),
            "sust" => self.surface_write(i, m),
            _ => self.texture_size(i, m),
        }
    }

    /// Takes the shape: dimensions and whether there are layers.
    fn shape(m: &mut Modifiers<'a>) -> Step<(u32, bool)> {
        let shapes = [
            "1d", "2d", "3d", "a1d", "a2d", "cube", "acube", "2dms", "a2dms",
        ];
        match m.one_of(&shapes) {
            Some("1d") => Ok((1, false)),
            Some("2d") => Ok((2, false)),
            Some("3d") => Ok((3, false)),
            Some("a1d") => Ok((1, true)),
            Some("a2d") => Ok((2, true)),
            _ => Err(Refused::Missing(
                "a texture of this shape (cube map or multisampled)".to_owned(),
            )),
        }
    }

    /// Reads the handle in `[handle, coordinates]` and hands the coordinates over.
    fn coordinates(&mut self, operand: &'a Operand, ty: Type, layered: bool) -> Step<Value> {
        let Operand::Address {
            base: Some(name),
            offset: 0,
            rest,
        } = operand
        else {
            return Err(Refused::Unsupported);
        };
        let handle = match self.lookup(name)? {
            Place::Register(register) => {
                let handle = self.b.use_var(register.var);
                self.fit(handle, types::I64, false)?
            }
            // The address of a reference stands for its handle.
            Place::Fixed { address, .. } if self.refers(name) => {
                self.b.ins().iconst(types::I64, address as i64)
            }
            _ => return Err(Refused::Unsupported),
        };
        let list: &[Operand] = match rest.as_slice() {
            [] => &[],
            [Operand::Vector(list)] => list,
            [Operand::Name(_), _] => {
                return Err(Refused::Missing(
                    "a texture with a sampler of its own; textures that bring theirs are supported, this"
                        .to_owned(),
                ));
            }
            [one] => std::slice::from_ref(one),
            _ => return Err(Refused::Unsupported),
        };
        for (index, operand) in list.iter().enumerate().take(4) {
            let ty = if layered && index == 0 { Type::U32 } else { ty };
            let value = self.read(operand, ty)?;
            self.set_field(value, offset_of!(DeviceThread, coordinates) + 4 * index);
        }
        Ok(handle)
    }

    /// Whether a module variable is a texture or surface.
    fn refers(&self, name: &fermata_ptx::ast::Name) -> bool {
        let reference = self.unit.layout.references.get(name);
        reference.is_some_and(|it| *it != Referent::Sampler)
    }

    fn request(&mut self, handle: Value, request: Request) {
        let request = self.b.ins().iconst(types::I64, request.pack() as i64);
        let helper = texture::texture as *const () as usize;
        self.call_helper(helper, &[handle, request], None);
    }

    /// Writes the elements of what the helper has left.
    fn texels(&mut self, operand: &'a Operand, count: usize, ty: Type) -> Step {
        let parts = Self::parts(operand, count)?;
        let bytes = ty.bytes();
        for (index, part) in parts.iter().enumerate() {
            let at = offset_of!(DeviceThread, texel) + index * bytes as usize;
            let value = self.field(natural(ty)?, at);
            self.write(part, value, ty.is_signed())?;
        }
        Ok(())
    }

    fn sample(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let level = match m.one_of(&["base", "level", "grad"]) {
            Some("level") => Level::Asked,
            Some("grad") => Level::Fitting,
            _ => Level::Base,
        };
        let (dimensions, layered) = Self::shape(m)?;
        let count = m.vector();
        let (result, coordinate) = (m.ty()?, m.ty()?);
        m.done()?;
        if result.bytes() != 4 || coordinate.bytes() != 4 {
            return Err(Refused::Unsupported);
        }
        let handle = self.coordinates(self.operand(i, 1)?, coordinate, layered)?;
        if level == Level::Asked {
            let value = self.read(self.operand(i, 2)?, Type::F32)?;
            self.set_field(value, offset_of!(DeviceThread, level));
        }
        let request = Request {
            action: Action::Sample,
            dimensions,
            layered,
            integer: !coordinate.is_float(),
            component: 0,
            beyond: Beyond::Trap,
            bytes: 0,
            level,
        };
        self.request(handle, request);
        self.texels(self.operand(i, 0)?, count, result)
    }

    fn gather(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let component = match m.one_of(&["r", "g", "b", "a"]) {
            Some("r") => 0,
            Some("g") => 1,
            Some("b") => 2,
            _ => 3,
        };
        let (dimensions, layered) = Self::shape(m)?;
        let count = m.vector();
        let (result, coordinate) = (m.ty()?, m.ty()?);
        m.done()?;
        if result.bytes() != 4 || coordinate != Type::F32 || layered || dimensions != 2 {
            return Err(Refused::Unsupported);
        }
        let handle = self.coordinates(self.operand(i, 1)?, coordinate, false)?;
        let request = Request {
            action: Action::Gather,
            dimensions,
            layered,
            integer: false,
            component,
            beyond: Beyond::Trap,
            bytes: 0,
            level: Level::Base,
        };
        self.request(handle, request);
        self.texels(self.operand(i, 0)?, count, result)
    }

    /// Takes the words that loads and stores of surfaces share: the request, the number of elements, their type.
    fn surface(m: &mut Modifiers<'a>, action: Action) -> Step<(Request, usize, Type)> {
        if !m.flag("b") {
            return Err(Refused::Missing(
                "a formatted access of a surface".to_owned(),
            ));
        }
        let (dimensions, layered) = Self::shape(m)?;
        m.skip(&["ca", "cg", "cs", "cv", "wb", "wt"], &[]);
        let count = m.vector();
        let ty = m.ty()?;
        let beyond = match m.one_of(&["trap", "clamp", "zero"]) {
            Some("clamp") => Beyond::Clamp,
            Some("zero") => Beyond::Zero,
            _ => Beyond::Trap,
        };
        m.done()?;
        let bytes = ty.bytes() * count as u32;
        if bytes > MOST {
            return Err(Refused::Unsupported);
        }
        let request = Request {
            action,
            dimensions,
            layered,
            integer: true,
            component: 0,
            beyond,
            bytes,
            level: Level::Base,
        };
        Ok((request, count, ty))
    }

    fn surface_read(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let (request, count, ty) = Self::surface(m, Action::Read)?;
        let handle = self.coordinates(self.operand(i, 1)?, Type::S32, request.layered)?;
        self.request(handle, request);
        self.texels(self.operand(i, 0)?, count, ty)
    }

    fn surface_write(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let (request, count, ty) = Self::surface(m, Action::Write)?;
        let handle = self.coordinates(self.operand(i, 0)?, Type::S32, request.layered)?;
        let parts = Self::parts(self.operand(i, 1)?, count)?;
        for (index, part) in parts.iter().enumerate() {
            let value = self.read(part, ty)?;
            let at = offset_of!(DeviceThread, texel) + index * ty.bytes() as usize;
            self.b
                .ins()
                .store(MemFlagsData::trusted(), value, self.context, at as i32);
        }
        self.request(handle, request);
        Ok(())
    }

    /// `txq` and `suq`
    fn texture_size(&mut self, i: &'a Instruction, m: &mut Modifiers<'a>) -> Step {
        let component = match m.one_of(&["width", "height", "depth", "array_size"]) {
            Some("width") => 0,
            Some("height") => 1,
            Some(_) => 2,
            None => return Err(Refused::Unsupported),
        };
        m.flag("b32");
        m.done()?;
        let handle = self.coordinates(self.operand(i, 1)?, Type::S32, false)?;
        let request = Request {
            action: Action::Size,
            dimensions: 1,
            layered: false,
            integer: true,
            component,
            beyond: Beyond::Trap,
            bytes: 0,
            level: Level::Base,
        };
        self.request(handle, request);
        let value = self.field(types::I32, offset_of!(DeviceThread, texel));
        self.result(i, 0, value, false)
    }
}
