#!/bin/sh
# Links libcudart.so.13 and libcudart.so.12 from the static library of the cudart crate.
#
# usage: tools/link-cudart.sh OUTDIR [PROFILE]
#
# Programs ask for symbols of the version node `libcudart.so.13` (or .12); a shared library made by rustc
# cannot carry such a node with every linker, so the last step is done here by the C compiler.
set -eu

out=${1:?usage: tools/link-cudart.sh OUTDIR [PROFILE]}
profile=${2:-release}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for major in 13 12; do
    cargo build --quiet --manifest-path "$root/Cargo.toml" --package fermata-cudart --lib \
        --profile "$([ "$profile" = debug ] && echo dev || echo "$profile")" \
        $([ "$major" = 12 ] && echo --features abi12)
    name=libcudart.so.$major
    printf '%s { global: cuda*; __cuda*; local: *; };\n' "$name" > "$work/$name.map"
    cc -shared -o "$work/$name" \
        -Wl,--whole-archive "$target/$profile/libfermata_cudart.a" -Wl,--no-whole-archive \
        -Wl,--version-script="$work/$name.map" -Wl,-soname,"$name" \
        -Wl,-Bsymbolic -Wl,--gc-sections -Wl,--strip-debug -Wl,-z,relro,-z,now \
        -lgcc_s -lpthread -ldl -lc
    mv "$work/$name" "$out/.$name.new"
    mv "$out/.$name.new" "$out/$name"
done
ln -sf libcudart.so.13 "$out/libcudart.so"
