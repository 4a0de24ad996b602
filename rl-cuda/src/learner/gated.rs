//! Activations whose derivatives are kept beside their values.

use super::kernels::{BLOCK, LearnerKernels};
use crate::driver::args::args;
use crate::error::length;
use crate::{Error, Stream, View, ViewMut};

/// Function after a layer that is a number times a share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Gate {
    /// x / (1 + exp(-x))
    Silu = 0,
    /// x times the normal distribution function of x, approximated with tanh.
    Gelu = 1,
}

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Applies a function in place, and writes its derivatives to `slopes`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gate(
        &self,
        stream: &Stream,
        gate: Gate,
        x: &ViewMut<'_, f32>,
        slopes: Option<&ViewMut<'_, f32>>,
    ) -> Result<(), Error> {
        length("slopes", x.len(), slopes.map_or(x.len(), |slopes| slopes.len()))?;
        let args = args![x, slopes.map_or(0, |slopes| slopes.address()), x.len() as u64, gate as u32];
        // SAFETY: the parameters are those of `gated_forward`; lengths were checked above.
        unsafe { self.gated[0].launch(stream, x.len() as u64, BLOCK, args) }
    }

    /// Multiplies gradients by the slopes that [`LearnerKernels::gate`] wrote.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn gate_gradient(&self, stream: &Stream, dx: &ViewMut<'_, f32>, slopes: &View<'_, f32>) -> Result<(), Error> {
        length("slopes", dx.len(), slopes.len())?;
        let args = args![dx, slopes, dx.len() as u64];
        // SAFETY: the parameters are those of `gated_backward`; lengths were checked above.
        unsafe { self.gated[1].launch(stream, dx.len() as u64, BLOCK, args) }
    }
}
