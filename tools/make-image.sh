#!/bin/sh
# Makes a container image with the package for Debian. With podman, docker or buildah the image `fermata:VERSION` is built by
# packaging/Containerfile, and its file system is exported. Without any of them only the file system is made, for `podman import`
# and `docker import`; that needs root and apt's mirror. The file system is build/packages/fermata-image-VERSION.tar.
#
#   tools/make-image.sh BUILD_FOLDER
set -eu

cd "$(dirname "$0")/.."
tree=$1
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

archive=$tree/packages/fermata-image-$version.tar
rm -f "$tree"/packages/fermata-image-*.tar "$tree"/packages/fermata-image-*.tar.new

# build TOOL: builds the image.
build() {
    $1 build -t "fermata:$version" -f packaging/Containerfile "$tree/packages"
}

for tool in podman docker; do
    # A client alone builds nothing.
    if $tool info >/dev/null 2>&1; then
        build $tool
        container=$($tool create "fermata:$version")
        trap '$tool rm -v "$container" >/dev/null; rm -f "$archive.new"' EXIT
        $tool export "$container" >"$archive.new"
        mv "$archive.new" "$archive"
        exit
    fi
done
if command -v buildah >/dev/null 2>&1; then
    build buildah
    container=$(buildah from "fermata:$version")
    trap 'buildah rm "$container" >/dev/null; rm -f "$archive.new"' EXIT
    # What buildah mounts there is not of the image.
    buildah run "$container" -- tar -C / --one-file-system --numeric-owner -cf - . >"$archive.new"
    mv "$archive.new" "$archive"
    exit
fi

echo "make-image: no podman, docker or buildah that works; making a file system to import"
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
sh tools/base-root.sh "$root/debian"
cp "$tree/packages/fermata_${version}_amd64.deb" "$root/debian/tmp/"
sh tools/in-root.sh "$root/debian" sh -euc '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg -i /tmp/fermata_*.deb
rm -rf /tmp/fermata_*.deb /var/log/*.log'
rmdir "$root/debian/.former" 2>/dev/null || true
tar -C "$root/debian" --numeric-owner --exclude './dev/*' --exclude './proc/*' --exclude './sys/*' -cf "$archive.new" .
mv "$archive.new" "$archive"
echo "$archive: $(wc -c <"$archive") bytes"
echo "podman import --change 'ENV FERMATA_IMAGE_DIR=/var/lib/fermata/images' --change 'CMD [\"fermata\", \"serve\"]' \\"
echo "    $archive fermata:$version"
