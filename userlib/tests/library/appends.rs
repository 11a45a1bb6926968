//! What a sender of a shared queue hears of its message.

use netvm::channel::shared::SharedSender;
use netvm::{Error, Port, PortConfig, RemoteSegment, Status, Timeout};
use netvm_abi::NodeId;
use netvm_abi::descriptor::{Command, CommandFlags, Opcode};
use netvm_abi::shared_queue::QueueShape;
use netvm_kit::port::Card;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What a card and its peer make of commands: once a write that is no append has failed at its source, nothing of its
/// stream leaves until the stream has another epoch. The peer knows nothing of that, so its answers to flushes are Ok.
#[derive(Default)]
struct FailsAtTheSource {
    failed: Option<u16>,
    placed: Vec<u8>,
}

impl FailsAtTheSource {
    fn carry_out(&mut self, card: &Card, command: &Command, payload: &[u8]) {
        let append = command.flags.contains(CommandFlags::APPEND);
        if command.opcode.is_write() && !append && self.failed.is_none() {
            self.failed = Some(command.epoch.0);
            card.fail(command, Status::Unmapped);
        } else if append && self.failed != Some(command.epoch.0) {
            self.placed.extend_from_slice(payload);
        } else {
            assert!(append || command.opcode == Opcode::FlushRemote, "{command:?}");
        }
        card.end(command, Status::Ok);
    }
}

/// A sender, a segment of the receiver's node, and what the card does from now on.
fn stand() -> (
    Arc<Card>,
    Port,
    SharedSender,
    RemoteSegment,
    Arc<Mutex<FailsAtTheSource>>,
) {
    let card = Card::new();
    let (port, one, _) = card.open(PortConfig::default());
    card.grant.lock().unwrap().as_mut().unwrap().queue = QueueShape { entry: 6, number: 7 };
    let sender = SharedSender::join(&port, NodeId(1), 2.into(), "queue", Timeout::Now).unwrap();
    let peer = Arc::new(Mutex::new(FailsAtTheSource::default()));
    let at = Arc::clone(&peer);
    card.relax_with(move |card| {
        for (command, payload) in card.take() {
            at.lock().unwrap().carry_out(card, &command, &payload);
        }
    });
    (card, port, sender, one, peer)
}

const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_message_that_never_left_is_not_sent() {
    let (_card, port, sender, one, peer) = stand();
    let write = one.write(0, &[1; 8]).post().unwrap();
    // The write's record comes while the sender waits for the answer to its flush, which is Ok.
    match sender.send(b"held back", SOON) {
        Err(Error::Failed(failure)) => assert_eq!((failure.op, failure.status), (write, Status::Unmapped)),
        other => panic!("the message has no place, and the call says {other:?}"),
    }
    assert!(peer.lock().unwrap().placed.is_empty());
    // It was told, so what is sent now gets its place.
    assert_eq!(sender.send(b"sent", SOON), Ok(()));
    assert_eq!(peer.lock().unwrap().placed, b"sent");
    assert_eq!(port.flush_writes(), Ok(()));
}

#[test]
fn a_message_that_never_left_is_sent_again_if_another_thread_was_told() {
    let (card, _port, sender, one, peer) = stand();
    let other = one.clone();
    let at = Arc::clone(&peer);
    let mut told = None;
    card.relax_with(move |card| {
        for (command, payload) in card.take() {
            at.lock().unwrap().carry_out(card, &command, &payload);
            // Told of the failure before the flush is answered, and before this sender looks.
            if command.opcode.is_write() && told.is_none() {
                told = Some(other.write(0, &[2; 8]).post());
                assert!(matches!(told, Some(Err(Error::Failed(_)))), "{told:?}");
            }
        }
    });
    one.write(0, &[1; 8]).post().unwrap();
    assert_eq!(sender.try_send(b"x"), Err(Error::QueueFull), "to be sent again");
    assert!(peer.lock().unwrap().placed.is_empty());
    assert_eq!(sender.send(b"y", SOON), Ok(()));
    assert_eq!(peer.lock().unwrap().placed, b"y");
}

/// The card has told the loss in two places: a record, of the first message that was lost, and the answer of the read, which
/// by itself would hold nothing back.
#[test]
fn a_message_behind_a_read_that_was_lost_with_its_link_is_not_sent() {
    let (card, port, sender, one, _) = stand();
    let region = port.alloc(4096).unwrap();
    let read = one.read(0, &region).post().unwrap();
    card.relax_with(|card| {
        for (command, _) in card.take() {
            if command.opcode == Opcode::Read {
                card.fail(&command, Status::LinkLost);
                card.answer(&command, Status::LinkLost, 0);
            } else {
                // Held back, and a flush of the next life of the link.
                card.end(&command, Status::Ok);
            }
        }
    });
    match sender.try_send(&[1]) {
        Err(Error::Failed(failure)) => assert_eq!((failure.op, failure.status), (read, Status::LinkLost)),
        other => panic!("{other:?}"),
    }
    assert_eq!(sender.try_send(&[2]), Ok(()));
    assert_eq!(port.flush(), Ok(()));
}
