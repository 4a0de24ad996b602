//! Kernels of a learner: networks, losses, sums and optimizer steps.
//!
//! Every number has the operations of the CPU's kernels in rl-agents, in the same order, so the bits are the same on a CPU with
//! fused multiply-add. What changes from update to update (settings, counters, sums) is in a [`LearnerState`] in device memory,
//! so an update takes nothing from the host.

mod conv;
#[cfg(test)]
mod corners;
mod dense;
mod elementwise;
mod episodes;
mod kernels;
mod layer;
mod loss;
mod memory;
mod narrow;
mod off_policy;
mod optim;
mod replayed;
mod slices;
mod state;

pub use conv::{ConvLayer, ConvShape};
pub use elementwise::{Gate, MatrixColumns};
pub use episodes::Episodes;
pub use kernels::{EpochOrder, LearnerKernels, OneHotInputs, Terms};
pub use layer::{Activation, DenseLayer, DenseParams, NormParams};
pub use loss::{ActionDistribution, HeadSizes, KL_PART, LossColumns, LossHeads, Objective, PARTS};
pub use memory::{CellBuffers, CellKind, CellState, MAX_FUSED, MemoryKernels, SequenceColumns, SequencePart};
pub use narrow::{NarrowLayer, NarrowNet, NarrowNumbers, NarrowSamples};
pub use off_policy::{JudgedSamples, OffPolicyKernels};
pub use replayed::{
    ClippedNoise, ContinuousKernels, Entropy, NextColumns, Noise, QLearningKernels, SquashedColumns, TD_TERMS, TdColumns,
    TemperatureStep, ValueGradients, Values,
};
pub use slices::{MinibatchSlices, TILE};
pub use state::{LearnerCounters, LearnerState, UpdateSettings, UpdateTotals};
