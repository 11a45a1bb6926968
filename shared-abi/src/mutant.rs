//! Deliberately broken builds, which show that each checker can fail.
//!
//! Without `cfg(netvm_mutant)` [`is`] is constantly false and the compiler removes the broken
//! branch. With it, a test selects one mutant for the whole process.

/// The ways in which the cores can be broken on purpose, and the promise each one breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// P1: an unmap does not wait for the page lock.
    UnmapDoesNotWait = 1,
    /// P2: a bounce record is dropped.
    BounceRecordDropped = 2,
    /// P3: the NIC forgets to mark a page dirty.
    LostDirtyBit = 3,
    /// P3: a write goes through a read-only page entry.
    WriteThroughReadOnly = 4,
    /// P4: a notification is delivered when its message arrives instead of in order.
    NotificationEarly = 5,
    /// P5: the capability check is skipped.
    CapabilityCheckSkipped = 6,
    /// P6: a dead process' page stays mapped.
    DeadPageStaysMapped = 7,
    /// P2: any frame of a peer vouches for those that the wire has lost.
    AnyFrameVouches = 8,
    /// P5: a port that was served stays before those that wait for longer.
    ServedPortStaysFirst = 9,
    /// P4: every second interrupt of a port gets lost.
    PortInterruptLost = 10,
    /// P4: an append acts behind a refused one that its sender does not know of.
    RefusalHoldsNothing = 11,
    /// P4: a one-shot notification is put into no queue.
    OneShotLost = 12,
    /// P6: one staging buffer stays taken once a read has been served from it.
    StagingKept = 13,
    /// P2: a message of 40 bytes is refused, for want of memory that there is.
    FalseRefusal = 14,
    /// P2: a card counts as dead much earlier than it may.
    HealthyCardDead = 15,
    /// P2: a message lands whose DMA has failed.
    FailedDmaLands = 16,
    /// P2: a sequence number past the wrap counts as one that has been seen.
    SeqForgetsWrap = 17,
    /// P1: an atomic goes to work while another one has its unit.
    UnitAdmitsAll = 20,
    /// P2: a write leaves with the bytes of another staging buffer.
    OtherBufferLeaves = 30,
    /// P2: a read is answered with the bytes of another staging buffer.
    OtherBufferAnswers = 31,
    /// P1: a staging buffer counts as free when it begins to leave.
    StagingFreedEarly = 32,
    /// P1: the host hears of a bounced message before it lies in its bounce page.
    BounceToldEarly = 33,
    /// P4: a flush is answered before what was sent before it has landed.
    FlushDoesNotWait = 21,
    /// Values: a lock is handed on before what was written under it to other nodes has landed.
    LockLeavesData = 50,
    /// Values: the next holder is not told that a holder has died.
    DeadHolderUntold = 51,
    /// Values: a participant that tries for a lock has it, held or not.
    TryTakesHeldLock = 52,
    /// Values: an asymmetric lock is given back before what was written under it.
    AsymmetricUnordered = 53,
    /// Values: two tokens are given for one.
    TokenMade = 54,
    /// Values: two tokens are taken for one.
    TokenLost = 55,
    /// Values: a signal takes the first waiter out of its queue and does not wake it.
    SignalLost = 56,
    /// Values: a waiter that is woken wakes the one behind it.
    SignalWakesTwo = 57,
    /// Values: an atomic is answered by the new value of its word.
    AtomicAnswersNew = 22,
    /// Reads: a reply stays in its bounce page, and its read counts as done.
    ReplyStaysInBounce = 80,
    /// Reads: an ordered one does not wait for what was sent before it.
    ReadOvertakes = 81,
    /// Paging: a page is mapped that was taken away since it was asked for.
    RaceUnseen = 82,
    /// Paging: a page that may only be read is mapped for writing.
    MapsForWriting = 83,
    /// Paging: the host forgets that the card has written a page that it unmaps.
    HostForgetsDirty = 84,
    /// The emulator's pager: a page that the card alone has written is thrown out unsaved.
    PagerForgetsDirty = 85,
    /// Paging: an atomic that the host carries out is done twice.
    AtomicDoneTwice = 86,
    /// Paging: a copy that found its page thrown out counts as done.
    EvictedCopyDone = 87,
    /// Locks: a release overtakes what its holder wrote to the home.
    ReleaseOvertakes = 61,
    /// Locks: a holder that finds a successor asking leaves all the same.
    SuccessorForgotten = 62,
    /// Channels: an entry is the sender's again while its message is borrowed.
    BorrowedIsFree = 70,
    /// Channels: one message more is sent than the queue has room for.
    OneTooMany = 71,
    /// Channels: what is sent from a region is signalled before it has landed.
    HeadSignals = 72,
    /// Shared queues: a place is given out again while its message is borrowed.
    BorrowedPlaceIsFree = 73,
    /// Channels: a receiver tells a sender of no entries that are free again.
    CreditsKept = 74,
    /// Values: a message is sent a second time where there is room.
    MessageTwice = 75,
    /// Values: one message in sixteen counts as sent, and is not.
    MessageLost = 76,
    /// Values: the end of a channel goes well though a message is lost.
    LossUntold = 77,
    /// Values: the receiver of a shared queue skips a message.
    PlaceSkipped = 78,
    /// P5: the notification of a message is not held against its capability.
    NotificationUnchecked = 40,
    /// P7: before it sleeps, the NIC looks at all ports at once.
    SleepLooksAtAllPorts = 41,
    /// P7: a look of the host at its deadlines goes through all ports.
    DeadlineLooksAtAllPorts = 42,
    /// P2: of four errors that arrive, one is not told to its port.
    ErrorUntold = 90,
    /// P2: an error that arrives is told twice.
    ErrorTwice = 91,
    /// P2: an error names no address.
    ErrorNowhere = 92,
    /// P2: a message in a bounce page that was not copied counts as copied.
    BouncedUncopied = 93,
    /// P4: of eight signals, one does not reach the count that its app reads.
    ShadowKept = 94,
    /// P6: an error that arrives is told to the port's next owner.
    ErrorToNextOwner = 95,
    /// P6: a port that opens has the block that its last owner left.
    BlockKept = 96,
    /// P6: a capability that is taken back stays valid in the card's table.
    CapabilityKept = 97,
    /// P2: a port that once got nothing in its turn gets no other turn.
    PortForgotten = 43,
    /// A port counts its commands no further than to the largest number.
    CountForgetsWrap = 44,
    /// P2: what is sent again is another message.
    OtherMessageAgain = 98,
    /// P2: what is lost is not sent again.
    LossForgotten = 99,
    /// P2: an answer that comes again acts again.
    AnswerActsAgain = 100,
    /// P2: a request counts as received before a later one has filled the gap that it left.
    GapReceived = 101,
    /// P6: the copy of an answer that has been received is kept.
    CopyKept = 102,
    /// P2: what is held and has not landed counts as ended, past a message that is missing.
    HeldEnded = 103,
    /// P2: a greeting of another life ends the one that is under way.
    GreetingEndsLife = 104,
    /// P4: past a message that waits for its host, a message does not wait for its own stream either.
    TurnNotWaitedFor = 105,
    /// P2: what has left counts as received.
    ReceivedUnasked = 106,
    /// P2: a link loses its window while messages wait in it for one that is missing.
    WindowTakenEarly = 107,
    /// P5: an access is let through after the end of its lease.
    LeaseUnending = 108,
    /// P5: a bounced message is copied though its lease may be over, and the card is not asked.
    LeaseUnasked = 109,
}

/// Whether this process runs `mutant`.
#[cfg(not(netvm_mutant))]
#[inline(always)]
#[must_use]
pub const fn is(_mutant: Mutant) -> bool {
    false
}

#[cfg(netvm_mutant)]
static ACTIVE: core::sync::atomic::AtomicU8 = core::sync::atomic::AtomicU8::new(0);

/// Whether this process runs `mutant`.
#[cfg(netvm_mutant)]
#[must_use]
pub fn is(mutant: Mutant) -> bool {
    ACTIVE.load(core::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Breaks the process from now on (or mends it, with `None`).
#[cfg(netvm_mutant)]
pub fn select(mutant: Option<Mutant>) {
    ACTIVE.store(
        mutant.map_or(0, |m| m as u8),
        core::sync::atomic::Ordering::Relaxed,
    );
}
