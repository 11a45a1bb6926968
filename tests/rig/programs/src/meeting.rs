//! Two programs, one on each host, that meet: node 0 and node 1, each with a port, a region for the other to write to and
//! the other's.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use netvm::device;
use netvm::{Access, Export, Node, NodeId, Port, PortConfig, PortId, Region, RemoteSegment};

/// How long the other is waited for, in all that it has to do.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// What goes wrong in a program, for a person.
pub type Trouble = Box<dyn std::error::Error + Send + Sync>;

/// One side.
pub struct Side {
    /// Its port.
    pub port: Port,
    /// What the other may write to and read.
    pub memory: Region,
    /// What the other has given.
    pub remote: RemoteSegment,
    /// The other's node.
    pub peer: NodeId,
    _export: Export,
}

/// Ends a program: with its last line if it has done what it should, or with what went wrong.
pub fn end(program: &str, done: Result<impl fmt::Display, Trouble>) -> ExitCode {
    match done {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(trouble) => {
            eprintln!("{program}: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// The node of a card's device.
///
/// # Errors
/// There is no such device, or it has another driver.
pub fn node(path: &Path) -> Result<Node, Trouble> {
    device::open(path)
        .map_err(|refusal| format!("{}: {refusal:?}; is netvm.ko loaded?", path.display()).into())
}

impl Side {
    /// Opens port `number`, exports `bytes` bytes, and waits for the other to have done the same.
    ///
    /// # Errors
    /// What the library says.
    pub fn meet(node: &Node, number: u16, bytes: u64) -> netvm::Result<Self> {
        let port = Port::open(node, PortConfig::number(number))?;
        let memory = port.alloc(bytes)?;
        let access = Access::everyone().notify(1..=895);
        let segment = port.export("meeting", &memory, .., access)?;
        let peer = NodeId(1 - node.id().0.min(1));
        let remote = port.import(peer, PortId(number), "meeting", PATIENCE)?;
        Ok(Self {
            port,
            memory,
            remote,
            peer,
            _export: segment,
        })
    }

    /// Tells the other something.
    ///
    /// # Errors
    /// What the library says.
    pub fn tell(&self, notification: u32) -> netvm::Result<()> {
        self.remote.write(0, &[]).notify(notification).post()?;
        self.port.flush_remote(self.peer)
    }

    /// Waits to be told.
    ///
    /// # Errors
    /// What the library says, or that [`PATIENCE`] is over.
    pub fn hear(&self, notification: u32) -> netvm::Result<()> {
        let notification = self.port.notification(notification)?;
        notification.wait(PATIENCE)?;
        notification.ack()
    }
}

/// What stands at offset `from` of a region in round `round`: another value in each word of each round.
pub fn fill(round: u64, from: u64, bytes: &mut [u8]) {
    for (word, bytes) in (from / 8..).zip(bytes.chunks_mut(8)) {
        // The finalizer of splitmix64.
        let mut value = word.wrapping_add(round << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        let value = (value ^ value >> 31).to_le_bytes();
        bytes.copy_from_slice(&value[..bytes.len()]);
    }
}

/// Compares bytes with what [`fill`] says.
///
/// # Errors
/// The first byte that differs.
pub fn check(round: u64, from: u64, bytes: &[u8], whose: &str) -> Result<(), Trouble> {
    let mut expected = vec![0; bytes.len()];
    fill(round, from, &mut expected);
    match bytes.iter().zip(&expected).position(|(is, should)| is != should) {
        None => Ok(()),
        Some(at) => Err(format!(
            "{whose}, round {round}: byte {} is {:#04x} and should be {:#04x}",
            from + at as u64,
            bytes[at],
            expected[at]
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_in_pieces_is_the_region() {
        let mut whole = vec![0; 4096];
        fill(3, 8192, &mut whole);
        let mut piece = vec![0; 96];
        fill(3, 8192 + 160, &mut piece);
        assert_eq!(piece, whole[160..256]);
        check(3, 8192, &whole, "x").expect("equal");
        whole[77] ^= 1;
        let error = check(3, 8192, &whole, "x").expect_err("differs").to_string();
        assert!(error.contains("byte 8269 "), "{error}");
        assert!(check(4, 8192, &whole, "x").is_err());
    }
}
