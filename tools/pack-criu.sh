#!/bin/sh
# Turns unpacked Debian packages into the prefix that is shipped:
#
#   criu       script that starts the binary with the prefix's own loader
#   bin/criu   the binary
#   lib/       its libraries and the loader
#   doc/       the licences of all of them
#
#   tools/pack-criu.sh UNPACKED PREFIX
set -eu

from=$1
to=$2
libs=usr/lib/x86_64-linux-gnu

mkdir -p "$to/bin" "$to/lib" "$to/doc"
cp "$from/usr/sbin/criu" "$to/bin/criu"
find "$from/$libs" -maxdepth 1 -name '*.so*' -exec cp -P {} "$to/lib/" \;
for copyright in "$from"/usr/share/doc/*/copyright; do
    name=$(basename "$(dirname "$copyright")")
    cp -L "$copyright" "$to/doc/$name" 2>/dev/null || true
done

cat >"$to/criu" <<'SCRIPT'
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
exec "$here/lib/ld-linux-x86-64.so.2" --library-path "$here/lib" "$here/bin/criu" "$@"
SCRIPT
chmod 755 "$to/criu" "$to/bin/criu"
"$to/criu" --version >/dev/null
