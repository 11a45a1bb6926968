//! Addresses of nodes over UDP: what a program writes, and what a socket can send to.

use std::io::{Error, ErrorKind};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use super::SoftError;

/// Every address that a name has, in the resolver's order. Never empty.
pub(super) fn all_of(name: &str) -> Result<Vec<SocketAddr>, SoftError> {
    let fails = |source| SoftError::Address {
        address: name.into(),
        source,
    };
    let found: Vec<_> = match name.to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let what =
                "no address with a port, such as 10.0.0.7:4800, [fd00::7]:4800 or a host's name and :4800";
            return Err(fails(Error::new(ErrorKind::InvalidInput, what)));
        }
        Err(error) => return Err(fails(error)),
    };
    if found.is_empty() {
        return Err(fails(Error::new(ErrorKind::NotFound, "this name has no address")));
    }
    Ok(found)
}

/// The first address that a name has: to bind to.
pub(super) fn first_of(name: &str) -> Result<SocketAddr, SoftError> {
    let all = all_of(name)?;
    all.first().copied().ok_or(SoftError::Silent)
}

/// Those of a name's addresses that a socket bound to `own` can send to, as it is to send to them. Never empty.
///
/// A socket of IPv4 reaches IPv4 alone. One of IPv6 reaches both if it is bound to every address of its machine, and then knows those
/// of IPv4 by another form: so datagrams from there tell it, too.
pub(super) fn reached(name: &str, own: SocketAddr) -> Result<Vec<SocketAddr>, SoftError> {
    let as_sent_to = |to: SocketAddr| match (own.ip(), to.ip()) {
        (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => Some(to),
        (IpAddr::V6(own), IpAddr::V4(ip)) if own.is_unspecified() => {
            Some(SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()))
        }
        _ => None,
    };
    let reached: Vec<_> = all_of(name)?.into_iter().filter_map(as_sent_to).collect();
    if !reached.is_empty() {
        return Ok(reached);
    }
    let kind = if own.is_ipv4() { "IPv6" } else { "IPv4" };
    let what = format!("an address of {kind}, which this node cannot send to: its UDP is bound to {own}");
    Err(SoftError::Address {
        address: name.into(),
        source: Error::new(ErrorKind::AddrNotAvailable, what),
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::{Duration, Instant};

    use super::super::{LinkError, SoftNode};
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_socket_reaches_its_own_kind_and_the_other_one_from_every_address() {
        let reach = |own, to: &str| reached(to, at(own)).map(|all| all[0]);
        assert_eq!(reach("127.0.0.1:1", "10.0.0.7:2").unwrap(), at("10.0.0.7:2"));
        assert_eq!(reach("[::1]:1", "[fd00::7]:2").unwrap(), at("[fd00::7]:2"));
        assert_eq!(reach("[::]:1", "10.0.0.7:2").unwrap(), at("[::ffff:10.0.0.7]:2"));
        for (own, to, kind) in [
            ("0.0.0.0:1", "[::1]:2", "IPv6"),
            ("[::1]:1", "127.0.0.1:2", "IPv4"),
        ] {
            let error = reach(own, to).unwrap_err().to_string();
            assert!(error.contains(kind) && error.contains(own), "{error}");
        }
    }

    #[test]
    fn of_several_addresses_the_one_that_answers_is_found() {
        let node = || SoftNode::builder().udp("127.0.0.1:0").start().unwrap();
        let (one, other) = (node(), node());
        let answers = other.udp_address().unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let silent = silent.local_addr().unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        assert_eq!(
            one.dial_one_of(&[silent, silent, answers], end),
            Ok(other.number())
        );
        let soon = Instant::now() + Duration::from_millis(600);
        let none = one.dial_one_of(&[silent, silent], soon);
        assert_eq!(none, Err(LinkError::TimedOut));
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn what_is_no_address_is_told_what_one_looks_like() {
        for text in ["10.0.0.7", "", ":", "10.0.0.7:70000", "[::1]"] {
            let error = all_of(text).unwrap_err().to_string();
            assert!(error.contains("10.0.0.7:4800"), "{text}: {error}");
        }
    }
}
