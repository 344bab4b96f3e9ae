#!/bin/sh
# Makes a package for Debian and Ubuntu of the build tree: build/packages/fermata_VERSION_amd64.deb.
#
# The tree is /usr/lib/fermata; what others look for elsewhere is linked or put there.
#
#   tools/make-deb.sh BUILD_FOLDER
set -eu

cd "$(dirname "$0")/.."
tree=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
usr=$stage/deb/usr
home=$usr/lib/fermata

mkdir -p "$home" "$usr/bin" "$usr/share/doc" "$usr/lib/x86_64-linux-gnu/pkgconfig" "$usr/lib/python3/dist-packages"
sh tools/stage-tree.sh "$tree" "$home" bin lib include python share
ln -s ../lib/fermata/bin/fermata "$usr/bin/fermata"
for library in libfermata.so.0 libfermata.so; do
    ln -s "../fermata/lib/$library" "$usr/lib/x86_64-linux-gnu/$library"
done
mv "$home/include" "$usr/include"
sed -e 's|^prefix=.*|prefix=/usr|' -e 's|^libdir=.*|libdir=${prefix}/lib/x86_64-linux-gnu|' \
    "$home/lib/pkgconfig/fermata.pc" >"$usr/lib/x86_64-linux-gnu/pkgconfig/fermata.pc"
rm -r "$home/lib/pkgconfig"
mv "$home"/python/* "$usr/lib/python3/dist-packages/"
rmdir "$home/python"

mkdir -p "$usr/lib/systemd" "$usr/share/zsh/vendor-completions"
mv "$home/share/systemd/user" "$home/share/systemd/system" "$usr/lib/systemd/"
mv "$home/share/zsh/site-functions/_fermata" "$usr/share/zsh/vendor-completions/"
rm -rf "$home/share/zsh" "$home/share/systemd"
cp -R "$home/share/." "$usr/share/"
rm -rf "$home/share"
gzip -9n "$usr"/share/man/man1/*
sh tools/stage-pages.sh "$usr/share/doc/fermata"
{
    echo 'Files: *'
    echo 'License: Apache-2.0'
    echo ' On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.'
    echo
    echo 'Files: usr/lib/fermata/lib/criu/*'
    echo 'License: GPL-2 and others'
    echo ' Each of these programs and libraries has its licence in usr/lib/fermata/lib/criu/doc.'
} >"$usr/share/doc/fermata/copyright"
chmod -R u=rwX,go=rX "$stage/deb"

mkdir "$stage/deb/DEBIAN"
cat >"$stage/deb/DEBIAN/control" <<CONTROL
Package: fermata
Version: $version
Architecture: amd64
Maintainer: The Fermata authors <fermata@example.invalid>
Installed-Size: $(du -sk "$stage/deb" | cut -f 1)
Depends: libc6 (>= 2.34), libgcc-s1
Recommends: python3
Section: utils
Priority: optional
Description: checkpoint, restore, move and copy running GPU programs
 The command and its daemon, the libraries that programs get, a software GPU,
 CRIU, an application library for C and a Python package.
CONTROL
mkdir -p "$tree/packages"
rm -f "$tree"/packages/fermata_*.deb
dpkg-deb -Zxz --root-owner-group --build "$stage/deb" "$tree/packages/fermata_${version}_amd64.deb"
ls -l "$tree"/packages/fermata_*.deb
