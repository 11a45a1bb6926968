//! Shares a page, and waits for a greeting: `cargo run -p netvm-guide --bin inbox -- alice`.

use netvm::{Access, Port, PortConfig, Timeout};
use netvm_process::SoftNode;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: inbox NAME")?;
    let node = SoftNode::builder().name(name).start()?;
    let port = Port::open(&node.node(), PortConfig::number(7))?;
    let memory = port.alloc(4096)?;
    let _page = port.export("page", &memory, .., Access::everyone().notify(1..=1))?;

    let arrived = port.notification(1)?;
    arrived.wait(Timeout::Never)?;
    arrived.ack()?;
    let mut text = [0; 5];
    memory.read_into(0, &mut text)?;
    println!("received: {}", String::from_utf8_lossy(&text));
    Ok(())
}
