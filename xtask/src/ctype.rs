//! C types of the API table as Rust types over `fermata_abi::sys`.
use anyhow::{Result, bail};

/// The Rust spelling of a C type; `sys` is the module that holds the named types.
pub fn to_rust(ctype: &str, sys: &str) -> Result<String> {
    let spaced = ctype.replace('*', " * ");
    let mut base: Vec<&str> = Vec::new();
    let mut is_const = false;
    let mut rust: Option<String> = None;
    for word in spaced.split_whitespace() {
        match word {
            "const" => is_const = true,
            "*" => {
                let inner = match rust.take() {
                    Some(inner) => inner,
                    None => named(&base, sys)?,
                };
                let kind = if is_const { "const" } else { "mut" };
                rust = Some(format!("*{kind} {inner}"));
                is_const = false;
            }
            word if rust.is_none() => base.push(word),
            _ => bail!("cannot read the type `{ctype}`"),
        }
    }
    match rust {
        Some(pointer) => Ok(pointer),
        None => named(&base, sys),
    }
}

fn named(words: &[&str], sys: &str) -> Result<String> {
    let rust = match words {
        ["void"] => "core::ffi::c_void",
        ["char"] => "core::ffi::c_char",
        ["unsigned", "char"] => "core::ffi::c_uchar",
        ["unsigned", "short"] => "core::ffi::c_ushort",
        ["int"] => "core::ffi::c_int",
        ["unsigned"] | ["unsigned", "int"] => "core::ffi::c_uint",
        ["unsigned", "long", "long"] => "core::ffi::c_ulonglong",
        ["long", "long"] => "core::ffi::c_longlong",
        ["float"] => "f32",
        ["size_t"] => "usize",
        // Types of the 32-bit ABI of CUDA 3.
        ["CUdeviceptr_v1"] => "fermata_abi::narrow::DevicePointer",
        ["CUDA_ARRAY_DESCRIPTOR_v1"] => "fermata_abi::narrow::ArrayDescriptor",
        ["CUDA_ARRAY3D_DESCRIPTOR_v1"] => "fermata_abi::narrow::Array3dDescriptor",
        ["CUDA_MEMCPY2D_v1"] => "fermata_abi::narrow::Memcpy2d",
        ["CUDA_MEMCPY3D_v1"] => "fermata_abi::narrow::Memcpy3d",
        [name] if name.starts_with(['C', 'c', 'd']) => return Ok(format!("{sys}::{name}")),
        _ => bail!("cannot name the C type `{}`", words.join(" ")),
    };
    Ok(rust.to_owned())
}

/// A parameter name that is no Rust keyword.
pub fn identifier(name: &str) -> String {
    match name {
        "type" | "ref" | "in" | "fn" | "mod" | "use" | "match" | "move" | "where" | "self" => {
            format!("{name}_")
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_keep_their_constness() {
        let rust = |c| to_rust(c, "sys").expect("a type");
        assert_eq!(rust("size_t"), "usize");
        assert_eq!(rust("const char *"), "*const core::ffi::c_char");
        assert_eq!(rust("const CUgraphNode **"), "*mut *const sys::CUgraphNode");
        assert_eq!(rust("void * const *"), "*const *mut core::ffi::c_void");
        assert_eq!(rust("unsigned long long"), "core::ffi::c_ulonglong");
    }
}
