//! Files as memory of a port, and a card that is reset while it has their pages.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::rack::Rack;
use super::reports::number;
use super::scenarios::{as_user, report};

/// For one program.
const LIMIT: Duration = Duration::from_secs(120);
/// A reset takes no time.
const DOWN: Duration = Duration::from_secs(1);
/// An ext4 file system with a file of some pages, a squashfs, and huge pages.
const FILES: &str = "mkdir -p /mnt/ext4 /mnt/squashfs; dd if=/dev/zero of=/tmp/ext4.img bs=1M count=8 2> /dev/null; \
     mke2fs -F /tmp/ext4.img > /dev/null; mount -t ext4 -o loop /tmp/ext4.img /mnt/ext4; \
     mount -t squashfs -o loop,ro /lib/squashfs.img /mnt/squashfs; dd if=/bin/busybox of=/mnt/ext4/read bs=4096 count=16 \
     2> /dev/null; chmod 777 /mnt/ext4; chmod 644 /mnt/ext4/read; sync; echo 8 > /proc/sys/vm/nr_hugepages; \
     mount | grep -q squashfs";
/// What is mapped for reading, and for writing: the last one lies in memory, as a memfd does.
const READ: &str = "/mnt/squashfs/read /mnt/ext4/read";
const WRITTEN: &str = "/mnt/ext4/written /dev/shm/written";

pub(super) fn run(rack: &mut Rack) -> Result<String> {
    for host in &mut rack.hosts {
        host.device()?;
    }
    let host = &mut rack.hosts[0];
    host.run(FILES)?;
    let mut counts = Vec::new();
    for role in [
        format!("read {READ}"),
        format!("write {WRITTEN}"),
        "refused".to_owned(),
    ] {
        host.begin(&as_user(&format!("rig-files {role}")))?;
        let said = report(&host.end(LIMIT)?)?;
        let name = role.split(' ').next().unwrap_or_default();
        let name = if name == "write" { "written" } else { name };
        counts.push(format!("{} {name}", number(&said, name)?));
    }
    // The card goes while it has the pages, and the processes let go of them afterwards.
    for role in [format!("read {READ}"), format!("write {WRITTEN}")] {
        let host = &mut rack.hosts[0];
        host.run("rm -f /tmp/over /tmp/said")?;
        host.begin(&as_user(&format!(
            "rig-files {role} --until /tmp/over > /tmp/said 2>&1"
        )))?;
        host.look("for i in $(seq 600); do grep -q mapped /tmp/said && exit 0; sleep 0.1; done; cat /tmp/said; exit 1")?;
        let mapped = number(&host.counters()?["driver"], "pages_mapped")?;
        ensure!(
            mapped >= 32,
            "the card has {mapped} pages: too few to try anything"
        );
        rack.end_card(0)?;
        std::thread::sleep(DOWN);
        rack.start_card(0)?;
        let host = &mut rack.hosts[0];
        // The driver notices by itself.
        host.look("for i in $(seq 600); do dmesg | grep -q 'the card is dead' && exit 0; sleep 0.1; done; dmesg | tail; exit 1")?;
        host.look("touch /tmp/over")?;
        let _ = host.end(LIMIT);
        host.look("cat /tmp/said")?;
        rack.is_sound()?;
        rack.hosts[0].run("dmesg -c > /dev/null")?;
        rack.hosts[0].run(
            "for i in $(seq 300); do netvm stat > /dev/null 2>&1 && exec rig-quota share; sleep 0.1; done; exit 1",
        )?;
    }
    let host = &mut rack.hosts[0];
    host.run("umount /mnt/ext4 /mnt/squashfs; echo 0 > /proc/sys/vm/nr_hugepages")?;
    for host in &mut rack.hosts {
        host.unpinned()?;
        host.run("rmmod netvm")?;
    }
    Ok(format!(
        "kinds of memory: {}; two resets under mapped files",
        counts.join(", ")
    ))
}
