//! The two nodes, and the order of events between them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use netvm::{Access, NodeId, Port, PortConfig, PortId, Timeout};
use netvm_emulator::{Emulator, EmulatorError};

use super::pinned::Pinned;
use super::plan::{CAPTURED, Plan};
use super::receiver::{self, ARRIVED};
use super::report::Report;
use super::source::MIB;
use super::{memcpy, sender};
use crate::failure::Failure;

const SENDER: NodeId = NodeId(0);
const RECEIVER: NodeId = NodeId(1);
const INBOX_PORT: PortId = PortId(7);
const PAGE: u64 = 4096;
/// Pages of node 0 beside the file: where it reads back to, and the library's own.
const SPARE_PAGES: u64 = 1024;

/// Plays the demo and gathers what it shows.
///
/// # Errors
/// [`Failure::Unavailable`] where the emulator cannot run here, [`Failure::Wrong`] for anything else that stops it.
pub(crate) fn perform(plan: &Plan) -> Result<Report, Failure> {
    let started = Instant::now();
    let pages = |bytes: u64| u32::try_from(bytes / PAGE).unwrap_or(u32::MAX);
    let mut builder = Emulator::builder()
        .nodes(2)
        .resident_pages_of(SENDER.0, pages(plan.bytes + SPARE_PAGES * PAGE))
        .resident_pages_of(RECEIVER.0, pages(plan.resident_bytes));
    if let Some(path) = &plan.pcap {
        builder = builder.pcap(path);
    }
    let network = builder.start().map_err(|error| emulator_failure(&error))?;
    let report = play(plan, &network, started)?;
    // Ends the threads, and completes the capture.
    drop(network);
    match &plan.pcap {
        Some(path) => complete(path, plan.bytes).map(|()| report),
        None => Ok(report),
    }
}

/// The capture must hold what was sent: the emulator goes on without it when it cannot be written.
fn complete(path: &Path, bytes: u64) -> Result<(), Failure> {
    let wrong = |what: String| Failure::Wrong(format!("--pcap {}: {what}", path.display()));
    let length = path.metadata().map_err(|error| wrong(error.to_string()))?.len();
    if length < CAPTURED * bytes {
        return Err(wrong(format!(
            "only {} of more than {} MiB could be written; is the disk full?",
            length / MIB,
            CAPTURED * bytes / MIB
        )));
    }
    Ok(())
}

