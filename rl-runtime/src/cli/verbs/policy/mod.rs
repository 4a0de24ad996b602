//! Verbs of a trained policy.

pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod record;
pub(crate) mod watch;
