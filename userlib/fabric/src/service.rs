//! Endpoints that are found by an IP address and a port: the `node` and `service` of `fi_getinfo(3)`.
//!
//! An endpoint's [`Address`] names a node, ports and a life. No program knows it before that endpoint is there. So an endpoint that is
//! opened with a service listens at this TCP port, and tells its address to each that connects. An address vector asks there while
//! it takes the service in. What it holds from then on is the address of an endpoint.
//!
//! ```text
//! fi_getinfo(.., "9228", FI_SOURCE) → fi_endpoint: listens ◄────── connects: fi_av_insert ← dest_addr ← fi_getinfo("10.0.0.1", "9228")
//!                                                  its address ──────► 48 bytes
//! ```

use core::ffi::CStr;
use std::io::{Error, ErrorKind, Read as _, Result, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dns_lookup::{AddrInfoHints, getaddrinfo};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::address::{ADDRESS_BYTES, Address};
use crate::fi::{Answer, Errno, FI_NUMERICHOST, FI_SOURCE};
use crate::log;

const MAGIC: u32 = 0x6d76_4e03;
/// Between two attempts to connect to a service that is not there yet, and after a listener's error.
const PAUSE: Duration = Duration::from_millis(20);

/// An IP address and a port, as programs hold it: as long as an endpoint's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Service {
    magic: u32,
    /// The interface of a link-local address.
    scope: u32,
    port: u16,
    spare: [u8; 22],
    ip: [u8; 16],
}

const _: () = assert!(
    size_of::<Service>() == ADDRESS_BYTES,
    "programs have one length for all addresses"
);

/// What a program holds as an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Endpoint(Address),
    Service(Service),
}

impl Named {
    /// What a program was given as an address.
    pub(crate) fn read(bytes: &[u8]) -> Answer<Self> {
        Address::read(bytes)
            .map(Self::Endpoint)
            .or_else(|_| Service::read(bytes).map(Self::Service))
    }

    /// As programs hold it.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Endpoint(address) => address.as_bytes(),
            Self::Service(service) => service.as_bytes(),
        }
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Endpoint(address) => address.text(),
            Self::Service(service) => format!("netvm://{}", service.socket()),
        }
    }

    /// The endpoint's address: that of a service is asked for. One that is not there yet is waited for until `end`.
    ///
    /// # Errors
    /// No endpoint answers.
    pub(crate) fn endpoint(&self, end: Instant) -> Answer<Address> {
        match self {
            Self::Endpoint(address) => Ok(*address),
            Self::Service(service) => service.ask(end),
        }
    }
}

impl Service {
    /// No service in particular: what an endpoint is opened with that is found by its own address alone.
    pub(crate) fn any() -> Self {
        Self::new((Ipv4Addr::UNSPECIFIED, 0).into())
    }

    pub(crate) fn new(socket: SocketAddr) -> Self {
        let (ip, scope) = match socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        Self {
            magic: MAGIC,
            scope,
            port: socket.port(),
            spare: [0; 22],
            ip: ip.octets(),
        }
    }

    fn read(bytes: &[u8]) -> Answer<Self> {
        let service = Self::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
        (service.magic == MAGIC && service.spare == [0; 22])
            .then_some(service)
            .ok_or(Errno::INVAL)
    }

    /// What `fi_getinfo` is given: a host's name or its IP address, a service's name or its port. Nothing, if neither is given.
    ///
    /// # Errors
    /// There is no such host or service.
    pub(crate) fn find(node: Option<&CStr>, service: Option<&CStr>, flags: u64) -> Answer<Option<Self>> {
        if node.is_none() && service.is_none() {
            return Ok(None);
        }
        let text = |text: Option<&CStr>| text.map(|text| text.to_string_lossy().into_owned());
        let (node, service) = (text(node), text(service));
        let mut wanted = 0;
        for (flag, asks) in [
            (FI_SOURCE, libc::AI_PASSIVE),
            (FI_NUMERICHOST, libc::AI_NUMERICHOST),
        ] {
            wanted |= if flags & flag != 0 { asks } else { 0 };
        }
        let hints = AddrInfoHints {
            socktype: libc::SOCK_STREAM,
            flags: wanted,
            ..AddrInfoHints::default()
        };
        let shown = || {
            let or_any = |text: &Option<String>| text.clone().unwrap_or_else(|| "*".to_owned());
            format!("{}:{}", or_any(&node), or_any(&service))
        };
        let found = getaddrinfo(node.as_deref(), service.as_deref(), Some(hints)).map_err(|error| {
            log::warn(&format!("{}: {}", shown(), Error::from(error)));
            Errno::NODATA
        })?;
        let sockets: Vec<SocketAddr> = found.flatten().map(|info| info.sockaddr).collect();
        // Both ends have to choose alike where a name stands for an address of each kind.
        let chosen = sockets.iter().find(|socket| socket.is_ipv4()).or(sockets.first());
        chosen.map(|socket| Some(Self::new(*socket))).ok_or_else(|| {
            log::warn(&format!("{}: no address of it is known", shown()));
            Errno::NODATA
        })
    }