fn play(plan: &Plan, network: &Emulator, started: Instant) -> Result<Report, Failure> {
    let pinned = Pinned::default();
    let receiver = Port::open(&network.node(1), PortConfig::number(INBOX_PORT.0)).map_err(wrong)?;
    let memory = receiver.alloc(plan.bytes).map_err(wrong)?;
    let access = Access::only(SENDER).notify(ARRIVED..=ARRIVED);
    let _inbox = receiver.export("inbox", &memory, .., access).map_err(wrong)?;
    receiver::use_all(&memory).map_err(wrong)?;

    let port = Port::open(&network.node(0), PortConfig::default()).map_err(wrong)?;
    let outbox = port.alloc(plan.bytes).map_err(wrong)?;
    let _outbox = port
        .export("outbox", &outbox, .., Access::nobody())
        .map_err(wrong)?;
    let sent = sender::load(&plan.source, &outbox, plan.bytes).map_err(wrong)?;
    let patience = Timeout::After(Duration::from_secs(10));
    let remote = port
        .import(RECEIVER, INBOX_PORT, "inbox", patience)
        .map_err(wrong)?;
    let memcpy_mib_per_s = memcpy::mib_per_s();
    pinned.look();

    let mibs = plan.bytes / MIB;
    let evictions_before = evictions(network);
    let stop = AtomicBool::new(false);
    let taken = AtomicU64::new(0);
    let bar = bar(2 * mibs);
    let streaming = Instant::now();
    let (received, read_back, streamed) = std::thread::scope(|scope| {
        let toucher = scope.spawn(|| receiver::touch(&memory, &stop));
        let taker = scope.spawn(|| {
            let took = receiver::receive(&receiver, &memory, mibs, &stop, &mut |mib| {
                taken.store(mib, Ordering::Release);
                bar.set_position(mib);
            });
            (took, streaming.elapsed())
        });
        let outcome = sender::send(&port, &outbox, &remote, RECEIVER, plan.bytes, &mut |_| {
            pinned.look()
        });
        if outcome.is_err() {
            stop.store(true, Ordering::Release);
        }
        let (received, streamed) = join(taker.join());
        let read_back = outcome.map_err(|error| error.to_string()).and_then(|()| {
            bar.set_message("reading back");
            let mut read = |mib| {
                bar.set_position(mibs + mib);
                pinned.look();
            };
            sender::read_back(&port, &remote, plan.bytes, &mut read).map_err(|error| error.to_string())
        });
        stop.store(true, Ordering::Release);
        let touched = join(toucher.join());
        (
            received.and_then(|digest| touched.map(|()| digest)),
            read_back,
            streamed,
        )
    });
    bar.finish_and_clear();
    pinned.look();
    // What the sender says comes first: the receiver may only have given up because of it.
    let read_back = read_back.map_err(|error| Failure::Wrong(format!("node 0: {error}")))?;
    let received = received.map_err(|error| Failure::Wrong(format!("node 1: {error}")))?;

    let nodes = [
        network.stats(0).unwrap_or_default(),
        network.stats(1).unwrap_or_default(),
    ];
    let report = Report {
        bytes: plan.bytes,
        digest_match: received == sent && read_back == sent,
        evictions: evictions(network).saturating_sub(evictions_before),
        pinned_bytes: pinned.most()?,
        notifications: taken.load(Ordering::Acquire),
        mib_per_s: mibs as f64 / streamed.as_secs_f64(),
        memcpy_mib_per_s,
        seconds: started.elapsed().as_secs_f64(),
        file: plan.source.path.display().to_string(),
        digest: sent.to_hex().to_string(),
        resident_bytes: plan.resident_bytes,
        ..Report::counted(&nodes, &[port.stats(), receiver.stats()])
    };
    Ok(report.judge())
}

fn evictions(network: &Emulator) -> u64 {
    network.stats(1).map_or(0, |stats| stats.evictions)
}

fn wrong(error: netvm::Error) -> Failure {
    Failure::Wrong(error.to_string())
}

/// A thread of the demo that panicked is a bug of ours: go on panicking here.
fn join<T>(ended: std::thread::Result<T>) -> T {
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// An emulator that did not start: is it the machine, or are we wrong?
fn emulator_failure(error: &EmulatorError) -> Failure {
    let missing = netvm_emulator::probe(&std::env::temp_dir())
        .into_iter()
        .find(|check| !check.ok);
    match missing {
        Some(check) => Failure::Unavailable {
            what: format!("the emulator cannot run here: {error}"),
            fix: check.fix,
        },
        None if error.is_unsupported_here() => Failure::Unavailable {
            what: format!("the emulator cannot run here: {error}"),
            fix: "netvm doctor says more".to_owned(),
        },
        None => Failure::Wrong(format!("the emulator did not start: {error}")),
    }
}

/// What shows how far it is.
pub(super) fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message("sending");
    // A template that does not parse leaves the bar as it is by default.
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3} %, {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_that_was_cut_is_no_success() {
        let this = std::env::current_exe().expect("the test program");
        let length = this.metadata().expect("a file").len();
        assert!(complete(&this, length / CAPTURED).is_ok());
        let error = complete(&this, length).expect_err("half of it is missing");
        assert!(
            error.status() == 1 && error.to_string().contains("could be written"),
            "{error}"
        );
    }

    #[test]
    fn a_machine_that_refuses_is_told_apart_from_a_mistake() {
        let refused = EmulatorError::PageSize(65_536);
        assert_eq!(emulator_failure(&refused).status(), 3);
        let mistake = EmulatorError::Config("no such thing".to_owned());
        assert_eq!(emulator_failure(&mistake).status(), 1);
    }
}
