#!/bin/sh
# Puts Lightning and the Trainer of Hugging Face's transformers into .deps/trainers (0.1 GB), for the test of the SDK's callbacks.
# They run on the PyTorch of tools/setup-torch.sh.
set -eu

cd "$(dirname "$0")/.."
site=$PWD/.deps/trainers
packages="lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0 transformers==5.24.0 accelerate==1.15.0
huggingface_hub==2.4.0 tokenizers==0.23.3 safetensors==0.8.0 regex==2026.11.19 packaging==26.4 PyYAML==6.0.4 tqdm==4.70.1
psutil==7.2.2 httpx2==2.16.2 httpcore2==2.16.2 anyio==4.16.0 idna==3.20 h11==0.16.0 truststore==0.10.5 typer==0.29.2
click==8.5.1 annotated-doc==0.0.7 shellingham==1.5.4 rich==15.0.0 markdown-it-py==4.3.0 Pygments==2.21.0 mdurl==0.1.2"
if [ "$(cat "$site/.complete" 2>/dev/null)" = "$packages" ]; then
    exit
fi
sh tools/setup-torch.sh
pip=$(sh tools/find-pip.sh)
rm -rf "$site"
echo "setup: installing Lightning and transformers into .deps/trainers"
# shellcheck disable=SC2086
$pip install -q --disable-pip-version-check --no-deps --no-compile --target "$site" $packages
printf '%s\n' "$packages" >"$site/.complete"
