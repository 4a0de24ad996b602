//! Steps of an optimizer.

use super::kernels::{BLOCK, LearnerKernels};
use super::state::LearnerState;
use crate::driver::args::args;
use crate::error::length;
use crate::{Error, Stream, View, ViewMut};

#[allow(unsafe_code)]
impl LearnerKernels {
    /// Decides on a step along a gradient with this sum of squares.
    ///
    /// The step is skipped if loss or norm are not finite.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn step(&self, stream: &Stream, squares: &View<'_, f64>, state: &mut LearnerState) -> Result<(), Error> {
        length("squares", 1, squares.len())?;
        let args = args![squares, state.settings, state.counters, state.totals];
        // SAFETY: the parameters are those of `learner_step`.
        unsafe { self.step.launch(stream, 1, 1, args) }
    }

    /// Changes parameters and moments as Adam does, unless the step is skipped.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn adam(
        &self,
        stream: &Stream,
        gradient: &View<'_, f32>,
        params: &ViewMut<'_, f32>,
        [m, v]: [&ViewMut<'_, f32>; 2],
        state: &LearnerState,
    ) -> Result<(), Error> {
        let len = params.len();
        length("gradient", len, gradient.len())?;
        length("first moments", len, m.len())?;
        length("second moments", len, v.len())?;
        let args = args![gradient, params, m, v, state.settings, state.totals, len as u64];
        // SAFETY: the parameters are those of `learner_adam`; lengths were checked above.
        unsafe { self.adam.launch(stream, len as u64, BLOCK, args) }
    }

    /// Changes parameters and moments as RMSprop does, unless the step is skipped.
    ///
    /// Its decay is the settings' `beta2`.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Launch`].
    pub fn rms_prop(
        &self,
        stream: &Stream,
        gradient: &View<'_, f32>,
        params: &ViewMut<'_, f32>,
        v: &ViewMut<'_, f32>,
        state: &LearnerState,
    ) -> Result<(), Error> {
        let len = params.len();
        length("gradient", len, gradient.len())?;
        length("second moments", len, v.len())?;
        let args = args![gradient, params, v, state.settings, state.totals, len as u64];
        // SAFETY: the parameters are those of `learner_rms_prop`; lengths were checked above.
        unsafe { self.rms_prop.launch(stream, len as u64, BLOCK, args) }
    }
}
