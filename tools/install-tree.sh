#!/bin/sh
# Copies what cargo built into the tree that users get:
#
#   bin/fermata, fermatad, fermata-worker
#   lib/client/   libcuda.so(.1) and libnvidia-ml.so(.1) for programs under Fermata
#   lib/softgpu/  libcuda.so(.1) that runs on the CPU, with cuBLAS, cuBLASLt and a `ptxas` for it
#   lib/criu/     CRIU with its libraries
#   lib/pagefilter.so  loaded into CRIU for a dump
#   lib/libfermata.so, lib/pkgconfig/, include/   the application library
#   python/       the Python package
#   share/        manual pages, completions, systemd units, an example of the configuration file
#   test/e2e      the runner; not part of what is shipped
#
# Nothing in it names an absolute path. Files are replaced by rename, so that a
# running program keeps the library it has mapped.
#
#   tools/install-tree.sh CARGO_RELEASE_FOLDER BUILD_FOLDER [demo]      demo: only what the demo runs
set -eu

cd "$(dirname "$0")/.."
from=$1
to=$2
what=${3:-all}

put() {
    mkdir -p "$(dirname "$to/$2")"
    cp "$1" "$to/$2.new"
    mv "$to/$2.new" "$to/$2"
}

for bin in fermata fermatad fermata-worker; do
    put "$from/$bin" "bin/$bin"
done
put "$from/libfermata_client.so" lib/client/libcuda.so.1
put "$from/libfermata_softgpu.so" lib/softgpu/libcuda.so.1
for folder in client softgpu; do
    ln -sfn libcuda.so.1 "$to/lib/$folder/libcuda.so"
done

if [ "$what" = all ]; then
    put "$from/e2e" test/e2e
    # A tree of a part of the crates can do without: programs that call cuBLAS then find none.
    if [ -f "$from/libfermata_softblas.so" ]; then
        put "$from/libfermata_softblas.so" lib/softgpu/libcublas.so.13
        # Its other names, those of CUDA 12 among them: empty libraries that need it. Links would become copies in a wheel,
        # and a handle of one copy is none of another.
        for name in libcublasLt.so.13 libcublas.so.12 libcublasLt.so.12; do
            # shellcheck disable=SC2016
            cc -shared -nostdlib -Wl,-soname,$name -Wl,--no-as-needed -Wl,-rpath,'$ORIGIN' \
                -o "$to/lib/softgpu/$name.new" "$to/lib/softgpu/libcublas.so.13"
            mv "$to/lib/softgpu/$name.new" "$to/lib/softgpu/$name"
        done
    fi
    put tools/ptx-as-it-is.sh lib/softgpu/ptxas
    put "$from/libfermata_ml.so" lib/client/libnvidia-ml.so.1
    ln -sfn libnvidia-ml.so.1 "$to/lib/client/libnvidia-ml.so"
    # A tree of a part of the crates can do without: CRIU then dumps all memory itself.
    if [ -f "$from/libfermata_pagefilter.so" ]; then
        put "$from/libfermata_pagefilter.so" lib/pagefilter.so
    fi
    put "$from/libfermata.so" lib/libfermata.so.0
    ln -sfn libfermata.so.0 "$to/lib/libfermata.so"
    for header in bindings/c/include/*.h; do
        put "$header" "include/$(basename "$header")"
    done
    put bindings/c/include/fti/fti.h include/fti/fti.h
    put bindings/c/fermata.pc lib/pkgconfig/fermata.pc
    rm -f "$to/python/fermata.py"
    for file in bindings/python/*.py bindings/python/fermata/*; do
        if [ -f "$file" ]; then
            put "$file" "python/${file#bindings/python/}"
        fi
    done
    rm -rf "$to/share"
    "$to/bin/fermata" share "$to/share"
    cp -R packaging/systemd "$to/share/systemd"
fi

if ! cmp -s .deps/criu/bin/criu "$to/lib/criu/bin/criu"; then
    rm -rf "$to/lib/criu"
    cp -R .deps/criu "$to/lib/criu"
fi
