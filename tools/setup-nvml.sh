#!/bin/sh
# Puts NVML's Python bindings (pynvml, one file without needs of its own) into .deps/pynvml, for the tests of
# our libnvidia-ml.so.1 and for bench/nvml.py.
set -eu

cd "$(dirname "$0")/.."
python=$PWD/.deps/pynvml
package=nvidia-ml-py==13.615.71
if [ "$(cat "$python/.complete" 2>/dev/null)" = "$package" ]; then
    exit
fi
pip=$(sh tools/find-pip.sh)
rm -rf "$python"
echo "setup: installing pynvml into .deps/pynvml"
$pip install -q --disable-pip-version-check --no-deps --target "$python" "$package"
printf '%s\n' "$package" >"$python/.complete"
