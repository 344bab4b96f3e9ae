//! Computes `mma` and `wmma`: products of small matrices by the lanes of a warp together.
//!
//! Each lane brings elements of A (m x k), B (k x n) and C (m x n), and takes elements of D = A B + C. With g = lane / 4,
//! t = lane % 4, and p elements in a register of 32 bits (1 for `f64`), element s of register r is, in `mma`:
//!
//! | matrix | row | column |
//! | --- | --- | --- |
//! | A, m = 16 | g + 8 (r % 2) | t p + s + 4 p (r / 2) |
//! | A, m = 8 | g | t p + s + 4 p r |
//! | B | t p + s + 4 p r | g |
//! | C, D | g + 8 (i / 2) | 2 t + i % 2, of element i |
//!
//! For `wmma` PTX leaves open which lane holds what; here element j of a lane that holds e is number
//! (e lane + j) % (rows columns), counted along rows.
//!
//! Products are exact, their sum is rounded to 64 bits and then once to the type of D. A GPU's tensor cores cut off more
//! where D has 32 or 16 bits, so last bits may differ.

use super::half::{narrow, widen};
use super::math::rounding;

/// Bytes of the registers that a lane brings at most: 16 of 64 bits.
pub const BYTES: usize = 128;

/// Elements of the largest matrix.
const MOST: usize = 512;

/// The type of a matrix' elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Element {
    F16,
    Bf16,
    Tf32,
    F32,
    F64,
    S8,
    U8,
    S32,
}

const ELEMENTS: [Element; 8] = [
    Element::F16,
    Element::Bf16,
    Element::Tf32,
    Element::F32,
    Element::F64,
    Element::S8,
    Element::U8,
    Element::S32,
];

impl Element {
    /// The type of this PTX name, if matrices of it are multiplied here.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "f16" => Self::F16,
            "bf16" => Self::Bf16,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "s8" => Self::S8,
            "u8" => Self::U8,
            "s32" => Self::S32,
            _ => return None,
        })
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::S8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Tf32 | Self::F32 | Self::S32 => 4,
            Self::F64 => 8,
        }
    }

    /// Bytes of the registers that hold it.
    pub fn register(self) -> usize {
        self.bytes().max(4)
    }

    /// Elements in a register.
    pub fn per_register(self) -> usize {
        self.register() / self.bytes()
    }

    fn read(self, bytes: &[u8]) -> f64 {
        let mut word = [0; 8];
        word[..self.bytes()].copy_from_slice(&bytes[..self.bytes()]);
        let word = u64::from_le_bytes(word);
        match self {
            Self::F16 => widen(word as u16, false),
            Self::Bf16 => widen(word as u16, true),
            // The lower bits of the fraction are not looked at.
            Self::Tf32 => f64::from(f32::from_bits(word as u32 & !0x1FFF)),
            Self::F32 => f64::from(f32::from_bits(word as u32)),
            Self::F64 => f64::from_bits(word),
            Self::S8 => f64::from(word as i8),
            Self::U8 => f64::from(word as u8),
            Self::S32 => f64::from(word as i32),
        }
    }

    fn write(self, value: f64, saturates: bool, bytes: &mut [u8]) {
        let word = match self {
            Self::F16 => u64::from(narrow(value, false, rounding::NEAREST)),
            Self::Bf16 => u64::from(narrow(value, true, rounding::NEAREST)),
            Self::Tf32 | Self::F32 => u64::from((value as f32).to_bits()),
            Self::F64 => value.to_bits(),
            // A cast from floating point saturates; one to fewer bits wraps.
            Self::S32 | Self::S8 | Self::U8 if saturates => value as i32 as u64,
            Self::S32 | Self::S8 | Self::U8 => value as i64 as u64,
        };
        bytes[..self.bytes()].copy_from_slice(&word.to_le_bytes()[..self.bytes()]);
    }
}

/// One of the matrices of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The first factor.
    A,
    /// The second factor.
    B,
    /// What is added.
    C,
    /// The result.
    D,
}

/// D = A B + C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// Rows of A, columns of B, columns of A.
    pub shape: [u8; 3],
    /// Types of A, B, C and D.
    pub elements: [Element; 4],
    /// `wmma`, not `mma`.
    pub whole: bool,
    /// Integers that are too large become the largest.
    pub saturates: bool,
}

impl Product {
    /// Itself in one word, which is part of compiled code.
    pub fn pack(self) -> u64 {
        let [m, n, k] = self.shape.map(u64::from);
        let types = self.elements.iter().rev().fold(0, |word, element| {
            word << 4 | ELEMENTS.iter().position(|e| e == element).unwrap_or(0) as u64
        });
        m | n << 8
            | k << 16
            | types << 24
            | u64::from(self.whole) << 40
            | u64::from(self.saturates) << 41
    }

    fn unpack(word: u64) -> Self {
        let byte = |at: u32| (word >> at) as u8;
        let element = |number: u32| ELEMENTS[(word >> (24 + 4 * number)) as usize & 7];
        Self {
            shape: [byte(0), byte(8), byte(16)],
            elements: [0, 1, 2, 3].map(element),
            whole: word >> 40 & 1 == 1,
            saturates: word >> 41 & 1 == 1,
        }
    }

    /// The type of a matrix' elements.
    pub fn element(self, role: Role) -> Element {
        self.elements[role as usize]
    }

    /// Rows and columns of a matrix.
    pub fn size(self, role: Role) -> (usize, usize) {
        let [m, n, k] = self.shape.map(usize::from);
        match role {
            Role::A => (m, k),
            Role::B => (k, n),
            Role::C | Role::D => (m, n),
        }
    }

