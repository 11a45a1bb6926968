//! A machine whose wire is full: the other end does not read before the image has sent everything.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use netvm_abi::frame::decode;

use super::boots::log_of;
use super::network::start;

/// Boot word: send over a wire that is stuck.
const STUCK: u32 = 9;
/// As many as `nic-firmware/image/src/self_test/stuck.rs` sends.
const MESSAGES: u32 = 477;
const PATIENCE: Duration = Duration::from_secs(60);

/// Boots the image, and reads its wire when it asks for that.
pub(super) fn run() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("netvm-stuck-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
    let seen = watch(&folder);
    // Sockets only.
    let _ = std::fs::remove_dir_all(&folder);
    seen.with_context(|| format!("a wire that is stuck; {}", log_of("stuck").display()))
}

fn watch(folder: &std::path::Path) -> Result<()> {
    let wire = UnixDatagram::bind(folder.join("1")).context("making a socket")?;
    wire.set_read_timeout(Some(Duration::from_secs(5)))?;
    let log = log_of("stuck");
    let mut machine = start(STUCK, 0, &log, folder, &[])?;
    let limit = Instant::now() + PATIENCE;
    let mut says = |line: &str| -> Result<()> {
        loop {
            // A log that is not there yet says nothing.
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            if text.contains(line) {
                return Ok(());
            }
            if text.contains("SELF TEST FAILED") || Instant::now() > limit || !machine.is_running() {
                bail!("the image does not say '{line}'");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    says("READING WANTED")?;
    let mut frame = vec![0; 1 << 16];
    for number in 0..MESSAGES {
        let len = wire
            .recv(&mut frame)
            .with_context(|| format!("{number} messages came, and no more"))?;
        let header = decode(&frame[..len])
            .map_err(|error| anyhow!("a frame that is none of NetVM's: {error}"))?
            .header;
        ensure!(
            header.op.0 == number,
            "message {} came when {number} was due",
            header.op.0
        );
    }
    says("SELF TEST PASSED")
}
