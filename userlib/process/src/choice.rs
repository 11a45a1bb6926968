//! Which node a program works on, chosen where it runs: `"auto"`, `"soft"`, `"device:0"`.
//!
//! ```no_run
//! let opened = netvm_process::open("auto")?;
//! let port = netvm::Port::open(&opened.node(), netvm::PortConfig::default())?;
//! # let _ = port;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use netvm::backend::Refusal;
use netvm::device;

use crate::soft::{SoftError, SoftNode};

/// What decides for a program that asks for `"auto"`.
pub const VARIABLE: &str = "NETVM_NODE";

/// What may be asked for.
const CHOICES: &str = "'auto', 'soft', 'soft:NAME' for a node that others find, 'soft://ADDRESS:PORT' for one with UDP, 'device' or 'device:0'";

/// Why there is no node.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The choice is none.
    #[error("'{0}' is no node: {CHOICES}")]
    NoSuchChoice(String),
    /// The emulator's nodes are made several at a time.
    #[error("the emulator's nodes are made together, by `netvm_emulator::Emulator::builder`: {CHOICES}")]
    Emulator,
    /// The variable does not decide.
    #[error("{VARIABLE} says '{0}', which does not decide: {CHOICES}")]
    Variable(String),
    /// The software card.
    #[error(transparent)]
    Soft(#[from] SoftError),
    /// The kernel's card.
    #[error("{path}: {reason}")]
    Device {
        /// Its device.
        path: String,
        /// Why it cannot be opened.
        reason: String,
    },
}

/// A node that was opened by its choice.
#[derive(Clone, Debug)]
pub enum Opened {
    /// This process as a node.
    Soft(SoftNode),
    /// The node of the kernel's card.
    Device(netvm::Node),
}

impl Opened {
    /// The node, to open ports on.
    #[must_use]
    pub fn node(&self) -> netvm::Node {
        match self {
            Self::Soft(node) => node.node(),
            Self::Device(node) => node.clone(),
        }
    }

    /// The software card's, to link it to others; `None` for the kernel's card, whose driver does that.
    #[must_use]
    pub const fn soft(&self) -> Option<&SoftNode> {
        match self {
            Self::Soft(node) => Some(node),
            Self::Device(_) => None,
        }
    }
}

/// A choice that makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The kernel's card if there is one, else the software card.
    Auto,
    /// The software card: a name that others find it by, and an address for UDP.
    Soft {
        /// The name.
        name: Option<String>,
        /// The address.
        udp: Option<String>,
    },
    /// The kernel's card of this number.
    Device(u32),
}

impl std::str::FromStr for Choice {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let none = || OpenError::NoSuchChoice(text.into());
        let given = |part: &str| (!part.is_empty()).then(|| part.to_owned()).ok_or_else(none);
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "soft" => Ok(Self::Soft {
                name: None,
                udp: None,
            }),
            None if text == "device" => Ok(Self::Device(0)),
            None if text == "emulator" => Err(OpenError::Emulator),
            Some(("soft", rest)) => match rest.strip_prefix("//") {
                Some(address) => Ok(Self::Soft {
                    name: None,
                    udp: Some(given(address)?),
                }),
                None => Ok(Self::Soft {
                    name: Some(given(rest)?),
                    udp: None,
                }),
            },
            Some(("device", number)) => number.parse().map(Self::Device).map_err(|_| none()),
            _ => Err(none()),
        }
    }
}

impl std::fmt::Display for Choice {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Soft { udp: Some(udp), .. } => write!(out, "soft://{udp}"),
            Self::Soft { name: Some(name), .. } => write!(out, "soft:{name}"),
            Self::Soft { .. } => out.write_str("soft"),
            Self::Device(number) => write!(out, "device:{number}"),
        }
    }
}

/// What `"auto"` is here: what [`VARIABLE`] says, or the kernel's card if it is there, or the software card.
///
/// # Errors
/// The variable makes no sense.
pub fn auto(variable: Option<&str>) -> Result<Choice, OpenError> {
    match variable {
        Some(said) if !said.is_empty() => match said.parse() {
            Ok(Choice::Auto) | Err(OpenError::NoSuchChoice(_)) => Err(OpenError::Variable(said.into())),
            other => other,
        },
        _ if device::present() => Ok(Choice::Device(0)),
        _ => Ok(Choice::Soft {
            name: None,
            udp: None,
        }),
    }
}

/// Opens a node by its choice: `"auto"`, `"soft"`, `"soft:NAME"`, `"soft://127.0.0.1:4800"`, `"device:0"`.
///
/// # Errors
/// The choice makes no sense, or there is no such node. An address that other machines reach is refused: links are not
/// encrypted, and [`crate::SoftBuilder::insecure`] allows it in so many words.
pub fn open(choice: &str) -> Result<Opened, OpenError> {
    let choice = match choice.parse()? {
        Choice::Auto => auto(std::env::var(VARIABLE).ok().as_deref())?,
        other => other,
    };
    match choice {
        Choice::Device(number) => {
            let path = format!("/dev/netvm{number}");
            let opened = device::open(Path::new(&path)).map(Opened::Device);
            opened.map_err(|refusal| OpenError::Device {
                path,
                reason: reason(&refusal),
            })
        }
        Choice::Soft { name, udp } => {
            let mut builder = SoftNode::builder();
            if let Some(name) = name {
                builder = builder.name(name);
            }
            if let Some(udp) = udp {
                builder = builder.udp(udp);
            }
            Ok(Opened::Soft(builder.start()?))
        }
        Choice::Auto => Err(OpenError::NoSuchChoice("auto".into())),
    }
}

fn reason(refusal: &Refusal) -> String {
    match refusal {
        Refusal::System { what, errno } => {
            format!("{what}: {}", std::io::Error::from_raw_os_error(*errno))
        }
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in [
            "auto",
            "soft",
            "soft:store",
            "soft://127.0.0.1:4800",
            "soft://[::1]:0",
            "device:7",
        ] {
            assert_eq!(text.parse::<Choice>().unwrap().to_string(), text);
        }
        assert_eq!("device".parse::<Choice>().unwrap(), Choice::Device(0));
        for text in [
            "",
            "softly",
            "soft:",
            "soft://",
            "device:",
            "device:x",
            "device:-1",
            "hard",
            ":",
        ] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(error.contains("'auto'"), "{error}");
        }
        assert!(matches!("emulator".parse::<Choice>(), Err(OpenError::Emulator)));
    }

    #[test]
    fn the_variable_decides_for_auto() {
        let named = |said| auto(Some(said)).map(|choice| choice.to_string());
        assert_eq!(named("soft:a").unwrap(), "soft:a");
        assert_eq!(named("device:3").unwrap(), "device:3");
        for text in ["auto", "nonsense"] {
            assert!(matches!(named(text), Err(OpenError::Variable(_))), "{text}");
        }
        assert_ne!(auto(Some("")).unwrap(), Choice::Auto);
        assert_ne!(auto(None).unwrap(), Choice::Auto);
    }

    #[test]
    fn a_node_is_opened_by_its_choice() {
        let opened = open("soft").unwrap();
        assert_eq!(opened.node().backend_name(), "soft");
        assert_eq!(opened.soft().map(SoftNode::number), Some(opened.node().id()));
        let error = open("device:4000000000").unwrap_err().to_string();
        assert!(
            error.contains("/dev/netvm4000000000") && error.contains("No such file"),
            "{error}"
        );
        assert!(matches!(
            open("soft://0.0.0.0:0"),
            Err(OpenError::Soft(SoftError::Insecure(_)))
        ));
    }
}
