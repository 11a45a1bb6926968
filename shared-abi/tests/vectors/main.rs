//! Every layout against bytes that were written down by hand: an implementation of the other side in another language
//! can take the same files (`docs/ABI.md`).

#[path = "../common/mod.rs"]
mod common;
mod descriptors;
mod device_calls;
mod events;
mod messages;
mod port_areas;
mod tables;

use common::folder;
use netvm_abi::VirtAddr;

const SECRET: u64 = 0x1122_3344_5566_7788;
const ADDRESS: VirtAddr = VirtAddr(0x7f12_3456_7ff8);

#[test]
fn no_file_is_unused() {
    let used = [
        "bar_header",
        "bounce_record",
        "capability",
        "control",
        "descriptor",
        "error_record",
        "frame",
        "header",
        "host_event",
        "ioctl",
        "lease",
        "nic_event",
        "notification",
        "page_slot",
        "reply",
    ];
    let mut files: Vec<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    let used: Vec<String> = used.iter().map(|name| format!("{name}.hex")).collect();
    assert_eq!(files, used);
}
