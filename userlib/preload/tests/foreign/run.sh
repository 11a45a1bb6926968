#!/bin/bash
# Programs of others over TCP, with the library and without: the answers are the same, byte by byte, and connections have moved.
#
#   run.sh LIBRARY FOLDER
set -euo pipefail
library=$1 folder=$2
mkdir -p "$folder"
cd "$folder"
rm -rf ./*
export NETVM_PRELOAD_VERBOSE=1
# Below those that the kernel gives to connections by itself.
port=17750

fail() {
    echo "$*" >&2
    tail -n 20 -- *.err >&2 || true
    exit 1
}

# What is still there when this fails.
trap 'kill $(jobs -p) 2> kill.out || true' EXIT

# Waits until a command succeeds.
until_it_works() {
    for _ in $(seq 100); do
        if "$@" > until.out 2>&1; then return; fi
        sleep 0.1
    done
    fail "not within ten seconds: $*"
}

# At least so many connections of the programs that write to this file have moved.
have_moved() {
    local moved
    moved=$(grep -c "a connection has moved" "$2" || true)
    [ "$moved" -ge "$1" ] || fail "$moved connections of $2 have moved, and $1 should"
    echo "$2: $moved connections have moved"
}

# ---- Redis: an event loop, and a child of fork that writes a snapshot ----

# The same program is the server if it is called so. The package with that name would start one for the machine.
ln -s "$(command -v redis-check-rdb)" redis-server
ask() { timeout 20 redis-cli -p $port "$@"; }

/usr/bin/python3 - > questions <<'END'
import random
random.seed(7)
for number in range(3000):
    key = "key:%d" % random.randrange(50)
    print(random.choice([
        "SET %s %s" % (key, "x" * random.choice([1, 60, 5000, 100000])),
        "GET %s" % key,
        "INCR count:%d" % random.randrange(5),
        "RPUSH list:%d %d" % (random.randrange(5), number),
        "LRANGE list:%d 0 -1" % random.randrange(5),
        "STRLEN %s" % key,
        "no such command",
    ]))
END

for part in plain moved; do
    if [ $part = moved ]; then export LD_PRELOAD=$library; fi
    rm -f dump.rdb
    ./redis-server --port $port --dir "$folder" --save "" > redis.$part.out 2> redis.$part.err &
    until_it_works ask ping
    timeout 60 redis-cli -p $port < questions > answers.$part 2> cli.$part.err || fail "redis-cli fails"
    ask bgsave > bgsave.out 2> bgsave.$part.err
    saved() { ask info persistence 2>> bgsave.$part.err | grep -q "rdb_bgsave_in_progress:0"; }
    until_it_works saved
    ask info persistence 2>> bgsave.$part.err | grep -q "rdb_last_bgsave_status:ok" || fail "no snapshot"
    timeout 60 redis-benchmark -p $port -n 20000 -c 50 -q -t set,get,lpush > benchmark.$part 2> benchmark.$part.err || fail "redis-benchmark fails"
    ask shutdown nosave > shutdown.out 2>&1
    wait
    unset LD_PRELOAD
done
cmp answers.plain answers.moved
have_moved 100 redis.moved.err
have_moved 100 benchmark.moved.err

# ---- Python's web server, one thread for each request, and curl ----

port=$((port + 1))
mkdir -p files
for size in 1 4000 300000 8000000; do head -c $size /dev/urandom > files/$size; done
preloaded="LD_PRELOAD=$library"
for part in "A=A A=A" "A=A $preloaded" "$preloaded A=A" "$preloaded $preloaded"; do
    read -r server client <<< "$part"
    (cd files && exec env "$server" /usr/bin/python3 -m http.server --bind 127.0.0.1 --protocol HTTP/1.1 $port > ../web.out 2> ../web.err) &
    web=$!
    until_it_works curl --silent "http://127.0.0.1:$port/1"
    kill -0 $web || fail "another server has the port"
    env "$client" timeout 20 curl --silent --show-error --fail --output got.#1 \
        "http://127.0.0.1:$port/{1,4000,300000,8000000}" 2> curl.err || fail "curl fails: $part"
    for size in 1 4000 300000 8000000; do cmp files/$size got.$size; done
    kill $web
    wait $web || true
done
have_moved 1 curl.err

# ---- whois: reads by a stream of C, which the C library fills by itself ----

port=$((port + 1))
cat > whois.py <<'END'
import socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rwb") as stream:
            question = stream.readline()
            # Time to move.
            time.sleep(0.1)
            stream.write(b"asked: " + question + b"".join(b"line %d\r\n" % number for number in range(5000)))
END
for part in plain moved; do
    if [ $part = moved ]; then export LD_PRELOAD=$library; fi
    /usr/bin/python3 whois.py $port > whois.out 2> whois.server.err &
    server=$!
    until_it_works timeout 10 whois -h 127.0.0.1 -p $port ready
    for question in one two three; do
        timeout 10 whois -h 127.0.0.1 -p $port $question
    done > asked.$part 2> asked.$part.err || fail "whois fails: $part"
    kill $server
    wait $server || true
    unset LD_PRELOAD
done
cmp asked.plain asked.moved
have_moved 3 asked.moved.err

# ---- rsync: a client and a server that fork when they have spoken, and go on with one connection in both processes ----

port=$((port + 1))
cat > rsync.conf <<END
port = $port
address = 127.0.0.1
use chroot = false
$([ "$(id -u)" != 0 ] || echo "uid = root")
[from]
path = $folder/tree
[to]
path = $folder/sent
read only = false
END
mkdir -p tree/below
for number in $(seq 300); do head -c $((number * 997)) /dev/urandom > tree/below/$number; done
cp files/8000000 tree
# With the library at both ends, and at one of them.
for part in "$preloaded $preloaded" "A=A $preloaded" "$preloaded A=A"; do
    read -r server client <<< "$part"
    env "$server" rsync --daemon --no-detach --config=rsync.conf > rsync.out 2>> rsync.server.err &
    daemon=$!
    until_it_works rsync rsync://127.0.0.1:$port/
    for turn in 1 2 3; do
        rm -rf got sent
        mkdir got sent
        env "$client" timeout 60 rsync -a rsync://127.0.0.1:$port/from/ got/ 2>> rsync.err || fail "rsync cannot receive: $part, $turn"
        diff -r tree got > diff.out || fail "rsync has received something else: $part, $turn"
        env "$client" timeout 60 rsync -a tree/ rsync://127.0.0.1:$port/to/ 2>> rsync.err || fail "rsync cannot send: $part, $turn"
        diff -r tree sent > diff.out || fail "rsync has sent something else: $part, $turn"
    done
    kill $daemon
    wait $daemon || true
done
rm -rf tree got sent
have_moved 6 rsync.err
returned=$(grep -c "goes back to TCP" rsync.err || true)
[ "$returned" -ge 6 ] || fail "$returned connections of rsync have gone back to TCP, and 6 should"

# ---- iperf3: threads' worth of bytes both ways ----

port=$((port + 1))
for way in "" --reverse; do
    env "$preloaded" timeout 30 iperf3 --server --one-off --port $port > iperf.out 2> iperf.err &
    sleep 0.5
    # shellcheck disable=SC2086
    until_it_works env "$preloaded" iperf3 --client 127.0.0.1 --port $port --time 1 --parallel 3 $way
    wait
    have_moved 4 iperf.err
done
