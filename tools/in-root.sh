#!/bin/sh
# Runs a command in the system that lies in a folder, as its own machine as far as the kernel allows: its own processes,
# mounts and host name, and no network. Needs root.
#
#   tools/in-root.sh FOLDER COMMAND [ARGUMENT]...
set -eu

exec unshare --mount --pid --net --uts --ipc --fork --kill-child sh -c '
set -eu
root=$1
shift
mount --make-rprivate /
# Its own loopback device is down at first.
python3 -c "import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack(\"16sh14x\", b\"lo\", 1))"
mount --bind "$root" "$root"
cd "$root"
mkdir -p proc sys dev run tmp .former
mount --rbind /dev dev
mount --rbind /sys sys
mount -t proc proc proc
mount -t tmpfs tmpfs run
pivot_root . .former
exec chroot . /bin/sh -c "umount -l /.former; exec \"\$@\"" sh "$@"
' sh "$@"
