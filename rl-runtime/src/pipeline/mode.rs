//! Schedule of collecting and learning.

/// Schedule of collecting and learning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One after the other, on one thread; the reference for the other mode.
    Sync,
    /// At the same time, with a stale policy.
    Overlapped {
        /// Policy lag k: how many updates old the acting policy is.
        max_lag: usize,
    },
}

impl Mode {
    /// Returns the number of rollouts that start before the first update.
    ///
    /// 0 for [`Mode::Sync`].
    #[must_use]
    pub fn n_ahead(self) -> usize {
        match self {
            Self::Sync => 0,
            Self::Overlapped { max_lag } => max_lag.saturating_add(1),
        }
    }
}
