//! The modifiers of an instruction (`.word`), taken one by one. An instruction with one left over is not supported.

use fermata_ptx::ast::{Instruction, Type};

use super::refused::{Refused, Step};
use crate::exec::runtime::math::rounding;

/// Words that have not been taken yet, in order.
pub struct Modifiers<'a> {
    left: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// All words of `instruction`.
    pub fn new(instruction: &'a Instruction) -> Self {
        Self {
            left: instruction.modifiers.iter().map(|m| &**m).collect(),
        }
    }

    /// Whether `word` is there.
    pub fn has(&self, word: &str) -> bool {
        self.left.contains(&word)
    }

    /// Takes `word` if it is there.
    pub fn flag(&mut self, word: &str) -> bool {
        let at = self.left.iter().position(|w| *w == word);
        at.map(|at| self.left.remove(at)).is_some()
    }

    /// Takes whichever of `words` comes first.
    pub fn one_of(&mut self, words: &[&str]) -> Option<&'a str> {
        let at = self.left.iter().position(|w| words.contains(w))?;
        Some(self.left.remove(at))
    }

    /// Takes all of `words` that are there, and those that begin with one of `prefixes`.
    pub fn skip(&mut self, words: &[&str], prefixes: &[&str]) {
        self.left
            .retain(|w| !words.contains(w) && !prefixes.iter().any(|p| w.starts_with(p)));
    }

    /// Takes the first word.
    pub fn first(&mut self) -> Step<&'a str> {
        if self.left.is_empty() {
            Err(Refused::Unsupported)
        } else {
            Ok(self.left.remove(0))
        }
    }

    /// Takes the first type.
    pub fn ty(&mut self) -> Step<Type> {
        let found = self
            .left
            .iter()
            .enumerate()
            .find_map(|(i, w)| Some((i, Type::from_name(w)?)));
        let (at, ty) = found.ok_or(Refused::Unsupported)?;
        self.left.remove(at);
        Ok(ty)
    }

    /// Takes a rounding of floating-point results, if given.
    pub fn rounding(&mut self) -> Option<u32> {
        self.one_of(&["rn", "rz", "rm", "rp"])
            .map(|word| match word {
                "rn" => rounding::NEAREST,
                "rz" => rounding::ZERO,
                "rm" => rounding::DOWN,
                _ => rounding::UP,
            })
    }

    /// Takes the length of a vector; 1 if none.
    pub fn vector(&mut self) -> usize {
        match self.one_of(&["v2", "v4", "v8"]) {
            Some("v2") => 2,
            Some("v4") => 4,
            Some(_) => 8,
            None => 1,
        }
    }

    /// # Errors
    /// Words are left.
    pub fn done(&self) -> Step {
        if self.left.is_empty() {
            Ok(())
        } else {
            Err(Refused::Unsupported)
        }
    }
}
