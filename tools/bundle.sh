#!/bin/sh
# Packs the build tree, without debug information, into one archive:
# fermata-VERSION-x86_64.tar.xz (or .tar.zst where xz is missing).
#
# Fails if the archive is too large, or if anything in it needs a newer C or
# C++ library than it promises to run with. CRIU brings libraries of its own.
#
#   tools/bundle.sh BUILD_FOLDER
set -eu

cd "$(dirname "$0")/.."
tree=$1
limit=60000000
# What must do: glibc 2.34, and the C++ library of its time (GCC 11).
glibc=2.34
glibcxx=3.4.29
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
name=fermata-$version-x86_64
stage=$tree/bundle

# newer LABEL PROMISED FILE: the symbol versions of FILE that are above PROMISED.
newer() {
    objdump -T "$3" 2>/dev/null | grep -o "$1_[0-9.]*" | sort -u | while read -r needed; do
        number=${needed#"$1"_}
        last=$(printf '%s\n%s\n' "$number" "$2" | sort -V | tail -n 1)
        if [ "$last" != "$2" ]; then
            echo "$needed"
        fi
    done
}

rm -rf "$stage"
mkdir -p "$stage/$name"
trap 'rm -rf "$stage"' EXIT
for folder in bin lib programs bench include python; do
    cp -R "$tree/$folder" "$stage/$name/"
done
cp README.md CHANGELOG.md LICENSE "$stage/$name/"

find "$stage/$name" -path '*/criu' -prune -o -type f \( -name '*.so*' -o -perm -u+x \) -print >"$stage/files"
while read -r file; do
    strip --strip-debug "$file" 2>/dev/null || true
    for needed in $(newer GLIBC $glibc "$file") $(newer GLIBCXX $glibcxx "$file"); do
        echo "bundle: \`${file#"$stage/$name/"}\` needs $needed" | tee -a "$stage/too-new" >&2
    done
done <"$stage/files"
if [ -e "$stage/too-new" ]; then
    echo "hint: it is to run with glibc $glibc; build on a system that is as old" >&2
    exit 1
fi
rm "$stage/files"

if command -v xz >/dev/null 2>&1; then
    archive=$tree/$name.tar.xz
    tar -C "$stage" -cf - "$name" | xz -T0 -6 >"$archive"
else
    archive=$tree/$name.tar.zst
    tar -C "$stage" -cf - "$name" | zstd -q -T0 -12 >"$archive"
fi

size=$(wc -c <"$archive")
echo "$archive: $size bytes"
if [ "$size" -gt $limit ]; then
    echo "bundle: larger than $limit bytes" >&2
    exit 1
fi
