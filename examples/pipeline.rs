//! A bounded producer and consumer over a channel: `cargo run --example pipeline`.
//!
//! A camera on node 0 makes frames faster than node 1 can look at them. The channel between them holds
//! eight frames: then the camera has to wait, and no frame is lost or overwritten while it is
//! being looked at.

use netvm::{ChannelConfig, Error, Node, Port, PortConfig, Receiver, Result, Sender, Timeout};
use netvm_emulator::Emulator;
use std::time::Duration;

const FRAMES: u32 = 100;
/// Three pages: a frame travels in several pieces, and is seen whole or not at all.
const FRAME_BYTES: usize = 3 * 4096;
/// Longest wait for anything.
const PATIENCE: Timeout = Timeout::After(Duration::from_secs(10));

fn camera(node: &Node) -> Result<()> {
    let port = Port::open(node, PortConfig::default())?;
    // Waits until node 1 has opened the channel.
    let mut frames = Sender::join(&port, 1.into(), 7.into(), "frames", PATIENCE)?;
    let mut frame = vec![0; FRAME_BYTES];
    for number in 0..FRAMES {
        frame.fill(number as u8);
        // Copied before this returns, so the next frame may use the same memory. Waits while the
        // channel is full.
        frames.send(&frame, PATIENCE)?;
    }
    println!(
        "camera: {FRAMES} frames sent, waited {} times",
        frames.stats().waits
    );
    // Says that this was all, and hears of it if something was lost.
    frames.close()
}

fn viewer(port: &Port) -> Result<u32> {
    let config = ChannelConfig::default()
        .message_bytes(FRAME_BYTES as u64)
        .capacity(8)
        .refill(2);
    let mut frames = Receiver::open(port, "frames", config)?;
    let mut seen = 0;
    loop {
        // Borrowed where it arrived. The camera cannot write there before it is dropped.
        let frame = match frames.recv(PATIENCE) {
            Ok(frame) => frame,
            Err(Error::ChannelClosed) => return Ok(seen),
            Err(error) => return Err(error),
        };
        // Two of its pixels are enough for us; the rest is never copied.
        let [first]: [u8; 1] = frame.array(0)?;
        let [last]: [u8; 1] = frame.array(FRAME_BYTES as u64 - 1)?;
        assert_eq!((u32::from(first), u32::from(last)), (seen, seen), "a torn frame");
        seen += 1;
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(2)?;
    let here = network.node(0);
    let producer = std::thread::spawn(move || camera(&here));
    let port = Port::open(&network.node(1), PortConfig::number(7))?;
    let seen = viewer(&port)?;
    producer.join().map_err(|_| "the camera panicked")??;
    println!("viewer: {seen} frames seen, each whole and in order");
    assert_eq!(seen, FRAMES);
    Ok(())
}