    pub(crate) fn socket(&self) -> SocketAddr {
        let ip = Ipv6Addr::from(self.ip);
        match ip.to_ipv4_mapped() {
            Some(ip) => (ip, self.port).into(),
            None => std::net::SocketAddrV6::new(ip, self.port, 0, self.scope).into(),
        }
    }

    /// Whether an endpoint that is opened with it listens.
    pub(crate) const fn is_at_a_port(&self) -> bool {
        self.port != 0
    }

    fn ask(&self, end: Instant) -> Answer<Address> {
        let socket = self.socket();
        let refused = |why: &str| {
            log::warn(&format!("netvm://{socket}: {why}"));
            Errno::HOSTUNREACH
        };
        if !self.is_at_a_port() {
            return Err(refused("it names no port"));
        }
        let bytes = loop {
            match ask_once(socket, end) {
                Ok(bytes) => break bytes,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && Instant::now() < end => {
                    std::thread::sleep(PAUSE);
                }
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Err(refused(
                        "it tells no address: without FI_NETVM_UDP only processes of its machine are answered",
                    ));
                }
                Err(error) => return Err(refused(&error.to_string())),
            }
        };
        Address::read(&bytes).map_err(|_| refused("what answers is no endpoint of netvm"))
    }
}

fn ask_once(socket: SocketAddr, end: Instant) -> Result<[u8; ADDRESS_BYTES]> {
    let left = || {
        let left = end.saturating_duration_since(Instant::now());
        left.max(Duration::from_millis(1))
    };
    let mut stream = TcpStream::connect_timeout(&socket, left())?;
    // A port that TCP has given to this very connection: its two ends are one.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(Some(left()))?;
    let mut bytes = [0; ADDRESS_BYTES];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Tells an endpoint's address at a service, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registrar {
    service: Service,
    listener: Arc<TcpListener>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Registrar {
    /// Listens at a service. Other machines are answered only if this process is `reached` from there.
    ///
    /// # Errors
    /// The port is another program's, or the IP address is not this machine's.
    pub(crate) fn start(service: &Service, address: Address, reached: bool) -> Answer<Self> {
        let socket = service.socket();
        let listener = TcpListener::bind(socket).map_err(|error| {
            log::warn(&format!("netvm://{socket}: {error}"));
            Errno(error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL))
        })?;
        let (listener, over) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let (listens, ends) = (Arc::clone(&listener), Arc::clone(&over));
        let thread = std::thread::Builder::new()
            .name("netvm-fi-name".into())
            .spawn(move || answer_all(&listens, &ends, &address, reached))
            .map_err(|_| Errno::NOMEM)?;
        Ok(Self {
            service: *service,
            listener,
            over,
            thread: Some(thread),
        })
    }

    /// Whether it listens there.
    pub(crate) fn is_at(&self, service: &Service) -> bool {
        self.service == *service
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        // `accept` ends: on Linux it does for a listener, too.
        let _ = rustix::net::shutdown(&*self.listener, rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer_all(listener: &TcpListener, over: &AtomicBool, address: &Address, reached: bool) {
    while !over.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, from)) => {
                let is_near = stream
                    .local_addr()
                    .is_ok_and(|own| is_one_host(own.ip(), from.ip()));
                if is_near || reached {
                    // A new connection has room for so little: this does not wait.
                    let _ = (&stream).write_all(address.as_bytes());
                }
            }
            // There are no descriptors, or the connection is gone already.
            Err(_) if !over.load(Ordering::Acquire) => std::thread::sleep(PAUSE),
            Err(_) => {}
        }
    }
}

/// Whether both ends of a connection are of one machine: it calls itself by the address that it was called by.
fn is_one_host(one: IpAddr, other: IpAddr) -> bool {
    let plain = |ip: IpAddr| ip.to_canonical();
    plain(one) == plain(other) || (plain(one).is_loopback() && plain(other).is_loopback())
}

#[cfg(test)]
mod tests {
    use netvm::{NodeId, PortId};

    use super::*;

    const LOCALHOST: &CStr = c"127.0.0.1";

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    fn an_address() -> Address {
        Address::new(NodeId(3), PortId(4), PortId(5), None, 6)
    }

