//! Where a listener is.

use netvm::{NodeId, PortId};
use std::fmt;
use std::str::FromStr;

/// Where a listener is: a node, the port of its [`Net`](crate::Net) there, and its number in that, as a port of TCP is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The node.
    pub node: NodeId,
    /// The port of the node that the other process's [`Net`](crate::Net) has.
    pub port: PortId,
    /// The listener's number.
    pub service: u16,
}

impl Address {
    /// Of three numbers.
    pub fn new(node: impl Into<NodeId>, port: impl Into<PortId>, service: u16) -> Self {
        Self {
            node: node.into(),
            port: port.into(),
            service,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.node, self.port, self.service)
    }
}

/// An address is written `node:port:service`: three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnAddress;

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an address is written NODE:PORT:SERVICE, such as 0:7:80")
    }
}

impl std::error::Error for NotAnAddress {}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let mut parts = text.split(':').map(|part| part.parse::<u16>());
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(Ok(node)), Some(Ok(port)), Some(Ok(service)), None) => {
                Ok(Self::new(NodeId(node), PortId(port), service))
            }
            _ => Err(NotAnAddress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let address = Address::new(NodeId(1), PortId(7), 80);
        assert_eq!(address.to_string(), "1:7:80");
        assert_eq!("1:7:80".parse(), Ok(address));
        for wrong in ["", "1:7", "1:7:80:9", "a:7:80", "1:7:65536", "1::2", "-1:7:80"] {
            assert_eq!(wrong.parse::<Address>(), Err(NotAnAddress), "{wrong}");
        }
    }
}
