//! `netvm demo --processes`: the same between two processes, each a node of the software card.
//!
//! This process is node 0. It starts the other one, which takes its orders from standard input and says by lines of JSON what it
//! has done. Standard input ends with this process, however it ends, and the other one with that.
//!
//! | file | what it is |
//! |---|---|
//! | [`other`] | the other process, as this one sees it |
//! | [`receiver`] | what that one does |
//! | [`paged`] | memory of it of which a part may stay: a file that is mapped, and what takes its pages away |
//! | [`split`] | that, and ordinary memory before it, as one |

mod other;
mod paged;
pub(super) mod receiver;
mod split;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use netvm::{Access, NodeId, Port, PortConfig, PortId, RemoteSegment, Timeout};
use netvm_process::SoftNode;
use netvm_process::soft::report::{self, Entry, Section};
use serde::{Deserialize, Serialize};

use super::pinned::Pinned;
use super::plan::Plan;
use super::report::{Processes, Report};
use super::source::MIB;
use super::{memcpy, sender, stage};
use crate::args::Demo;
use crate::failure::Failure;
use crate::output::grouped;
use crate::processes::cannot_start;
use other::Other;
use split::{RemoteSplit, split_at};

/// The receiver's port.
const INBOX: PortId = PortId(7);
/// Its memory: what may stay, and the file.
const ORDINARY: &str = "ordinary";
const FILE: &str = "file";
/// The software card's pages have this many bytes.
const PAGE: u64 = 4096;
/// A step that takes longer than this will not end.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the other process says, a line each.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// It has exported its memory.
    Ready {
        /// Its number as a node.
        node: u16,
        /// How long the exports took, in microseconds.
        export_us: u64,
    },
    /// So many MiB have come.
    Taken(u64),
    /// All have; the digest of them.
    Received(String),
    /// What it has seen until it was told to end.
    Done(Done),
    /// It cannot go on.
    Failed(String),
}

/// What the receiver's process has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    evictions: u64,
    resident_most_bytes: u64,
    pinned_bytes: u64,
    staged_bytes: u64,
}

/// What it is told, a line each: to take what comes, and that all has been read back.
const GO: &str = "go";
const END: &str = "end";

/// Plays the demo between this process and another one. `tell` is given a line for a person before each step.
///
/// # Errors
/// [`Failure`]: this process cannot be a node, or the other one cannot be started, or something stops either. Nothing is left.
pub(super) fn perform(
    plan: &Plan,
    options: &Demo,
    tell: &dyn Fn(String) -> Result<(), Failure>,
) -> Result<Report, Failure> {
    let started = Instant::now();
    let paged = plan.bytes - split_at(plan.resident_bytes);
    paged::probe(&std::env::temp_dir(), paged).map_err(|(what, fix)| Failure::Unavailable {
        what,
        fix: fix.into(),
    })?;
    let node = SoftNode::builder().start().map_err(cannot_start)?;
    let mut other = Other::start(options, node.number())?;
    match play(plan, &node, &mut other, started, tell) {
        Ok(report) => other.end().map(|()| report),
        // The link is lost when the other process ends: how that ended says more.
        Err(failure) => Err(other.explain(failure)),
    }
}

