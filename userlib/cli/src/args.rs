//! The command line.

mod observe;
mod size;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use netvm::abi::Geometry;
use netvm_process::soft::PEER_TIMEOUT_MILLIS;
use netvm_world::points::{Crash, Point};

use crate::failure::EXIT_STATUSES;
use observe::TOP_KEYS;
pub use observe::{Info, Show, Shown, Stat, Top, Which};
pub use size::Size;

/// The largest `--mib`: more than this shows nothing new and takes long.
pub const MAX_MIB: u64 = 16 * 1024;
/// The most messages that a simulated world may be asked to carry: some hours.
pub const MAX_MESSAGES: u64 = 100_000_000;
/// The most nodes that a simulated world may have: what they know of each other grows with the square, to 6 GB for this
/// many.
pub const MAX_NODES: u16 = 4096;

/// NetVM: remote memory access without pinned memory.
#[derive(Debug, Parser)]
#[command(name = "netvm", version, arg_required_else_help = true, after_help = EXIT_STATUSES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Tell on standard error what happens to links: -v that they are made and lost, -vv more. Without it NETVM_LOG says what to tell
    /// (for example `netvm_soft=debug,netvm_process=info`), and without that nothing is told.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Share memory of this process under a name, for `netvm ping` and `netvm perf` of other processes, until it is stopped.
    #[command(after_help = EXIT_STATUSES)]
    Serve(Serve),
    /// Write into the memory of a `netvm serve`, read it back, check every byte, and say how long that takes.
    #[command(after_help = EXIT_STATUSES)]
    Ping(Ping),
    /// Measure writes, reads, atomics, notifications and messages to a `netvm serve`: rates, and how long single ones take.
    #[command(after_help = EXIT_STATUSES)]
    Perf(Perf),
    /// Make the key by which nodes of a cluster encrypt what they send over UDP.
    #[command(after_help = EXIT_STATUSES)]
    Key(Key),
    /// List the nodes of this user that run on this machine.
    #[command(after_help = EXIT_STATUSES)]
    Nodes(Nodes),
    /// Pass UDP on as a bad network does: lose, double, delay and spoil datagrams. Nodes reach each other through it.
    #[command(after_help = EXIT_STATUSES)]
    Relay(Relay),
    /// Send a file into memory four times smaller than it, with nothing pinned, and check every byte.
    #[command(after_help = EXIT_STATUSES, allow_negative_numbers = true)]
    Demo(Demo),
    /// Run whole worlds in the deterministic simulator, with every fault on, and check the promises.
    #[command(after_help = EXIT_STATUSES, allow_negative_numbers = true)]
    Sim(Sim),
    /// Measure what operations cost: in virtual time, by a cost model of counted instructions, or between processes of this machine.
    #[command(after_help = EXIT_STATUSES)]
    Bench(Bench),
    /// List nodes, links, ports, segments or exports of this user's nodes, and of the kernel's card.
    #[command(after_help = EXIT_STATUSES)]
    Show(Show),
    /// Show what the cards of this user's nodes have counted, and the kernel's card with its driver.
    #[command(after_help = EXIT_STATUSES)]
    Stat(Stat),
    /// Watch every node of this user live: ports, links with their windows, retransmissions, round trips, hits and bounces.
    #[command(after_help = format!("{TOP_KEYS}\n\n{EXIT_STATUSES}"))]
    Top(Top),
    /// Say which back ends there are and why one is not, what 'auto' opens, which nodes run, which of them have a key, and whether links are encrypted.
    #[command(after_help = EXIT_STATUSES)]
    Info(Info),
    /// Say what works on this machine, what is missing, and the command that fixes it.
    #[command(after_help = EXIT_STATUSES)]
    Doctor(Doctor),
    /// Print what a shell needs to complete this program's command lines.
    #[command(
        after_help = "Example: netvm completions bash > ~/.local/share/bash-completion/completions/netvm"
    )]
    Completions(Completions),
    /// Write manual pages of this program and its commands into a folder.
    #[command(after_help = "Example: netvm manual ~/.local/share/man/man1")]
    Manual(Manual),
}

/// Options of `netvm key`.
#[derive(Debug, Args)]
pub struct Key {
    /// What to do.
    #[command(subcommand)]
    pub command: KeyCommand,
}

