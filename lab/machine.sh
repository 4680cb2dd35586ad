#!/bin/sh
# The first process of a machine of the lab (a node, or the control plane). It runs in fresh mount and pid
# namespaces, makes the Debian root its real root, and becomes `pause`, which keeps the namespaces and reaps orphans.
# A real root (pivot_root) is needed because runc cannot pivot inside a chroot.
#
# usage: machine.sh DEBIAN_ROOT STATE KUBE_BIN PAUSE_DIR GPU_COUNT [HOST_FOLDER...]
#   DEBIAN_ROOT  shared, read-only lower layer; what a machine writes lands in STATE/rootfs/upper
#   STATE        the machine's folder, at the same path inside and outside
#   HOST_FOLDER  with these, /opt/lab/guarded/host shows the host's root, these folders of it and STATE: read-only, to root only
set -eu
debian=$1 state=$2 kube=$3 pause=$4 gpus=$5
shift 5
root=$state/rootfs/mnt

mount -t overlay overlay -o "lowerdir=$debian,upperdir=$state/rootfs/upper,workdir=$state/rootfs/work" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 run "$root/run"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"

# A /dev of its own: nothing that happens here shows on the host, and the GPUs seen are this node's emulated ones.
dev=$root/dev
mount -t tmpfs -o mode=755,size=1m dev "$dev"
mkdir "$dev/pts" "$dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$dev/pts"
mount -t tmpfs -o mode=1777 shm "$dev/shm"
node() { mknod -m "$2" "$dev/$1" c "$3" "$4"; }
node null 666 1 3; node zero 666 1 5; node full 666 1 7; node random 666 1 8; node urandom 666 1 9
node kmsg 600 1 11; node tty 666 5 0
ln -s pts/ptmx "$dev/ptmx"; ln -s /proc/self/fd "$dev/fd"
ln -s fd/0 "$dev/stdin"; ln -s fd/1 "$dev/stdout"; ln -s fd/2 "$dev/stderr"
index=0
while [ "$index" -lt "$gpus" ]; do
    ln -s "$state/emulator/dev/nvidia$index" "$dev/nvidia$index"
    index=$((index + 1))
done

# Kernel settings that kubelet and the CNI plugins would change for the whole host: here they see, and may write,
# private files with the values they want.
shadow() {
    file=$root/run/sysctl/$1
    mkdir -p "${file%/*}"
    echo "$2" >"$file"
    mount --bind "$file" "$root/proc/sys/$1"
}
shadow kernel/panic 10
shadow kernel/panic_on_oops 1
shadow vm/overcommit_memory 1
shadow vm/panic_on_oom 0
shadow kernel/keys/root_maxkeys 1000000
shadow kernel/keys/root_maxbytes 25000000
shadow net/ipv4/ip_forward 1

share() { # FROM TO [ro]
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    [ "${3:-rw}" = rw ] || mount -o remount,bind,ro "$root$2"
}
share "$state" "$state"
parent=${state%/*}
while [ -n "$parent" ]; do # daemons that are not root (munge, slurm) reach STATE although it may lie in /root of the host
    chmod a+x "$root$parent"
    parent=${parent%/*}
done
share "$kube" /opt/lab/kube ro
share "$pause" /opt/lab/pause ro
if [ $# -gt 0 ]; then
    mkdir -p "$root/opt/lab/guarded"
    chmod 700 "$root/opt/lab/guarded"
    share / /opt/lab/guarded/host ro
    for folder in "$state" "$@"; do
        mount --bind "$folder" "$root/opt/lab/guarded/host$folder"
        mount -o remount,bind,ro "$root/opt/lab/guarded/host$folder"
    done
fi

mkdir -p "$root/.old"
cd "$root"
pivot_root . .old
cd /
umount -l /.old
rmdir /.old
mount --make-rshared / # kubelet hands mounts of volumes to containers
exec /opt/lab/pause/pause
