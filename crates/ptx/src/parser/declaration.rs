//! Variables, registers, parameters and initialisers.

use super::{Parser, Prefix, Result};
use crate::ast::{Init, Linkage, Space, Type, Variable};
use crate::lexer::Token;

impl Parser<'_> {
    /// A declaration whose state space comes next; one variable per declared name.
    pub(super) fn variables(&mut self, mut prefix: Prefix) -> Result<Vec<Variable>> {
        let space = match self.peek() {
            Token::Dot("reg") => Space::Reg,
            Token::Dot("const") => Space::Const,
            Token::Dot("global" | "tex") => Space::Global,
            Token::Dot("local") => Space::Local,
            Token::Dot("shared") => Space::Shared,
            Token::Dot("param") => Space::Param,
            _ => return self.error("a state space"),
        };
        self.next();
        let later = self.prefix()?;
        prefix.managed |= later.managed;
        let (ty, vector) = self.typing(&mut prefix)?;
        let mut out = Vec::new();
        loop {
            let line = self.line();
            let name = self.word("a name")?;
            let mut count = None;
            if self.accept(Token::Less) {
                count = Some(self.small("a count")?);
                self.expect(Token::Greater, "`>`")?;
            }
            let dims = self.dimensions()?;
            let init = if self.accept(Token::Equals) {
                Some(self.initialiser()?)
            } else {
                None
            };
            let Prefix {
                linkage,
                managed,
                align,
            } = prefix;
            out.push(Variable {
                linkage,
                space,
                align,
                vector,
                ty,
                name,
                dims,
                count,
                init,
                managed,
                line,
            });
            if self.accept(Token::Semicolon) {
                return Ok(out);
            }
            self.expect(Token::Comma, "`,` or `;`")?;
        }
    }

    /// The rest of a parameter after its state space.
    pub(super) fn parameter(&mut self, space: Space) -> Result<Variable> {
        let mut prefix = Prefix {
            linkage: Linkage::Local,
            managed: false,
            align: None,
        };
        let (ty, vector) = self.typing(&mut prefix)?;
        // `.ptr`, the space it points to and the alignment of what it points to do not change layout.
        if self.accept(Token::Dot("ptr")) {
            loop {
                match self.peek() {
                    Token::Dot("align") => {
                        self.next();
                        self.small("an alignment")?;
                    }
                    Token::Dot(_) => {
                        self.next();
                    }
                    _ => break,
                }
            }
        }
        let line = self.line();
        let name = self.word("a parameter's name")?;
        let dims = self.dimensions()?;
        let Prefix {
            linkage,
            managed,
            align,
        } = prefix;
        Ok(Variable {
            linkage,
            space,
            align,
            vector,
            ty,
            name,
            dims,
            count: None,
            init: None,
            managed,
            line,
        })
    }

    /// `.align N`, `.v2`, and the type, in any order that compilers use.
    fn typing(&mut self, prefix: &mut Prefix) -> Result<(Type, u32)> {
        let mut vector = 1;
        loop {
            match self.peek() {
                Token::Dot("align") => {
                    self.next();
                    let align = self.small("an alignment")?;
                    if !align.is_power_of_two() || align > 1 << 20 {
                        return self.error("an alignment that is a power of two");
                    }
                    prefix.align = Some(align);
                }
                Token::Dot("v2") => {
                    self.next();
                    vector = 2;
                }
                Token::Dot("v4") => {
                    self.next();
                    vector = 4;
                }
                Token::Dot(word) => match Type::from_name(word) {
                    Some(ty) => {
                        self.next();
                        return Ok((ty, vector));
                    }
                    None => return self.error("a type"),
                },
                _ => return self.error("a type"),
            }
        }
    }

    fn dimensions(&mut self) -> Result<Vec<Option<u64>>> {
        let mut dims = Vec::new();
        while self.accept(Token::OpenBracket) {
            if self.accept(Token::CloseBracket) {
                dims.push(None);
            } else {
                let length = u64::try_from(self.integer_expression()?);
                let Ok(length) = length else {
                    return self.error("a length before this");
                };
                dims.push(Some(length));
                self.expect(Token::CloseBracket, "`]`")?;
            }
        }
        Ok(dims)
    }

    fn initialiser(&mut self) -> Result<Init> {
        if !self.accept(Token::OpenBrace) {
            return Ok(Init::Value(self.expression()?));
        }
        let mut list = Vec::new();
        if self.accept(Token::CloseBrace) {
            return Ok(Init::List(list));
        }
        loop {
            list.push(self.nested(Self::initialiser)?);
            if self.accept(Token::CloseBrace) {
                return Ok(Init::List(list));
            }
            self.expect(Token::Comma, "`,` or `}`")?;
        }
    }
}
