#!/bin/sh
# Installs each package that build/packages has of this version in a Debian system of its own without network, and runs the
# demo there on the software GPU. Needs root.
#
#   tools/try-packages.sh BUILD_FOLDER [deb|wheel|image]...      default: all
#
# FERMATA_TEST_ROOT is a Debian system to start from (with python3-venv) instead of .deps/root.
set -eu

cd "$(dirname "$0")/.."
tree=$(readlink -f "$1")
shift
if [ $# -eq 0 ]; then
    set -- deb wheel image
fi
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
base=${FERMATA_TEST_ROOT:-$PWD/.deps/root}
work=$(mktemp -d /tmp/fermata-packages.XXXXXX)
trap 'rm -rf "$work"' EXIT

if [ ! -x "$base/usr/bin/python3" ]; then
    echo "try-packages: making a Debian system in $base"
    sh tools/base-root.sh "$base" python3-venv
fi

# put FILE...: what the demo and the tests need in the system under test.
put() {
    mkdir -p "$work/system/try"
    cp tools/demo.sh "$tree/programs/heat2d" "$work/system/try/"
    for file; do
        cp "$file" "$work/system/try/"
    done
}

# inside SCRIPT: runs it in the system under test.
inside() {
    timeout 600 sh tools/in-root.sh "$work/system" env -i HOME=/root PYTHONDONTWRITEBYTECODE=1 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        sh -euc "$1"
}

try_deb() {
    cp -a "$base" "$work/system"
    put "$tree/packages/fermata_${version}_amd64.deb"
    inside '
    dpkg -i /try/fermata_*.deb
    fermata version
    fermata doctor --settings >/dev/null
    for file in man/man1/fermata.1.gz man/man1/fermata-checkpoint.1.gz bash-completion/completions/fermata \
        zsh/vendor-completions/_fermata fish/vendor_completions.d/fermata.fish doc/fermata/fermata.toml; do
        test -s /usr/share/$file
    done
    test -s /usr/lib/systemd/user/fermata.service
    test -s /usr/lib/systemd/system/fermata.service
    python3 -c "import fermata; print(fermata.version())"
    FERMATA_BUILD=/usr/lib/fermata FERMATA_DEMO_COMMAND=/usr/bin/fermata FERMATA_DEMO_PROGRAM=/try/heat2d \
        sh /try/demo.sh soft
    dpkg -r fermata
    left=$(find /usr -name "*fermata*" ! -path "*/dpkg/*")
    test -z "$left" || { echo "left behind: $left"; exit 1; }'
}

# Installed by a user without rights; only the demo, whose checkpoint needs them, is root.
try_wheel() {
    cp -a "$base" "$work/system"
    put "$tree/packages/fermata-$version"-*.whl
    inside '
    useradd --create-home --home-dir /srv/someone someone
    setpriv --reuid someone --regid someone --clear-groups env HOME=/srv/someone sh -euc "
        cd ~
        python3 -m venv venv
        venv/bin/pip install -q --no-index --disable-pip-version-check /try/fermata-*.whl
        venv/bin/fermata --version
        venv/bin/python -c \"import fermata; print(fermata.version())\"
    "
    cd /srv/someone/venv
    for file in man/man1/fermata.1 bash-completion/completions/fermata zsh/site-functions/_fermata \
        fish/vendor_completions.d/fermata.fish; do
        test -s share/$file
    done
    FERMATA_BUILD=$(echo /srv/someone/venv/lib/python3*/site-packages/fermata/_tree) \
        FERMATA_DEMO_COMMAND=/srv/someone/venv/bin/fermata FERMATA_DEMO_PROGRAM=/try/heat2d sh /try/demo.sh soft
    bin/pip uninstall -q -y fermata
    left=$(find . -name "*fermata*" ! -name "*.pyc")
    test -z "$left" || { echo "left behind: $left"; exit 1; }'
}

try_image() {
    mkdir "$work/system"
    tar -C "$work/system" -xf "$tree/packages/fermata-image-$version.tar"
    put
    inside 'FERMATA_BUILD=/usr/lib/fermata FERMATA_DEMO_COMMAND=/usr/bin/fermata FERMATA_DEMO_PROGRAM=/try/heat2d \
        sh /try/demo.sh soft'
}

for package; do
    printf '\n==== %s\n' "$package"
    case $package in
    deb | wheel | image) try_$package ;;
    *)
        echo "try-packages: no package \`$package\`; packages are deb, wheel and image" >&2
        exit 2
        ;;
    esac
    rm -rf "$work/system"
done
printf '\ntry-packages: %s: installed, demo ended with the same digest, removed\n' "$*"
