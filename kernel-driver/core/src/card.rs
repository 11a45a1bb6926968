//! Whether the card can be used, and how it was found dead.

/// Whether the card can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardState {
    /// It works.
    Alive,
    /// It is dead, and may still do DMA: stop its bus mastering, drain, and say
    /// [`Host::card_stopped`](crate::Host::card_stopped).
    Dead(CardFailure),
    /// It is dead, and the platform has dealt with it.
    Stopped {
        /// How it was found dead.
        cause: CardFailure,
        /// It is certain that it does no DMA.
        proven: bool,
    },
}

/// How a card was found dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CardFailure {
    /// A read gave all ones.
    AllOnes,
    /// A page lock was not released in time.
    UnmapDeadline,
    /// A barrier, or the closing of a port, was not answered in time.
    AnswerDeadline,
    /// Its heartbeat stands still.
    Heartbeat,
    /// It does not take events any more.
    EventRingFull,
    /// It runs another firmware, or another start of it, than the one that this driver has attached to.
    Restarted,
}
