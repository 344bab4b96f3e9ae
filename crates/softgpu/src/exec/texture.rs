//! Textures and surfaces: texels in device memory, and how a kernel reads them.
//!
//! The arithmetic is that of NVIDIA's GPUs, as an H200 answered: positions are rounded to 1/256 of a texel before
//! filtering, indices outside are folded one by one, components that a format does not have are 0.

/// What a component of a texel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Unsigned, so many bytes.
    Unsigned(u32),
    /// Signed, so many bytes.
    Signed(u32),
    /// 16-bit float.
    Half,
    /// 32-bit float.
    Float,
}

impl Format {
    /// Bytes of a component.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Unsigned(bytes) | Self::Signed(bytes) => bytes,
            Self::Half => 2,
            Self::Float => 4,
        }
    }
}

/// What stands for texels outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// The texels again.
    Wrap,
    /// The nearest texel.
    Clamp,
    /// The texels again, every other time backwards.
    Mirror,
    /// The border's colour.
    Border,
}

/// A texture or surface.
#[derive(Debug, Clone, PartialEq)]
pub struct Texture {
    /// Address of the first texel.
    pub base: u64,
    /// What a component is.
    pub format: Format,
    /// Components of a texel: 1, 2 or 4.
    pub channels: u32,
    /// Columns, rows and slices or layers; 1 where there is no such dimension.
    pub size: [u32; 3],
    /// What a kernel that asks is told: 0 where there is no such dimension.
    pub told: [u32; 3],
    /// Bytes from row to row.
    pub pitch: u64,
    /// The third dimension is layers, which are not filtered.
    pub layered: bool,
    /// Per dimension; wrapping and mirroring need normalized positions.
    pub outside: [Outside; 3],
    /// Between texels, interpolates.
    pub linear: bool,
    /// Positions run from 0 to 1.
    pub normalized: bool,
    /// Integers are read as they are, not as parts of 1.
    pub raw: bool,
    /// Colour outside.
    pub border: [f32; 4],
    /// Which of a mipmapped array's levels are read.
    pub levels: Levels,
}

/// Which levels of a mipmapped array are read, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Levels {
    /// The smallest level; 0 where there are no others.
    pub last: u32,
    /// Interpolates between levels.
    pub linear: bool,
    /// Added to the level that a kernel asks for.
    pub bias: f32,
    /// The least level, parts included.
    pub least: f32,
    /// The greatest level, parts included.
    pub most: f32,
}

impl Levels {
    /// The level to read, and with which part of 1 the next one counts.
    pub fn choose(&self, asked: f32) -> (u32, f64) {
        if self.last == 0 {
            return (0, 0.0);
        }
        let least = self.least.max(0.0);
        let most = self.most.min(self.last as f32).max(least);
        let level = f64::from((asked + self.bias).max(least).min(most)).min(f64::from(self.last));
        if !self.linear {
            return (((level + 0.5).floor() as u32).min(self.last), 0.0);
        }
        let steps = (level * STEPS).floor();
        let whole = (steps / STEPS).floor();
        (whole as u32, steps / STEPS - whole)
    }
}

/// Texels of two levels, as floating-point numbers, of which the second counts so much.
pub fn between(first: [u32; 4], second: [u32; 4], part: f64) -> [u32; 4] {
    let mix = |n: usize| {
        let [a, b] = [first[n], second[n]].map(|bits| f64::from(f32::from_bits(bits)));
        ((a + (b - a) * part) as f32).to_bits()
    };
    [0, 1, 2, 3].map(mix)
}

/// A texel's place as a kernel names it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Position {
    /// Positions, and a layer.
    Float([f32; 3], u32),
    /// Indices.
    Index([i32; 3]),
}

/// Steps between texels at which the filter's weights lie.
const STEPS: f64 = 256.0;

impl Texture {
    /// Bytes of a texel.
    pub fn texel_bytes(&self) -> u64 {
        u64::from(self.format.bytes() * self.channels)
    }

    /// Bytes of a row that are used.
    pub fn row_bytes(&self) -> u64 {
        self.texel_bytes() * u64::from(self.size[0])
    }

