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
# Longer than the cable takes.
if there $NETVM ping udp://10.7.0.1:4800 --insecure --count 1 --payload 4096; then exit 9; fi
kill $other
echo all was well
"#;

/// A command in new namespaces. Root needs none of users.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

#[test]
fn two_network_namespaces_with_a_lossy_path_between_them() {
    let probe = unshare().arg("true").output();
    if !probe.is_ok_and(|probe| probe.status.success()) {
        // Where CI runs it must be possible.
        assert!(std::env::var_os("CI").is_none(), "no namespaces for this user");
        eprintln!("skipped: this user may not make namespaces (`unshare --user --net`)");
        return;
    }
    let out = unshare()
        .args(["sh", "-euc", SCENE])
        .env("NETVM", env!("CARGO_BIN_EXE_netvm"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stdout);
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}\n{complained}");
    assert!(said.contains("all was well"), "{said}\n{complained}");
    assert_eq!(said.matches("\"count\":100").count(), 2, "{said}");
    assert!(
        complained.contains("does not take datagrams of 4192 bytes"),
        "{complained}"
    );
}
