//! Bodies: declarations, labels, instructions and their operands.

use super::{Parser, Prefix, Result, integer};
use crate::ast::{GuardPredicate, Instruction, Linkage, Name, Operand, Statement};
use crate::lexer::Token;

impl Parser<'_> {
    /// `{ … }`
    pub(super) fn block(&mut self) -> Result<Vec<Statement>> {
        self.expect(Token::OpenBrace, "`{`")?;
        let mut out = Vec::new();
        while !self.accept(Token::CloseBrace) {
            self.statement(&mut out)?;
        }
        Ok(out)
    }

    fn statement(&mut self, out: &mut Vec<Statement>) -> Result<()> {
        match self.peek() {
            Token::OpenBrace => {
                let inner = self.nested(Self::block)?;
                out.push(Statement::Block(inner));
            }
            Token::Semicolon => {
                self.next();
            }
            Token::Dot("loc" | "file" | "section" | "pragma") => self.skip_debug()?,
            Token::Dot(_) => {
                let prefix = Prefix {
                    linkage: Linkage::Local,
                    managed: false,
                    align: None,
                };
                out.extend(self.variables(prefix)?.into_iter().map(Statement::Variable));
            }
            Token::Word(_) if self.peek_second() == Token::Colon => {
                let name = self.word("a label")?;
                self.next();
                self.labelled(name, out)?;
            }
            Token::Word(_) | Token::At => out.push(Statement::Instruction(self.instruction()?)),
            _ => return self.error("a statement"),
        }
        Ok(())
    }

    /// What follows `name:`.
    fn labelled(&mut self, name: Name, out: &mut Vec<Statement>) -> Result<()> {
        match self.peek() {
            Token::Dot("callprototype") => {
                self.next();
                let returns = if self.peek() == Token::OpenParen {
                    self.parameters()?
                } else {
                    Vec::new()
                };
                self.word("`_`")?;
                let params = if self.peek() == Token::OpenParen {
                    self.parameters()?
                } else {
                    Vec::new()
                };
                while let Token::Dot(_) = self.peek() {
                    self.next();
                    self.numbers()?;
                }
                self.expect(Token::Semicolon, "`;`")?;
                out.push(Statement::Prototype {
                    name,
                    returns,
                    params,
                });
            }
            Token::Dot(word @ ("branchtargets" | "calltargets")) => {
                let calls = word == "calltargets";
                self.next();
                let mut targets = vec![self.word("a target")?];
                while self.accept(Token::Comma) {
                    targets.push(self.word("a target")?);
                }
                self.expect(Token::Semicolon, "`;`")?;
                out.push(Statement::Targets {
                    name,
                    targets,
                    calls,
                });
            }
            _ => out.push(Statement::Label(name)),
        }
        Ok(())
    }

    fn instruction(&mut self) -> Result<Instruction> {
        let start = self.tokens[self.at].start;
        let mut guard = None;
        if self.accept(Token::At) {
            let negated = self.accept(Token::Bang);
            guard = Some(GuardPredicate {
                register: self.word("a predicate")?,
                negated,
            });
        }
        let line = self.line();
        let opcode = self.word("an opcode")?;
        let mut modifiers = Vec::new();
        while let Token::Dot(word) = self.peek() {
            self.next();
            modifiers.push(self.intern(word));
        }
        let mut operands = Vec::new();
        if self.peek() != Token::Semicolon {
            operands.push(self.operand()?);
            while self.accept(Token::Comma) {
                operands.push(self.operand()?);
            }
        }
        let end = self.tokens[self.at].end;
        self.expect(Token::Semicolon, "`,` or `;`")?;
        Ok(Instruction {
            guard,
            opcode,
            modifiers,
            operands,
            line,
            span: start..end,
        })
    }

    fn operand(&mut self) -> Result<Operand> {
        let first = self.simple_operand()?;
        if !self.accept(Token::Pipe) {
            return Ok(first);
        }
        let second = self.simple_operand()?;
        Ok(Operand::Pair(Box::new(first), Box::new(second)))
    }

    fn simple_operand(&mut self) -> Result<Operand> {
        match self.peek() {
            Token::Word(_) => {
                let name = self.word("an operand")?;
                match self.peek() {
                    Token::Dot(field) => {
                        self.next();
                        let field = self.intern(field);
                        Ok(Operand::Field(name, field))
                    }
                    Token::Plus | Token::Minus => Ok(Operand::Offset(name, self.offset()?)),
                    _ => Ok(Operand::Name(name)),
                }
            }
            Token::Bang => {
                self.next();
                Ok(Operand::Not(self.word("a predicate")?))
            }
            Token::Int(_) | Token::FloatBits(_) | Token::Float(_) | Token::Minus | Token::Tilde => {
                self.literal()
            }
            Token::OpenBracket => self.address(),
            Token::OpenBrace => {
                self.next();
                Ok(Operand::Vector(self.list(Token::CloseBrace)?))
            }
            Token::OpenParen => {
                self.next();
                Ok(Operand::List(self.list(Token::CloseParen)?))
            }
            _ => self.error("an operand"),
        }
    }

    /// Operands up to and including `close`.
    fn list(&mut self, close: Token<'static>) -> Result<Vec<Operand>> {
        let mut out = Vec::new();
        if self.accept(close) {
            return Ok(out);
        }
        loop {
            out.push(self.nested(Self::operand)?);
            if self.accept(close) {
                return Ok(out);
            }
            self.expect(Token::Comma, "`,` or the end of the list")?;
        }
    }

    fn literal(&mut self) -> Result<Operand> {
        let negative = self.accept(Token::Minus);
        let inverted = !negative && self.accept(Token::Tilde);
        let text = self.peek();
        let operand = match text {
            Token::Int(text) => match integer(text) {
                Some(value) if negative => Operand::Int((value as i64).wrapping_neg()),
                Some(value) if inverted => Operand::Int(!(value as i64)),
                Some(value) => Operand::Int(value as i64),
                None => return self.error("an integer of at most 64 bits"),
            },
            Token::FloatBits(text) if !inverted => {
                let bits = u64::from_str_radix(&text[2..], 16).unwrap_or(0);
                let sign = u64::from(negative);
                if text.len() == 10 {
                    Operand::F32(bits as u32 ^ (sign << 31) as u32)
                } else {
                    Operand::F64(bits ^ sign << 63)
                }
            }
            Token::Float(text) if !inverted => {
                let value = text.parse::<f64>().unwrap_or(f64::NAN);
                Operand::F64((if negative { -value } else { value }).to_bits())
            }
            _ => return self.error("a number"),
        };
        self.next();
        Ok(operand)
    }

    /// `+ 4`, `- 4` or `+ -4`.
    fn offset(&mut self) -> Result<i64> {
        let negative = self.next() == Token::Minus;
        let again = self.accept(Token::Minus);
        let value = self.unsigned("an offset")? as i64;
        Ok(if negative != again {
            value.wrapping_neg()
        } else {
            value
        })
    }

    /// `[base + offset, rest…]`
    fn address(&mut self) -> Result<Operand> {
        self.next();
        let mut base = None;
        let mut offset = 0;
        match self.peek() {
            Token::Word(_) => {
                base = Some(self.word("an address")?);
                if matches!(self.peek(), Token::Plus | Token::Minus) {
                    offset = self.offset()?;
                }
            }
            Token::Int(_) => offset = self.unsigned("an address")? as i64,
            Token::Minus => offset = self.offset()?,
            _ => return self.error("an address"),
        }
        let rest = if self.accept(Token::Comma) {
            self.list(Token::CloseBracket)?
        } else {
            self.expect(Token::CloseBracket, "`]`")?;
            Vec::new()
        };
        Ok(Operand::Address { base, offset, rest })
    }
}