    /// Address of byte `x` of a row.
    pub fn address(&self, x: u64, y: u32, z: u32) -> u64 {
        let slice = self.pitch * u64::from(self.size[1]);
        self.base + u64::from(z) * slice + u64::from(y) * self.pitch + x
    }

    /// The four components at a place, as the bits a kernel gets. `load` reads so many bytes at an address.
    pub fn sample(&self, at: Position, load: &mut dyn FnMut(u64, u32) -> u32) -> [u32; 4] {
        let (at, layer) = match at {
            Position::Index(index) => {
                let inside = |n: usize| (index[n] as u32) < self.size[n];
                if !(inside(0) && inside(1) && inside(2)) {
                    return [0; 4];
                }
                return self.texel(index.map(|i| Some(i as u32)), load);
            }
            Position::Float(at, layer) => (at, layer),
        };
        let at = [0, 1, 2].map(|n| self.scaled(at[n], n));
        let layer = Some(layer.min(self.size[2] - 1));
        let whole = |at: f64, n: usize| self.fold(at.floor() as i64, n);
        if !self.linear || self.is_raw() {
            let z = if self.layered { layer } else { whole(at[2], 2) };
            return self.texel([whole(at[0], 0), whole(at[1], 1), z], load);
        }
        let [x, y, z] = at.map(|at| ((at - 0.5) * STEPS + 0.5).floor() as i64);
        let deep = self.told[2] != 0 && !self.layered;
        let mut sum = [0f64; 4];
        for corner in 0..if deep { 8 } else { 4 } {
            let (dx, dy, dz) = (corner & 1, corner >> 1 & 1, corner >> 2);
            let weight = part(x, dx) * part(y, dy) * if deep { part(z, dz) } else { 1.0 };
            if weight == 0.0 {
                continue;
            }
            let slice = if deep {
                self.fold((z >> 8) + dz, 2)
            } else {
                layer
            };
            let place = [
                self.fold((x >> 8) + dx, 0),
                self.fold((y >> 8) + dy, 1),
                slice,
            ];
            let texel = self.texel(place, load);
            for (sum, value) in sum.iter_mut().zip(texel) {
                *sum += weight * f64::from(f32::from_bits(value));
            }
        }
        sum.map(|value| (value as f32).to_bits())
    }

    /// Component `component` of the four texels around a place: lower left, lower right, upper right, upper left.
    pub fn gather(
        &self,
        at: [f32; 3],
        component: usize,
        load: &mut dyn FnMut(u64, u32) -> u32,
    ) -> [u32; 4] {
        let [x, y] = [0, 1].map(|n| (self.scaled(at[n], n) - 0.5).floor() as i64);
        [(0, 1), (1, 1), (1, 0), (0, 0)].map(|(dx, dy)| {
            let place = [self.fold(x + dx, 0), self.fold(y + dy, 1), Some(0)];
            self.texel(place, load)[component & 3]
        })
    }

    fn scaled(&self, at: f32, n: usize) -> f64 {
        if self.normalized {
            f64::from(at) * f64::from(self.size[n])
        } else {
            f64::from(at)
        }
    }

    /// The index that stands for one that may lie outside; none is the border.
    fn fold(&self, index: i64, n: usize) -> Option<u32> {
        let size = i64::from(self.size[n]);
        let inside = match self.outside[n] {
            // Where there is no such dimension, nothing is outside.
            Outside::Border if self.told[n] != 0 && !(0..size).contains(&index) => return None,
            Outside::Wrap if self.normalized => index.rem_euclid(size),
            Outside::Mirror if self.normalized => {
                let turn = index.rem_euclid(2 * size);
                turn.min(2 * size - 1 - turn)
            }
            _ => index.clamp(0, size - 1),
        };
        Some(inside as u32)
    }

    /// Whether texels are integers, which nothing is interpolated between.
    pub fn is_raw(&self) -> bool {
        match self.format {
            Format::Unsigned(bytes) | Format::Signed(bytes) => self.raw || bytes == 4,
            _ => false,
        }
    }

