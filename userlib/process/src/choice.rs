//! Which node a program works on, chosen where it runs: `"auto"`, `"soft"`, `"device:0"`.
//!
//! ```no_run
//! let opened = netvm_process::open("auto")?;
//! let port = netvm::Port::open(&opened.node(), netvm::PortConfig::default())?;
//! # let _ = port;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use netvm::backend::Refusal;
use netvm::device;

use crate::soft::{ClusterKey, KeyFileError, SoftError, SoftNode};

/// What decides for a program that asks for `"auto"`.
pub const VARIABLE: &str = "NETVM_NODE";
/// Names the file of a cluster key for nodes with UDP whose choice names none.
pub const KEY_FILE_VARIABLE: &str = "NETVM_KEY_FILE";

/// What may be asked for.
const CHOICES: &str = "'auto', 'soft', 'soft:NAME' for a node that others find, 'soft://ADDRESS:PORT' for one with UDP, \
     'soft://ADDRESS:PORT?key-file=FILE' for one that encrypts it, 'device' or 'device:0'";
/// How the option begins that names a key file.
const KEY_FILE: &str = "key-file=";

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
    /// There is no key in the file that is named.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// An address that other machines reach, and no key.
    #[error(
        "{0} is reached by other machines, and there is no key that encrypts UDP: name a key file, as in \
         'soft://ADDRESS:PORT?key-file=FILE' or by {KEY_FILE_VARIABLE} (`netvm key new` makes one), or use 127.0.0.1"
    )]
    Insecure(SocketAddr),
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
    /// The software card: a name that others find it by, and an address for UDP with a key.
    Soft {
        /// The name.
        name: Option<String>,
        /// The address.
        udp: Option<String>,
        /// The file of the cluster key that encrypts UDP.
        key_file: Option<PathBuf>,
    },
    /// The kernel's card of this number.
    Device(u32),
}

impl Choice {
    /// The software card without a name and without UDP.
    const SOFT: Self = Self::Soft {
        name: None,
        udp: None,
        key_file: None,
    };
}

impl std::str::FromStr for Choice {
    type Err = OpenError;

