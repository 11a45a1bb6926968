//! The calls of the character device.

use crate::SECRET;
use crate::common::Golden;
use netvm_abi::control::Name;
use netvm_abi::ioctl;
use netvm_abi::*;
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn device_calls() {
    /// The argument from its golden bytes, with the call's number checked and every byte accounted for.
    fn check<T: FromBytes + IntoBytes + zerocopy::Immutable>(
        golden: &mut Golden,
        section: &str,
        number: u32,
    ) -> T {
        let bytes = golden.take(section, 4 + size_of::<T>());
        let (head, argument) = bytes.split_at(4);
        assert_eq!(head, number.to_le_bytes(), "{section}");
        let value = T::read_from_bytes(argument).unwrap();
        assert_eq!(value.as_bytes(), argument, "{section}");
        value
    }
    let mut golden = Golden::read("ioctl");
    let golden = &mut golden;
    let query: ioctl::Query = check(golden, "query", ioctl::QUERY);
    assert_eq!((query.version, query.node, query.payload), (ABI_VERSION, 2, 1392));
    assert_eq!((query.pinned_bytes, query.counters), (0x12_3456, 40));
    let register: ioctl::Register = check(golden, "register", ioctl::REGISTER);
    assert_eq!(
        (register.port, register.generation, register.eventfd),
        (3, 9, u32::MAX)
    );
    assert_eq!(register.block_offset, ioctl::mmap_offset(ioctl::MapRegion::Block));
    assert_eq!(register.area_offset, ioctl::mmap_offset(ioctl::MapRegion::Area));
    assert_eq!(
        register.status_offset,
        ioctl::mmap_offset(ioctl::MapRegion::Status)
    );
    let adopt: ioctl::Adopt = check(golden, "adopt", ioctl::ADOPT);
    assert_eq!((adopt.len, adopt.segment), (0x2_0000, 0x21));
    let disown: ioctl::Disown = check(golden, "disown", ioctl::DISOWN);
    assert_eq!(disown.segment, 0x21);
    let export: ioctl::Export = check(golden, "export", ioctl::EXPORT);
    assert_eq!(export.name, *Name::new("matrix/left").unwrap().bytes());
    assert_eq!(
        (export.len, export.allow_count, export.lease),
        (0x1_fff1, 2, 1_000_000_000)
    );
    let unexport: ioctl::Unexport = check(golden, "unexport", ioctl::UNEXPORT);
    assert_eq!(unexport.export, 5);
    let import: ioctl::Import = check(golden, "import", ioctl::IMPORT);
    assert_eq!((import.node, import.port, import.secret), (1, 7, SECRET));
    assert_eq!((import.timeout, import.capability), (5_000_000_000, 9));
    let unimport: ioctl::Unimport = check(golden, "unimport", ioctl::UNIMPORT);
    assert_eq!(
        (unimport.node, unimport.status),
        (1, u32::from(Status::CapabilityRefused.code()))
    );
    let wait: ioctl::Wait = check(golden, "wait", ioctl::WAIT);
    assert_eq!(
        (wait.notifications, wait.errors, wait.timeout),
        (17, 2, 1_000_000)
    );
    let stat: ioctl::Stat = check(golden, "stat", ioctl::STAT);
    assert_eq!((stat.count, stat.scope), (40, 1));
    let lend: ioctl::Lend = check(golden, "lend", ioctl::LEND);
    assert_eq!((lend.address, lend.len), (0x7f12_3456_0010, 64));
    assert_eq!((lend.duration, lend.longest), (1_000_000_000, 60_000_000_000));
    assert_eq!((lend.secret, lend.export, lend.modes), (SECRET, 5, 3));
    assert_eq!((lend.node, lend.port), (1, 7));
    assert_eq!((lend.capability, lend.generation), (9, 3));
    let left: ioctl::LeaseLeft = check(golden, "lease left", ioctl::LEASE_LEFT);
    assert_eq!((left.capability, left.generation, left.left), (9, 3, 1_000_000));
    let recall: ioctl::Recall = check(golden, "recall", ioctl::RECALL);
    assert_eq!((recall.leases, recall.count), (0x7ffd_eadb_eef0, 2));
}
