//! Functions that compiled code calls for textures and surfaces.
//!
//! Positions and texels go through fields of the thread's context. Texels are read and written by [`load`] and
//! [`store`] alone, whose addresses count as compiled code: memory that is gone is a fault of the kernel.

use std::arch::naked_asm;
use std::sync::OnceLock;

use super::context::{DeviceThread, Stop};
use super::helpers::block;
use super::signal::CodeRange;
use crate::exec::texture::{Position, Texture, between};

/// An operation on a texture or surface; part of the generated code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Reads a texel, filtered.
    Sample,
    /// Reads one component of four texels.
    Gather,
    /// Reads bytes of a surface.
    Read,
    /// Writes bytes of a surface.
    Write,
    /// Tells a size.
    Size,
}

/// How an access outside of a surface is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beyond {
    /// A fault.
    Trap,
    /// The nearest texel.
    Clamp,
    /// Zero, or nothing.
    Zero,
}

/// A request, packed into a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub action: Action,
    /// 1 to 3.
    pub dimensions: u32,
    /// The first coordinate is a layer.
    pub layered: bool,
    /// Coordinates are integers.
    pub integer: bool,
    /// Component to gather, or dimension asked for.
    pub component: u32,
    /// For surfaces.
    pub beyond: Beyond,
    /// Bytes read or written.
    pub bytes: u32,
    /// The level to be read.
    pub level: Level,
}

/// Which level of a texture with smaller copies is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The largest.
    Base,
    /// The one that the context names.
    Asked,
    /// The one that fits the distance of positions.
    Fitting,
}

impl Request {
    /// As one number.
    pub fn pack(self) -> u64 {
        (self.action as u64)
            | u64::from(self.dimensions) << 4
            | u64::from(self.layered) << 6
            | u64::from(self.integer) << 7
            | u64::from(self.component) << 8
            | (self.beyond as u64) << 10
            | u64::from(self.bytes) << 12
            | (self.level as u64) << 17
    }

    fn unpack(word: u64) -> Self {
        Self {
            action: match word & 15 {
                0 => Action::Sample,
                1 => Action::Gather,
                2 => Action::Read,
                3 => Action::Write,
                _ => Action::Size,
            },
            dimensions: (word >> 4 & 3) as u32,
            layered: word >> 6 & 1 == 1,
            integer: word >> 7 & 1 == 1,
            component: (word >> 8 & 3) as u32,
            beyond: match word >> 10 & 3 {
                0 => Beyond::Trap,
                1 => Beyond::Clamp,
                _ => Beyond::Zero,
            },
            bytes: (word >> 12 & 31) as u32,
            level: match word >> 17 & 3 {
                0 => Level::Base,
                1 => Level::Asked,
                _ => Level::Fitting,
            },
        }
    }
}

/// Reads 1, 2 or 4 bytes.
///
/// # Safety
/// On a fiber, after [`known`]: a bad address ends the launch.
#[unsafe(naked)]
unsafe extern "C" fn load(address: u64, bytes: u64) -> u32 {
    naked_asm!(
        "cmp esi, 2",
        "jb 2f",
        "je 3f",
        "mov eax, [rdi]",
        "ret",
        "2: movzx eax, byte ptr [rdi]",
        "ret",
        "3: movzx eax, word ptr [rdi]",
        "ret",
    )
}

/// Writes 1, 2 or 4 bytes.
///
/// # Safety
/// As [`load`].
#[unsafe(naked)]
unsafe extern "C" fn store(address: u64, bytes: u64, value: u32) {
    naked_asm!(
        "cmp esi, 2",
        "jb 2f",
        "je 3f",
        "mov [rdi], edx",
        "ret",
        "2: mov byte ptr [rdi], dl",
        "ret",
        "3: mov word ptr [rdi], dx",
        "ret",
    )
}

/// Bytes of code within which [`load`] and [`store`] make their accesses.
const SHORT: usize = 24;

/// Has faults of [`load`] and [`store`] count as the kernel's.
fn known() {
    static RANGES: OnceLock<[CodeRange; 2]> = OnceLock::new();
    RANGES.get_or_init(|| {
        [load as *const () as usize, store as *const () as usize]
            .map(|start| CodeRange::new(start, SHORT))
    });
}

