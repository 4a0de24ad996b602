//! Sizes of the slices of a batch, whatever the number of threads.

/// Maximum number of slices of a batch: enough for that many threads.
pub const MAX_SLICES: usize = 16;
/// Minimum environments of a slice; fewer make too little use of the weights read.
pub const MIN_SLICE: usize = 4;
