//! Rollouts in a device's memory.

use rl_cuda::{Buffer, Device, Element, ObsViews, StepViews, Stream, View, ViewMut};
use rl_envs::{Actions, Obs, Steps, either, visit};

use crate::rollout::columns::Columns;
use crate::slab::Span;
use crate::{Rollout, RolloutShape};

/// Columns of a step, which a policy and environments on the device read and write.
#[derive(Debug)]
pub struct DeviceStep<'a> {
    /// Observations that the step acts on, (N, D).
    pub obs: Obs<View<'a, f32>, View<'a, u8>>,
    /// Legal actions at these observations, (N, A), if there are masks.
    pub masks: Option<View<'a, u8>>,
    /// Columns of the environments' step: their `obs` and `masks` follow the step.
    pub steps: StepViews<'a>,
    /// Log-probabilities of the actions, (N).
    pub log_probs: ViewMut<'a, f32>,
    /// Values of the observations, (N).
    pub values: ViewMut<'a, f32>,
}

/// An element type and the integers in which its values are stored.
pub(crate) trait Bits: Copy {
    type Bits: Element;
}

impl Bits for f32 {
    type Bits = u32;
}

impl Bits for u32 {
    type Bits = u32;
}

impl Bits for u8 {
    type Bits = u8;
}

/// Rest of a slab on a device, from which columns are taken in their order.
pub(crate) struct Rest<'a> {
    rest: Option<ViewMut<'a, u8>>,
    at: usize,
}

impl<'a> Rest<'a> {
    pub(crate) fn of(slab: &'a mut Buffer<u8>) -> Self {
        Self { rest: Some(slab.view_mut()), at: 0 }
    }

    /// Takes a column.
    ///
    /// # Panics
    /// If a later column of the slab was taken before.
    pub(crate) fn take<T: Element>(&mut self, span: Span<T>) -> ViewMut<'a, T> {
        self.column(span.at(), span.len())
    }

    /// Takes a column as the integers in which its elements are stored.
    ///
    /// # Panics
    /// If a later column of the slab was taken before.
    pub(crate) fn take_bits<T: Bits>(&mut self, span: Span<T>) -> ViewMut<'a, T::Bits> {
        self.column(span.at(), span.len())
    }

    fn column<T: Element>(&mut self, at: usize, len: usize) -> ViewMut<'a, T> {
        let (start, end) = (at - self.at, at - self.at + len * size_of::<T>());
        let (column, rest) = self.rest.take().expect("the rest of the slab").split_at(end);
        (self.rest, self.at) = (Some(rest), self.at + end);
        column.into_column(start, len)
    }
}

/// Splits a column of rows before row `t`.
fn split<'a, T: Element>(column: ViewMut<'a, T>, span: Span<T>, t: usize) -> (View<'a, T>, ViewMut<'a, T>) {
    let (before, after) = column.split_at(t * span.width);
    (before.into_view(), after)
}

/// Returns row `t` of a column.
fn row<'a, T: Element>(column: ViewMut<'a, T>, span: Span<T>, t: usize) -> ViewMut<'a, T> {
    column.into_slice(t * span.width..(t + 1) * span.width)
}

/// Columns of a rollout in a device's memory, in one block.
///
/// The shapes are those of [`Rollout`].
#[derive(Debug)]
pub struct DeviceRollout {
    slab: Buffer<u8>,
    columns: Columns,
    shape: RolloutShape,
}

