//! What logs say of trouble.

use std::path::Path;

use anyhow::{Result, bail};

/// What a kernel says when something is wrong with it, or with us.
const SPLATS: [&str; 16] = [
    "BUG:",
    "BUG ",
    "WARNING:",
    "Oops",
    "KASAN:",
    "Kernel panic",
    "general protection fault",
    "INFO: task",
    "INFO: trying to register non-static key",
    "lockdep is turned off",
    "turning off the locking correctness validator",
    "circular locking dependency",
    "list_add corruption",
    "list_del corruption",
    "pagealloc:",
    "DMAR: DRHD: handling fault",
];
/// What a kernel with checks says in such words where its processors are slow, for they are emulated beside others.
const SLOWNESS: &str = "soft lockup";
/// What a card says when something is wrong.
const CARD_TROUBLE: [&str; 4] = ["PANIC", "EXCEPTION", "HALTED", "WATCHDOG"];

/// Fails if a host's kernel has said that something is wrong; `checked` names the one with checks.
pub(super) fn kernel_is_quiet(log: &Path, checked: bool) -> Result<()> {
    quiet(log, &SPLATS, checked.then_some(SLOWNESS))
}

/// Fails if a card has said that something is wrong.
pub(super) fn card_is_quiet(log: &Path) -> Result<()> {
    quiet(log, &CARD_TROUBLE, None)
}

/// Fails if a line of the log holds one of `words`, and not the one that excuses it.
fn quiet(log: &Path, words: &[&str], excused: Option<&str>) -> Result<()> {
    // A log that is not there yet says nothing. A console may break off in the middle of a letter.
    let bytes = std::fs::read(log).unwrap_or_default();
    match complaint(&String::from_utf8_lossy(&bytes), words, excused) {
        Some(line) => bail!("{} says: {}", log.display(), line.trim()),
        None => Ok(()),
    }
}

/// The first such line.
fn complaint<'a>(text: &'a str, words: &[&str], excused: Option<&str>) -> Option<&'a str> {
    let mut lines = text.lines();
    lines.find(|line| {
        words.iter().any(|word| line.contains(word)) && !excused.is_some_and(|word| line.contains(word))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kernels with checks have said it where something was broken on purpose.
    const SAID: [&str; 11] = [
        "[   12.682731] BUG: KASAN: slab-out-of-bounds in nv_pci_register+0x3fe/0x410 [netvm]",
        "[   12.703254] BUG: scheduling while atomic: insmod/90/0x00000002",
        "[   12.730288] BUG: sleeping function called from invalid context at include/linux/sched/mm.h:321",
        "[   12.703364] INFO: lockdep is turned off.",
        "[   12.709843] WARNING: CPU: 1 PID: 90 at shim/pci.c:335 nv_pci_register+0x118/0x410 [netvm]",
        "[   12.444278] WARNING: possible circular locking dependency detected",
        "[   12.723380] list_del corruption. next->prev should be ffffffffa0070ec0, but was ffffc9000048f6a8.",
        "[   12.734483] pagealloc: memory corruption",
        "[   12.755140] kernel BUG at mm/vmalloc.c:3177!",
        "[   12.755722] Oops: invalid opcode: 0000 [#1] PREEMPT SMP KASAN",
        "[   12.8] INFO: task netvm:77 blocked for more than 120 seconds.",
    ];
    /// As they say it where nothing is.
    const HARMLESS: &str = "[    0.095290] kasan: KernelAddressSanitizer initialized\n\
        [    1.661145] rcu: \tRCU lockdep checking is enabled.\n\
        [   31.2] rcu: INFO: rcu_preempt self-detected stall on CPU\n\
        [   32.1] clocksource: timekeeping watchdog on CPU1: Marking clocksource 'tsc' as unstable\n\
        [   15.4] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=rig-life\n\
        [    8.379406] netvm: loading out-of-tree module taints kernel.";

    #[test]
    fn each_splat_is_heard_and_nothing_else() {
        for line in SAID {
            let log = format!("{HARMLESS}\n{line}\n{HARMLESS}");
            assert_eq!(complaint(&log, &SPLATS, Some(SLOWNESS)), Some(line));
        }
        assert_eq!(complaint(HARMLESS, &SPLATS, None), None);
        let slow = "[   40.0] watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [rig-storm:97]";
        assert_eq!(complaint(slow, &SPLATS, None), Some(slow));
        assert_eq!(complaint(slow, &SPLATS, Some(SLOWNESS)), None);
    }

    /// A console that breaks off in the middle of a letter must not make the rest of a log unheard.
    #[test]
    fn a_log_with_a_broken_letter_is_heard() {
        let log = std::env::temp_dir().join(format!("netvm-log-{}", std::process::id()));
        std::fs::write(&log, b"\xE2\x82 half a letter\nBUG: x\n").expect("a log");
        let error = kernel_is_quiet(&log, false)
            .expect_err("it complains")
            .to_string();
        assert!(error.ends_with("says: BUG: x"), "{error}");
        std::fs::remove_file(&log).expect("gone");
    }
}
