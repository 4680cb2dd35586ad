# slurmd -G in a Debian root, on an emulated node: prints the GRES records that AutoDetect=nvml finds, and ends.
#
# Run in a mount namespace of its own: slurmd_in_root.sh ROOT SCRATCH PLUGIN NODE LIBRARIES CONFIG
# ROOT stays as it is (an overlay takes what is written); SCRATCH is an empty folder; CONFIG holds slurm.conf and
# gres.conf. /proc/driver and /dev are the node's, because gpu/nvml reads fixed paths there.
set -eu
root=$1 scratch=$2 plugin=$3 node=$4 libraries=$5 config=$6
mount -t tmpfs none "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
mount -t overlay none -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/root"
cd "$scratch/root"
cp "$plugin" usr/lib/x86_64-linux-gnu/slurm-wlm/
mkdir -p etc/slurm run/nvidia-emulator opt/nvml var/spool/slurmd
cp -p "$config"/* etc/slurm/
mount --bind "$libraries" opt/nvml
mount --bind "$node" run/nvidia-emulator
mount --rbind /proc proc
mount --rbind /sys sys
mount -t tmpfs none proc/driver
cp -r "$node/proc/driver/." proc/driver/
mount -t tmpfs none dev
cp -a /dev/null /dev/urandom dev/
cp -a "$node/dev/." dev/
exec chroot . env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH=/opt/nvml \
    DYNAMIG_EMULATOR_DIR=/run/nvidia-emulator slurmd -G -vvv -N n1 -f /etc/slurm/slurm.conf
