#!/bin/sh
# Copies the pages of the documentation into a folder to be packed, so that their links lead somewhere there: README, changelog,
# docs, and the pages of test programs and benches.
#
#   tools/stage-pages.sh NEW_FOLDER
set -eu

cd "$(dirname "$0")/.."
mkdir -p "$1/programs" "$1/bench"
cp README.md CHANGELOG.md "$1/"
cp -R docs "$1/"
cp programs/README.md "$1/programs/"
cp bench/README.md "$1/bench/"