    /// A service at a port that the kernel chose, with a listener that has it.
    fn taken() -> (Service, TcpListener) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        (Service::new(listener.local_addr().unwrap()), listener)
    }

    fn free() -> Service {
        taken().0
    }

    #[test]
    fn a_service_is_read_as_it_was_written() {
        for socket in [
            "10.0.0.1:4800",
            "[2001:db8::1]:1",
            "[fe80::1%7]:65535",
            "0.0.0.0:0",
        ] {
            let socket: SocketAddr = socket.parse().unwrap();
            let named = Named::Service(Service::new(socket));
            assert_eq!(Named::read(named.bytes()), Ok(named));
            assert_eq!(Service::new(socket).socket(), socket);
        }
        let endpoint = Named::Endpoint(an_address());
        assert_eq!(Named::read(endpoint.bytes()), Ok(endpoint));
        assert_eq!(Named::read(&[0; ADDRESS_BYTES]), Err(Errno::INVAL));
        assert_eq!(Named::read(&[0; 16]), Err(Errno::INVAL));
    }

    #[test]
    fn names_are_looked_up_as_fi_getinfo_says() {
        let socket = |node, service, flags| {
            let found: Answer<Option<Service>> = Service::find(node, service, flags);
            found.map(|found| found.map(|found| found.socket().to_string()))
        };
        assert_eq!(socket(None, None, 0), Ok(None));
        assert_eq!(
            socket(Some(LOCALHOST), Some(c"9228"), 0),
            Ok(Some("127.0.0.1:9228".to_owned()))
        );
        assert_eq!(
            socket(Some(c"localhost"), None, FI_SOURCE),
            Ok(Some("127.0.0.1:0".to_owned()))
        );
        assert_eq!(
            socket(None, Some(c"9228"), FI_SOURCE),
            Ok(Some("0.0.0.0:9228".to_owned()))
        );
        assert_eq!(
            socket(Some(c"::1"), Some(c"1"), 0),
            Ok(Some("[::1]:1".to_owned()))
        );
        assert_eq!(
            socket(Some(c"localhost"), None, FI_NUMERICHOST),
            Err(Errno::NODATA)
        );
        assert_eq!(
            socket(Some(LOCALHOST), Some(c"no such service"), 0),
            Err(Errno::NODATA)
        );
    }

    #[test]
    fn an_endpoint_is_found_at_its_service_while_it_listens() {
        let service = free();
        let address = an_address();
        let registrar = Registrar::start(&service, address, false).unwrap();
        assert_eq!(Named::Service(service).endpoint(soon()), Ok(address));
        assert_eq!(
            Registrar::start(&service, address, false).map(drop),
            Err(Errno(libc::EADDRINUSE))
        );
        drop(registrar);
        assert_eq!(
            Named::Service(service).endpoint(Instant::now()),
            Err(Errno::HOSTUNREACH)
        );
        // The port is free at once.
        Registrar::start(&service, address, true).map(drop).unwrap();
    }

    #[test]
    fn one_that_is_not_there_yet_is_waited_for() {
        let service = free();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| Named::Service(service).endpoint(soon()));
            std::thread::sleep(3 * PAUSE);
            let _registrar = Registrar::start(&service, an_address(), false).unwrap();
            assert_eq!(asks.join().unwrap(), Ok(an_address()));
        });
    }

    #[test]
    fn what_is_no_endpoint_is_told_apart() {
        for said in [&b""[..], b"220 mail", &[b'x'; 1000]] {
            let (service, listener) = taken();
            std::thread::scope(|scope| {
                scope.spawn(|| listener.accept().unwrap().0.write_all(said).unwrap());
                assert_eq!(Named::Service(service).endpoint(soon()), Err(Errno::HOSTUNREACH));
            });
        }
        assert_eq!(Service::any().ask(soon()), Err(Errno::HOSTUNREACH));
        // It says nothing at all.
        let (service, _listener) = taken();
        let end = Instant::now() + 2 * PAUSE;
        assert_eq!(Named::Service(service).endpoint(end), Err(Errno::HOSTUNREACH));
    }

    #[test]
    fn hosts_are_told_apart_by_their_addresses() {
        let one = |a: &str, b: &str| is_one_host(a.parse().unwrap(), b.parse().unwrap());
        assert!(one("10.0.0.1", "10.0.0.1"));
        assert!(one("127.0.0.1", "127.0.0.2"));
        assert!(one("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!one("10.0.0.1", "10.0.0.2"));
        assert!(!one("127.0.0.1", "10.0.0.2"));
    }
}
