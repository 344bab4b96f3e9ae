//! Constant expressions (PTX ISA, section Constant Expressions): they are evaluated while the text is read.
//!
//! Integers have 64 bits, and are signed unless they are written with `U` or do not fit. Single-precision literals only
//! stand alone or behind a sign. The address of a symbol takes an addend.

use std::cmp::Ordering;

use super::{Parser, Result, integer};
use crate::ast::Constant;
use crate::lexer::Token;

/// The value of a part of an expression.
struct Value {
    constant: Constant,
    /// Whether it is an unsigned integer.
    unsigned: bool,
}

impl Value {
    fn int(value: i64, unsigned: bool) -> Self {
        Value {
            constant: Constant::Int(value),
            unsigned,
        }
    }

    /// An integer literal of that text.
    fn literal(value: u64, text: &str) -> Self {
        Self::int(value as i64, text.ends_with('U') || value > i64::MAX as u64)
    }
}

impl From<Constant> for Value {
    fn from(constant: Constant) -> Self {
        Value {
            constant,
            unsigned: false,
        }
    }
}

impl Parser<'_> {
    /// A constant expression, or the address of a symbol.
    pub(super) fn expression(&mut self) -> Result<Constant> {
        Ok(self.conditional()?.constant)
    }

    /// A constant expression whose value is an integer.
    pub(super) fn integer_expression(&mut self) -> Result<i64> {
        match self.expression()? {
            Constant::Int(value) => Ok(value),
            _ => self.error("an integer before this"),
        }
    }

    fn conditional(&mut self) -> Result<Value> {
        let condition = self.binary(0)?;
        if !self.accept(Token::Question) {
            return Ok(condition);
        }
        let Constant::Int(condition) = condition.constant else {
            return self.error("an integer before the `?` before this");
        };
        let first = self.nested(Self::conditional)?;
        self.expect(Token::Colon, "`:`")?;
        let second = self.nested(Self::conditional)?;
        let unsigned = first.unsigned || second.unsigned;
        let chosen = if condition != 0 { first } else { second };
        Ok(Value { unsigned, ..chosen })
    }

    /// Operands joined by operators that bind at least as strongly as `lowest`.
    fn binary(&mut self, lowest: u8) -> Result<Value> {
        let mut left = self.unary()?;
        loop {
            let operator = self.peek();
            let Some(strength) = strength(operator).filter(|it| *it >= lowest) else {
                return Ok(left);
            };
            self.next();
            let right = match operator {
                Token::Word(word) if word.len() > 1 => {
                    Value::literal(integer(&word[1..]).unwrap_or(0), word)
                }
                _ => self.nested(|parser| parser.binary(strength + 1))?,
            };
            left = self.apply(operator, left, right)?;
        }
    }

    fn apply(&self, operator: Token<'_>, left: Value, right: Value) -> Result<Value> {
        let (one, other) = (left.unsigned, right.unsigned);
        let value = match (left.constant, right.constant) {
            (Constant::Int(a), Constant::Int(b)) => integers(operator, (a, one), (b, other)),
            (Constant::F64(a), Constant::F64(b)) => {
                floats(operator, f64::from_bits(a), f64::from_bits(b))
            }
            (symbol, Constant::Int(b)) => match operator {
                Token::Plus => moved(symbol, b),
                Token::Minus => moved(symbol, b.wrapping_neg()),
                _ => None,
            },
            _ => None,
        };
        match value {
            Some(value) => Ok(value),
            None => self.error("operands that have a value before this"),
        }
    }

    fn unary(&mut self) -> Result<Value> {
        let operator = self.peek();
        match operator {
            Token::Plus | Token::Minus | Token::Tilde | Token::Bang => {
                self.next();
                let value = self.nested(Self::unary)?;
                let unsigned = value.unsigned;
                Ok(match (operator, value.constant) {
                    (Token::Plus, Constant::Int(value)) => Value::int(value, unsigned),
                    (Token::Plus, float @ (Constant::F32(_) | Constant::F64(_))) => float.into(),
                    (Token::Minus, Constant::Int(value)) => {
                        Value::int(value.wrapping_neg(), unsigned)
                    }
                    (Token::Minus, Constant::F32(bits)) => Constant::F32(bits ^ 1 << 31).into(),
                    (Token::Minus, Constant::F64(bits)) => Constant::F64(bits ^ 1 << 63).into(),
                    (Token::Tilde, Constant::Int(value)) => Value::int(!value, true),
                    (Token::Bang, Constant::Int(value)) => Value::int(i64::from(value == 0), false),
                    _ => return self.error("a number before this"),
                })
            }
            Token::OpenParen => self.parenthesised(),
            _ => self.term(),
        }
    }

    /// `(expression)`, or `(.s64) operand` and `(.u64) operand`.
    fn parenthesised(&mut self) -> Result<Value> {
        self.expect(Token::OpenParen, "`(`")?;
        let Token::Dot(ty @ ("s64" | "u64")) = self.peek() else {
            let value = self.nested(Self::conditional)?;
            self.expect(Token::CloseParen, "`)`")?;
            return Ok(value);
        };
        self.next();
        self.expect(Token::CloseParen, "`)`")?;
        match self.nested(Self::unary)?.constant {
            Constant::Int(value) => Ok(Value::int(value, ty == "u64")),
            _ => self.error("an integer before this"),
        }
    }

    fn term(&mut self) -> Result<Value> {
        match self.peek() {
            Token::Int(text) => {
                let value = integer(text);
                self.next();
                if self.peek() == Token::OpenParen {
                    return self.masked(value);
                }
                match value {
                    Some(value) => Ok(Value::literal(value, text)),
                    None => self.error("an integer of at most 64 bits before this"),
                }
            }
            Token::FloatBits(text) => {
                self.next();
                Ok(float_bits(text).into())
            }
            Token::Float(text) => {
                self.next();
                let value = text.parse::<f64>().unwrap_or(f64::NAN);
                Ok(Constant::F64(value.to_bits()).into())
            }
            Token::Word("generic") if self.peek_second() == Token::OpenParen => {
                self.next();
                self.next();
                let value = self.symbol(true)?;
                self.expect(Token::CloseParen, "`)`")?;
                Ok(value)
            }
            Token::Word(_) => self.symbol(false),
            _ => self.error("a constant"),
        }
    }

    fn symbol(&mut self, generic: bool) -> Result<Value> {
        let name = self.word("a symbol")?;
        let symbol = Constant::Symbol {
            name,
            addend: 0,
            generic,
            mask: None,
        };
        Ok(symbol.into())
    }

    /// `0xFF00(symbol)`, after the number.
    fn masked(&mut self, mask: Option<u64>) -> Result<Value> {
        self.expect(Token::OpenParen, "`(`")?;
        let inner = self.nested(Self::expression)?;
        self.expect(Token::CloseParen, "`)`")?;
        let Constant::Symbol {
            name,
            addend,
            generic,
            ..
        } = inner
        else {
            return self.error("a symbol under the mask");
        };
        let symbol = Constant::Symbol {
            name,
            addend,
            generic,
            mask,
        };
        Ok(symbol.into())
    }
}

