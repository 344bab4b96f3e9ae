//! Writes the tree back as PTX text. Debug directives are not in the tree and so are not written.

use std::fmt::{Display, Formatter, Result, Write};

use crate::ast::{
    Constant, Function, Init, Instruction, Item, Linkage, Module, Operand, Space, Statement,
    Variable,
};

impl Display for Module {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, ".version {}.{}", self.version.0, self.version.1)?;
        if !self.targets.is_empty() {
            writeln!(f, ".target {}", self.targets.join(", "))?;
        }
        writeln!(f, ".address_size {}\n", self.address_size)?;
        self.items.iter().try_for_each(|item| writeln!(f, "{item}"))
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Item::Variable(v) => write!(f, "{v};"),
            Item::Function(function) => function.fmt(f),
            Item::Alias { alias, target } => write!(f, ".alias {alias}, {target};"),
        }
    }
}

impl Display for Linkage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Linkage::Local => "",
            Linkage::Visible => ".visible ",
            Linkage::Weak => ".weak ",
            Linkage::Extern => ".extern ",
            Linkage::Common => ".common ",
        })
    }
}

impl Display for Space {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(match self {
            Space::Reg => ".reg",
            Space::Const => ".const",
            Space::Global => ".global",
            Space::Local => ".local",
            Space::Shared => ".shared",
            Space::Param => ".param",
        })
    }
}

impl Display for Variable {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{}", self.linkage, self.space)?;
        if self.managed {
            f.write_str(" .attribute(.managed)")?;
        }
        if let Some(align) = self.align {
            write!(f, " .align {align}")?;
        }
        if self.vector > 1 {
            write!(f, " .v{}", self.vector)?;
        }
        write!(f, " .{} {}", self.ty.name(), self.name)?;
        if let Some(count) = self.count {
            write!(f, "<{count}>")?;
        }
        for dim in &self.dims {
            match dim {
                Some(n) => write!(f, "[{n}]")?,
                None => f.write_str("[]")?,
            }
        }
        match &self.init {
            Some(init) => write!(f, " = {init}"),
            None => Ok(()),
        }
    }
}

impl Display for Init {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Init::Value(value) => value.fmt(f),
            Init::List(list) => {
                f.write_char('{')?;
                separated(f, list)?;
                f.write_char('}')
            }
        }
    }
}

impl Display for Constant {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Constant::Int(value) => write!(f, "{}", Literal(*value)),
            Constant::F32(bits) => write!(f, "0f{bits:08X}"),
            Constant::F64(bits) => write!(f, "0d{bits:016X}"),
            Constant::Symbol {
                name,
                addend,
                generic,
                mask,
            } => {
                if let Some(mask) = mask {
                    write!(f, "{mask:#x}(")?;
                }
                if *generic {
                    write!(f, "generic({name})")?;
                } else {
                    f.write_str(name)?;
                }
                if *addend != 0 {
                    write!(f, "{}", Addend(*addend))?;
                }
                if mask.is_some() {
                    f.write_char(')')
                } else {
                    Ok(())
                }
            }
        }
    }
}

/// An integer; the smallest one has no negative decimal form.
struct Literal(i64);

impl Display for Literal {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.0 == i64::MIN {
            write!(f, "{:#x}", self.0)
        } else {
            write!(f, "{}", self.0)
        }
    }
}

/// `+4` or `-4`.
struct Addend(i64);

impl Display for Addend {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{}{}",
            if self.0 < 0 { '-' } else { '+' },
            self.0.unsigned_abs()
        )
    }
}

impl Display for Function {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(
            f,
            "{}{} ",
            self.linkage,
            if self.entry { ".entry" } else { ".func" }
        )?;
        if !self.returns.is_empty() {
            f.write_char('(')?;
            separated(f, &self.returns)?;
            f.write_str(") ")?;
        }
        write!(f, "{}(", self.name)?;
        separated(f, &self.params)?;
        f.write_char(')')?;
        if self.noreturn {
            f.write_str("\n.noreturn")?;
        }
        for (word, numbers) in &self.tuning {
            write!(f, "\n.{word} ")?;
            separated(f, numbers)?;
        }
        match &self.body {
            None => f.write_char(';'),
            Some(body) => {
                f.write_str("\n{\n")?;
                statements(f, body, 1)?;
                f.write_char('}')
            }
        }
    }
}

fn statements(f: &mut Formatter<'_>, list: &[Statement], depth: usize) -> Result {
    for statement in list {
        if !matches!(statement, Statement::Label(_)) {
            (0..depth).try_for_each(|_| f.write_char('\t'))?;
        }
        match statement {
            Statement::Variable(v) => writeln!(f, "{v};")?,
            Statement::Label(name) => writeln!(f, "{name}:")?,
            Statement::Instruction(i) => writeln!(f, "{i};")?,
            Statement::Block(inner) => {
                f.write_str("{\n")?;
                statements(f, inner, depth + 1)?;
                (0..depth).try_for_each(|_| f.write_char('\t'))?;
                f.write_str("}\n")?;
            }
            Statement::Prototype {
                name,
                returns,
                params,
            } => {
                write!(f, "{name} : .callprototype (")?;
                separated(f, returns)?;
                f.write_str(") _ (")?;
                separated(f, params)?;
                f.write_str(");\n")?;
            }
            Statement::Targets {
                name,
                targets,
                calls,
            } => {
                let word = if *calls {
                    "calltargets"
                } else {
                    "branchtargets"
                };
                writeln!(f, "{name}: .{word} {};", targets.join(", "))?;
            }
        }
    }
    Ok(())
}

impl Display for Instruction {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if let Some(guard) = &self.guard {
            write!(
                f,
                "@{}{} ",
                if guard.negated { "!" } else { "" },
                guard.register
            )?;
        }
        f.write_str(&self.opcode)?;
        for word in &self.modifiers {
            write!(f, ".{word}")?;
        }
        if !self.operands.is_empty() {
            f.write_char(' ')?;
        }
        separated(f, &self.operands)
    }
}

impl Display for Operand {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Operand::Name(name) => f.write_str(name),
            Operand::Field(name, field) => write!(f, "{name}.{field}"),
            Operand::Not(name) => write!(f, "!{name}"),
            Operand::Int(value) => write!(f, "{}", Literal(*value)),
            Operand::F32(bits) => write!(f, "0f{bits:08X}"),
            Operand::F64(bits) => write!(f, "0d{bits:016X}"),
            Operand::Pair(a, b) => write!(f, "{a}|{b}"),
            Operand::Offset(name, offset) => write!(f, "{name}{}", Addend(*offset)),
            Operand::Address { base, offset, rest } => {
                f.write_char('[')?;
                match base {
                    Some(base) if *offset == 0 => f.write_str(base)?,
                    // Between brackets only a sum is written: `[%rd1+-4]`.
                    Some(base) => write!(f, "{base}+{offset}")?,
                    None => write!(f, "{}", *offset as u64)?,
                }
                if !rest.is_empty() {
                    f.write_str(", ")?;
                    separated(f, rest)?;
                }
                f.write_char(']')
            }
            Operand::Vector(list) => {
                f.write_char('{')?;
                separated(f, list)?;
                f.write_char('}')
            }
            Operand::List(list) => {
                f.write_char('(')?;
                separated(f, list)?;
                f.write_char(')')
            }
        }
    }
}

fn separated<T: Display>(f: &mut Formatter<'_>, list: &[T]) -> Result {
    for (i, item) in list.iter().enumerate() {
        if i > 0 {
            f.write_str(", ")?;
        }
        item.fmt(f)?;
    }
    Ok(())
}