    fn from_str(text: &str) -> Result<Self, OpenError> {
        let none = || OpenError::NoSuchChoice(text.into());
        let given = |part: &str| (!part.is_empty()).then(|| part.to_owned()).ok_or_else(none);
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "soft" => Ok(Self::SOFT),
            None if text == "device" => Ok(Self::Device(0)),
            None if text == "emulator" => Err(OpenError::Emulator),
            Some(("soft", rest)) => match rest.strip_prefix("//") {
                Some(rest) => {
                    // No address has a question mark.
                    let (address, option) = rest
                        .split_once('?')
                        .map_or((rest, None), |(address, option)| (address, Some(option)));
                    let file = |option: &str| given(option.strip_prefix(KEY_FILE).ok_or_else(none)?);
                    Ok(Self::Soft {
                        name: None,
                        udp: Some(given(address)?),
                        key_file: option.map(file).transpose()?.map(PathBuf::from),
                    })
                }
                None => Ok(Self::Soft {
                    name: Some(given(rest)?),
                    udp: None,
                    key_file: None,
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
            Self::Soft {
                udp: Some(udp),
                key_file: Some(file),
                ..
            } => write!(out, "soft://{udp}?{KEY_FILE}{}", file.display()),
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
        _ => Ok(Choice::SOFT),
    }
}

/// Opens a node by its choice: `"auto"`, `"soft"`, `"soft:NAME"`, `"soft://127.0.0.1:4800"`, `"device:0"`.
///
/// With a cluster key everything that goes over UDP is encrypted ([`crate::SoftBuilder::key`]). Its file is named by the choice,
/// `"soft://10.0.0.1:4800?key-file=/etc/netvm.key"`, or by [`KEY_FILE_VARIABLE`] for all nodes with UDP whose choice names none.
/// An address that other machines reach needs a key here; [`crate::SoftBuilder::insecure`] does without.
///
/// # Errors
/// The choice makes no sense, there is no such node, or there is no key in the file that is named.
pub fn open(choice: &str) -> Result<Opened, OpenError> {
    let choice = match choice.parse()? {
        Choice::Auto => auto(std::env::var(VARIABLE).ok().as_deref())?,
        other => other,
    };
    open_choice(choice, std::env::var_os(KEY_FILE_VARIABLE).map(PathBuf::from))
}

/// `key_file`: for a choice that names none.
fn open_choice(choice: Choice, key_file: Option<PathBuf>) -> Result<Opened, OpenError> {
    match choice {
        Choice::Device(number) => {
            let path = format!("/dev/netvm{number}");
            let opened = device::open(Path::new(&path)).map(Opened::Device);
            opened.map_err(|refusal| OpenError::Device {
                path,
                reason: reason(&refusal),
            })
        }
        Choice::Soft {
            name,
            udp,
            key_file: named,
        } => {
            let mut builder = SoftNode::builder();
            if let Some(name) = name {
                builder = builder.name(name);
            }
            if let Some(udp) = udp {
                builder = builder.udp(udp);
                // A variable that is set to nothing names nothing, as in a shell.
                let unnamed = key_file.filter(|file| !file.as_os_str().is_empty());
                if let Some(file) = named.or(unnamed) {
                    builder = builder.key(ClusterKey::read_file(file)?);
                }
            }
            match builder.start() {
                Ok(node) => Ok(Opened::Soft(node)),
                Err(SoftError::Insecure(address)) => Err(OpenError::Insecure(address)),
                Err(error) => Err(error.into()),
            }
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
    use crate::soft::LinkError;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in [
            "auto",
            "soft",
            "soft:store",
            "soft://127.0.0.1:4800",
            "soft://[::1]:0",
            "soft://10.0.0.1:4800?key-file=/etc/netvm key?",
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
            "soft://?key-file=k",
            "soft://127.0.0.1:0?",
            "soft://127.0.0.1:0?key-file=",
            "soft://127.0.0.1:0?keyfile=k",
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
        let error = open_choice("soft://0.0.0.0:0".parse().unwrap(), None).unwrap_err();
        assert!(matches!(error, OpenError::Insecure(_)));
        let text = error.to_string();
        assert!(
            text.contains("?key-file=FILE") && text.contains("NETVM_KEY_FILE"),
            "{text}"
        );
    }

    /// A file of a test's own, gone when dropped.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("netvm-choice-{}-{name}", std::process::id())))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_node_with_udp_has_the_key_of_the_file_that_is_named() {
        let (one, two) = (Scratch::new("one"), Scratch::new("two"));
        for file in [&one, &two] {
            ClusterKey::generate().unwrap().write_file(&file.0).unwrap();
        }
        let here = || "soft://127.0.0.1:0".to_owned();
        let named = |file: &Scratch| format!("{}?key-file={}", here(), file.0.display());
        let open = |choice: String, variable: Option<&Scratch>| {
            let opened = open_choice(choice.parse().unwrap(), variable.map(|file| file.0.clone()));
            opened.unwrap().soft().unwrap().clone()
        };
        let patience = std::time::Duration::from_secs(5);
        let server = open(named(&one), Some(&two));
        let address = format!("udp://{}", server.udp_address().unwrap());
        let connect = |client: SoftNode| client.connect(&address, patience);
        assert_eq!(connect(open(here(), Some(&one))).unwrap(), server.number());
        assert_eq!(connect(open(named(&one), None)).unwrap(), server.number());
        for (client, wanted) in [
            (open(here(), Some(&two)), LinkError::OtherKey),
            (open(here(), None), LinkError::WantsKey),
        ] {
            match connect(client) {
                Err(SoftError::Link(error)) => assert_eq!(error, wanted),
                other => panic!("{other:?}"),
            }
        }
        // With a key, an address that other machines reach is allowed.
        open("soft://0.0.0.0:0".into(), Some(&one));
        assert!(open_choice(here().parse().unwrap(), Some(PathBuf::new())).is_ok());
    }

    #[test]
    fn a_file_that_is_no_key_is_an_error_that_says_what_to_do() {
        let absent = Scratch::new("absent");
        let bad = Scratch::new("bad");
        std::fs::write(&bad.0, "hello").unwrap();
        let everyone = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&bad.0, everyone).unwrap();
        let open = |choice: &str, file: &Scratch| {
            let opened = open_choice(choice.parse().unwrap(), Some(file.0.clone()));
            opened.map(drop).map_err(|error| error.to_string())
        };
        let says = open("soft://127.0.0.1:0", &absent).unwrap_err();
        assert!(says.contains("choice") && says.contains("No such file"), "{says}");
        let says = open("soft://127.0.0.1:0", &bad).unwrap_err();
        assert!(says.contains("chmod 600"), "{says}");
        let by_choice = format!("soft://127.0.0.1:0?key-file={}", absent.0.display());
        let says = open(&by_choice, &bad).unwrap_err();
        assert!(says.contains("No such file"), "{says}");
        // Nothing of a node without UDP is encrypted, so it needs no key.
        assert_eq!(open("soft", &absent), Ok(()));
    }
}
