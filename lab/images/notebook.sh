#!/bin/sh
# What Debian packages add to the lab's Debian root, and the shared libraries that their programs need from it, as a
# tree below OUT/usr. Runs in fresh mount and pid namespaces, which take the overlay with them.
#
# usage: notebook.sh DEBIAN_ROOT OUT PACKAGE...
set -eu
debian=$1 out=$2
shift 2
work=$out/work
root=$work/root upper=$work/new

mkdir -p "$work"
mount -t tmpfs work "$work"
mkdir "$root" "$upper" "$work/overlay"
mount -t overlay overlay -o "lowerdir=$debian,upperdir=$upper,workdir=$work/overlay" "$root"
mount -t proc proc "$root/proc"
cp --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
cp --remove-destination /etc/hosts "$root/etc/hosts"

# With an epoch Python's bytecode is checked by hash: the image's files have no times.
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive SOURCE_DATE_EPOCH=0 "$@"; }
inside apt-get update
inside apt-get install --yes --no-install-recommends "$@"

cd "$upper"
rm -rf usr/share/doc usr/share/man usr/share/locale usr/share/lintian usr/share/gdb usr/bin/gdb
rm -rf usr/lib/python3/dist-packages/*-stubs
# ldd prints `name => path (address)`; the loader itself has no arrow.
find usr \( -name '*.so*' -o -path 'usr/bin/python3.*' \) -type f | sed 's|^|/|' | inside xargs ldd 2>/dev/null |
    awk '$2 == "=>" && $3 ~ "^/" { print $3 }' | sort -u >"$work/libraries"
while read -r library; do
    mkdir -p ".${library%/*}"
    cp --dereference "$root$library" "$work/library" # by way of another file: both are the same one in the overlay
    mv "$work/library" ".$library"
done <"$work/libraries"
cp -a usr "$out/usr"
