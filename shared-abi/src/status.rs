//! How an operation ended; the same codes on the wire, in error records and in reply slots.

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// Outcome of an operation.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Status { $($(#[$doc])* $name = $code,)* }

        impl Status {
            /// All codes, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// From the code; unknown ones are [`Status::Malformed`].
            #[must_use]
            pub const fn from_code(code: u8) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Malformed }
            }

            /// The code.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }
        }
    };
}

statuses! {
    /// It is done.
    #[default]
    Ok = 0,
    /// The descriptor or message makes no sense.
    Malformed = 1,
    /// The operation is not offered by this firmware.
    Unsupported = 2,
    /// No such node, or the node table does not know it.
    NoSuchNode = 3,
    /// The port is not open, or has been closed since.
    NoSuchPort = 4,
    /// The capability is unknown, revoked, of another holder, or its secret is wrong.
    CapabilityRefused = 5,
    /// Outside of the range that the capability names.
    OutOfRange = 6,
    /// The capability does not allow this kind of access.
    ModeRefused = 7,
    /// The lease of the capability is over.
    Expired = 8,
    /// The destination or source page is not mapped in the process.
    Unmapped = 9,
    /// The process may only read the page.
    ReadOnly = 10,
    /// The host has no memory to page in with.
    NoMemory = 11,
    /// Past the end of the mapped file, or an IO error while paging in.
    BusError = 12,
    /// The one-shot part of the receiver's notification queue is full.
    QueueFull = 13,
    /// The link to the node has failed; its fate is unknown.
    LinkLost = 14,
    /// The message belongs to an earlier life of a node.
    StaleIncarnation = 15,
    /// The local address is not registered, or crosses a page.
    LocalAddress = 16,
    /// No export of that name.
    NoSuchExport = 17,
    /// The allow-list of the export does not name the caller, or not with these modes.
    NotAllowed = 18,
    /// A table is full.
    TableFull = 19,
    /// It took longer than it may: an answer did not come, or a page of the target or of the source.
    TimedOut = 20,
    /// The card is gone or does not answer.
    CardGone = 21,
    /// The two sides speak different versions, or have different page sizes.
    VersionMismatch = 22,
    /// The operation was cut off by a revocation or an unexport.
    Revoked = 23,
    /// Not carried out: it asked for order, and an earlier operation of its stream has failed.
    HeldBack = 24,
    /// Not carried out: the shared queue has no free place. For its stream the append has not failed.
    NoPlace = 25,
}