/// What to do with keys.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Write a new key to a file that this user alone can read. A file that is there is not overwritten.
    #[command(after_help = EXIT_STATUSES)]
    New {
        /// The file.
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

/// Options of `netvm nodes`.
#[derive(Debug, Args)]
pub struct Nodes {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm completions`.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Options of `netvm manual`.
#[derive(Debug, Args)]
pub struct Manual {
    /// The folder; it is made if it is not there.
    pub folder: PathBuf,
}

/// What a process is as a node that UDP links.
#[derive(Debug, Args)]
#[command(next_help_heading = "UDP")]
pub struct UdpOptions {
    /// Encrypt what goes over UDP by the key of this file (`netvm key new`), and take nothing else. Both ends need the same key.
    #[arg(long, value_name = "FILE", env = "NETVM_KEY_FILE")]
    pub key_file: Option<PathBuf>,
    /// Allow UDP that other machines reach without a key, though nothing is encrypted: a machine that sees the traffic can read and write
    /// what is served.
    #[arg(long)]
    pub insecure: bool,
    /// Largest payload of a message, in bytes: 256 to 4096, a multiple of 8. Without it, as much as a path takes, up to 4096: that is
    /// found out while a link is made. The smaller one of both ends counts.
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| number::<u32>(text, 256, 4096))]
    pub payload: Option<u32>,
    /// How many messages may be on their way to a peer: 64, 128, 256, 512 or 1024. A stream of writes moves a half of them in a round
    /// trip; more of them cost memory. The smaller one of both ends counts. Without it, 64, and 256 with UDP.
    #[arg(long, value_name = "MESSAGES", value_parser = window)]
    pub window: Option<u16>,
    /// How long the other end may be silent while something is outstanding, in milliseconds: 200 to 600000. Then its link is lost, and what
    /// waits for it fails. Without it, 3200. Each end has a time of its own.
    #[arg(long, value_name = "MS", value_parser = peer_timeout)]
    pub peer_timeout: Option<Duration>,
}

fn window(text: &str) -> Result<u16, String> {
    let window = number::<u16>(text, 64, 1024)?;
    if Geometry::has_window(window) {
        Ok(window)
    } else {
        Err("it is 64, 128, 256, 512 or 1024".into())
    }
}

fn peer_timeout(text: &str) -> Result<Duration, String> {
    let (least, most) = (PEER_TIMEOUT_MILLIS.start(), PEER_TIMEOUT_MILLIS.end());
    number::<u64>(text, *least, *most).map(Duration::from_millis)
}

/// Options of `netvm serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// The name that other processes of this user find it by.
    pub name: String,
    /// Serve by UDP as well, at this address and port: 127.0.0.1:4800, or 0.0.0.0:4800 for other machines (with --insecure).
    #[arg(long, value_name = "ADDRESS", help_heading = "UDP")]
    pub udp: Option<String>,
    /// This node's number, 0 to 63; by default the lowest that is free on this machine. Nodes of several machines
    /// need different ones.
    #[arg(long, value_name = "NUMBER", help_heading = "UDP", value_parser = |text: &str| number::<u16>(text, 0, 63))]
    pub number: Option<u16>,
    /// Of UDP.
    #[command(flatten)]
    pub options: UdpOptions,
    /// Offer each `netvm perf --overcommit` a file mapping of this size for its time: 512M, 48G or 1T, or 1.5x, so many times the memory
    /// that this process may use. The file has no name, is sparse, and lies in the folder of temporary files (TMPDIR). Pages that are
    /// written take room there until the measurement ends: as many as the --touch of `netvm perf` says, though a client could
    /// write all of them.
    #[arg(long, value_name = "SIZE", value_parser = Size::read)]
    pub overcommit: Option<Size>,
    /// End after so many seconds; without it, Ctrl-C ends it.
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| number::<u64>(text, 1, 1_000_000))]
    pub seconds: Option<u64>,
    /// Print what is served as one JSON object, when it can be found.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm ping`.
