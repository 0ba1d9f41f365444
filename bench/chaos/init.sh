#!/bin/busybox sh
# The first program of the virtual machine of bench chaos -power. It ends by switching the machine off.
bb=/bin/busybox
fail() { echo "guest: $*"; $bb poweroff -f; }
$bb mount -t proc proc /proc
$bb mount -t devtmpfs dev /dev
for module in /modules/*; do $bb insmod "$module" || fail "insmod $module"; done
$bb ip link set lo up
$bb ip addr add 10.0.2.15/24 dev eth0 && $bb ip link set eth0 up && $bb ip route add default via 10.0.2.2 ||
  fail "there is no network"
$bb mount -t ext4 /dev/vda /data || fail "the disk cannot be mounted"
nosync=
if [ -e /data/ledger ]; then
  /bin/seqledger verify --data /data/ledger || fail "verify has failed"
  # Not at the first start: the control is to lose writes, and not the ledger.
  ! [ -e /bin/nosync ] || nosync=/bin/nosync
fi
if $bb grep -q guest=verify /proc/cmdline; then
  echo "guest: verified"
  $bb poweroff -f
fi
$bb cat /proc/uptime
# A small threshold, so that cuts meet checkpoints as well.
$nosync /bin/seqledger serve --data /data/ledger --listen 0.0.0.0:7450 --insecure --no-console --checkpoint-bytes 2097152 ||
  fail "serve has ended"
fail "serve has ended by itself"
