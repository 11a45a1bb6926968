//! Two machines, as far as the network goes: two network namespaces with a cable between them, on which datagrams get lost. Open MPI
//! reaches the second one by a program of its own in the place of `ssh`. And two that are only called so: Open MPI moves memory between
//! ranks of one host by itself, and asks the provider where the names of the hosts differ.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::memory::is_root;

/// Both ends of the cable. Datagrams are lost where they arrive, so that the sender is told nothing; what Open MPI says to itself
/// goes by TCP. The namespaces are named by processes that sleep, and end with them.
const SCENE: &str = r#"
unshare --net sleep 100000 & a=$!
unshare --net sleep 100000 & b=$!
for pid in $a $b; do
    while [ "$(readlink /proc/$pid/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
done
ip link add netvm-a netns $a type veth peer name netvm-b netns $b
plug() {
    nsenter --net --target $1 sh -euc '
        ip link set lo up
        ip addr add $1/24 dev $0
        ip link set $0 up
        iptables -A INPUT -p udp -m statistic --mode random --probability 0.01 -j DROP' $2 $3
}
plug $a netvm-a 10.77.0.1
plug $b netvm-b 10.77.0.2
echo $a $b
"#;

/// Takes the place of `ssh`: the host's name, and the command.
const AGENT: &str = r#"#!/bin/sh
host=$1
shift
@ENTER@ exec @UNSHARE@ sh -c 'hostname "$0" && eval "$@"' "$host" "$*"
"#;
/// How it gets to the second network namespace.
const ENTER: &str = "export FI_NETVM_UDP=10.77.0.2:0\nexec nsenter --net --target @PID@ \\\n   ";

/// Numbers of nodes are those of both machines together.
const NUMBERED: &str = "FI_NETVM_NUMBER=$OMPI_COMM_WORLD_RANK exec \"$@\"";

/// Gives a command a host's name of its own. An ordinary user is root of a namespace of users for that.
fn unshare() -> &'static [&'static str] {
    if is_root() {
        &["unshare", "--uts"]
    } else {
        &["unshare", "--user", "--map-root-user", "--uts"]
    }
}

/// Has a second host's name for some of the ranks of `mpirun`.
fn agent(folder: &Path, name: &str, enter: &str) -> Result<PathBuf> {
    let agent = folder.join(name);
    // `exec` stands before the first of the programs.
    let text = AGENT
        .replace("@ENTER@ exec ", if enter.is_empty() { "exec " } else { enter })
        .replace("@UNSHARE@", &unshare().join(" "));
    std::fs::write(&agent, text)?;
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
    Ok(agent)
}

/// Starts a program, which follows, so many times on each of two hosts.
fn on_both(mpirun: &mut Command, agent: &Path, each: u8, network: &str) {
    mpirun.args([
        "unshare",
        "--uts",
        "sh",
        "-c",
        "hostname netvm-a && exec \"$@\"",
        "sh",
    ]);
    mpirun.args(["mpirun", "--host", &format!("netvm-a:{each},netvm-b:{each}")]);
    mpirun.args(["--bind-to", "none", "--mca", "oob_tcp_if_include", network]);
    mpirun.args(["--mca", "plm_rsh_agent"]).arg(agent);
}

/// `mpirun` with two names for this host: between them the provider has shared memory, and Open MPI has only the provider.
pub(super) fn two_names(folder: &Path, providers: &Path, each: u8, options: &[&str]) -> Result<Command> {
    let agent = agent(folder, "second-name", "")?;
    let mut mpirun = Command::new("timeout");
    mpirun.arg("900");
    on_both(&mut mpirun, &agent, each, "lo");
    crate::fabric::over_the_provider(&mut mpirun, providers);
    mpirun.args(options);
    Ok(mpirun)
}

/// The machines.
pub(super) struct Machines {
    namespaces: [String; 2],
    agent: PathBuf,
    providers: PathBuf,
}

impl Machines {
    /// Sets them up; or why that cannot be.
    pub(super) fn new(folder: &Path, providers: &Path) -> Result<std::result::Result<Self, String>> {
        let out = folder.join("machines.log");
        let said = std::fs::File::create(&out)?;
        let status = Command::new("sh")
            .args(["-euc", SCENE])
            .stderr(said.try_clone()?)
            .stdout(said)
            .status()?;
        let said = std::fs::read_to_string(&out)?;
        let last = said.lines().last().unwrap_or_default();
        let (true, Some((first, second))) = (status.success(), last.split_once(' ')) else {
            return Ok(Err(said));
        };
        Ok(Ok(Self {
            namespaces: [first.to_owned(), second.to_owned()],
            agent: agent(folder, "second-machine", &ENTER.replace("@PID@", second))?,
            providers: providers.to_owned(),
        }))
    }

    /// `mpirun` with so many ranks on each of them.
    pub(super) fn mpirun(&self, each: u8, options: &[&str]) -> Command {
        let mut mpirun = Command::new("timeout");
        mpirun.args(["900", "nsenter", "--net", "--target", &self.namespaces[0]]);
        on_both(&mut mpirun, &self.agent, each, "10.77.0.0/24");
        crate::fabric::over_the_provider(&mut mpirun, &self.providers);
        mpirun
            .args(["-x", "FI_NETVM_INSECURE"])
            .args(options)
            .env("FI_NETVM_INSECURE", "1")
            .env("FI_NETVM_UDP", "10.77.0.1:0")
            .args(["sh", "-c", NUMBERED, "sh"]);
        mpirun
    }

    /// A program with two sides of its own (`side.h`), each of which goes to one of them.
    pub(super) fn sides(&self, program: &Path) -> Command {
        let mut both = Command::new("timeout");
        both.arg("300").arg(program);
        for (at, pid) in self.namespaces.iter().enumerate() {
            let side = format!("/proc/{pid}/ns/net,10.77.0.{}:0", at + 1);
            both.env(format!("SIDE_{at}"), side);
        }
        both
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(&self.namespaces).status();
    }
}
