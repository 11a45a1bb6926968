//! Writes a greeting into the page of `inbox`: `cargo run -p netvm-guide --bin greet -- alice`.

use std::time::Duration;

use netvm::{Port, PortConfig};
use netvm_process::SoftNode;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: greet NAME")?;
    let patience = Duration::from_secs(5);
    let node = SoftNode::builder().start()?;
    let inbox = node.connect(&name, patience)?;
    let port = Port::open(&node.node(), PortConfig::default())?;
    let page = port.import(inbox, 7.into(), "page", patience)?;
    page.write(0, b"hello").notify(1).post()?;
    port.flush_remote(inbox)?;
    println!("it has landed");
    Ok(())
}
