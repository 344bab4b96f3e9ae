#!/bin/sh
# Links libcudart.so.13 and libcudart.so.12 from the static library of the cudart crate.
#
# usage: tools/link-cudart.sh OUTDIR [PROFILE]
#
# Programs ask for symbols of the version node `libcudart.so.13` (or .12); a shared library made by rustc
# cannot carry such a node with every linker, so the last step is done here by the C compiler.
# In libcudart.so.12, functions that changed keep their old signature under the plain name (they are called
# fermata12_* in the crate), and today's are called ..._v2 or ..._v3.
set -eu

out=${1:?usage: tools/link-cudart.sh OUTDIR [PROFILE]}
profile=${2:-release}
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}

cargo build --quiet --manifest-path "$root/Cargo.toml" --package fermata-cudart --lib \
    --profile "$(test "$profile" = debug && echo dev || echo "$profile")"

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# link MAJOR ARCHIVE [OPTION...]
link() {
    name=libcudart.so.$1
    archive=$2
    shift 2
    printf '%s { global: cuda*; __cuda*; local: *; };\n' "$name" > "$work/$name.map"
    cc -shared -o "$work/$name" \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
        -Wl,--version-script="$work/$name.map" -Wl,-soname,"$name" "$@" \
        -Wl,-Bsymbolic -Wl,--gc-sections -Wl,--strip-debug -Wl,-z,relro,-z,now \
        -lgcc_s -lpthread -ldl -lc
    # A rename, so that running programs keep the library they have mapped.
    mv "$work/$name" "$out/.$name.new"
    mv "$out/.$name.new" "$out/$name"
}

archive=$target/$profile/libfermata_cudart.a
link 13 "$archive"

# Old signatures take the plain name; what is there under that name becomes fermata13_*. The target is
# named so that binutils leave the compiler's intermediate code in the objects alone.
elf=elf64-x86-64
nm --target=$elf "$archive" 2>/dev/null | sed -n 's/.* T fermata12_//p' | sort -u > "$work/old"
while read -r name; do
    echo "$name fermata13_$name"
    echo "fermata12_$name $name"
done < "$work/old" > "$work/renamed"
cp "$archive" "$work/cudart12.a"
test -s "$work/old"
objcopy --target=$elf --remove-section=.llvmbc --remove-section=.llvmcmd --redefine-syms="$work/renamed" "$work/cudart12.a"

# Today's functions under the names that CUDA 12 gave them.
set --
for name in GraphAddNode GraphGetEdges GraphNodeGetDependencies GraphNodeGetDependentNodes GraphAddDependencies \
    GraphRemoveDependencies MemAdvise MemPrefetchAsync StreamUpdateCaptureDependencies; do
    set -- "$@" "-Wl,--defsym=cuda${name}_v2=fermata13_cuda$name"
done
for name in MemPrefetchAsync StreamUpdateCaptureDependencies; do
    set -- "$@" "-Wl,--defsym=cuda${name}_v2_ptsz=fermata13_cuda${name}_ptsz"
done
set -- "$@" "-Wl,--defsym=cudaStreamGetCaptureInfo_v3=fermata13_cudaStreamGetCaptureInfo" \
    "-Wl,--defsym=cudaStreamGetCaptureInfo_v3_ptsz=fermata13_cudaStreamGetCaptureInfo_ptsz"
for name in EventElapsedTime SignalExternalSemaphoresAsync WaitExternalSemaphoresAsync; do
    set -- "$@" "-Wl,--defsym=cuda${name}_v2=cuda$name"
done
for name in Synchronize:DeviceSynchronize Exit:DeviceReset SetLimit:DeviceSetLimit GetLimit:DeviceGetLimit \
    SetCacheConfig:DeviceSetCacheConfig GetCacheConfig:DeviceGetCacheConfig; do
    set -- "$@" "-Wl,--defsym=cudaThread${name%:*}=cuda${name#*:}"
done
link 12 "$work/cudart12.a" "$@"
ln -sf libcudart.so.13 "$out/libcudart.so"
