//! What card and driver tell one another, and what drivers tell each other through their cards.

use crate::SECRET;
use crate::common::Golden;
use netvm_abi::control::{CONTROL_WORDS, Control, Grant, Modes, Name};
use netvm_abi::event::{HostEvent, NicEvent, SourceAnswer};
use netvm_abi::*;

#[test]
fn nic_events() {
    let mut golden = Golden::read("nic_event");
    let peer = NodeId(4);
    let events = [
        (
            "bounced",
            NicEvent::Bounced {
                bounce: BounceId(0x0001_0203),
                generation: Generation(0xdead_beef),
            },
        ),
        (
            "source_miss",
            NicEvent::SourceMiss {
                staging: StagingId(0x11),
                generation: Generation(6),
                vpn: Vpn::new(PortId(7), 0x7_f123_4567),
                offset: PageOffset(0xff8),
                len: ByteLen(8),
                attempt: 2,
            },
        ),
        (
            "peer_reset",
            NicEvent::PeerReset {
                peer,
                incarnation: Incarnation(0xb1b2_b3b4),
            },
        ),
        (
            "peer_up",
            NicEvent::PeerUp {
                peer: NodeId(0xfff),
                incarnation: Incarnation(0xb1b2_b3b5),
            },
        ),
        (
            "peer_lost",
            NicEvent::PeerLost {
                peer,
                incarnation: Incarnation(0xb1b2_b3b6),
            },
        ),
        (
            "barrier_done",
            NicEvent::BarrierDone {
                token: Token(0xcafe_0001),
            },
        ),
        (
            "port_closed",
            NicEvent::PortClosed {
                port: PortId(63),
                generation: Generation(9),
            },
        ),
        (
            "control_sent",
            NicEvent::ControlSent {
                token: Token(0xcafe_0002),
                status: Status::LinkLost,
            },
        ),
        (
            "lease_left",
            NicEvent::LeaseLeft {
                slot: CapabilitySlot(9),
                generation: Generation(5),
                token: Token(0xcafe_0003),
                left: Nanos::from_millis(50),
            },
        ),
    ];
    for (section, event) in events {
        let expected = golden.take_words(section);
        assert_eq!(event.encode(), expected, "{section}");
        assert_eq!(NicEvent::decode(&expected), Some(event), "{section}");
    }
    golden.end();
}

#[test]
fn host_events() {
    let mut golden = Golden::read("host_event");
    let peer = NodeId(4);
    let answer = |generation, answer| HostEvent::SourceAnswer {
        staging: StagingId(0x11),
        generation: Generation(generation),
        answer,
    };
    let events = [
        (
            "port_open",
            HostEvent::PortOpen {
                port: PortId(63),
                generation: Generation(9),
                counts_from: 0xFFFF_FFF0,
            },
        ),
        (
            "port_close",
            HostEvent::PortClose {
                port: PortId(62),
                generation: Generation(10),
            },
        ),
        (
            "bounce_ended",
            HostEvent::BounceEnded {
                bounce: BounceId(0x0001_0203),
                generation: Generation(0xdead_beef),
                status: Status::Unmapped,
            },
        ),
        ("source_retry", answer(6, SourceAnswer::Retry)),
        ("source_copied", answer(7, SourceAnswer::Copied)),
        ("source_failed", answer(8, SourceAnswer::Failed(Status::BusError))),
        (
            "send_control",
            HostEvent::SendControl {
                peer,
                slot: 33,
                token: Token(0xcafe_0003),
            },
        ),
        (
            "peer_released",
            HostEvent::PeerReleased {
                peer,
                incarnation: Incarnation(0xb1b2_b3b4),
            },
        ),
        ("peer_connect", HostEvent::PeerConnect { peer: NodeId(5) }),
        (
            "barrier",
            HostEvent::Barrier {
                token: Token(0xcafe_0001),
            },
        ),
        (
            "lease_begin",
            HostEvent::LeaseBegin {
                slot: CapabilitySlot(9),
                generation: Generation(5),
            },
        ),
        (
            "lease_ask",
            HostEvent::LeaseAsk {
                slot: CapabilitySlot(9),
                generation: Generation(5),
                token: Token(0xcafe_0003),
            },
        ),
    ];
    for (section, event) in events {
        let expected = golden.take_words(section);
        assert_eq!(event.encode(), expected, "{section}");
        assert_eq!(HostEvent::decode(&expected), Some(event), "{section}");
    }
    golden.end();
}

#[test]
fn control_messages() {
    let mut golden = Golden::read("control");
    let modes = Modes::READ | Modes::WRITE | Modes::NOTIFY;
    let token = Token(0xcafe_0004);
    let capability = CapabilitySlot(9);
    let messages = [
        (
            "import",
            Control::Import {
                token,
                port: PortId(7),
                importer: PortId(3),
                modes,
                name: Name::new("matrix/left").unwrap(),
            },
        ),
        (
            "granted",
            Control::Granted {
                token,
                grant: Grant {
                    start: VirtAddr(0x7f12_3456_0000),
                    len: 0x1_2345_6789,
                    capability,
                    secret: SECRET,
                    modes,
                    notify_first: NotificationId(1),
                    notify_last: NotificationId(u32::MAX),
                    queue: netvm_abi::shared_queue::QueueShape {
                        entry: 9,
                        number: 300,
                    },
                },
            },
        ),
        (
            "refused",
            Control::Refused {
                token,
                status: Status::NoSuchExport,
            },
        ),
        (
            "release",
            Control::Release {
                capability,
                secret: SECRET,
            },
        ),
        (
            "revoked",
            Control::Revoked {
                capability,
                exporter: NodeId(1),
            },
        ),
    ];
    for (section, message) in messages {
        let expected: [u32; CONTROL_WORDS] = golden.take_words(section);
        assert_eq!(message.encode(), expected, "{section}");
        assert_eq!(Control::decode(&expected), Ok(message), "{section}");
    }
    golden.end();
}
