#!/bin/sh
# A systemd of its own: in namespaces and cgroups of its own, over a copy of this machine's files that is never written back.
#
#   nested.sh FOLDER CGROUP
#
# FOLDER/bus becomes its /run/dbus, where its bus is. CGROUP is a path below the root of each hierarchy of v1; it is there.
set -eu
if [ "${1:-}" != inside ]; then
    for hierarchy in /sys/fs/cgroup/*/; do
        [ ! -L "${hierarchy%/}" ] || continue
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$hierarchy$file" ] || cat "$hierarchy$file" >"$hierarchy$2/$file"
        done
        echo $$ >"$hierarchy$2/cgroup.procs"
    done
    # All ends with this one, and this one with the test.
    exec setpriv --pdeathsig KILL unshare --mount --propagation private --uts --ipc --net --cgroup --pid --fork --kill-child \
        sh "$0" inside "$1"
fi

folder=$2
mkdir "$folder/own"
mount -t tmpfs tmpfs "$folder/own"
mkdir "$folder/own/upper" "$folder/own/work" "$folder/own/root"
root=$folder/own/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/own/upper,workdir=$folder/own/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
for own in run tmp dev; do mount -t tmpfs tmpfs "$root/$own"; done
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/run/dbus"
mount --bind "$folder/bus" "$root/run/dbus"
# Mounted in a cgroup namespace, each shows what is below the cgroup that this script is in.
cgroups=$root/sys/fs/cgroup
mount -t tmpfs tmpfs "$cgroups"
for hierarchy in /sys/fs/cgroup/*/; do
    name=$(basename "$hierarchy")
    [ ! -L "${hierarchy%/}" ] && [ "$name" != unified ] || continue
    mkdir "$cgroups/$name"
    case $name in
        systemd) options=none,name=systemd ;;
        *) options=$name ;;
    esac
    mount -t cgroup -o "$options" cgroup "$cgroups/$name"
done

# Nothing of this machine is started: a bus, and what comes with systemd itself.
units=$root/etc/systemd/system
rm -rf "$units"
mkdir -p "$units"
cat >"$units/nested.target" <<UNIT
[Unit]
DefaultDependencies=no
Requires=dbus.socket dbus.service
UNIT
cat >"$units/dbus.socket" <<UNIT
[Unit]
DefaultDependencies=no
[Socket]
ListenStream=/run/dbus/system_bus_socket
UNIT
cat >"$units/dbus.service" <<UNIT
[Unit]
DefaultDependencies=no
Requires=dbus.socket
[Service]
Type=notify
ExecStart=/usr/bin/dbus-daemon --config-file=/run/dbus/bus.conf --address=systemd: --nofork --nopidfile --systemd-activation
UNIT
for unit in systemd-journald.socket systemd-journald-dev-log.socket systemd-journald.service systemd-udevd.service; do
    ln -s /dev/null "$units/$unit"
done
cd "$root"
mkdir old
pivot_root . old
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/sh -c '
    umount -l /old
    exec /lib/systemd/systemd --system --unit=nested.target --log-target=console --show-status=no'
