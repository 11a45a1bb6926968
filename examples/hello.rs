//! Two nodes, one write with a notification: `cargo run --example hello`.

use netvm::{Access, Port, PortConfig, Timeout};
use netvm_emulator::Emulator;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two nodes in this process, with a card, a driver and a pager each.
    let network = Emulator::new(2)?;

    // Node 1 exports a page that node 0 may write to, and signal notification 5 with.
    let receiver = Port::open(&network.node(1), PortConfig::number(7))?;
    let memory = receiver.alloc(4096)?;
    let _inbox = receiver.export("inbox", &memory, .., Access::only(0.into()).notify(5..=5))?;

    // Node 0 binds to it by name and writes: no system call, nothing pinned.
    let sender = Port::open(&network.node(0), PortConfig::default())?;
    let inbox = sender.import(1.into(), 7.into(), "inbox", Timeout::Never)?;
    inbox.write(0, b"hello, node 1").notify(5).post()?;

    // When the notification comes, the data is there.
    let arrived = receiver.notification(5)?;
    arrived.wait(Timeout::Never)?;
    arrived.ack()?;
    let mut text = [0; 13];
    memory.read_into(0, &mut text)?;
    println!("node 1 received: {}", String::from_utf8_lossy(&text));
    Ok(())
}