    /// Elements of a matrix that each lane holds. Factors of halves are held more than once by `wmma`.
    pub fn per_lane(self, role: Role) -> usize {
        let (rows, columns) = self.size(role);
        let factor = matches!(role, Role::A | Role::B);
        if self.whole && factor && self.element(role) == Element::F16 {
            16
        } else {
            rows * columns / 32
        }
    }

    /// Registers of a lane for a matrix.
    pub fn registers(self, role: Role) -> usize {
        self.per_lane(role)
            .div_ceil(self.element(role).per_register())
    }

    /// Where the registers of A, B and C begin among those of a lane, bytes. Those of D begin at 0.
    pub fn start(self, role: Role) -> usize {
        let bytes = |role| self.registers(role) * self.element(role).register();
        match role {
            Role::A | Role::D => 0,
            Role::B => bytes(Role::A).next_multiple_of(8),
            Role::C => (bytes(Role::A).next_multiple_of(8) + bytes(Role::B)).next_multiple_of(8),
        }
    }

    /// Bytes of all registers that a lane brings.
    pub fn bytes(self) -> usize {
        self.start(Role::C) + self.registers(Role::C) * self.element(Role::C).register()
    }

    /// Where element `i` of `lane` stands in its matrix, counted along rows.
    fn place(self, role: Role, lane: usize, i: usize) -> usize {
        let (rows, columns) = self.size(role);
        if self.whole {
            return (lane * self.per_lane(role) + i) % (rows * columns);
        }
        let (group, thread) = (lane / 4, lane % 4);
        let packed = self.element(role).per_register();
        let (register, part) = (i / packed, i % packed);
        let along = |register: usize| thread * packed + part + 4 * packed * register;
        let (row, column) = match role {
            Role::A if rows == 16 => (group + 8 * (register % 2), along(register / 2)),
            Role::A => (group, along(register)),
            Role::B => (along(register), group),
            Role::C | Role::D => (group + 8 * (i / 2), 2 * thread + i % 2),
        };
        row * columns + column
    }

    fn gather(self, role: Role, lanes: &Lanes) -> [f64; MOST] {
        let mut matrix = [0.0; MOST];
        let element = self.element(role);
        for (lane, fragments) in lanes.iter().enumerate() {
            let Some(fragments) = fragments else { continue };
            for i in 0..self.per_lane(role) {
                let at = self.start(role) + i * element.bytes();
                matrix[self.place(role, lane, i)] = element.read(&fragments[at..]);
            }
        }
        matrix
    }

    fn scatter(self, matrix: &[f64; MOST], lanes: &mut Lanes) {
        let element = self.element(Role::D);
        for (lane, fragments) in lanes.iter_mut().enumerate() {
            let Some(fragments) = fragments else { continue };
            for i in 0..self.per_lane(Role::D) {
                let value = matrix[self.place(Role::D, lane, i)];
                let at = i * element.bytes();
                element.write(value, self.saturates, &mut fragments[at..]);
            }
        }
    }

    fn run(self, lanes: &mut Lanes) {
        let [m, n, k] = self.shape.map(usize::from);
        let (a, b) = (self.gather(Role::A, lanes), self.gather(Role::B, lanes));
        let mut d = self.gather(Role::C, lanes);
        for row in 0..m {
            for column in 0..n {
                let sum = &mut d[row * n + column];
                for inner in 0..k {
                    *sum = a[row * k + inner].mul_add(b[inner * n + column], *sum);
                }
            }
        }
        self.scatter(&d, lanes);
    }
}

/// The registers of each lane that takes part.
pub type Lanes = [Option<[u8; BYTES]>; 32];

/// Multiplies what the lanes bring; each takes its elements of D from the same place.
pub fn multiply(product: u64, lanes: &mut Lanes) {
    Product::unpack(product).run(lanes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product(shape: [u8; 3], elements: [Element; 4], whole: bool) -> Product {
        Product {
            shape,
            elements,
            whole,
            saturates: false,
        }
    }

    const HALVES: [Element; 4] = [Element::F16, Element::F16, Element::F32, Element::F32];

    #[test]
    fn a_packed_product_is_the_same_afterwards() {
        let mut it = product(
            [32, 8, 16],
            [Element::S8, Element::U8, Element::S32, Element::S32],
            true,
        );
        it.saturates = true;
        assert_eq!(Product::unpack(it.pack()), it);
    }

    #[test]
    fn lanes_hold_every_element_of_every_matrix() {
        use Element::{Bf16, F32, F64, S8, S32, Tf32};
        let shapes = [
            product([16, 8, 8], HALVES, false),
            product([16, 8, 16], HALVES, false),
            product([16, 8, 4], [Tf32, Tf32, F32, F32], false),
            product([16, 8, 8], [Tf32, Tf32, F32, F32], false),
            product([16, 8, 32], [S8, S8, S32, S32], false),
            product([8, 8, 16], [S8, S8, S32, S32], false),
            product([8, 8, 4], [F64; 4], false),
            product([16, 8, 16], [F64; 4], false),
            product([16, 16, 16], HALVES, true),
            product([8, 32, 16], HALVES, true),
            product([32, 8, 16], [Bf16, Bf16, F32, F32], true),
        ];
        for shape in shapes {
            assert!(shape.bytes() <= BYTES, "{shape:?}");
            for role in [Role::A, Role::B, Role::C, Role::D] {
                let (rows, columns) = shape.size(role);
                let mut held = vec![0; rows * columns];
                for lane in 0..32 {
                    (0..shape.per_lane(role)).for_each(|i| held[shape.place(role, lane, i)] += 1);
                }
                let times = shape.per_lane(role) * 32 / (rows * columns);
                assert!(held.iter().all(|&n| n == times), "{shape:?} {role:?}");
            }
        }
    }
}