fn play(
    plan: &Plan,
    node: &SoftNode,
    other: &mut Other,
    started: Instant,
    tell: &dyn Fn(String) -> Result<(), Failure>,
) -> Result<Report, Failure> {
    let wrong = |error: netvm::Error| Failure::Wrong(format!("node 0: {error}"));
    let pinned = Pinned::default();
    let (number, export_us) = match other.hear(PATIENCE)? {
        Said::Ready { node, export_us } => (node, export_us),
        said => return Err(other.unexpected(&said)),
    };
    let peer = node
        .connect(&format!("#{number}"), PATIENCE)
        .map_err(|error| Failure::Wrong(format!("node 0: {error}")))?;
    let ordinary = split_at(plan.resident_bytes);
    tell(format!(
        "process {} is node 0, process {} is node 1: two programs of one user, linked by shared memory",
        std::process::id(),
        other.process()
    ))?;
    tell(format!(
        "node 1 exports {} KiB of ordinary memory and {} KiB of a file that is mapped, in {export_us} us: nothing is pinned for it",
        grouped(ordinary / 1024),
        grouped((plan.bytes - ordinary) / 1024),
    ))?;

    let port = Port::open(&node.node(), PortConfig::default()).map_err(wrong)?;
    let outbox = port.alloc(plan.bytes).map_err(wrong)?;
    let _outbox = port
        .export("outbox", &outbox, .., Access::nobody())
        .map_err(wrong)?;
    let sent = sender::load(&plan.source, &outbox, plan.bytes).map_err(wrong)?;
    let remote = RemoteSplit::new(
        import(&port, (peer, ORDINARY), other)?,
        import(&port, (peer, FILE), other)?,
        ordinary,
    );
    let memcpy_mib_per_s = memcpy::mib_per_s();
    pinned.look();

    remote.use_ordinary(&port, peer).map_err(wrong)?;
    let before = counted(peer, Section::Card)?;
    tell(format!(
        "node 0 uses each page of the ordinary memory once: {} bounced, {} landed in place; from now on node 1's card has them",
        grouped(bounced(&before)),
        grouped(count(&before, "zero_copy"))
    ))?;
    tell(format!(
        "node 0 sends {} MiB; meanwhile node 1 takes pages of the file away above {} KiB",
        plan.bytes / MIB,
        grouped((plan.resident_bytes - ordinary) / 1024)
    ))?;
    let mibs = plan.bytes / MIB;
    let bar = stage::bar(mibs);
    let streaming = Instant::now();
    other.tell(GO)?;
    let failed = AtomicBool::new(false);
    let mut taken = 0;
    let (received, sending) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let outcome = sender::send(&port, &outbox, &remote, peer, plan.bytes, &mut |_| pinned.look());
            failed.store(outcome.is_err(), Ordering::Release);
            outcome
        });
        let received = receive(other, &failed, &mut |mib| {
            taken = mib;
            bar.set_position(mib);
        });
        if received.is_err() {
            // What is under way to it ends with it.
            other.kill();
        }
        (received, sending.join())
    });
    let streamed = streaming.elapsed();
    let sending = sending.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // What ended the other process comes first, if it did.
    let received = match (received, sending) {
        (Ok(Some(digest)), Ok(())) => digest,
        (Err(failure), _) => return Err(failure),
        (_, Err(error)) => return Err(wrong(error)),
        (Ok(None), Ok(())) => return Err(Failure::Wrong("the sender stopped".into())),
    };
    bar.finish_and_clear();
    let right = received == sent.to_hex().as_str();
    tell(format!(
        "node 1 has digested {mibs} MiB, {}; node 0 reads them back",
        if right {
            "as they were sent"
        } else {
            "and they are WRONG"
        }
    ))?;
    let bar = stage::bar(mibs).with_message("reading back");
    let mut read = |mib| {
        bar.set_position(mib);
        pinned.look();
    };
    let read_back = sender::read_back(&port, &remote, plan.bytes, &mut read).map_err(wrong)?;
    bar.finish_and_clear();
    let after = counted(peer, Section::Card)?;
    let sizes = counted(peer, Section::Node)?;
    // Before the other node goes: what it still says to this one, of its exports, may end with the link.
    let own = node.stats().counters;
    other.tell(END)?;
    let done = match other.hear(PATIENCE)? {
        Said::Done(done) => done,
        said => return Err(other.unexpected(&said)),
    };
    pinned.look();

    let report = Report {
        bytes: plan.bytes,
        digest_match: right && read_back == sent,
        zero_copy_pages: grown(&before, &after, |entry| count(entry, "zero_copy")),
        bounced_pages: grown(&before, &after, bounced),
        staged_bytes: port.stats().staged_bytes + done.staged_bytes,
        evictions: done.evictions,
        dropped: own.dropped + count(&after, "dropped"),
        retransmitted: own.retransmitted + count(&after, "retransmitted"),
        pinned_bytes: pinned.most()? + done.pinned_bytes,
        bounce_bytes: count(&sizes, "bounce_memory_bytes"),
        notifications: taken,
        mib_per_s: mibs as f64 / streamed.as_secs_f64(),
        memcpy_mib_per_s,
        seconds: started.elapsed().as_secs_f64(),
        file: plan.source.path.display().to_string(),
        digest: sent.to_hex().to_string(),
        resident_bytes: plan.resident_bytes,
        processes: Some(Processes {
            sender: std::process::id(),
            receiver: other.process(),
            ordinary_bytes: ordinary,
            first_use_bounced: bounced(&before),
            file_resident_most_bytes: done.resident_most_bytes,
        }),
        ..Report::default()
    };
    Ok(report.judge())
}

/// Binds to an export of the other process, which may end meanwhile: an import would wait for the next one of that number.
fn import(port: &Port, (peer, name): (NodeId, &str), other: &mut Other) -> Result<RemoteSegment, Failure> {
    let begin = Instant::now();
    loop {
        match port.import(peer, INBOX, name, Timeout::After(Duration::from_millis(200))) {
            Ok(remote) => return Ok(remote),
            Err(error) if begin.elapsed() > PATIENCE => {
                return Err(Failure::Wrong(format!("node 0: {error}")));
            }
            Err(_) => {}
        }
        if let Some(said) = other.next(Duration::ZERO)? {
            return Err(other.unexpected(&said));
        }
    }
}

/// Listens to the other process until all has come; none if the sender has failed.
fn receive(
    other: &mut Other,
    failed: &AtomicBool,
    taken: &mut dyn FnMut(u64),
) -> Result<Option<String>, Failure> {
    let step = Duration::from_millis(100);
    let mut last = Instant::now();
    while !failed.load(Ordering::Acquire) {
        match other.next(step)? {
            Some(Said::Taken(mib)) => taken(mib),
            Some(Said::Received(digest)) => return Ok(Some(digest)),
            Some(said) => return Err(other.unexpected(&said)),
            None if last.elapsed() > PATIENCE => return Err(other.silent()),
            None => continue,
        }
        last = Instant::now();
    }
    Ok(None)
}

/// What the other node has counted.
fn counted(peer: NodeId, section: Section) -> Result<Entry, Failure> {
    let asked = report::all(&format!("#{peer}"), section, Instant::now() + PATIENCE);
    let mut entries = asked.map_err(|error| Failure::Wrong(format!("node 1: {error}")))?;
    entries
        .pop()
        .ok_or_else(|| Failure::Wrong("node 1 says nothing of its card".into()))
}

fn count(entry: &Entry, name: &str) -> u64 {
    entry.count(name).unwrap_or(0)
}

/// Messages whose page the card did not have.
fn bounced(entry: &Entry) -> u64 {
    let reasons = ["bounced_not_found", "bounced_read_only", "bounced_segment"];
    reasons.iter().map(|reason| count(entry, reason)).sum()
}

fn grown(before: &Entry, after: &Entry, of: impl Fn(&Entry) -> u64) -> u64 {
    of(after).saturating_sub(of(before))
}
