//! What a manager has done.

/// What a manager has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerStats {
    /// Leases given.
    pub granted: u64,
    /// Requests refused.
    pub refused: u64,
    /// Wishes that had to wait.
    pub waited: u64,
    /// Leases that were over by themselves.
    pub ended: u64,
    /// Leases that were given back.
    pub relinquished: u64,
    /// Times that the card was asked what is left of a lease.
    pub asked: u64,
    /// Leases whose capability was revoked.
    pub revoked: u64,
    /// Revocations that this took: each waits once.
    pub revocations: u64,
    /// Clients that could not be answered: they have gone, or their node.
    pub unreachable: u64,
    /// Messages that were no request, or of a port that has not connected.
    pub nonsense: u64,
}