#[derive(Debug, Args)]
pub struct Ping {
    /// The name that was given to `netvm serve`, or udp://HOST:PORT of its --udp.
    pub name: String,
    /// How many times.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = |text: &str| number::<u32>(text, 1, 100_000_000))]
    pub count: u32,
    /// Bytes: 1 to 1048576.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = |text: &str| number::<u32>(text, 1, MAX_TRANSFER.into()))]
    pub size: u32,
    /// Of UDP.
    #[command(flatten)]
    pub options: UdpOptions,
    /// Pause between two, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = |text: &str| number::<u64>(text, 0, 1_000_000))]
    pub interval: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm relay`.
#[derive(Debug, Args)]
pub struct Relay {
    /// The address and port to listen at, such as 127.0.0.1:4900.
    pub listen: SocketAddr,
    /// The address and port of the node to pass datagrams on to.
    pub target: SocketAddr,
    /// How many of a hundred datagrams are lost, each way.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = percent)]
    pub lost: f64,
    /// How many come twice.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    pub doubled: f64,
    /// How many come after the next one.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    pub late: f64,
    /// How many have a bit changed.
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0, value_parser = percent)]
    pub spoilt: f64,
    /// How long each datagram takes, in milliseconds, each way: 5 makes a round trip 10 ms longer.
    #[arg(long, value_name = "MS", default_value = "0", value_parser = delay)]
    pub delay: Duration,
    /// The longest that get through, in bytes of a datagram's payload: 1472 is what Ethernet takes over IPv4. Without it, any.
    #[arg(long, value_name = "BYTES", value_parser = |text: &str| number::<usize>(text, 1, 65_507))]
    pub longest: Option<usize>,
    /// What decides which ones.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// End after so many seconds; without it, Ctrl-C ends it.
    #[arg(long, value_name = "SECONDS", value_parser = |text: &str| number::<u64>(text, 1, 1_000_000))]
    pub seconds: Option<u64>,
}

fn delay(text: &str) -> Result<Duration, String> {
    let millis: f64 = text.parse().map_err(|_| "this is no number".to_owned())?;
    if (0.0..=1000.0).contains(&millis) {
        Ok(Duration::from_secs_f64(millis / 1000.0))
    } else {
        Err("it is 0 to 1000".into())
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "this is no number".to_owned())?;
    if (0.0..=50.0).contains(&number) {
        Ok(number)
    } else {
        Err("it is 0 to 50".into())
    }
}

/// The largest `--size` of `netvm ping` and `netvm perf`: what `netvm serve` keeps for each node.
pub const MAX_TRANSFER: u32 = 1 << 20;

/// The largest `--depth` of `netvm perf`.
pub const MAX_DEPTH: u32 = 1_000_000;
/// The largest `--time` of `netvm perf`: a quarter of an hour.
pub const MAX_MILLIS: u64 = 1_000_000;
/// The largest `--touch` of `netvm perf`: 64 GiB.
pub const MAX_TOUCH_MIB: u64 = 1 << 16;

/// What `netvm perf` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// Writes.
    Write,
    /// Reads.
    Read,
    /// Atomic additions to a word.
    Atomic,
    /// Signals of a notification.
    Notify,
    /// Messages of a channel, which the server takes, or sends back to have the time of a round trip halved.
    Channel,
}

/// Options of `netvm perf`.
#[derive(Debug, Args)]
pub struct Perf {
    /// The name that was given to `netvm serve`, or udp://HOST:PORT of its --udp.
    pub name: String,
    /// What to measure; by default all of it, with --both all but channels, with --overcommit writes, reads and atomics.
    #[arg(long, value_name = "OPERATION", value_delimiter = ',')]
    pub what: Vec<Operation>,
    /// Measure both directions at once: the server does to memory of this process what this process does to the server's.
    #[arg(long)]
    pub both: bool,
    /// Measure at random pages of a file mapping of the server, larger than the memory that it may use: `netvm serve --overcommit SIZE`
    /// offers one. The result says how much of it was resident there at the end, what its file took, the server's page faults, and
    /// that none of its memory was locked or pinned.
    #[arg(long, conflicts_with = "both")]
    pub overcommit: bool,
    /// With --overcommit, how many MiB of pages are touched at most: 1 to 65536. The measurements share them. Once it has touched its
    /// share, each goes on with the same pages. This bounds the memory and the disk that a run takes at the server.
    #[arg(long, value_name = "MIB", default_value_t = 64, requires = "overcommit",
          value_parser = |text: &str| number::<u64>(text, 1, MAX_TOUCH_MIB))]
    pub touch: u64,
    /// Sizes of writes, reads and messages, in bytes: 1 to 1048576.
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_value = "8,4096,65536,1048576",
          value_parser = |text: &str| number::<u32>(text, 1, MAX_TRANSFER.into()))]
    pub sizes: Vec<u32>,
    /// Operations between two waits for all of them, where rates are measured. Of a channel: messages that may be under way, of
    /// which there are at most 1024, and 16 MiB.
    #[arg(long, value_name = "COUNT", default_value_t = 512, value_parser = |text: &str| number::<u32>(text, 1, MAX_DEPTH.into()))]
    pub depth: u32,
    /// Of UDP.
    #[command(flatten)]
    pub options: UdpOptions,
    /// How long each measurement takes, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = |text: &str| number::<u64>(text, 1, MAX_MILLIS))]
    pub time: u64,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm demo`.
#[derive(Debug, Args)]
pub struct Demo {
    /// The file to send, repeated or cut to --mib; by default this program itself.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// How much to send, in MiB: 1 to 16384.
    #[arg(long, value_name = "MIB", default_value_t = 256,
          value_parser = |text: &str| number::<u64>(text, 1, MAX_MIB))]
    pub mib: u64,
    /// How much of it the receiving node may keep in memory, in MiB; by default a quarter.
    #[arg(long, value_name = "MIB",
          value_parser = |text: &str| number::<u64>(text, 1, MAX_MIB))]
    pub resident_mib: Option<u64>,
    /// Between two processes, each a node of the software card: this one, and one that it starts. Half of what may stay in memory is
    /// ordinary memory, the rest is a file that is mapped.
    #[arg(long)]
    pub processes: bool,
    /// Be the second process, for the node with this number.
    #[arg(long, value_name = "NODE", hide = true, requires = "processes")]
    pub receiver_for: Option<u16>,
    /// Write what the wires carried to this file, for tshark or Wireshark. Memory that processes share is no such wire.
    #[arg(long, value_name = "FILE", conflicts_with = "processes")]
    pub pcap: Option<PathBuf>,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm sim`.
#[derive(Debug, Args)]
pub struct Sim {
    /// How many fresh seeds to run; one that fails is printed, and leaves its trace in a file. One whose world stands still
    /// for a minute (longer with many nodes) hangs: it is printed, leaves its trace up to there, and ends the program. From
    /// 50 on, a kind of fault that never fired is a failure too, and an idiom (locks, channels, ...) that ran in less than one
    /// seed of six.
    #[arg(long, value_name = "COUNT", default_value_t = 100, conflicts_with = "seed",
          value_parser = |text: &str| number::<u32>(text, 1, u32::MAX.into()))]
    pub seeds: u32,
    /// Run exactly this seed.
    #[arg(long, value_name = "SEED", group = "one", value_parser = |text: &str| number::<u64>(text, 0, u64::MAX))]
    pub seed: Option<u64>,
    /// The first of the fresh seeds; by default it is drawn anew each time.
    #[arg(long, value_name = "SEED", conflicts_with = "seed",
          value_parser = |text: &str| number::<u64>(text, 0, u64::MAX))]
    pub first_seed: Option<u64>,
    /// Nodes in each world: 2 to 4096. A world of 256 takes 0.8 GB and a minute; from 1024 on, take --sparse.
    #[arg(long, value_name = "COUNT", default_value_t = 4,
          value_parser = |text: &str| number::<u16>(text, 2, MAX_NODES.into()))]
    pub nodes: u16,
    /// Worlds of nodes that write to one another now and then, with eight windows each, over wires that lose one frame of a
    /// hundred; no other fault is thrown. For very many nodes.
    #[arg(long)]
    pub sparse: bool,
    /// Worlds of nodes that are a hundred times as far apart, 30 us to 1 ms, with the time spans that are shipped. A seed takes minutes.
    #[arg(long, conflicts_with = "sparse")]
    pub far: bool,
    /// Messages that each world carries at least.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000,
          value_parser = |text: &str| number::<u64>(text, 1, MAX_MESSAGES))]
    pub messages: u64,
    /// Worlds that run at once, 1 to 256; by default as many as there are cores.
    #[arg(long, value_name = "COUNT", value_parser = |text: &str| number::<u16>(text, 1, 256))]
    pub jobs: Option<u16>,
    /// Run the other seeds or points after one has failed, and list all that fail; without it, no further one is begun.
    #[arg(long, conflicts_with = "one")]
    pub keep_going: bool,
    /// Print every event of the run (needs --seed or --point); two runs of a seed print the same bytes.
    #[arg(long, requires = "one", conflicts_with = "json")]
    pub trace: bool,
    /// Run exactly this seed, alone, and print what the memory of its world is made of when it is largest.
    #[arg(long, requires = "seed", conflicts_with = "trace")]
    pub memory: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Crash points.
    #[command(flatten)]
    pub points: Points,
}

/// What `netvm sim` does at single accesses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Crash points")]
pub struct Points {
    /// Play each body of the conformance suite with one fault at one access to a shared word: a process dies there, a card
    /// hangs, or a node restarts. There is one run for each access that differs and each fault. All of them take hours;
    /// --minutes and --resume divide them. One that hangs is treated like a seed that does.
    #[arg(long, conflicts_with_all = ["one", "seeds", "first_seed", "nodes", "sparse", "far", "messages"])]
    pub enumerate: bool,
    /// Only this body of the suite.
    #[arg(long, value_name = "NAME", requires = "enumerate")]
    pub body: Option<String>,
    /// Only this fault: process-dies, card-hangs or node-restarts.
    #[arg(long, value_name = "FAULT", requires = "enumerate")]
    pub fault: Option<Crash>,
    /// Go on where an earlier run with this file ended; the file is made if there is none.
    #[arg(long, value_name = "FILE", requires = "enumerate")]
    pub resume: Option<PathBuf>,
    /// End so many minutes after the points are listed, which takes half a minute. What is left is for another run with
    /// --resume.
    #[arg(long, value_name = "MINUTES", requires = "enumerate", value_parser = |text: &str| number::<u64>(text, 1, 100_000))]
    pub minutes: Option<u64>,
    /// Begin at another place of the order in which points are played.
    #[arg(long, value_name = "NUMBER", requires = "enumerate", conflicts_with = "resume",
          value_parser = |text: &str| number::<u64>(text, 0, u64::MAX))]
    pub from: Option<u64>,
    /// Play exactly this point, as a failed one is written: BODY:ACCESS:FAULT.
    #[arg(long, value_name = "POINT", group = "one", conflicts_with_all = ["seed", "seeds", "first_seed", "nodes", "sparse", "far", "messages"])]
    pub point: Option<Point>,
}

/// Options of `netvm bench`.
#[derive(Debug, Args)]
pub struct Bench {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Remote calls between two processes of this machine: throughput by size and way to pack, beside plain writes.
    #[command(after_help = EXIT_STATUSES)]
    Calls(BenchCalls),
    /// Synchronization and channels: messages, instructions and time of each operation; many clients on one lock.
    #[command(after_help = EXIT_STATUSES)]
    Sync(BenchSync),
    /// A wire that loses frames: goodput of a stream, what is sent again, and how long an operation takes with one loss.
    #[command(after_help = EXIT_STATUSES)]
    Wire(BenchWire),
    /// Connections between two processes of this machine, in its own time: latency beside TCP, 10,000 against one, memory of idle ones.
    #[command(after_help = EXIT_STATUSES)]
    Net(BenchNet),
    /// Leases between two processes of this machine, in its own time: extensions, reads and writes under one and without, grants.
    #[command(after_help = EXIT_STATUSES)]
    Lease(BenchLease),
}

/// Options of `netvm bench calls`.
#[derive(Debug, Args)]
pub struct BenchCalls {
    /// Fewer turns: a few seconds.
    #[arg(long)]
    pub quick: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Be the process that is called, under this name.
    #[arg(long, value_name = "NAME", hide = true)]
    pub callee: Option<String>,
}

/// Options of `netvm bench sync`.
#[derive(Debug, Args)]
pub struct BenchSync {
    /// Fewer clients and sizes: a few seconds.
    #[arg(long)]
    pub quick: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm bench wire`.
