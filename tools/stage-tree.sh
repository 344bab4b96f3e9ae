#!/bin/sh
# Copies the build tree, without debug information, into a folder to be packed, and refuses what needs a newer C or C++
# library than packages promise to run with: glibc 2.34, and the C++ library of its time (GCC 11). CRIU brings libraries
# of its own.
#
#   tools/stage-tree.sh BUILD_FOLDER NEW_FOLDER FOLDER_OF_THE_TREE...
set -eu

tree=$1
stage=$2
shift 2
glibc=2.34
glibcxx=3.4.29

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

mkdir -p "$stage"
for folder; do
    cp -R "$tree/$folder" "$stage/"
done
find "$stage" -name __pycache__ -prune -exec rm -rf {} +

find "$stage" -path '*/criu' -prune -o -type f \( -name '*.so*' -o -perm -u+x \) -print >"$stage/.files"
while read -r file; do
    strip --strip-debug "$file" 2>/dev/null || true
    for needed in $(newer GLIBC $glibc "$file") $(newer GLIBCXX $glibcxx "$file"); do
        echo "stage-tree: \`${file#"$stage/"}\` needs $needed" | tee -a "$stage/.too-new" >&2
    done
done <"$stage/.files"
if [ -e "$stage/.too-new" ]; then
    echo "hint: packages are to run with glibc $glibc; build on a system that is as old" >&2
    exit 1
fi
rm "$stage/.files"