/// How strongly a binary operator binds; `None` if the token is none.
fn strength(token: Token<'_>) -> Option<u8> {
    Some(match token {
        Token::Or => 0,
        Token::And => 1,
        Token::Pipe => 2,
        Token::Caret => 3,
        Token::Ampersand => 4,
        Token::Equal | Token::NotEqual => 5,
        Token::Less | Token::Greater | Token::LessOrEqual | Token::GreaterOrEqual => 6,
        Token::ShiftLeft | Token::ShiftRight => 7,
        Token::Plus | Token::Minus => 8,
        Token::Star | Token::Slash => 9,
        // The lexer takes a percent sign, and a number that follows it at once, for a name.
        Token::Word(word) => {
            let behind = word.strip_prefix('%')?;
            return (behind.is_empty() || integer(behind).is_some()).then_some(9);
        }
        _ => return None,
    })
}

/// `None` for a division by zero. Each operand with whether it is unsigned.
fn integers(operator: Token<'_>, left: (i64, bool), right: (i64, bool)) -> Option<Value> {
    let ((a, b), unsigned) = ((left.0, right.0), left.1 || right.1);
    let (x, y) = (a as u64, b as u64);
    let order = if unsigned { x.cmp(&y) } else { a.cmp(&b) };
    if let Some(holds) = compared(operator, Some(order)) {
        return Some(Value::int(i64::from(holds), false));
    }
    let (value, unsigned) = match operator {
        Token::Plus => (a.wrapping_add(b), unsigned),
        Token::Minus => (a.wrapping_sub(b), unsigned),
        Token::Star => (a.wrapping_mul(b), unsigned),
        Token::Slash if b == 0 => return None,
        Token::Slash if unsigned => ((x / y) as i64, true),
        Token::Slash => (a.wrapping_div(b), false),
        Token::Word(_) => (x.checked_rem(y)? as i64, false),
        Token::ShiftLeft if y > 63 => (0, left.1),
        Token::ShiftLeft => (a << y, left.1),
        Token::ShiftRight if left.1 && y > 63 => (0, true),
        Token::ShiftRight if left.1 => ((x >> y) as i64, true),
        Token::ShiftRight => (a >> y.min(63), false),
        Token::Ampersand => (a & b, true),
        Token::Caret => (a ^ b, true),
        Token::Pipe => (a | b, true),
        Token::And => (i64::from(a != 0 && b != 0), false),
        Token::Or => (i64::from(a != 0 || b != 0), false),
        _ => return None,
    };
    Some(Value::int(value, unsigned))
}

/// `None` if the operator takes no floats.
fn floats(operator: Token<'_>, a: f64, b: f64) -> Option<Value> {
    if let Some(holds) = compared(operator, a.partial_cmp(&b)) {
        return Some(Value::int(i64::from(holds), false));
    }
    let value = match operator {
        Token::Plus => a + b,
        Token::Minus => a - b,
        Token::Star => a * b,
        Token::Slash => a / b,
        _ => return None,
    };
    Some(Constant::F64(value.to_bits()).into())
}

/// What a comparison says of operands in that order, of which floats may have none; `None` if the operator is none.
fn compared(operator: Token<'_>, order: Option<Ordering>) -> Option<bool> {
    let holds: fn(Ordering) -> bool = match operator {
        Token::Less => Ordering::is_lt,
        Token::LessOrEqual => Ordering::is_le,
        Token::Greater => Ordering::is_gt,
        Token::GreaterOrEqual => Ordering::is_ge,
        Token::Equal => Ordering::is_eq,
        Token::NotEqual => return Some(order != Some(Ordering::Equal)),
        _ => return None,
    };
    Some(order.is_some_and(holds))
}

/// The address of a symbol, `by` bytes further; `None` if it is no symbol.
fn moved(mut symbol: Constant, by: i64) -> Option<Value> {
    let Constant::Symbol { addend, .. } = &mut symbol else {
        return None;
    };
    *addend = addend.wrapping_add(by);
    Some(symbol.into())
}

/// `0f…` or `0d…`; the lexer has checked the digits.
fn float_bits(text: &str) -> Constant {
    let bits = u64::from_str_radix(&text[2..], 16).unwrap_or(0);
    if text.len() == 10 {
        Constant::F32(bits as u32)
    } else {
        Constant::F64(bits)
    }
}
