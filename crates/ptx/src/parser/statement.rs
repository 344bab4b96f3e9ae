//! Bodies: declarations, labels, instructions and their operands.

use super::{Parser, Prefix, Result};
use crate::ast::{Constant, GuardPredicate, Instruction, Linkage, Name, Operand, Statement};
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
        self.in_call = &*opcode == "call";
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
                    Token::Plus | Token::Minus => {
                        Ok(Operand::Offset(name, self.integer_expression()?))
                    }
                    _ => Ok(Operand::Name(name)),
                }
            }
            Token::Bang if matches!(self.peek_second(), Token::Word(_)) => {
                self.next();
                Ok(Operand::Not(self.word("a predicate")?))
            }
            Token::Int(_) | Token::FloatBits(_) | Token::Float(_) => self.literal(),
            Token::Plus | Token::Minus | Token::Tilde | Token::Bang => self.literal(),
            Token::OpenBracket => self.address(),
            Token::OpenBrace => {
                self.next();
                Ok(Operand::Vector(self.list(Token::CloseBrace)?))
            }
            Token::OpenParen if self.in_call => {
                self.next();
                Ok(Operand::List(self.list(Token::CloseParen)?))
            }
            Token::OpenParen => self.literal(),
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
        Ok(match self.expression()? {
            Constant::Int(value) => Operand::Int(value),
            Constant::F32(bits) => Operand::F32(bits),
            Constant::F64(bits) => Operand::F64(bits),
            Constant::Symbol { .. } => return self.error("a number before this"),
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
                    offset = self.integer_expression()?;
                }
            }
            _ => offset = self.integer_expression()?,
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
