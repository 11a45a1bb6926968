//! Control messages and bounce records that make no sense, of any bytes: answered once, and harmless.

use crate::imports::world;
use netvm_abi::control::{CONTROL_BYTES, Modes};
use netvm_abi::event::{HostEvent, NicEvent};
use netvm_abi::wire::{Header, Kind};
use netvm_abi::words::SharedWords;
use netvm_abi::*;
use netvm_host::paging::WorkStep;
use netvm_host::platform::CopyEnd;
use netvm_kit::host::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any words from any node, in any place: an answer to the sender at most, and its slot ends.
    #[test]
    fn hostile_control_messages_are_harmless(
        messages in proptest::collection::vec(
            (1u16..3, 0u16..64, proptest::array::uniform32(any::<u32>()), 0u32..8, any::<u16>(), any::<bool>()),
            1..40,
        ),
    ) {
        let (mut stand, port) = world();
        stand.register(port, 0, 8);
        stand.export(port, "a", 0, 8, Modes::all());
        let live = stand.granted(PEER, PortId(2), port, "a", Modes::WRITE, 1).expect("granted");
        let mut expected = 0;
        for (from, slot, mut words, kind, len, driver) in messages {
            if kind < 6 {
                words[0] = kind;
                words[1] %= 32;
            }
            let place = Stand::window(NodeId(from), slot);
            stand.platform.bounce.insert(place.id(stand.host.geometry()), words.to_vec());
            let mut header = Header::new(Kind::Control, NodeId(from), NODE);
            header.len = if driver { CONTROL_BYTES as u16 } else { len };
            header.source_port = PortId(u16::from(!driver) * 3);
            stand.bounce(place, &header);
            stand.poll();
            expected += 1;
        }
        let heard = stand.heard();
        let ends = heard.iter().filter(|e| matches!(e, HostEvent::BounceEnded { .. })).count();
        prop_assert_eq!(ends, expected);
        let _ = live;
        // The driver still works.
        let grant = stand.granted(NodeId(2), PortId(2), port, "a", Modes::WRITE, 12345);
        prop_assert!(matches!(grant, Ok(_) | Err(Status::TableFull)));
    }

    /// Any record in any bounce page: each event is answered once, whatever the workers are told.
    #[test]
    fn hostile_bounce_records_are_answered_once(
        records in proptest::collection::vec(
            (0u32..230, proptest::array::uniform20(any::<u32>()), any::<bool>(), 0u8..4),
            1..40,
        ),
    ) {
        let (mut stand, port) = world();
        stand.register(port, 0, 8);
        stand.export(port, "a", 0, 8, Modes::all());
        let grant = stand.granted(PEER, PortId(2), port, "a", Modes::WRITE, 1).expect("granted");
        stand.heard();
        let mut open: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        let mut generation = 1000;
        let slots = stand.host.geometry().bounce_slots();
        let sources = slots - u32::from(stand.host.geometry().staging);
        for (place, words, sane, end) in records {
            generation += 1;
            let id = BounceId(place);
            let header = if sane { write(port, &grant, 0x100, 8).encode_words() } else { words };
            let at = stand.map.bounce_record(id);
            stand.platform.shared.store_slice(at, &header);
            stand.say(NicEvent::Bounced { bounce: id, generation: Generation(generation) });
            if place < sources {
                open.insert((place, generation), 0);
            }
            stand.poll();
            while let Some(step) = stand.next(port) {
                let mut step = step;
                loop {
                    step = match step {
                        WorkStep::PageIn { id, .. } if end == 0 => stand.paged(id, Err(Status::Unmapped)),
                        WorkStep::PageIn { id, .. } => stand.paged(id, Ok(3)),
                        WorkStep::Copy { id, job } => {
                            prop_assert!(u32::from(job.offset.0) + job.len.0 <= PAGE_SIZE);
                            stand.copied(id, if end == 1 { CopyEnd::Evicted } else { CopyEnd::Done })
                        }
                        WorkStep::Ended { .. } => break,
                    };
                }
            }
        }
        for event in stand.heard() {
            if let HostEvent::BounceEnded { bounce, generation, .. } = event {
                let count = open.get_mut(&(bounce.0, generation.0)).expect("was asked");
                *count += 1;
            }
        }
        prop_assert!(open.values().all(|&count| count == 1), "{:?}", open);
    }
}
