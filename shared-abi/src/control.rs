//! What host drivers say to each other, as payload of [`Kind::Control`](crate::wire::Kind::Control)
//! messages: binding to an exported name and letting go of it (thesis 4.1.3).
//!
//! A control message always lands in the bounce page of its window slot, where the host driver
//! reads it; so it can neither be dropped nor overflow anything.

use crate::shared_queue::QueueShape;
use crate::status::Status;
use crate::units::{CapabilitySlot, NodeId, NotificationId, PortId, Token, VirtAddr};
use crate::words::{join, split};
use bitflags::bitflags;

/// Words of a control message.
pub const CONTROL_WORDS: usize = 32;
/// Bytes of a control message.
pub const CONTROL_BYTES: usize = CONTROL_WORDS * 4;
/// Slots in which a driver places outgoing control messages.
pub const CONTROL_SLOTS: u16 = 64;
/// Longest name of an export in bytes.
pub const NAME_BYTES: usize = 64;

bitflags! {
    /// What a capability allows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Modes: u16 {
        /// Read the memory.
        const READ = 1;
        /// Write the memory.
        const WRITE = 2;
        /// Do atomic operations on it.
        const ATOMIC = 4;
        /// Notify the port.
        const NOTIFY = 8;
        /// Append to the shared queue in it ([`crate::shared_queue`]).
        const APPEND = 16;
    }
}

/// The name of an export: 1 to 64 bytes, padded with zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name([u8; NAME_BYTES]);

impl Name {
    /// From text.
    ///
    /// # Errors
    /// [`Status::Malformed`] when it is empty, longer than 64 bytes or holds a zero byte.
    pub fn new(text: &str) -> Result<Self, Status> {
        let mut bytes = [0; NAME_BYTES];
        match bytes.get_mut(..text.len()) {
            Some(room) if !text.is_empty() && !text.as_bytes().contains(&0) => {
                room.copy_from_slice(text.as_bytes())
            }
            _ => return Err(Status::Malformed),
        }
        Ok(Self(bytes))
    }

    /// The text, or nothing when it is not UTF-8 (names from the wire may be anything).
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let len = self.0.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
        core::str::from_utf8(self.0.get(..len)?).ok()
    }

    /// The padded bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; NAME_BYTES] {
        &self.0
    }
}

/// An import's result: the capability, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// First address of the export at the exporter.
    pub start: VirtAddr,
    /// Its length in bytes.
    pub len: u64,
    /// Slot in the exporter's capability table.
    pub capability: CapabilitySlot,
    /// The slot's secret.
    pub secret: u64,
    /// What it allows.
    pub modes: Modes,
    /// Lowest notification number that it allows.
    pub notify_first: NotificationId,
    /// Highest notification number that it allows.
    pub notify_last: NotificationId,
    /// The shared queue in it.
    pub queue: QueueShape,
}

/// A control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Asks to import an export of the destination port.
    Import {
        /// Echoed in the answer.
        token: Token,
        /// The exporting port.
        port: PortId,
        /// The importing port.
        importer: PortId,
        /// The modes wanted; the grant has at most these.
        modes: Modes,
        /// The export's name.
        name: Name,
    },
    /// The import is granted.
    Granted {
        /// From the request.
        token: Token,
        /// What was granted.
        grant: Grant,
    },
    /// The import is refused.
    Refused {
        /// From the request.
        token: Token,
        /// Why.
        status: Status,
    },
    /// The importer lets go of a capability.
    Release {
        /// The slot.
        capability: CapabilitySlot,
        /// Its secret, as proof.
        secret: u64,
    },
    /// The exporter tells an importer that a capability is revoked.
    Revoked {
        /// The slot.
        capability: CapabilitySlot,
        /// The node whose table it is in.
        exporter: NodeId,
    },
}

impl Control {
    /// As words of a payload.
    #[must_use]
    pub fn encode(&self) -> [u32; CONTROL_WORDS] {
        let mut words = [0; CONTROL_WORDS];
        match self {
            Self::Import {
                token,
                port,
                importer,
                modes,
                name,
            } => {
                words[0] = 1;
                words[1] = token.0;
                words[2] = u32::from(port.0) | (u32::from(importer.0) << 16);
                words[3] = u32::from(modes.bits());
                for (word, chunk) in words[4..20].iter_mut().zip(name.0.chunks_exact(4)) {
                    *word = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
                }
            }
            Self::Granted { token, grant } => {
                words[0] = 2;
                words[1] = token.0;
                [words[2], words[3]] = split(grant.start.0);
                [words[4], words[5]] = split(grant.len);
                words[6] = grant.capability.0;
                words[7] = u32::from(grant.modes.bits());
                [words[8], words[9]] = split(grant.secret);
                words[10] = grant.notify_first.0;
                words[11] = grant.notify_last.0;
                words[12] = grant.queue.word();
            }
            Self::Refused { token, status } => {
                words[0] = 3;
                words[1] = token.0;
                words[2] = u32::from(status.code());
            }
            Self::Release { capability, secret } => {
                words[0] = 4;
                words[1] = capability.0;
                [words[2], words[3]] = split(*secret);
            }
            Self::Revoked { capability, exporter } => {
                words[0] = 5;
                words[1] = capability.0;
                words[2] = u32::from(exporter.0);
            }
        }
        words
    }

    /// From words of a payload.
    ///
    /// # Errors
    /// [`Status::Malformed`] when they are no control message.
    pub fn decode(words: &[u32; CONTROL_WORDS]) -> Result<Self, Status> {
        let token = Token(words[1]);
        Ok(match words[0] {
            1 => {
                let mut bytes = [0; NAME_BYTES];
                for (chunk, word) in bytes.chunks_exact_mut(4).zip(&words[4..20]) {
                    chunk.copy_from_slice(&word.to_le_bytes());
                }
                Self::Import {
                    token,
                    port: PortId(words[2] as u16),
                    importer: PortId((words[2] >> 16) as u16),
                    modes: Modes::from_bits(words[3] as u16).ok_or(Status::Malformed)?,
                    name: Name(bytes),
                }
            }
            2 => Self::Granted {
                token,
                grant: Grant {
                    start: VirtAddr(join(words[2], words[3])),
                    len: join(words[4], words[5]),
                    capability: CapabilitySlot(words[6]),
                    modes: Modes::from_bits(words[7] as u16).ok_or(Status::Malformed)?,
                    secret: join(words[8], words[9]),
                    notify_first: NotificationId(words[10]),
                    notify_last: NotificationId(words[11]),
                    queue: QueueShape::from_word(words[12]),
                },
            },
            3 => Self::Refused {
                token,
                status: Status::from_code(words[2] as u8),
            },
            4 => Self::Release {
                capability: CapabilitySlot(words[1]),
                secret: join(words[2], words[3]),
            },
            5 => Self::Revoked {
                capability: CapabilitySlot(words[1]),
                exporter: NodeId(words[2] as u16),
            },
            _ => return Err(Status::Malformed),
        })
    }
}
