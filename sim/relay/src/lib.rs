//! A relay of datagrams that treats them as a bad network does.
//!
//! It stands between programs and one address, as an address translator does: each program that sends to the relay gets a socket
//! of its own towards the target, so the target tells them apart by port.
#![forbid(unsafe_code)]

mod line;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use line::Line;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// What a bad network does, each way: how many of a thousand datagrams suffer what, and how long all take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// They are lost.
    pub lost: u32,
    /// They come twice.
    pub doubled: u32,
    /// They come after the next one.
    pub late: u32,
    /// A bit of them is another one.
    pub spoilt: u32,
    /// How long each datagram takes: a half of what it adds to a round trip.
    pub delay: Duration,
}

/// How often a thread of the relay looks whether it shall end.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct Counts {
    stop: AtomicBool,
    /// Nothing gets through.
    cut: AtomicBool,
    /// The longest datagrams that get through, in bytes: to the target, and back.
    longest: [AtomicUsize; 2],
    passed: AtomicU64,
    harmed: AtomicU64,
}

/// A relay; it ends when this is dropped.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    counts: Arc<Counts>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// A relay from one address to another.
    ///
    /// # Errors
    /// There is no socket.
    pub fn start(listen: SocketAddr, target: SocketAddr, faults: Faults, seed: u64) -> std::io::Result<Self> {
        let socket = Arc::new(UdpSocket::bind(listen)?);
        socket.set_read_timeout(Some(LOOK))?;
        let address = socket.local_addr()?;
        let counts = Arc::new(Counts {
            stop: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            longest: [usize::MAX, usize::MAX].map(AtomicUsize::new),
            passed: AtomicU64::new(0),
            harmed: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&counts);
        let thread = std::thread::spawn(move || run(&socket, target, faults, seed, &theirs));
        Ok(Self {
            address,
            counts,
            thread: Some(thread),
        })
    }

    /// Where programs send to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on nothing gets through, or all does again.
    pub fn cut(&self, cut: bool) {
        self.counts.cut.store(cut, Ordering::Relaxed);
    }

    /// From now on datagrams of more bytes than so many do not get through: to the target, and back.
    pub fn takes(&self, to: usize, back: usize) {
        for (longest, bytes) in self.counts.longest.iter().zip([to, back]) {
            longest.store(bytes, Ordering::Relaxed);
        }
    }

    /// Datagrams that came so far, and how many of them were harmed.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.counts.passed), get(&self.counts.harmed))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A direction.
#[derive(Clone, Copy)]
enum Way {
    There,
    Back,
}

/// One direction's faults.
struct Road<'a> {
    faults: Faults,
    longest: &'a AtomicUsize,
    random: SmallRng,
    /// A datagram that the next one overtakes.
    late: Option<Vec<u8>>,
    counts: &'a Counts,
    line: Line,
}

