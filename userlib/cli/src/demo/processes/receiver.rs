//! The second process of the demo: node 1. It ends when it is told to, when it fails, and when the first process ends.

use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Instant;

use netvm::{Access, NodeId, Port, PortConfig};
use netvm_process::SoftNode;

use super::paged::PagedFile;
use super::split::{Split, split_at};
use super::{Done, END, FILE, GO, INBOX, ORDINARY, PATIENCE, Said};
use crate::args::Demo;
use crate::demo::pinned::Pinned;
use crate::demo::plan::resident_bytes;
use crate::demo::receiver::{self as application, ARRIVED};
use crate::demo::source::MIB;
use crate::failure::Failure;
use crate::output;

/// Runs it for the node with this number.
///
/// # Errors
/// Standard output cannot be written, or the command line makes no sense. Everything else is said there, and told by the exit
/// status.
pub(in crate::demo) fn run(options: &Demo, sender: u16) -> Result<(), Failure> {
    let resident = resident_bytes(options)?;
    let orders = orders()?;
    match serve(options.mib * MIB, resident, NodeId(sender), &orders) {
        Ok(done) => say(&Said::Done(done)),
        Err(why) => {
            say(&Said::Failed(why))?;
            // The first process tells what has happened.
            std::process::exit(1)
        }
    }
}

fn say(said: &Said) -> Result<(), Failure> {
    output::print_json(said)
}

/// What the first process orders. Its end ends this process.
fn orders() -> Result<Receiver<String>, Failure> {
    let (send, orders) = mpsc::channel();
    let listen = move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let last = line == END;
            if send.send(line).is_err() || last {
                return;
            }
        }
        std::process::exit(1)
    };
    let spawned = std::thread::Builder::new()
        .name("netvm-orders".into())
        .spawn(listen);
    spawned.map_err(|error| Failure::Wrong(format!("a thread: {error}")))?;
    Ok(orders)
}

fn serve(bytes: u64, resident: u64, sender: NodeId, orders: &Receiver<String>) -> Result<Done, String> {
    let words = |error: netvm::Error| error.to_string();
    let pinned = Pinned::default();
    let node = SoftNode::builder().start().map_err(|error| error.to_string())?;
    let port = Port::open(&node.node(), PortConfig::number(INBOX.0)).map_err(words)?;
    let ordinary = split_at(resident);
    let file = PagedFile::map(&std::env::temp_dir(), bytes - ordinary, resident - ordinary)?;
    let begin = Instant::now();
    let memory = (
        port.alloc(ordinary).map_err(words)?,
        file.region(&port).map_err(words)?,
    );
    let access = || Access::only(sender).notify(ARRIVED..=ARRIVED);
    let _ordinary = port.export(ORDINARY, &memory.0, .., access()).map_err(words)?;
    let _file = port.export(FILE, &memory.1, .., access()).map_err(words)?;
    let export_us = u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX);
    let memory = Split::new(memory.0, memory.1);

    let stop = Arc::new(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let pager = scope.spawn(|| file.keep_small(&stop));
        let outcome = (|| {
            application::use_all(&memory).map_err(words)?;
            // However fast that was.
            file.look()?;
            say(&Said::Ready {
                node: node.number().0,
                export_us,
            })
            .map_err(|failure| failure.to_string())?;
            pinned.look();
            next(orders, GO)?;
            file.begin();
            let toucher = scope.spawn(|| application::touch(&memory, &stop));
            let mut unsaid = Ok(());
            let received = application::receive(&port, &memory, bytes / MIB, &stop, &mut |mib| {
                pinned.look();
                if let Err(failure) = say(&Said::Taken(mib)) {
                    unsaid = Err(failure.to_string());
                }
            })?;
            unsaid?;
            say(&Said::Received(received.to_hex().to_string())).map_err(|failure| failure.to_string())?;
            // Reading back takes as long as it takes: the first process watches over it, and its end ends this one.
            let ended = orders.recv().map_err(|error| error.to_string());
            stop.store(true, Ordering::Release);
            toucher
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            match ended?.as_str() {
                END => Ok(()),
                order => Err(format!("the order {order:?} makes no sense here")),
            }
        })();
        stop.store(true, Ordering::Release);
        let paged = pager
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        outcome.and(paged)
    })?;
    pinned.look();
    let (evictions, resident_most_bytes) = file.seen();
    Ok(Done {
        evictions,
        resident_most_bytes,
        pinned_bytes: pinned.most().map_err(|failure| failure.to_string())?,
        staged_bytes: port.stats().staged_bytes,
    })
}

/// Waits for this order.
fn next(orders: &Receiver<String>, wanted: &str) -> Result<(), String> {
    match orders.recv_timeout(PATIENCE * 3) {
        Ok(order) if order == wanted => Ok(()),
        Ok(order) => Err(format!("the order {order:?} makes no sense here")),
        Err(error) => Err(format!("no order has come: {error}")),
    }
}
