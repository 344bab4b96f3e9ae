//! Splits PTX text into tokens. Never fails on its own: an unknown byte becomes [`Token::Bad`].

use logos::Logos;

/// One token; texts are slices of the source.
#[derive(Logos, Debug, Clone, Copy, PartialEq)]
#[logos(skip r"[ \t\r\n\x0c\x00]+")]
#[logos(skip(r"//[^\n]*", allow_greedy = true))]
#[logos(skip r"/\*([^*]|\*+[^*/])*\*+/")]
pub(crate) enum Token<'a> {
    /// Name of a register, symbol, label or opcode.
    #[regex(r"[a-zA-Z_$%][a-zA-Z0-9_$]*")]
    Word(&'a str),
    /// Dotted modifier, directive or field, without the dot.
    #[regex(r"\.[a-zA-Z0-9_]+(::[a-zA-Z0-9_]+)*", |lex| &lex.slice()[1..])]
    Dot(&'a str),
    /// Integer literal as written.
    #[regex(r"0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|[0-9]+U?")]
    Int(&'a str),
    /// Hexadecimal bits of a float, `0f…` or `0d…`, as written.
    #[regex(r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}")]
    FloatBits(&'a str),
    /// Decimal float as written.
    #[regex(r"[0-9]+\.[0-9]*([eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+")]
    Float(&'a str),
    /// Quoted text without the quotes.
    #[regex(r#""([^"\\]|\\.)*""#, |lex| { let s = lex.slice(); &s[1..s.len() - 1] })]
    Text(&'a str),
    #[token("{")]
    OpenBrace,
    #[token("}")]
    CloseBrace,
    #[token("(")]
    OpenParen,
    #[token(")")]
    CloseParen,
    #[token("[")]
    OpenBracket,
    #[token("]")]
    CloseBracket,
    #[token("<")]
    Less,
    #[token(">")]
    Greater,
    #[token("<<")]
    ShiftLeft,
    #[token(">>")]
    ShiftRight,
    #[token("<=")]
    LessOrEqual,
    #[token(">=")]
    GreaterOrEqual,
    #[token("==")]
    Equal,
    #[token("!=")]
    NotEqual,
    #[token("&&")]
    And,
    #[token("||")]
    Or,
    #[token("?")]
    Question,
    #[token(",")]
    Comma,
    #[token(";")]
    Semicolon,
    #[token(":")]
    Colon,
    #[token("+")]
    Plus,
    #[token("-")]
    Minus,
    #[token("*")]
    Star,
    #[token("/")]
    Slash,
    #[token("!")]
    Bang,
    #[token("~")]
    Tilde,
    #[token("|")]
    Pipe,
    #[token("&")]
    Ampersand,
    #[token("^")]
    Caret,
    #[token("=")]
    Equals,
    #[token("@")]
    At,
    /// A byte that starts no token.
    Bad,
    /// After the last token.
    End,
}

/// A token with its place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spanned<'a> {
    pub(crate) token: Token<'a>,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) line: u32,
}

/// All tokens of `text`, which must be shorter than 4 GiB, ended by one [`Token::End`].
pub(crate) fn tokens(text: &str) -> Vec<Spanned<'_>> {
    let mut out = Vec::with_capacity(text.len() / 4);
    let (mut line, mut seen) = (1u32, 0usize);
    let bytes = text.as_bytes();
    for (token, range) in Token::lexer(text).spanned() {
        line += newlines(&bytes[seen..range.start]);
        seen = range.start;
        out.push(Spanned {
            token: token.unwrap_or(Token::Bad),
            start: range.start as u32,
            end: range.end as u32,
            line,
        });
    }
    line += newlines(&bytes[seen..]);
    let end = text.len() as u32;
    out.push(Spanned {
        token: Token::End,
        start: end,
        end,
        line,
    });
    out
}

/// The words of a text, also of one that cannot be parsed: its names are among them.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    Token::lexer(text).filter_map(|token| match token {
        Ok(Token::Word(word)) => Some(word),
        _ => None,
    })
}

fn newlines(bytes: &[u8]) -> u32 {
    bytes.iter().filter(|&&b| b == b'\n').count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Less than half of what a thread of a program has.
    const STACK: usize = 256 << 10;

    fn count(text: String) -> usize {
        let work = move || tokens(&text).len();
        let thread = std::thread::Builder::new().stack_size(STACK).spawn(work);
        thread.unwrap().join().unwrap()
    }

    #[test]
    fn the_stack_does_not_grow_with_the_file() {
        const MANY: usize = 200_000;
        assert_eq!(count("// a line\n".repeat(MANY)), 1);
        assert_eq!(count("/* a * ** / */ \t\n".repeat(MANY)), 1);
        assert_eq!(count(format!("/*{}*/", "*a / ** ".repeat(MANY))), 1);
        assert_eq!(count(format!("\"{}\"", "a\\\\ \\\"".repeat(MANY))), 2);
        assert_eq!(count("a".repeat(MANY)), 2);
        assert_eq!(count(".a::b".repeat(MANY)), 1 + MANY);
        assert_eq!(count("1.5e-7 ".repeat(MANY)), 1 + MANY);
    }
}
