//! One training by several ranks: threads with a device each, or processes.

pub(crate) mod crew;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
