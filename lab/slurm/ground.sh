# What Slurm's daemons and clients find in a machine of the lab: accounts, configuration in its usual place, folders
# with their owners, and NVML where programs look for it. Runs inside the machine, as root, after each of its starts.
#
# usage: ground.sh STATE        STATE: the machine's folder
set -eu
state=$1

account() { # NAME USERADD-OPTIONS
    name=$1
    shift
    getent passwd "$name" >/dev/null || useradd "$@" "$name"
}
account alice --uid 1001 --user-group --create-home --shell /bin/bash
account slurmrest --uid 1100 --user-group --no-create-home --shell /usr/sbin/nologin
# Without slurmdbd there are no operators, only root and SlurmUser: the bridge's account is a second name of the latter.
account dynamig --uid "$(id -u slurm)" --gid "$(id -g slurm)" --non-unique --no-create-home --shell /usr/sbin/nologin

install -d -o munge -g munge -m 755 /run/munge
install -d -o slurm -g slurm -m 755 /run/slurm "$state/slurm/state"
install -d -m 755 "$state/slurm/spool"
chown munge:munge "$state/slurm/munge.key"
[ ! -e "$state/slurm/jwt.key" ] || chown slurm:slurm "$state/slurm/jwt.key"
for file in "$state/slurm/etc"/*; do
    ln -sfn "$file" "/etc/slurm/${file##*/}"
done

mkdir -p /etc/dynamig
ln -sfn "$state/slurm/slurm.env" /etc/dynamig/slurm.env

[ ! -e "$state/lib/libnvidia-ml.so.1" ] || ln -sfn "$state/lib/libnvidia-ml.so.1" /usr/lib/x86_64-linux-gnu/
[ ! -e "$state/lib/nvml-list" ] || ln -sfn "$state/lib/nvml-list" /usr/local/bin/
[ ! -d "$state/dynamig" ] || ln -sfn "$state/emulator" /run/nvidia-emulator