    fn texel(&self, place: [Option<u32>; 3], load: &mut dyn FnMut(u64, u32) -> u32) -> [u32; 4] {
        let mut out = [0; 4];
        let channels = self.channels.min(4) as usize;
        let [Some(x), Some(y), Some(z)] = place else {
            for (out, border) in out.iter_mut().zip(self.border).take(channels) {
                *out = if self.is_raw() {
                    border as i32 as u32
                } else {
                    border.to_bits()
                };
            }
            return out;
        };
        let bytes = self.format.bytes();
        let at = self.address(u64::from(x) * self.texel_bytes(), y, z);
        for (n, out) in out.iter_mut().enumerate().take(channels) {
            *out = self.component(load(at + n as u64 * u64::from(bytes), bytes));
        }
        out
    }

    /// What a kernel gets for the bits of a component in memory.
    fn component(&self, bits: u32) -> u32 {
        let unused = 32 - 8 * self.format.bytes();
        let signed = (bits << unused) as i32 >> unused;
        match self.format {
            Format::Float => bits,
            Format::Half => half::f16::from_bits(bits as u16).to_f32().to_bits(),
            Format::Unsigned(_) if self.is_raw() => bits,
            Format::Signed(_) if self.is_raw() => signed as u32,
            Format::Unsigned(_) => {
                let most = (u32::MAX >> unused) as f32;
                (bits as f32 / most).to_bits()
            }
            Format::Signed(_) => {
                let most = (i32::MAX >> unused) as f32;
                (signed as f32 / most).max(-1.0).to_bits()
            }
        }
    }
}

/// The filter's weight of a texel (0) or the next one (1) at a position in 1/256.
fn part(at: i64, next: i64) -> f64 {
    let beyond = (at & 255) as f64 / STEPS;
    if next == 1 { beyond } else { 1.0 - beyond }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dimensions_that_a_texture_has_have_a_border() {
        let mut texture = Texture {
            base: 0,
            format: Format::Float,
            channels: 1,
            size: [4, 1, 1],
            told: [4, 0, 0],
            pitch: 16,
            layered: false,
            outside: [Outside::Border; 3],
            linear: true,
            normalized: false,
            raw: false,
            border: [0.0; 4],
            levels: Levels::default(),
        };
        let mut load =
            |address: u64, _: u32| [256f32, 1000.0, 4000.0, 8.0][address as usize / 4].to_bits();
        let mut at = |texture: &Texture, x: f32, y: f32| {
            let texel = texture.sample(Position::Float([x, y, 0.0], 0), &mut load);
            f32::from_bits(texel[0])
        };
        for (x, expected) in [
            (-3.0, 0.0),
            (0.0, 128.0),
            (0.5, 256.0),
            (1.0, 628.0),
            (4.0, 4.0),
        ] {
            assert_eq!(at(&texture, x, 0.0), expected);
        }
        texture.told = [4, 1, 0];
        assert_eq!(at(&texture, 0.5, 0.0), 128.0, "rows have a border");
        assert_eq!(at(&texture, 0.5, 0.5), 256.0);
        texture.told = [4, 1, 1];
        assert_eq!(at(&texture, 0.5, 0.5), 128.0, "slices have a border");
    }

    #[test]
    fn a_level_is_chosen_within_the_bounds_and_mixed_with_the_next() {
        let mut levels = Levels {
            last: 3,
            most: 10.0,
            ..Levels::default()
        };
        assert_eq!(levels.choose(1.4), (1, 0.0));
        assert_eq!(levels.choose(1.5), (2, 0.0));
        assert_eq!(levels.choose(9.0), (3, 0.0));
        levels.linear = true;
        assert_eq!(levels.choose(1.25), (1, 0.25));
        assert_eq!(levels.choose(-4.0), (0, 0.0));
        (levels.bias, levels.most) = (1.0, 2.0);
        assert_eq!(levels.choose(0.5), (1, 0.5));
        assert_eq!(levels.choose(1.5), (2, 0.0));
        assert_eq!(levels.choose(f32::NAN), (0, 0.0));
        assert_eq!(Levels::default().choose(7.0), (0, 0.0));
    }
}