impl<'a> Road<'a> {
    /// A road whose datagrams leave by `send`.
    fn new(
        faults: Faults,
        seed: u64,
        (counts, way): (&'a Counts, Way),
        send: impl Fn(&[u8]) + Send + 'static,
    ) -> Self {
        let [there, back] = &counts.longest;
        Self {
            faults,
            longest: match way {
                Way::There => there,
                Way::Back => back,
            },
            random: SmallRng::seed_from_u64(seed),
            late: None,
            counts,
            line: Line::new(faults.delay, send),
        }
    }

    fn pass(&mut self, datagram: &[u8]) {
        let of_thousand = self.random.random_range(0..1000);
        let Faults {
            lost,
            doubled,
            late,
            spoilt,
            delay: _,
        } = self.faults;
        let line = &self.line;
        let send = |datagram: &[u8]| line.send(datagram);
        self.counts.passed.fetch_add(1, Ordering::Relaxed);
        let longest = self.longest.load(Ordering::Relaxed);
        if self.counts.cut.load(Ordering::Relaxed) || datagram.len() > longest {
            return;
        }
        if of_thousand < lost + doubled + late + spoilt {
            self.counts.harmed.fetch_add(1, Ordering::Relaxed);
        }
        let held = self.late.take();
        if of_thousand < lost {
        } else if of_thousand < lost + doubled {
            send(datagram);
            send(datagram);
        } else if of_thousand < lost + doubled + late {
            self.late = Some(datagram.to_vec());
        } else if of_thousand < lost + doubled + late + spoilt {
            let mut bytes = datagram.to_vec();
            let bit = self.random.random_range(0..bytes.len() * 8);
            if let Some(byte) = bytes.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            send(&bytes);
        } else {
            send(datagram);
        }
        held.iter().for_each(|held| send(held));
    }
}

fn run(socket: &Arc<UdpSocket>, target: SocketAddr, faults: Faults, seed: u64, counts: &Arc<Counts>) {
    let mut flows: HashMap<SocketAddr, Road<'_>> = HashMap::new();
    let mut back = Vec::new();
    let mut buffer = [0; 1 << 16];
    while !counts.stop.load(Ordering::Relaxed) {
        let Ok((len, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let number = flows.len() as u64;
        let road = match flows.entry(from) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                // Without a socket the datagram is lost, as others are.
                let Ok(flow) = towards(target) else { continue };
                let flow = Arc::new(flow);
                let ways = (Arc::clone(&flow), Arc::clone(socket), Arc::clone(counts));
                back.push(std::thread::spawn(move || {
                    come_back(&ways, from, faults, seed ^ 0x5A5A ^ number << 32);
                }));
                let send = move |bytes: &[u8]| {
                    let _ = flow.send(bytes);
                };
                let way = (&**counts, Way::There);
                place.insert(Road::new(faults, seed ^ number << 32, way, send))
            }
        };
        road.pass(buffer.get(..len).unwrap_or_default());
    }
    for thread in back {
        let _ = thread.join();
    }
}

/// A socket for one program's datagrams.
fn towards(target: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

fn come_back(
    (flow, socket, counts): &(Arc<UdpSocket>, Arc<UdpSocket>, Arc<Counts>),
    to: SocketAddr,
    faults: Faults,
    seed: u64,
) {
    let socket = Arc::clone(socket);
    let mut road = Road::new(faults, seed, (&**counts, Way::Back), move |bytes: &[u8]| {
        let _ = socket.send_to(bytes, to);
    });
    let mut buffer = [0; 1 << 16];
    while !counts.stop.load(Ordering::Relaxed) {
        let Ok(len) = flow.recv(&mut buffer) else { continue };
        road.pass(buffer.get(..len).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// How many of a thousand datagrams come out at the other end.
    fn arrived(faults: Faults) -> usize {
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        target.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = Relay::start(here, target.local_addr().unwrap(), faults, 7).unwrap();
        let source = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut came = 0;
        for sent in 1..=1000 {
            source.send_to(b"datagram", relay.address()).unwrap();
            // One at a time, so that no buffer overflows.
            while relay.counts().0 < sent {
                std::thread::yield_now();
            }
            target.set_nonblocking(true).unwrap();
            while target.recv(&mut [0; 16]).is_ok() {
                came += 1;
            }
        }
        target.set_nonblocking(false).unwrap();
        while target.recv(&mut [0; 16]).is_ok() {
            came += 1;
        }
        assert_eq!(relay.counts().0, 1000);
        came
    }

    #[test]
    fn it_loses_and_doubles_as_it_is_told() {
        assert_eq!(arrived(Faults::default()), 1000);
        let lost = Faults {
            lost: 300,
            ..Faults::default()
        };
        assert!((600..800).contains(&arrived(lost)));
        let doubled = Faults {
            doubled: 300,
            ..Faults::default()
        };
        assert!((1200..1400).contains(&arrived(doubled)));
        let late = Faults {
            late: 300,
            ..Faults::default()
        };
        assert!((999..=1000).contains(&arrived(late)), "the last may stay");
    }

    #[test]
    fn what_is_too_long_is_lost_each_way() {
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let relay = Relay::start(here, target.local_addr().unwrap(), Faults::default(), 7).unwrap();
        relay.takes(100, 50);
        let source = UdpSocket::bind("127.0.0.1:0").unwrap();
        source.connect(relay.address()).unwrap();
        for len in [101, 100] {
            source.send(&[1; 200][..len]).unwrap();
        }
        let mut bytes = [0; 200];
        let (len, from) = target.recv_from(&mut bytes).unwrap();
        assert_eq!(len, 100);
        for len in [51, 50] {
            target.send_to(&[2; 200][..len], from).unwrap();
        }
        assert_eq!(source.recv(&mut bytes).unwrap(), 50);
    }

    #[test]
    fn all_take_as_long_as_it_is_told_in_the_order_in_which_they_came() {
        const DELAY: Duration = Duration::from_millis(30);
        let target = UdpSocket::bind("127.0.0.1:0").unwrap();
        let here = SocketAddr::from(([127, 0, 0, 1], 0));
        let faults = Faults {
            delay: DELAY,
            ..Faults::default()
        };
        let relay = Relay::start(here, target.local_addr().unwrap(), faults, 7).unwrap();
        // The port may have been another test's a moment before, and what is late may still come to it.
        let source = UdpSocket::bind("127.0.0.1:0").unwrap();
        source.connect(relay.address()).unwrap();
        let begin = Instant::now();
        for number in 0..100u8 {
            source.send(&[number]).unwrap();
        }
        let sent = begin.elapsed();
        for number in 0..100 {
            let mut bytes = [0; 16];
            let from = loop {
                let (len, from) = target.recv_from(&mut bytes).unwrap();
                if len == 1 {
                    break from;
                }
            };
            assert_eq!(bytes[0], number);
            assert!(begin.elapsed() >= DELAY, "too early");
            // The way back is as long.
            if number == 99 {
                let begin = Instant::now();
                target.send_to(&[1], from).unwrap();
                source.recv(&mut bytes).unwrap();
                assert!(begin.elapsed() >= DELAY, "too early");
            }
        }
        // All are on their way at once.
        assert!(begin.elapsed() < sent + 50 * DELAY, "one after the other");
    }
}
