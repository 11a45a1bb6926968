//! Remote memory as values of a type, and a region's bytes where they lie.

use netvm::{Error, PortConfig, Status};
use netvm_kit::port::Card;
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Row {
    key: u64,
    len: u32,
    flags: u32,
}

const fn row(key: u64) -> Row {
    Row {
        key,
        len: 5,
        flags: 0xA0,
    }
}

#[test]
fn values_go_where_their_index_says() {
    let card = Card::new();
    let (_port, remote, _) = card.open(PortConfig::default());
    let table = remote.array::<Row>(64, 100).unwrap();
    assert_eq!((table.len(), table.is_empty()), (100, false));
    table.at(7).unwrap().write(&row(7)).notify(3).post().unwrap();
    table.write(98, &[row(98), row(99)]).unwrap().post().unwrap();
    remote
        .place::<u64>(8)
        .unwrap()
        .write(&77)
        .ordered()
        .post()
        .unwrap();
    let commands = card.carry_out(Status::Ok);
    let sent: Vec<(u64, &[u8])> = commands
        .iter()
        .map(|(command, bytes)| (command.remote.0 - 0x7000_0000, &bytes[..]))
        .collect();
    let (seventh, pair) = (row(7), [row(98), row(99)]);
    let expected: [(u64, &[u8]); 3] = [
        (64 + 7 * 16, seventh.as_bytes()),
        (64 + 98 * 16, pair.as_bytes()),
        (8, &[77, 0, 0, 0, 0, 0, 0, 0]),
    ];
    assert_eq!(sent, expected);
    assert_eq!(commands[0].0.notification.0, 3);

    let out = |offset, len| Error::OutOfRange {
        offset,
        len,
        size: 100,
    };
    assert_eq!(table.at(100).unwrap_err(), out(100, 1));
    assert_eq!(table.write(99, &pair).unwrap_err(), out(99, 2));
    assert_eq!(table.at(u64::MAX).unwrap_err(), out(u64::MAX, 1));
    assert!(matches!(
        remote.array::<Row>(0, u64::MAX),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        remote.array::<Row>(1 << 20, 1),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(
        remote.place::<Row>((1 << 20) - 15),
        Err(Error::OutOfRange { .. })
    ));
    assert!(matches!(remote.array::<()>(0, 3), Err(Error::Empty { .. })));
    assert_eq!(
        format!("{:?}", table.at(1).unwrap()),
        format!("RemoteBox<library::typed::Row>({remote:?} from 80)")
    );
}

#[test]
fn values_come_back_as_they_lie_there() {
    let card = Card::new();
    let (_port, remote, _) = card.open(PortConfig::default());
    let table = remote.array::<Row>(0, 10).unwrap();
    card.relax_with(|card| {
        for (command, _) in card.take() {
            let key = (command.remote.0 - 0x7000_0000) / 16;
            let words: Vec<u64> = (key..key + u64::from(command.len.0) / 16)
                .flat_map(|key| [key, 5 | 0xA0 << 32])
                .collect();
            card.bring(&command, &words);
            card.end(&command, Status::Ok);
        }
    });
    assert_eq!(table.at(4).unwrap().read(), Ok(row(4)));
    let mut rows = [row(0); 3];
    table.read_into(5, &mut rows).unwrap();
    assert_eq!(rows, [row(5), row(6), row(7)]);
    assert!(matches!(
        table.read_into(8, &mut rows),
        Err(Error::OutOfRange { .. })
    ));
}

#[test]
fn a_region_is_seen_where_it_lies() {
    let card = Card::new();
    let (port, ..) = card.open(PortConfig::default());
    let region = port.alloc(4000).unwrap();
    region.write_from(10, b"bytes").unwrap();
    let Some(bytes) = region.atomics() else {
        return;
    };
    assert_eq!(bytes.len(), 4000);
    assert_eq!(bytes[12].load(Ordering::Relaxed), b't');
    bytes[12].store(b'T', Ordering::Relaxed);
    // SAFETY: no other thread, and no card, knows of the region.
    let bytes = unsafe { region.as_slice() }.unwrap();
    assert_eq!(&bytes[10..15], b"byTes");
}