/// Does what `request` says with the texture or surface of `handle`. Coordinates, and bytes to write, are in the
/// context; so are, afterwards, the texel or the bytes read.
pub unsafe extern "C" fn texture(context: *mut DeviceThread, handle: u64, request: u64) {
    let request = Request::unpack(request);
    // SAFETY: called by compiled code with its own context; the reference to the block ends here.
    let (found, context) = unsafe {
        let block = block(context);
        let mut level = |n: u32| block.texture(handle, n);
        let found = level(0).map(|base| match (request.level, base.levels.last) {
            (Level::Base, _) | (_, 0) => (Some(base), None),
            (Level::Fitting, _) => (None, None),
            (Level::Asked, _) => {
                let (n, part) = base.levels.choose((*context).level);
                let next = (part > 0.0).then(|| level(n + 1));
                (level(n), next.flatten().map(|next| (next, part)))
            }
        });
        (found, &mut *context)
    };
    // What follows may leave this stack for good: nothing on it may own anything, so textures are copies.
    let Some((texture, next)) = found else {
        context.stop(Stop::Illegal(format!(
            "{handle:#x} is no texture or surface"
        )));
    };
    let Some(texture) = texture else {
        let what = "gradients choose among the levels of a mipmapped array, which is not supported";
        context.stop(Stop::Illegal(what.to_owned()));
    };
    known();
    let coordinates = context.coordinates;
    let (layer, rest) = if request.layered {
        let [layer, x, y, _] = coordinates;
        (layer, [x, y, 0])
    } else {
        let [x, y, z, _] = coordinates;
        (0, [x, y, z])
    };
    let used = |n: usize| (n as u32) < request.dimensions;
    let rest = [0, 1, 2].map(|n| if used(n) { rest[n] } else { 0 });
    let mut read = |address: u64, bytes: u32| {
        // SAFETY: this is a fiber, and the ranges are known.
        unsafe { load(address, u64::from(bytes)) }
    };
    match request.action {
        Action::Sample if request.integer => {
            let [x, y, z] = rest.map(|c| c as i32);
            let z = if request.layered { layer as i32 } else { z };
            context.texel = texture.sample(Position::Index([x, y, z]), &mut read);
        }
        Action::Sample => {
            let at = Position::Float(rest.map(f32::from_bits), layer);
            context.texel = texture.sample(at, &mut read);
            if let Some((next, part)) = next
                && !texture.is_raw()
            {
                let second = next.sample(at, &mut read);
                context.texel = between(context.texel, second, part);
            }
        }
        Action::Gather => {
            let at = rest.map(f32::from_bits);
            context.texel = texture.gather(at, request.component as usize, &mut read);
        }
        Action::Size => context.texel[0] = texture.told[request.component.min(2) as usize],
        Action::Read | Action::Write => {
            let z = if request.layered { layer } else { rest[2] };
            match place(&texture, request, [rest[0], rest[1], z]) {
                Ok(Some(address)) => move_bytes(context, request, address),
                Ok(None) => context.texel = [0; 4],
                Err(why) => context.stop(why),
            }
        }
    }
}

/// Where bytes of a surface lie; none where the access does nothing.
fn place(texture: &Texture, request: Request, at: [u32; 3]) -> Result<Option<u64>, Stop> {
    let bytes = u64::from(request.bytes);
    let [mut x, mut y, mut z] = [at[0] as i32, at[1] as i32, at[2] as i32];
    let last = [
        (texture.row_bytes().saturating_sub(bytes)) as i64,
        i64::from(texture.size[1]) - 1,
        i64::from(texture.size[2]) - 1,
    ];
    if request.beyond == Beyond::Clamp {
        [x, y, z] = [0, 1, 2].map(|n| i64::from([x, y, z][n]).clamp(0, last[n]) as i32);
    }
    let inside = [x, y, z]
        .iter()
        .zip(last)
        .all(|(at, last)| (0..=last).contains(&i64::from(*at)));
    if !inside {
        return match request.beyond {
            Beyond::Zero => Ok(None),
            _ => Err(Stop::Address(texture.base)),
        };
    }
    let address = texture.address(x as u64, y as u32, z as u32);
    if !address.is_multiple_of(bytes) {
        return Err(Stop::Misaligned(address));
    }
    Ok(Some(address))
}

fn move_bytes(context: &mut DeviceThread, request: Request, address: u64) {
    if request.bytes < 4 {
        let bytes = u64::from(request.bytes);
        // SAFETY: this is a fiber, and the ranges are known.
        unsafe {
            match request.action {
                Action::Write => store(address, bytes, context.texel[0]),
                _ => context.texel[0] = load(address, bytes),
            }
        }
        return;
    }
    for word in 0..(request.bytes / 4).min(4) as usize {
        let at = address + 4 * word as u64;
        // SAFETY: as above.
        unsafe {
            match request.action {
                Action::Write => store(at, 4, context.texel[word]),
                _ => context.texel[word] = load(at, 4),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_packing() {
        let request = Request {
            action: Action::Write,
            dimensions: 3,
            layered: true,
            integer: true,
            component: 2,
            beyond: Beyond::Zero,
            bytes: 16,
            level: Level::Fitting,
        };
        assert_eq!(Request::unpack(request.pack()), request);
    }
}
