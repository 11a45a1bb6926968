//! Which nodes run: those of this user, in this network namespace.
//!
//! The kernel lists every socket that listens, so nothing has to be written down where a node starts and erased where it
//! ends.

use std::collections::BTreeMap;

use netvm_abi::NodeId;

use super::introduce;

/// What a process has as nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// Numbers of its nodes, rising.
    pub numbers: Vec<NodeId>,
    /// Names that its nodes are found by.
    pub names: Vec<String>,
}

/// Nodes of this user, by process number.
///
/// # Errors
/// `/proc/net/unix` cannot be read.
pub fn running() -> std::io::Result<BTreeMap<i32, Running>> {
    let mut processes: BTreeMap<i32, Running> = BTreeMap::new();
    for name in listening(&std::fs::read_to_string("/proc/net/unix")?, &introduce::prefix()) {
        // A node that ends just now has none.
        let Some(process) = introduce::process_of(name) else {
            continue;
        };
        let running = processes.entry(process.as_raw_pid()).or_default();
        match name.strip_prefix('#').map(str::parse) {
            Some(Ok(number)) => running.numbers.push(NodeId(number)),
            _ => running.names.push(name.to_owned()),
        }
    }
    for running in processes.values_mut() {
        running.numbers.sort_unstable_by_key(|number| number.0);
        running.names.sort_unstable();
    }
    Ok(processes)
}

/// Names behind `prefix` of abstract sockets that listen, as `/proc/net/unix` has them: `Num: RefCount Protocol Flags Type St Inode
/// Path`, where `@` stands for the zero before an abstract name.
fn listening<'a>(table: &'a str, prefix: &'a str) -> impl Iterator<Item = &'a str> {
    const LISTENS: u32 = 1 << 16;
    table.lines().filter_map(move |line| {
        let mut rest = line;
        let mut flags = 0;
        for column in 0..7 {
            let (field, behind) = rest.trim_start().split_once(' ')?;
            if column == 3 {
                flags = u32::from_str_radix(field, 16).ok()?;
            }
            rest = behind;
        }
        let name = rest.trim_start().strip_prefix('@')?.strip_prefix(prefix)?;
        (flags & LISTENS != 0).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_that_listen() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     0000000000000000: 00000002 00000000 00010000 0005 01 12345 @netvm/7/#3\n\
                     0000000000000000: 00000002 00000000 00010000 0005 01 12346 @netvm/7/a name\n\
                     0000000000000000: 00000003 00000000 00000000 0005 03 12347 @netvm/7/#4\n\
                     0000000000000000: 00000002 00000000 00010000 0005 01 12348 @netvm/70/#5\n\
                     0000000000000000: 00000002 00000000 00010000 0001 01 12349 /run/x\n\
                     0000000000000000: 00000003 00000000 00000000 0001 03 12350\n";
        let found: Vec<&str> = listening(table, "netvm/7/").collect();
        assert_eq!(found, ["#3", "a name"]);
    }
}
