#!/bin/sh
# Runs in a Debian that has nothing else, with the packages in /netvm: installs them, uses them as an ordinary user, purges them, and
# compares what there is with what there was (xtask/src/dist/clean_root.rs).
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
ours="libnetvm0 libnetvm-dev netvm libfabric-netvm netvm-preload netvm-module-source netvm-firmware"
scratch=/netvm

step() {
    echo "== $*"
}

fail() {
    echo "FAILED: $*"
    exit 1
}

get() {
    apt-get -q -y -o Dpkg::Use-Pty=0 --no-install-recommends "$@"
}

# Nothing may be locked: not one page.
as_user() {
    (
        ulimit -l 0
        cd "$scratch/user"
        HOME=$scratch/user setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all "$@"
    )
}

# Every file, with what it holds. Logs, caches and the lists of packages change with each package, whatever is in it, and so do the
# copies that programs keep of the last version of a list of users.
look() {
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path "$scratch" \
        -o -path /var/cache/apt -o -path /var/lib/apt/lists \) -prune -o -printf '%p %y %m %u %g %l\n' | sort > "$1.files"
    find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /run -o -path "$scratch" \
        -o -path /var/cache -o -path /var/log -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /etc/ld.so.cache \
        -o -path /etc/group- -o -path /etc/gshadow- \) -prune -o -type f -exec sha256sum {} + | sort -k 2 > "$1.contents"
}

mkdir "$scratch/user"
chown 65534:65534 "$scratch/user"

step "what the packages depend on, and what uses them"
get install gcc libc6-dev pkg-config libfabric-bin iperf3 systemd-standalone-sysusers
apt-get -q -s --no-install-recommends install "$scratch"/*.deb > "$scratch/plan"
needed=$(sed -n 's/^Inst \([^ ]*\) .*/\1/p' "$scratch/plan")
for package in $ours; do
    echo "$needed" | grep -qx "$package" || fail "apt would not install $package"
    needed=$(echo "$needed" | grep -vx "$package" || true)
done
[ -z "$needed" ] || get install $needed
# A group that comes and goes leaves copies of the lists of groups, whatever package it is of.
groupadd --system before && groupdel before
look "$scratch/before"

step "install"
get install "$scratch"/*.deb
dpkg --audit
for package in $ours; do
    dpkg --verify "$package"
done
getent group netvm || fail "there is no group netvm"
[ -f /lib/udev/rules.d/99-netvm.rules ] || fail "there is no rule of udev"
[ -e /usr/share/man/man3/netvm_write.3.gz ] || fail "there is no manual"

step "programs in C"
compiled=0
for source in /usr/share/doc/libnetvm-dev/examples/*.c; do
    program=$scratch/user/$(basename "$source" .c)
    cc -Wall -Werror "$source" $(pkg-config --cflags --libs libnetvm) -pthread -o "$program"
    as_user "$program"
    compiled=$((compiled + 1))
done
[ "$compiled" -gt 0 ] || fail "there is no example"
cc /usr/share/doc/libnetvm-dev/examples/hello.c -l:libnetvm.a $(pkg-config --cflags --static --libs-only-l libnetvm) \
    -Wl,--as-needed -o "$scratch/user/static"
ldd "$scratch/user/static" | grep libnetvm && fail "the static library is not linked"
as_user "$scratch/user/static"

step "the program"
as_user netvm --version
as_user netvm demo --processes

step "the provider"
as_user fi_info -p netvm
as_user fi_info -p netvm | grep -q 'provider: netvm' || fail "libfabric does not find the provider"

step "a program with sockets"
netvm-preload --help > /dev/null
if netvm-preload --no-such-option iperf3 2> /dev/null; then fail "netvm-preload takes what is no option"; fi
as_user netvm-preload -v iperf3 -s -1 -p 17790 > "$scratch/server" 2>&1 &
server=$!
for attempt in $(seq 100); do
    grep -q listening "$scratch/server" && break
    sleep 0.1
done
as_user netvm-preload -v iperf3 -c 127.0.0.1 -p 17790 -n 16M > "$scratch/client" 2>&1 || fail "iperf3 fails: $(cat "$scratch/client")"
wait "$server" || fail "the server of iperf3 fails: $(cat "$scratch/server")"
grep -q "a connection has moved" "$scratch/client" || fail "no connection has moved: $(cat "$scratch/client")"

step "remove, install where nothing makes groups by files, purge"
get remove $ours
groupdel netvm
sysusers=$(command -v systemd-sysusers)
mv "$sysusers" "$scratch/sysusers"
get install "$scratch"/*.deb
getent group netvm || fail "there is no group netvm without systemd-sysusers"
mv "$scratch/sysusers" "$sysusers"
get purge $ours
look "$scratch/after"
# A difference goes to the log.
for what in files contents; do
    diff "$scratch/before.$what" "$scratch/after.$what" || fail "this stays ($what)"
done
echo "clean root: $compiled examples in C, demo, fi_info and iperf3 as a user that may lock nothing; of $(wc -l < "$scratch/before.files") files none stays or is gone after the purge"