#[derive(Debug, Args)]
pub struct BenchWire {
    /// Fewer losses and worlds: some seconds.
    #[arg(long)]
    pub quick: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

/// Options of `netvm bench net`.
#[derive(Debug, Args)]
pub struct BenchNet {
    /// Fewer connections and messages: a second. Then a goal that is missed is said, and is no failure.
    #[arg(long)]
    pub quick: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Serve for the process that is this node.
    #[arg(long, value_name = "NODE", hide = true)]
    pub server_for: Option<u16>,
}

/// Options of `netvm bench lease`.
#[derive(Debug, Args)]
pub struct BenchLease {
    /// Fewer operations: a second. Then a goal that is missed is said, and is no failure.
    #[arg(long)]
    pub quick: bool,
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Lend to the process that is this node.
    #[arg(long, value_name = "NODE", hide = true)]
    pub server_for: Option<u16>,
}

/// A number in a range, or what is wanted.
fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    text.parse()
        .ok()
        .filter(|number| (least..=most).contains(number))
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("give a whole number from {least} to {most}"))
}

/// A time in seconds, in a range.
fn seconds(text: &str, least: f64, most: f64) -> Result<Duration, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| format!("give a number of seconds from {least} to {most}"))
}

/// Options of `netvm doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Print the result as one JSON object.
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
