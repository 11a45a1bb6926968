//! Two machines, as far as the network goes: two network namespaces, with a cable between them and a relay that loses datagrams.
//!
//! An ordinary user makes them in a namespace of users.

use std::process::Command;

/// The first machine serves and relays, the other one pings and measures. Each has node number 0 free.
const SCENE: &str = r#"
ip link set lo up
ip link add va type veth peer name vb
unshare --net sleep 600 &
other=$!
# Until the other namespace is there.
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
ip link set vb netns $other
ip addr add 10.7.0.1/24 dev va
ip link set va up
there() { nsenter --net --target $other "$@"; }
there ip link set lo up
there ip addr add 10.7.0.2/24 dev vb
there ip link set vb up
$NETVM serve store --udp 10.7.0.1:4800 --insecure &
$NETVM relay 10.7.0.1:4900 10.7.0.1:4800 --lost 5 --doubled 1 --late 1 --spoilt 1 &
sleep 1
there $NETVM ping udp://10.7.0.1:4800 --insecure --count 100 --interval 0 --size 20000 --json
there $NETVM ping udp://10.7.0.1:4900 --insecure --count 100 --interval 0 --size 20000 --json
# Messages are as long as the cable takes, whatever is asked for.
there $NETVM ping udp://10.7.0.1:4800 --insecure --count 1000000 --interval 1 --payload 4096 > /dev/null &
timeout 20 sh -c 'until $NETVM show links --json | grep -q "\"payload\":1368"; do sleep 0.05; done'
# It takes none of the shortest messages.
ip link set va mtu 1000
there ip link set vb mtu 1000
if there $NETVM ping udp://10.7.0.1:4800 --insecure --count 1; then exit 9; fi
kill $other
echo all was well
"#;

/// Nodes of a network of their own, all of them with one key; then one more without.
const KEYED: &str = r#"
ip link set lo up
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
key=$folder/key
$NETVM key new --out "$key"
encrypted() { $NETVM info --json | grep -q "\"links_encrypted\":$1"; }
encrypted false
$NETVM serve sealed --udp 127.0.0.1:4800 --key-file "$key" &
$NETVM serve open --udp 127.0.0.1:4801 &
until $NETVM ping sealed --count 1 && $NETVM ping open --count 1; do sleep 0.05; done
# A link over shared memory is not encrypted, and needs not be.
encrypted false
$NETVM ping udp://127.0.0.1:4800 --key-file "$key" --count 1000000 --interval 1 > /dev/null &
until encrypted true; do sleep 0.05; done
$NETVM ping udp://127.0.0.1:4801 --count 1000000 --interval 1 > /dev/null &
until encrypted false; do sleep 0.05; done
echo all was well
"#;

#[test]
fn links_are_said_to_be_encrypted_when_all_of_them_are() {
    let Some(mut scene) = in_namespaces() else { return };
    let script = ["timeout", "60", "bash", "-euc", KEYED];
    let out = scene.args(script).env("NETVM", NETVM).output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("all was well"), "{said}\n{complained}");
}

const NETVM: &str = env!("CARGO_BIN_EXE_netvm");

/// A command in new namespaces. Root needs none of users.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

/// The same, if this user may.
fn in_namespaces() -> Option<Command> {
    let probe = unshare().arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        // Where CI runs it must be possible.
        assert!(std::env::var_os("CI").is_none(), "no namespaces for this user");
        eprintln!("skipped: this user may not make namespaces (`unshare --user --net`)");
        return None;
    }
    Some(unshare())
}

#[test]
fn two_network_namespaces_with_a_lossy_path_between_them() {
    let Some(mut scene) = in_namespaces() else { return };
    let out = scene
        .args(["sh", "-euc", SCENE])
        .env("NETVM", NETVM)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}\n{complained}");
    assert!(said.contains("all was well"), "{said}\n{complained}");
    assert_eq!(said.matches("\"count\":100").count(), 2, "{said}");
    assert!(
        complained.contains("does not take datagrams of 1120 bytes"),
        "{complained}"
    );
}
