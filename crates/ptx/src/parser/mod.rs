//! Recursive descent from tokens to the tree of [`crate::ast`].
//!
//! `mod.rs` holds the cursor and module-level items, `declaration.rs` variables, parameters and
//! initialisers, `expression.rs` constant expressions, `statement.rs` bodies and operands. Debug sections are skipped by matching braces.

mod declaration;
mod expression;
mod statement;

use std::collections::HashSet;
use std::sync::Arc;

use crate::ast::{Function, Item, Linkage, Module, Name, Space};
use crate::lexer::{Spanned, Token, tokens};

/// Nesting of blocks, initialisers or expressions beyond which text is refused.
const MAX_DEPTH: u32 = 200;
/// Length of text beyond which it is refused, bytes.
const MAX_TEXT: usize = 1 << 30;

/// Text that is not PTX.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line, from 1.
    pub line: u32,
    /// What was expected, and what stood there.
    pub message: String,
}

type Result<T> = std::result::Result<T, ParseError>;

/// Parses a module.
///
/// # Errors
/// The first place at which the text is not PTX, or nested or long beyond bounds.
pub fn parse(text: &str) -> Result<Module> {
    if text.len() > MAX_TEXT {
        return Err(ParseError {
            line: 1,
            message: "the text is longer than 1 GiB".into(),
        });
    }
    Parser {
        tokens: tokens(text),
        at: 0,
        depth: 0,
        in_call: false,
        names: HashSet::new(),
    }
    .module()
}

/// Directives ahead of a variable or function.
#[derive(Clone, Copy)]
struct Prefix {
    linkage: Linkage,
    managed: bool,
    align: Option<u32>,
}

struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
    depth: u32,
    /// Whether operands in parentheses are a call's list.
    in_call: bool,
    names: HashSet<Name>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens[self.at].token
    }

    fn peek_second(&self) -> Token<'a> {
        self.tokens.get(self.at + 1).map_or(Token::End, |t| t.token)
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        if token != Token::End {
            self.at += 1;
        }
        token
    }

    fn error<T>(&self, expected: &str) -> Result<T> {
        let found = match self.peek() {
            Token::Word(w) => format!("`{w}`"),
            Token::Dot(d) => format!("`.{d}`"),
            Token::Int(s) | Token::FloatBits(s) | Token::Float(s) => format!("`{s}`"),
            Token::Text(_) => "a string".into(),
            Token::Bad => "a byte that is no part of PTX".into(),
            Token::End => "the end of the text".into(),
            other => format!("{other:?}"),
        };
        Err(ParseError {
            line: self.line(),
            message: format!("expected {expected}, found {found}"),
        })
    }

    fn accept(&mut self, token: Token<'_>) -> bool {
        let yes = self.peek() == token;
        if yes {
            self.next();
        }
        yes
    }

    fn expect(&mut self, token: Token<'_>, what: &str) -> Result<()> {
        if self.accept(token) {
            Ok(())
        } else {
            self.error(what)
        }
    }

    fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.names.get(text) {
            return name.clone();
        }
        let name: Name = Arc::from(text);
        self.names.insert(name.clone());
        name
    }

    fn word(&mut self, what: &str) -> Result<Name> {
        match self.peek() {
            Token::Word(w) => {
                self.next();
                Ok(self.intern(w))
            }
            _ => self.error(what),
        }
    }

    /// An unsigned integer literal.
    fn unsigned(&mut self, what: &str) -> Result<u64> {
        match self.peek() {
            Token::Int(text) => match integer(text) {
                Some(value) => {
                    self.next();
                    Ok(value)
                }
                None => self.error("an integer of at most 64 bits"),
            },
            _ => self.error(what),
        }
    }

    fn small(&mut self, what: &str) -> Result<u32> {
        let at = self.at;
        match u32::try_from(self.unsigned(what)?) {
            Ok(value) => Ok(value),
            Err(_) => {
                self.at = at;
                self.error("a smaller number")
            }
        }
    }

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return self.error("less nesting");
        }
        self.depth += 1;
        let result = inner(self);
        self.depth -= 1;
        result
    }

    fn module(mut self) -> Result<Module> {
        let mut module = Module {
            version: (0, 0),
            targets: Vec::new(),
            address_size: 0,
            items: Vec::new(),
        };
        while self.peek() != Token::End {
            self.item(&mut module)?;
        }
        // Text older than the directive does not say; today's drivers take it for 64 bits.
        if module.address_size == 0 {
            module.address_size = if module.version < (2, 3) { 64 } else { 32 };
        }
        if module.version == (0, 0) {
            return Err(ParseError {
                line: 1,
                message: "no `.version` directive".into(),
            });
        }
        Ok(module)
    }

    fn item(&mut self, module: &mut Module) -> Result<()> {
        match self.peek() {
            Token::Dot("version") => {
                self.next();
                module.version = self.version()?;
            }
            Token::Dot("target") => {
                self.next();
                module.targets.push(self.word("a target")?);
                while self.accept(Token::Comma) {
                    module.targets.push(self.word("a target")?);
                }
            }
            Token::Dot("address_size") => {
                self.next();
                module.address_size = self.small("32 or 64")?;
            }
            Token::Dot("alias") => {
                self.next();
                let alias = self.word("a name")?;
                self.expect(Token::Comma, "`,`")?;
                let target = self.word("a name")?;
                self.expect(Token::Semicolon, "`;`")?;
                module.items.push(Item::Alias { alias, target });
            }
            Token::Dot("file" | "loc" | "section" | "pragma") => self.skip_debug()?,
            Token::Semicolon => {
                self.next();
            }
            // Labels of debug sections may stand between functions.
            Token::Word(_) if self.peek_second() == Token::Colon => {
                self.next();
                self.next();
            }
            Token::Dot(_) => self.definition(module)?,
            _ => return self.error("a directive"),
        }
        Ok(())
    }

    fn version(&mut self) -> Result<(u32, u32)> {
        let Token::Float(text) = self.peek() else {
            return self.error("a version such as 8.0");
        };
        let parts = text
            .split_once('.')
            .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        match parts {
            Some(version) => {
                self.next();
                Ok(version)
            }
            None => self.error("a version such as 8.0"),
        }
    }

    /// `.file`, `.loc`, `.section` and `.pragma`, which mean nothing here.
    fn skip_debug(&mut self) -> Result<()> {
        let line = self.line();
        match self.next() {
            Token::Dot("section") => {
                while self.peek() != Token::OpenBrace {
                    if self.next() == Token::End {
                        return self.error("`{`");
                    }
                }
                let mut open = 0u32;
                loop {
                    match self.next() {
                        Token::OpenBrace => open += 1,
                        Token::CloseBrace if open == 1 => return Ok(()),
                        Token::CloseBrace => open -= 1,
                        Token::End => return self.error("`}` at the end of a section"),
                        _ => {}
                    }
                }
            }
            Token::Dot("pragma") => {
                while !self.accept(Token::Semicolon) {
                    if self.next() == Token::End {
                        return self.error("`;`");
                    }
                }
                Ok(())
            }
            // These two end with their line.
            _ => {
                while self.line() == line && self.peek() != Token::End {
                    self.next();
                }
                Ok(())
            }
        }
    }

    fn prefix(&mut self) -> Result<Prefix> {
        let mut prefix = Prefix {
            linkage: Linkage::Local,
            managed: false,
            align: None,
        };
        loop {
            match self.peek() {
                Token::Dot("visible") => prefix.linkage = Linkage::Visible,
                Token::Dot("weak") => prefix.linkage = Linkage::Weak,
                Token::Dot("extern") => prefix.linkage = Linkage::Extern,
                Token::Dot("common") => prefix.linkage = Linkage::Common,
                Token::Dot("attribute") => {
                    self.next();
                    self.expect(Token::OpenParen, "`(`")?;
                    while !self.accept(Token::CloseParen) {
                        match self.next() {
                            Token::Dot("managed") => prefix.managed = true,
                            Token::End => return self.error("`)`"),
                            _ => {}
                        }
                    }
                    continue;
                }
                _ => return Ok(prefix),
            }
            self.next();
        }
    }

    fn definition(&mut self, module: &mut Module) -> Result<()> {
        let prefix = self.prefix()?;
        match self.peek() {
            Token::Dot("entry") => {
                let function = self.function(prefix.linkage, true)?;
                module.items.push(Item::Function(function));
            }
            Token::Dot("func") => {
                let function = self.function(prefix.linkage, false)?;
                module.items.push(Item::Function(function));
            }
            Token::Dot("global" | "const" | "shared" | "local" | "tex") => {
                let variables = self.variables(prefix)?;
                module
                    .items
                    .extend(variables.into_iter().map(Item::Variable));
            }
            _ => return self.error("`.entry`, `.func` or a state space"),
        }
        Ok(())
    }

    fn function(&mut self, linkage: Linkage, entry: bool) -> Result<Function> {
        self.next();
        if let Token::Dot("attribute") = self.peek() {
            self.prefix()?;
        }
        let mut noreturn = false;
        let returns = if self.peek() == Token::OpenParen {
            self.parameters()?
        } else {
            Vec::new()
        };
        let line = self.line();
        let name = self.word("a function's name")?;
        let params = if self.peek() == Token::OpenParen {
            self.parameters()?
        } else {
            Vec::new()
        };
        let mut tuning = Vec::new();
        loop {
            match self.peek() {
                Token::Dot("noreturn") => {
                    noreturn = true;
                    self.next();
                }
                Token::Dot("pragma") => self.skip_debug()?,
                Token::Dot(
                    word @ ("maxntid"
                    | "reqntid"
                    | "minnctapersm"
                    | "maxnctapersm"
                    | "maxnreg"
                    | "blocksareclusters"
                    | "explicitcluster"
                    | "reqnctapercluster"
                    | "maxclusterrank"
                    | "abi_preserve"
                    | "abi_preserve_control"),
                ) => {
                    self.next();
                    let word = self.intern(word);
                    tuning.push((word, self.numbers()?));
                }
                Token::Semicolon => {
                    self.next();
                    return Ok(Function {
                        linkage,
                        entry,
                        name,
                        returns,
                        params,
                        noreturn,
                        tuning,
                        body: None,
                        line,
                    });
                }
                Token::OpenBrace => {
                    let body = Some(self.block()?);
                    return Ok(Function {
                        linkage,
                        entry,
                        name,
                        returns,
                        params,
                        noreturn,
                        tuning,
                        body,
                        line,
                    });
                }
                _ => return self.error("a body or `;`"),
            }
        }
    }

    /// Numbers separated by commas, maybe none.
    fn numbers(&mut self) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        if !matches!(self.peek(), Token::Int(_)) {
            return Ok(out);
        }
        out.push(self.small("a number")?);
        while self.accept(Token::Comma) {
            out.push(self.small("a number")?);
        }
        Ok(out)
    }

    /// `( .param …, … )`
    fn parameters(&mut self) -> Result<Vec<crate::ast::Variable>> {
        self.expect(Token::OpenParen, "`(`")?;
        let mut out = Vec::new();
        if self.accept(Token::CloseParen) {
            return Ok(out);
        }
        loop {
            let space = match self.next() {
                Token::Dot("param") => Space::Param,
                Token::Dot("reg") => Space::Reg,
                _ => {
                    self.at -= 1;
                    return self.error("`.param` or `.reg`");
                }
            };
            out.push(self.parameter(space)?);
            if self.accept(Token::CloseParen) {
                return Ok(out);
            }
            self.expect(Token::Comma, "`,` or `)`")?;
        }
    }
}

/// Value of an integer literal; `None` when it does not fit 64 bits or is no number.
fn integer(text: &str) -> Option<u64> {
    let text = text.strip_suffix('U').unwrap_or(text);
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        u64::from_str_radix(digits, 16).ok()
    } else if let Some(digits) = text.strip_prefix("0b").or_else(|| text.strip_prefix("0B")) {
        u64::from_str_radix(digits, 2).ok()
    } else if text.len() > 1 && text.starts_with('0') {
        u64::from_str_radix(&text[1..], 8).ok()
    } else {
        text.parse().ok()
    }
}

#[cfg(test)]
mod tests;
