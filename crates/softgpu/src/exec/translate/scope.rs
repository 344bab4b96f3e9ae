//! Scopes: declares names and resolves them to places.

use cranelift_codegen::ir::{InstBuilder, MemFlagsData, types};
use fermata_ptx::ast::{self, Linkage, Name, Space, Type};

use super::place::{Place, Register, natural};
use super::{Refused, Step, Translator};
use crate::exec::LoadError;
use crate::exec::layout::size_of;

impl<'a> Translator<'a, '_> {
    pub(super) fn insert(&mut self, name: &Name, place: Place) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.places.insert(name.clone(), place);
        }
    }

    /// A declaration in a body.
    pub(super) fn declare(&mut self, v: &'a ast::Variable) -> Result<(), LoadError> {
        match v.space {
            Space::Reg => self.declare_registers(v),
            Space::Local | Space::Param => {
                let offset = self.next_frame_offset();
                let size = size_of(v)?;
                self.insert(&v.name, Place::Frame { offset, size });
                Ok(())
            }
            Space::Shared if v.linkage == Linkage::Extern || v.bytes(0) == Some(0) => {
                self.insert(&v.name, Place::Dynamic);
                Ok(())
            }
            Space::Shared => {
                let (offset, size) = self.next_shared_place();
                self.insert(&v.name, Place::Shared { offset, size });
                Ok(())
            }
            Space::Global | Space::Const => Err(self.refuse(v)),
        }
    }

    fn refuse(&self, v: &ast::Variable) -> LoadError {
        LoadError::Unsupported {
            line: v.line,
            function: self.function.name.to_string(),
            instruction: format!("`{v}`"),
        }
    }

    fn declare_registers(&mut self, v: &'a ast::Variable) -> Result<(), LoadError> {
        if natural(v.ty).is_err() {
            return Err(self.refuse(v));
        }
        if let Some(count) = v.count {
            if let Some(scope) = self.scopes.last_mut() {
                scope.ranges.insert(v.name.clone(), (count, v.ty));
            }
            return Ok(());
        }
        let place = if v.vector > 1 {
            Place::Vector(
                (0..v.vector)
                    .map(|_| self.new_register(v.ty, false))
                    .collect(),
            )
        } else {
            let float = self.floats.contains(&v.name);
            Place::Register(self.new_register(v.ty, float))
        };
        self.insert(&v.name, place);
        Ok(())
    }

    fn new_register(&mut self, ty: Type, float: bool) -> Register {
        let ty = match natural(ty).unwrap_or(types::I32) {
            types::I32 if float => types::F32,
            types::I64 if float => types::F64,
            // Values of 8 bits are kept in 16, as instructions expect.
            types::I8 if ty != Type::Pred => types::I16,
            other => other,
        };
        Register {
            var: self.b.declare_var(ty),
            ty,
        }
    }

    pub(super) fn next_frame_offset(&mut self) -> u32 {
        let offset = self
            .frame_offsets
            .get(self.next_offset)
            .copied()
            .unwrap_or(0);
        self.next_offset += 1;
        offset
    }

    /// Offset and bytes of the next shared variable that the function declares.
    fn next_shared_place(&mut self) -> (u32, u64) {
        let own = self.unit.layout.own_shared.get(&self.function.name);
        let place = own.and_then(|places| places.get(self.next_shared));
        self.next_shared += 1;
        place.copied().unwrap_or_default()
    }

    /// A `.reg` parameter of a function: read at entry, written back when it leaves.
    pub(super) fn register_parameter(
        &mut self,
        v: &'a ast::Variable,
        place: Place,
        returned: bool,
    ) {
        let register = self.new_register(v.ty, false);
        if let (Place::Pointer { value, .. }, false) = (&place, returned) {
            let loaded = self
                .b
                .ins()
                .load(register.ty, MemFlagsData::trusted(), *value, 0);
            self.b.def_var(register.var, loaded);
        }
        self.scopes[0]
            .places
            .insert(v.name.clone(), Place::Register(register));
        if returned && let Place::Pointer { value, .. } = place {
            self.scopes[0].returned.push((register, value));
        }
    }

    /// What `name` means here.
    pub(super) fn lookup(&mut self, name: &Name) -> Step<Place> {
        for depth in (0..self.scopes.len()).rev() {
            if let Some(place) = self.scopes[depth].places.get(name) {
                return Ok(place.clone());
            }
            if let Some(ty) = self.scopes[depth].ranged(name) {
                let float = self.floats.contains(name);
                let place = Place::Register(self.new_register(ty, float));
                self.scopes[depth]
                    .places
                    .insert(name.clone(), place.clone());
                return Ok(place);
            }
        }
        self.module_place(name)
            .ok_or_else(|| Refused::Undefined(name.clone()))
    }

    fn module_place(&self, name: &Name) -> Option<Place> {
        let layout = self.unit.layout;
        if layout.dynamic.contains(name) {
            return Some(Place::Dynamic);
        }
        if let Some(index) = self.unit.function(name) {
            return Some(Place::Function { index });
        }
        if let Some(&(offset, size)) = layout.shared.get(name) {
            return Some(Place::Shared { offset, size });
        }
        let address = (self.unit.address)(name)?;
        let size = layout.variable_sizes.get(&**name).copied().unwrap_or(0);
        Some(Place::Fixed { address, size })
    }
}