impl DeviceRollout {
    /// Allocates a rollout, all zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, shape: RolloutShape) -> Result<Self, rl_cuda::Error> {
        let (columns, layout) = Columns::new(&shape);
        Ok(Self { slab: Buffer::zeros(device, layout.bytes)?, columns, shape })
    }

    /// Dimensions of the rollout.
    #[must_use]
    pub fn shape(&self) -> RolloutShape {
        self.shape
    }

    /// Bytes of the rollout.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    /// Copies a rollout of the same shape from the host, in one copy.
    ///
    /// From [`Pinned`](crate::Pinned) memory without waiting: the rollout waits before it is filled again.
    ///
    /// # Errors
    /// [`rl_cuda::Error::Kind`] if the shapes differ; errors of the device.
    pub fn upload(&mut self, stream: &Stream, rollout: &Rollout) -> Result<(), rl_cuda::Error> {
        if rollout.shape() != self.shape {
            return Err(rl_cuda::Error::Kind { what: "rollout", expected: "one of the learner's shape" });
        }
        rollout.slab().upload(stream, &self.slab.view_mut())
    }

    /// Copies the rollout to the host.
    ///
    /// Lists of final observations are not part of it.
    ///
    /// # Errors
    /// [`rl_cuda::Error::Length`] if the shapes differ; errors of the device.
    pub fn download(&self, stream: &Stream, rollout: &mut Rollout) -> Result<(), rl_cuda::Error> {
        stream.download(rollout.slab_bytes(), &self.slab.view())
    }

    /// Copies the rewards and both flags of every step to the host.
    ///
    /// # Errors
    /// [`rl_cuda::Error::Length`] if the shapes differ; errors of the device.
    pub fn download_rewards(&self, stream: &Stream, rollout: &mut Rollout) -> Result<(), rl_cuda::Error> {
        let steps = self.columns.steps;
        stream.download(rollout.column_mut(steps.rewards), &self.rewards())?;
        stream.download(rollout.column_mut(steps.terminated), &self.terminated())?;
        stream.download(rollout.column_mut(steps.truncated), &self.truncated())
    }

    /// Borrows the columns of step `t`.
    pub fn step(&mut self, t: usize) -> DeviceStep<'_> {
        let (Columns { steps: spans, log_probs, values, .. }, n) = (self.columns, self.shape.n_envs);
        let mut cut = Rest::of(&mut self.slab);
        let columns = visit!(Steps, spans, |span| (span, cut.take(span)));
        let log_probs = row(cut.take(log_probs), log_probs, t);
        let values = row(cut.take(values), values, t);
        let d = n * self.shape.obs_len;
        let (obs, next_obs) = visit!(Obs, columns.obs, |(span, column)| {
            let (before, after) = split(column, span, t + 1);
            (before.slice(t * d..(t + 1) * d), after.into_slice(0..d))
        })
        .unzip();
        let (masks, next_masks) = columns
            .masks
            .map(|[(span, masks), (_, final_masks)]| {
                let (before, after) = split(masks, span, t + 1);
                (before.slice(t * span.width..(t + 1) * span.width), [after.into_slice(0..span.width), final_masks])
            })
            .unzip();
        let steps = StepViews {
            obs: next_obs,
            actions: visit!(Actions, columns.actions, |(span, column)| row(column, span, t)),
            rewards: row(columns.rewards.1, spans.rewards, t),
            terminated: row(columns.terminated.1, spans.terminated, t),
            truncated: row(columns.truncated.1, spans.truncated, t),
            final_obs: visit!(Obs, columns.final_obs, |(_, column)| column),
            masks: next_masks,
        };
        DeviceStep { obs, masks, steps, log_probs, values }
    }

    /// Borrows the observations after the last step, (N, D), for writing.
    ///
    /// With their masks, (N, A), if there are masks.
    pub fn last(&mut self) -> (ObsViews<'_>, Option<ViewMut<'_, u8>>) {
        let StepViews { obs, masks, .. } = self.step(self.shape.n_steps - 1).steps;
        (obs, masks.map(|[masks, _]| masks))
    }

    /// Returns the observations after the last step, (N, D).
    #[must_use]
    pub fn last_obs(&self) -> Obs<View<'_, f32>, View<'_, u8>> {
        fn last<'a, T: Element>(obs: &View<'a, T>, d: usize) -> View<'a, T> {
            obs.slice(obs.len() - d..obs.len())
        }
        let d = self.shape.n_envs * self.shape.obs_len;
        visit!(Obs, self.obs(), |obs| last(&obs, d))
    }

    /// Returns the legal actions after the last step, (N, A), if there are masks.
    #[must_use]
    pub fn last_masks(&self) -> Option<View<'_, u8>> {
        self.masks().map(|masks| masks.slice(masks.len() / (self.shape.n_steps + 1) * self.shape.n_steps..masks.len()))
    }

    /// Copies the observations after the last step, and their masks, to the first row.
    ///
    /// The next rollout begins with them.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn restart(&mut self, stream: &Stream) -> Result<(), rl_cuda::Error> {
        fn copy<T: Element>(stream: &Stream, column: ViewMut<'_, T>, len: usize) -> Result<(), rl_cuda::Error> {
            let (first, rest) = column.split_at(len);
            let rest = rest.into_view();
            stream.copy(&first, &rest.slice(rest.len() - len..rest.len()))
        }
        let Steps { obs, masks, .. } = self.columns.steps;
        let d = self.shape.n_envs * self.shape.obs_len;
        either!(Obs, obs, |span| copy(stream, Rest::of(&mut self.slab).take(span), d))?;
        let Some([masks, _]) = masks else { return Ok(()) };
        copy(stream, Rest::of(&mut self.slab).take(masks), masks.width)
    }

    /// Borrows the values, (T, N), for writing.
    pub fn values_mut(&mut self) -> ViewMut<'_, f32> {
        Rest::of(&mut self.slab).take(self.columns.values)
    }

    /// Borrows the values of the last observations, (N), for writing.
    pub fn last_values_mut(&mut self) -> ViewMut<'_, f32> {
        Rest::of(&mut self.slab).take(self.columns.last_values)
    }

    /// Borrows the policy's states before the first step, (N, S), for writing.
    pub fn first_states_mut(&mut self) -> ViewMut<'_, f32> {
        Rest::of(&mut self.slab).take(self.columns.first_states)
    }

    /// Returns the policy's states before the first step, (N, S).
    #[must_use]
    pub fn first_states(&self) -> View<'_, f32> {
        self.columns.first_states.of(self.slab.view())
    }

    /// Returns the observations, (T + 1, N, D).
    #[must_use]
    pub fn obs(&self) -> Obs<View<'_, f32>, View<'_, u8>> {
        visit!(Obs, self.columns.steps.obs, |span| span.of(self.slab.view()))
    }

    /// Returns the actions, (T, N) or (T, N, A).
    #[must_use]
    pub fn actions(&self) -> Actions<View<'_, u32>, View<'_, f32>> {
        visit!(Actions, self.columns.steps.actions, |span| span.of(self.slab.view()))
    }

    /// Returns the legal actions at each observation, (T + 1, N, A).
    ///
    /// `None` without masks.
    #[must_use]
    pub fn masks(&self) -> Option<View<'_, u8>> {
        self.columns.steps.masks.map(|[masks, _]| masks.of(self.slab.view()))
    }

    /// Returns the rewards, (T, N).
    #[must_use]
    pub fn rewards(&self) -> View<'_, f32> {
        self.columns.steps.rewards.of(self.slab.view())
    }

    /// Returns 1 where a step ended the task, (T, N).
    #[must_use]
    pub fn terminated(&self) -> View<'_, u8> {
        self.columns.steps.terminated.of(self.slab.view())
    }

    /// Returns 1 where a step was cut off, (T, N).
    #[must_use]
    pub fn truncated(&self) -> View<'_, u8> {
        self.columns.steps.truncated.of(self.slab.view())
    }

    /// Returns the log-probabilities of the actions under the acting policy, (T, N).
    #[must_use]
    pub fn log_probs(&self) -> View<'_, f32> {
        self.columns.log_probs.of(self.slab.view())
    }

    /// Returns the values of the observations under the acting policy, (T, N).
    #[must_use]
    pub fn values(&self) -> View<'_, f32> {
        self.columns.values.of(self.slab.view())
    }

    /// Returns the values of the last observations, (N).
    #[must_use]
    pub fn last_values(&self) -> View<'_, f32> {
        self.columns.last_values.of(self.slab.view())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use rl_cuda::Element;
    use rl_envs::{ActionKind, Dtype};

    use super::*;
    use crate::{Memory, Pinned, Streamed};

    fn download<T: Element>(stream: &Stream, from: View<'_, T>) -> Vec<T> {
        let mut to = vec![T::default(); from.len()];
        stream.download(&mut to, &from).unwrap();
        to
    }

    #[test]
    fn a_rollout_on_a_device_has_the_columns_of_the_hosts() {
        let actions = [ActionKind::Discrete { masked: Some(3) }, ActionKind::Continuous { len: 2 }];
        for (device, actions, obs) in Device::for_tests()
            .iter()
            .flat_map(|device| actions.map(|actions| (device, actions)))
            .flat_map(|(device, actions)| [Dtype::F32, Dtype::U8].map(|obs| (device, actions, obs)))
        {
            let shape = RolloutShape { n_steps: 3, n_envs: 33, obs_len: 5, obs, actions, state_len: 0 };
            let stream = device.stream().unwrap();
            let pinned: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
            let streamed: Arc<dyn Memory> = Arc::new(Streamed::new(device.stream().unwrap()));
            let mut there = DeviceRollout::new(device, shape).unwrap();
            let all = [<dyn Memory>::host(), pinned, streamed].map(|memory| [memory.clone(), memory]);
            for (i, memory) in all.iter().flatten().enumerate() {
                let mut here = Rollout::new_in(shape, memory).unwrap();
                let mut n = 0.0;
                let mut next = || {
                    n += 1.0;
                    n
                };
                for round in 0..3 {
                    let mut columns = here.columns();
                    let _ = columns.steps.as_mut().map(
                        |column| column.mapv_inplace(|_| next()),
                        |column| column.fill(7),
                        |column| column.fill(9),
                    );
                    columns.log_probs.mapv_inplace(|x| x - 1.5);
                    columns.values.fill(2.5);
                    columns.last_values.fill(3.5);
                    // Allocates, and therefore waits for all work, before the copy begins.
                    let mut before = here.clone();
                    if i % 2 == 1 {
                        here.send().unwrap();
                    }
                    if round == 1 {
                        // After it was sent.
                        for rollout in [&mut here, &mut before] {
                            rollout.columns().values.fill(4.5);
                        }
                    }
                    there.upload(&stream, &here).unwrap();
                    // The rollout may be filled and sent again at once.
                    let _ = here.columns().steps.as_mut().map(
                        |column| column.fill(0.0),
                        |column| column.fill(0),
                        |column| column.fill(0),
                    );
                    if i % 2 == 1 {
                        here.send().unwrap();
                    }
                    let context = format!("{device}, {shape:?}, {memory:?}, {round}");
                    assert_eq!(download(&stream, there.rewards()), before.rewards().to_slice().unwrap(), "{context}");
                    assert_eq!(download(&stream, there.terminated()), before.terminated().to_slice().unwrap(), "{context}");
                    assert_eq!(download(&stream, there.truncated()), before.truncated().to_slice().unwrap(), "{context}");
                    assert_eq!(download(&stream, there.log_probs()), before.log_probs().to_slice().unwrap(), "{context}");
                    assert_eq!(download(&stream, there.values()), before.values().to_slice().unwrap(), "{context}");
                    assert_eq!(download(&stream, there.last_values()), before.last_values(), "{context}");
                    let masks = there.masks().map(|masks| download(&stream, masks));
                    assert_eq!(masks.as_deref(), before.masks().as_ref().map(|masks| masks.as_slice().unwrap()), "{context}");
                    either!(Obs, there.obs().zip(before.obs()).unwrap(), |(there, before)| assert_eq!(
                        download(&stream, there),
                        before.as_slice().unwrap(),
                        "{context}"
                    ));
                    either!(Actions, there.actions().zip(before.actions()).unwrap(), |(there, before)| assert_eq!(
                        download(&stream, there),
                        before.as_slice().unwrap(),
                        "{context}"
                    ));
                }
            }
            let other = Rollout::new(RolloutShape { n_steps: 4, ..shape }).unwrap();
            assert!(matches!(there.upload(&stream, &other), Err(rl_cuda::Error::Kind { .. })));
        }
    }
}
