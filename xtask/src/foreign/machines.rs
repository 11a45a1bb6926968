//! Two machines, as far as the network goes: two network namespaces with a cable between them, on which datagrams get lost. Open MPI
//! reaches the second one by a program of its own in the place of `ssh`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

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
export FI_NETVM_UDP=10.77.0.2:0
exec nsenter --net --target @PID@ unshare --uts sh -c 'hostname "$0" && eval "$@"' "$host" "$*"
"#;

/// Numbers of nodes are those of both machines together.
const NUMBERED: &str = "FI_NETVM_NUMBER=$OMPI_COMM_WORLD_RANK exec \"$@\"";

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
        let namespaces: Vec<String> = said
            .lines()
            .last()
            .unwrap_or_default()
            .split(' ')
            .map(str::to_owned)
            .collect();
        let (true, Ok(namespaces)) = (status.success(), <[String; 2]>::try_from(namespaces)) else {
            return Ok(Err(said));
        };
        let agent = folder.join("agent");
        let second = namespaces.last().context("two namespaces")?;
        std::fs::write(&agent, AGENT.replace("@PID@", second))?;
        std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755))?;
        Ok(Ok(Self {
            namespaces,
            agent,
            providers: providers.to_owned(),
        }))
    }

    /// Starts a program, which follows, so many times on each of them.
    pub(super) fn mpirun(&self, each: u8) -> Command {
        let mut mpirun = Command::new("timeout");
        mpirun.args(["900", "nsenter", "--net", "--target", &self.namespaces[0]]);
        mpirun.args([
            "unshare",
            "--uts",
            "sh",
            "-c",
            "hostname netvm-a && exec \"$@\"",
            "sh",
        ]);
        mpirun.args(["mpirun", "--host", &format!("netvm-a:{each},netvm-b:{each}")]);
        mpirun.args(["--bind-to", "none", "--mca", "oob_tcp_if_include", "10.77.0.0/24"]);
        mpirun.args(["--mca", "plm_rsh_agent"]).arg(&self.agent);
        crate::fabric::over_the_provider(&mut mpirun, &self.providers);
        mpirun
            .args(["-x", "FI_NETVM_INSECURE"])
            .env("FI_NETVM_INSECURE", "1")
            .env("FI_NETVM_UDP", "10.77.0.1:0")
            .args(["sh", "-c", NUMBERED, "sh"]);
        mpirun
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(&self.namespaces).status();
    }
}
