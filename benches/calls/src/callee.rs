//! The other process.

use crate::functions::{CHANNEL, Counts, NAME, PORT, RAW, RAW_BYTES};
use crate::place::stay_on;
use crate::{Result, text};
use netvm::{Access, ChannelConfig, Port, PortConfig, Receiver, Timeout};
use netvm_calls::{Calls, CallsConfig};
use netvm_process::SoftNode;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A process that has heard nothing for so long has lost the other.
const LOST: Duration = Duration::from_secs(60);

/// Runs what the measuring process calls, as a node of this name, until that says that it is done.
///
/// # Errors
/// A text that says what went wrong.
pub fn serve(name: &str) -> Result<()> {
    stay_on(1);
    let node = SoftNode::builder().name(name).start().map_err(text)?;
    let port = Port::open(&node.node(), PortConfig::number(PORT)).map_err(text)?;
    let memory = port.alloc(RAW_BYTES).map_err(text)?;
    let _raw = port.export(RAW, &memory, .., Access::everyone()).map_err(text)?;
    let config = ChannelConfig::default().message_bytes(1024).capacity(256);
    let mut channel = Receiver::open(&port, CHANNEL, config).map_err(text)?;
    let counts = Counts::default();
    let registry = counts.registry().map_err(text)?;
    let mut calls = Calls::open(port, NAME, registry, CallsConfig::default()).map_err(text)?;
    let mut message = vec![0; 1024];
    while counts.stopped.load(Ordering::Relaxed) == 0 {
        match calls.serve(LOST) {
            Ok(()) => {}
            Err(error) => return Err(text(error)),
        }
        // The other process sends nothing else meanwhile.
        let expected = counts.expected.swap(0, Ordering::Relaxed);
        for _ in 0..expected {
            channel
                .recv_into(&mut message, Timeout::After(LOST))
                .map_err(text)?;
            std::hint::black_box(&message);
        }
    }
    Ok(())
}
