//! Conditions of graphs: the handles of their values, and how a value decides.
//!
//! A graph names its conditions by handles that the program knows. A driver gives each graph that is built handles of its own,
//! which parameters of kernels are translated to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use fermata_abi::sys::driver as cu;
use serde::{Deserialize, Serialize};

/// What begins every handle that [`Condition::numbered`] makes: no address, and no number that programs compute with.
const PREFIX: u64 = 0xfe4c << 48;

/// Odd, so that different numbers stay different.
const SPREAD: u64 = 0x79b9_7f4a_7c15;

/// The most bodies of one node. A program that asks for more has most likely filled in something wrong.
const MOST_BODIES: usize = 1 << 16;

/// A handle of a condition (`CUgraphConditionalHandle`), which kernels are given as a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Condition(pub u64);

impl Condition {
    /// The handle of a number below 2^48, the same for no two numbers. Handles are looked for in parameters of kernels, so they
    /// look like nothing else.
    pub fn numbered(number: u64) -> Self {
        Self(PREFIX | number.wrapping_mul(SPREAD) & (u64::MAX >> 16))
    }
}

/// How the value decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionalKind {
    /// The first body if it is not zero, else the second, if there is one.
    If,
    /// The body again and again, as long as it is not zero.
    While,
    /// The body of that number, if there is one.
    Switch,
}

impl ConditionalKind {
    /// The kind that CUDA numbers so (`CU_GRAPH_COND_TYPE_*`).
    pub fn of_cuda(number: u32) -> Option<Self> {
        match number {
            cu::CU_GRAPH_COND_TYPE_IF => Some(Self::If),
            cu::CU_GRAPH_COND_TYPE_WHILE => Some(Self::While),
            cu::CU_GRAPH_COND_TYPE_SWITCH => Some(Self::Switch),
            _ => None,
        }
    }

    /// CUDA's number.
    pub fn cuda(self) -> u32 {
        match self {
            Self::If => cu::CU_GRAPH_COND_TYPE_IF,
            Self::While => cu::CU_GRAPH_COND_TYPE_WHILE,
            Self::Switch => cu::CU_GRAPH_COND_TYPE_SWITCH,
        }
    }

    /// The number of the body that runs at this value, of so many, if one does. A `While` runs it and then looks again.
    pub fn chosen(self, value: u32, bodies: usize) -> Option<usize> {
        let index = match self {
            Self::If => usize::from(value == 0),
            Self::While if value == 0 => return None,
            Self::While => 0,
            Self::Switch => value as usize,
        };
        (index < bodies).then_some(index)
    }

    /// Whether such a node may have so many bodies.
    pub fn takes(self, bodies: usize) -> bool {
        match self {
            Self::If => matches!(bodies, 1 | 2),
            Self::While => bodies == 1,
            Self::Switch => (1..=MOST_BODIES).contains(&bodies),
        }
    }
}

/// What stands for each condition of a graph in the driver that runs it.
pub type Translations = BTreeMap<Condition, u64>;

/// A kernel's parameter block with the driver's handles of conditions instead of ours: every aligned word that is one.
pub fn translated<'p>(params: &'p [u8], to: &Translations) -> Cow<'p, [u8]> {
    let mut block = Cow::Borrowed(params);
    if to.is_empty() {
        return block;
    }
    for at in (0..params.len()).step_by(8) {
        let word = params.get(at..at + 8).and_then(|it| it.try_into().ok());
        let known = word.and_then(|it| to.get(&Condition(u64::from_le_bytes(it))));
        if let Some(driver) = known
            && let Some(place) = block.to_mut().get_mut(at..at + 8)
        {
            place.copy_from_slice(&driver.to_le_bytes());
        }
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_differ_and_are_no_addresses() {
        let handles: std::collections::BTreeSet<_> =
            (0..5000).map(|it| Condition::numbered(it * 16)).collect();
        assert_eq!(handles.len(), 5000);
        assert!(handles.iter().all(|it| it.0 >> 48 == 0xfe4c));
    }

    #[test]
    fn a_value_chooses_a_body() {
        let chosen = |kind: ConditionalKind, bodies, value| kind.chosen(value, bodies);
        let of_if = [0, 1, 9].map(|value| chosen(ConditionalKind::If, 2, value));
        assert_eq!(of_if, [Some(1), Some(0), Some(0)]);
        assert_eq!(chosen(ConditionalKind::If, 1, 0), None);
        let of_while = [0, 1, 9].map(|value| chosen(ConditionalKind::While, 1, value));
        assert_eq!(of_while, [None, Some(0), Some(0)]);
        let of_switch = [0, 2, 3].map(|value| chosen(ConditionalKind::Switch, 3, value));
        assert_eq!(of_switch, [Some(0), Some(2), None]);
    }

    #[test]
    fn words_that_are_conditions_are_translated_and_no_others() {
        let (ours, other) = (Condition::numbered(3), Condition::numbered(4));
        let to = Translations::from([(ours, 77)]);
        let block =
            |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|it| it.to_le_bytes()).collect() };
        let given = block(&[5, ours.0, other.0, ours.0]);
        assert_eq!(*translated(&given, &to), *block(&[5, 77, other.0, 77]));
        // Not aligned, and cut off.
        let shifted = [&[0; 4][..], &ours.0.to_le_bytes(), &[1; 3]].concat();
        assert!(matches!(translated(&shifted, &to), Cow::Borrowed(_)));
    }
}
