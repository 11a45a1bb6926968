//! A thousand clients of one server, over one queue: `cargo run --example crowd`.
//!
//! Node 0 keeps a board of notes. Each client connects, puts notes on it and asks how many there are. All connections of a
//! process share one queue and one port, so the server has memory for those that have something under way, and no more. One client
//! sends without ever reading its answers: its own window fills, and none of the others waits for it.

use netvm_emulator::Emulator;
use netvm_net::{Address, Net, NetConfig, Stream};
use std::io::{BufRead, BufReader, ErrorKind, Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The server's port and listener.
const PORT: u16 = 7;
const BOARD: u16 = 80;
const CLIENTS: usize = 1000;
/// How much a client may have under way, in bytes.
const WINDOW: u32 = 8 << 10;

/// Serves one client: each line is a note, and is answered by the number of notes there are.
fn serve(stream: Stream, notes: &AtomicU64) -> Result<()> {
    let (reader, mut writer) = stream.split();
    for line in BufReader::new(reader).lines() {
        line?;
        let count = notes.fetch_add(1, Ordering::Relaxed) + 1;
        writeln!(writer, "{count}")?;
    }
    Ok(())
}

/// One client's conversation.
fn put(stream: &mut Stream, note: &str) -> Result<u64> {
    writeln!(stream, "{note}")?;
    let mut answer = String::new();
    BufReader::with_capacity(1, stream).read_line(&mut answer)?;
    answer.trim().parse().map_err(|_| ErrorKind::InvalidData.into())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let network = Emulator::new(2)?;
    let board = Net::open(&network.node(0), NetConfig::at(PORT).window(WINDOW))?;
    let mut listener = board.listen(BOARD)?;
    let clients = Net::open(&network.node(1), NetConfig::default().window(WINDOW))?;
    let address = Address::new(0, PORT, BOARD);
    let notes = Arc::new(AtomicU64::new(0));

    // One that never reads: it goes on until there is no room for it.
    let mut deaf = clients.connect(address)?;
    let its = (listener.accept()?, Arc::clone(&notes));
    let deaf_server = std::thread::spawn(move || serve(its.0, &its.1));
    deaf.set_nonblocking(true);
    let mut sent = 0;
    let mut full = 0;
    while full < 1000 {
        match deaf.write(b"is there an answer?\n") {
            Ok(_) => (sent, full) = (sent + 1, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => full += 1,
            Err(error) => return Err(error.into()),
        }
    }

    // A thousand that converse, one after the other, all connected at once.
    let mut crowd = Vec::new();
    for _ in 0..CLIENTS {
        let client = clients.connect(address)?;
        crowd.push((client, listener.accept()?));
    }
    println!("{:?}", board.stats()?);
    for (number, (mut client, server)) in crowd.into_iter().enumerate() {
        let theirs = Arc::clone(&notes);
        let server = std::thread::spawn(move || serve(server, &theirs));
        put(&mut client, &format!("client {number} was here"))?;
        drop(client);
        server.join().map_err(|_| "a server's thread panicked")??;
    }
    // With answers unread, its end is a reset.
    drop(deaf);
    let end = deaf_server.join().map_err(|_| "a server's thread panicked")?;
    let notes = notes.load(Ordering::Relaxed);
    println!(
        "{notes} notes by {} clients, {sent} of one that has read no answer: {end:?}",
        CLIENTS + 1
    );
    assert!(notes >= CLIENTS as u64, "a note is missing");
    Ok(())
}
