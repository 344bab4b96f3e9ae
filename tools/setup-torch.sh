#!/bin/sh
# Puts PyTorch with Triton into .deps/torch (0.8 GB to fetch, 2.2 GB on disk), for the test that trains a transformer on
# the software GPU. Of NVIDIA's libraries only the runtime is fetched. The others that PyTorch is linked with
# are not called there, and stand as libraries whose every function answers 1, an error in all of them; cuBLAS is
# ours (build/lib/softgpu).
set -eu

cd "$(dirname "$0")/.."
site=$PWD/.deps/torch
packages="torch==2.15.0 triton==3.9.0 nvidia-cuda-runtime==13.2.86 numpy==2.4.6 setuptools==84.2.1
filelock==4.2.12 typing-extensions==4.16.0 sympy==1.14.0 mpmath==1.4.1 networkx==3.6.1 jinja2==3.1.6
markupsafe==3.0.4 fsspec==2026.9.0"
if [ "$(cat "$site/.complete" 2>/dev/null)" = "$packages" ]; then
    exit
fi

# Triton compiles a module for Python when it is first used. Debian's python3 comes without headers; the test names those that are
# fetched here.
headers=$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
fetched=$PWD/.deps/python-headers
if [ ! -f "$headers/Python.h" ] && [ ! -f "$fetched/usr/include/${headers##*/}/Python.h" ]; then
    echo "setup: fetching the headers of ${headers##*/} into .deps/python-headers"
    rm -rf "$fetched"
    mkdir -p "$fetched"
    if ! sh tools/fetch-debs.sh "" "$fetched/debs" "lib${headers##*/}-dev-"; then
        echo "setup: no $headers/Python.h, which Triton needs; install the headers of Python (Debian: python3-dev)" >&2
        exit 1
    fi
    dpkg-deb -x "$fetched"/debs/lib"${headers##*/}"-dev_*.deb "$fetched"
    rm -rf "$fetched/debs"
fi

pip=$(sh tools/find-pip.sh)
rm -rf "$site"
echo "setup: installing PyTorch into .deps/torch"
# shellcheck disable=SC2086
$pip install -q --disable-pip-version-check --no-deps --no-compile --target "$site" $packages

# absent LIBRARY PREFIX [VERSION]: a library with all symbols of a prefix that PyTorch asks for, of the version that it
# asks for.
lib=$site/nvidia/cu13/lib
nm -D --undefined-only "$site"/torch/lib/*.so | sed -n 's/^ *U \([A-Za-z0-9_]*\)@*.*/\1/p' | sort -u >"$lib/wanted"
absent() {
    grep -E "$2" "$lib/wanted" | sed 's/.*/int &(void) { return 1; }/' >"$lib/absent.c"
    printf '%s { global: *; };\n' "${3:-$1}" >"$lib/absent.map"
    cc -shared -fPIC -w -Wl,-soname,"$1" -Wl,--version-script,"$lib/absent.map" -o "$lib/$1" "$lib/absent.c"
}
absent libcudnn.so.9 '^cudnn'
absent libcufft.so.12 '^cufft'
absent libcufile.so.0 '^cuFile'
absent libcupti.so.13 '^cupti'
absent libcusolver.so.12 '^cusolver'
absent libcusparse.so.12 '^cusparse([^L]|L[^t])'
absent libcusparseLt.so.0 '^cusparseLt'
absent libnccl.so.2 '^nccl'
absent libnvrtc.so.13 '^nvrtc'
absent libnvshmem_host.so.3 '^nvshmem' NVSHMEM
rm -f "$lib/wanted" "$lib/absent.c" "$lib/absent.map"
printf '%s\n' "$packages" >"$site/.complete"
