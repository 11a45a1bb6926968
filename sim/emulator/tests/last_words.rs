//! What ends the process does so loudly; and what an ordinary user may do works.
//!
//! Each test starts this binary again with a variable that names a scene, and looks at how that process ends.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use netvm_emulator::copy;
use netvm_emulator::vm::{
    Frame, Intent, PAGE_SIZE, PageEvents, PageIndex, PageKey, Pager, PagerConfig, RegionId,
};

/// A node without a card.
struct NoCard;

impl PageEvents for NoCard {
    fn resident(&self, _: PageKey, _: Frame, _: bool) {}
    fn unmap(&self, _: PageKey, _: Frame) {}
    fn take_referenced(&self, _: PageKey, _: Frame) -> bool {
        false
    }
    fn region_removed(&self, _: RegionId) {}
}

const SCENE: &str = "NETVM_TEST_SCENE";

fn play(scene: &str, prepare: impl FnOnce(&mut Command)) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args(["--exact", "scene", "--nocapture", "--test-threads=1"])
        .env(SCENE, scene);
    prepare(&mut command);
    command.output().expect("child process")
}

fn says(output: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn a_dma_behind_the_pagers_back_aborts_with_a_p1_report() {
    let output = play("stale-dma", |_| {});
    assert_eq!(output.status.signal(), Some(6), "{}", says(&output));
    assert!(says(&output).contains("promise P1 broken"), "{}", says(&output));
    assert!(says(&output).contains("page 2 of region 0"), "{}", says(&output));
}

#[test]
fn an_ordinary_user_gets_a_pager_too() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let output = play("pager-works", |command| {
        command.uid(65534).gid(65534);
    });
    assert!(
        output.status.success() && says(&output).contains("pager works"),
        "{}",
        says(&output)
    );
}

#[test]
fn where_userfaultfd_is_refused_the_error_names_the_setting() {
    let text = netvm_emulator::EmulatorError::UserfaultfdRefused(rustix::io::Errno::PERM).to_string();
    for setting in [
        "vm.unprivileged_userfaultfd",
        "CAP_SYS_PTRACE",
        "root",
        "/dev/userfaultfd",
    ] {
        assert!(text.contains(setting), "{text}");
    }
    assert!(netvm_emulator::EmulatorError::UserfaultfdRefused(rustix::io::Errno::PERM).is_unsupported_here());
}

/// Not a test: what the child processes do.
#[test]
fn scene() {
    let Ok(scene) = std::env::var(SCENE) else { return };
    let config = PagerConfig {
        frames: 8,
        swap_directory: std::env::temp_dir(),
    };
    let pager = Pager::new(&config, Arc::new(NoCard)).expect("userfaultfd");
    let (region, base) = pager.add_region(64).expect("region");
    match scene.as_str() {
        "stale-dma" => {
            let key = PageKey {
                region,
                page: PageIndex(2),
            };
            let pinned = pager.fault_in(key, Intent::Write).expect("page in");
            let alias = pinned.alias();
            drop(pinned);
            for page in 8..40 {
                drop(
                    pager
                        .fault_in(
                            PageKey {
                                region,
                                page: PageIndex(page),
                            },
                            Intent::Write,
                        )
                        .expect("page in"),
                );
            }
            // A card that keeps an address after its page was taken away.
            // SAFETY: the address lies in the alias mapping; the access faults, and that ends the process.
            unsafe { copy::copy_in(&[1; 8], alias) };
            println!("still here");
        }
        _ => {
            for page in 0..64usize {
                // SAFETY: inside the region.
                let word = unsafe { AtomicU64::from_ptr(base.add(page * PAGE_SIZE).cast()) };
                word.store(page as u64, Ordering::Relaxed);
            }
            for page in 0..64usize {
                // SAFETY: inside the region.
                let word = unsafe { AtomicU64::from_ptr(base.add(page * PAGE_SIZE).cast()) };
                assert_eq!(word.load(Ordering::Relaxed), page as u64);
            }
            println!("pager works, kernel faults: {}", pager.serves_kernel_faults());
        }
    }
    pager.remove_region(region);
}
