//! The QEMU command lines: a host whose RAM is a file, and its card, which sees that file through a window.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::parts::Parts;
use crate::image::hosted::SERVE;
use crate::image::network::wired;

/// Bytes of a host's RAM, a power of two, because a card shows it in a PCI range: offsets in the file are the guest's
/// physical addresses. A kernel with checks takes a quarter of it for itself (KASAN's shadow, lockdep), and more for each
/// allocation.
pub(super) const fn ram(checked: bool) -> u64 {
    if checked { 512 << 20 } else { 256 << 20 }
}
/// Bytes of a disk that is memory, for swapped pages.
const SWAP: u64 = 160 << 20;
/// Serial lines that take commands.
pub(super) const LANES: [usize; 2] = [1, 2];
/// The slot that a card is in, if it is in one.
pub(super) const SLOT: &str = "card-slot";
/// The serial line of a person.
const CONSOLE: usize = 3;

/// The files of a node, below one folder: its memories, sockets and logs.
#[derive(Clone)]
pub(super) struct Places {
    /// Memories and sockets; the paths of sockets are short.
    pub(super) run: PathBuf,
    pub(super) logs: PathBuf,
    pub(super) node: usize,
}

impl Places {
    fn at(&self, name: &str) -> PathBuf {
        self.run.join(format!("{name}{}", self.node))
    }

    /// The host's RAM.
    pub(super) fn ram(&self) -> PathBuf {
        self.at("ram")
    }

    /// NIC memory.
    pub(super) fn nic(&self) -> PathBuf {
        self.at("nic")
    }

    /// Where the host, or its card, asks for its bells.
    pub(super) fn bells(&self, of_card: bool) -> PathBuf {
        self.at(if of_card { "card-bells" } else { "host-bells" })
    }

    /// Where frames for the card arrive.
    pub(super) fn card_wire(&self) -> PathBuf {
        self.at("card")
    }

    /// Where frames of the card go.
    pub(super) fn wire(&self) -> PathBuf {
        self.at("wire")
    }

    /// The host's QEMU takes commands there.
    pub(super) fn monitor(&self) -> PathBuf {
        self.at("monitor")
    }

    /// A lane for commands.
    pub(super) fn lane(&self, number: usize) -> PathBuf {
        self.at(&format!("lane-{number}-"))
    }

    /// A person's shell.
    pub(super) fn console(&self) -> PathBuf {
        self.lane(CONSOLE)
    }

    /// The kernel's log.
    pub(super) fn host_log(&self) -> PathBuf {
        self.logs.join(format!("host-{}.log", self.node))
    }

    /// Commands and their output.
    pub(super) fn transcript(&self, lane: usize) -> PathBuf {
        self.logs.join(format!("host-{}.lane-{lane}.log", self.node))
    }

    /// The card's log.
    pub(super) fn card_log(&self) -> PathBuf {
        self.logs.join(format!("card-{}.log", self.node))
    }
}

/// How a card's processor is emulated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Speed {
    /// As fast as it goes.
    Full,
    /// One instruction at a time, so that each step of the image lasts long enough for another processor to come in
    /// between.
    Slow,
}

/// What is between a host and its card. The card reaches the host's memory past QEMU's IOMMU, by physical addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bus {
    /// Nothing.
    Plain,
    /// An IOMMU that passes addresses on, and the checks of the kernel's DMA layer (DMA_API_DEBUG).
    Identity,
    /// An IOMMU that translates, with the same checks: the card does not find its driver's memory.
    Translated,
    /// A slot of PCI Express, which reports errors of the bus: QEMU's monitor makes them ([`Places::monitor`]).
    Slot,
}

impl Bus {
    /// What the kernel is told of it.
    const fn words(self) -> &'static str {
        match self {
            Self::Plain | Self::Slot => "intel_iommu=off dma_debug=off",
            Self::Identity => "iommu=pt",
            Self::Translated => "iommu=nopt iommu.strict=1",
        }
    }
}

/// The host, with so many processors and such a bus.
pub(super) fn host(parts: &Parts, places: &Places, processors: u8, bus: Bus) -> Command {
    let mut command = tied("qemu-system-x86_64");
    // Threads, and room for two processors: with one, QEMU would leave out the barriers and atomics that hold between
    // machines.
    command.args(["-accel", "tcg,thread=multi", "-nodefaults", "-no-reboot"]);
    command
        .arg("-smp")
        .arg(format!("{processors},maxcpus={}", processors.max(2)));
    command.args(["-display", "none", "-vga", "none", "-nic", "none"]);
    command
        .arg("-monitor")
        .arg(format!("unix:{},server=on,wait=off", places.monitor().display()));
    // Random numbers without waiting for them.
    command.args(["-cpu", "qemu64,+rdrand"]);
    let ram = ram(parts.kernel.debug);
    command.arg("-object").arg(file("ram", &places.ram(), ram));
    command
        .args(["-M", "q35,memory-backend=ram", "-m"])
        .arg(format!("{}M", ram >> 20));
    // Before the devices behind it.
    let slot = match bus {
        Bus::Plain => String::new(),
        Bus::Identity | Bus::Translated => {
            command.args(["-device", "intel-iommu,intremap=off"]);
            String::new()
        }
        Bus::Slot => {
            command
                .arg("-device")
                .arg(format!("pcie-root-port,id={SLOT},chassis=1"));
            format!(",bus={SLOT}")
        }
    };
    bells(&mut command, &places.bells(false), &slot);
    command
        .arg("-serial")
        .arg(format!("file:{}", places.host_log().display()));
    for number in 1..=CONSOLE {
        command.arg("-serial").arg(format!(
            "unix:{},server=on,wait=off",
            places.lane(number).display()
        ));
    }
    command
        .arg("-kernel")
        .arg(&parts.kernel.image)
        .arg("-initrd")
        .arg(&parts.initramfs);
    // The processors' counters agree, whatever the kernel thinks of emulated ones; and a timer that is late, because
    // this machine had others to run, works all the same.
    command.arg("-append").arg(format!(
        "console=ttyS0 loglevel=7 panic=-1 tsc=reliable no_timer_check random.trust_cpu=on page_poison=1 {} brd.rd_size={} rig.name=host-{}",
        bus.words(),
        SWAP >> 10,
        places.node
    ));
    command
}

/// The card of a host with so much RAM.
pub(super) fn card(places: &Places, ram: u64, speed: Speed) -> Command {
    let devices = [
        "-object".to_owned(),
        file("ram", &places.ram(), ram),
        "-device".to_owned(),
        "ivshmem-plain,memdev=ram".to_owned(),
        "-device".to_owned(),
        "virtio-rng-pci".to_owned(),
    ];
    let wire = [&*places.card_wire(), &*places.wire()];
    let machine = wired(SERVE, places.node as u32, &places.card_log(), wire, &devices);
    let mut command = tied(machine.get_program());
    command.args(machine.get_args());
    if speed == Speed::Slow {
        command.arg("-singlestep");
    }
    bells(&mut command, &places.bells(true), "");
    command
}

fn bells(command: &mut Command, socket: &Path, slot: &str) {
    command
        .arg("-chardev")
        .arg(format!("socket,id=bells,path={}", socket.display()));
    command
        .arg("-device")
        .arg(format!("ivshmem-doorbell,chardev=bells,vectors=1{slot}"));
}

fn file(id: &str, path: &Path, size: u64) -> String {
    format!(
        "memory-backend-file,id={id},mem-path={},share=on,size={size}",
        path.display()
    )
}

/// A program that ends with the thread that starts it, however that ends.
fn tied(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program);
    command
}
