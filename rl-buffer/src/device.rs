//! Rollouts in a device's memory.

use rl_cuda::{Buffer, Device, Stream, View};
use rl_envs::{Actions, Obs};

use crate::rollout::Columns;
use crate::{Rollout, RolloutShape};

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

    /// Returns the observations, (T + 1, N, D).
    #[must_use]
    pub fn obs(&self) -> Obs<View<'_, f32>, View<'_, u8>> {
        self.columns.steps.obs.map(|span| span.of(self.slab.view()), |span| span.of(self.slab.view()))
    }

    /// Returns the actions, (T, N) or (T, N, A).
    #[must_use]
    pub fn actions(&self) -> Actions<View<'_, u32>, View<'_, f32>> {
        self.columns.steps.actions.map(|span| span.of(self.slab.view()), |span| span.of(self.slab.view()))
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
    use crate::{Memory, Pinned};

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
            let shape = RolloutShape { n_steps: 3, n_envs: 33, obs_len: 5, obs, actions };
            let stream = device.stream().unwrap();
            let pinned: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
            let mut there = DeviceRollout::new(device, shape).unwrap();
            for memory in [<dyn Memory>::host(), pinned] {
                let mut here = Rollout::new_in(shape, &memory).unwrap();
                let mut n = 0.0;
                let mut next = || {
                    n += 1.0;
                    n
                };
                let mut columns = here.columns();
                let _ = columns.steps.as_mut().map(
                    |column| column.mapv_inplace(|_| next()),
                    |column| column.fill(7),
                    |column| column.fill(9),
                );
                columns.log_probs.mapv_inplace(|x| x - 1.5);
                columns.values.fill(2.5);
                columns.last_values.fill(3.5);
                let before = here.clone();
                there.upload(&stream, &here).unwrap();
                // The rollout may be filled again at once.
                let _ = here.columns().steps.as_mut().map(
                    |column| column.fill(0.0),
                    |column| column.fill(0),
                    |column| column.fill(0),
                );
                let context = format!("{device}, {shape:?}, {memory:?}");
                assert_eq!(download(&stream, there.rewards()), before.rewards().to_slice().unwrap(), "{context}");
                assert_eq!(download(&stream, there.terminated()), before.terminated().to_slice().unwrap(), "{context}");
                assert_eq!(download(&stream, there.truncated()), before.truncated().to_slice().unwrap(), "{context}");
                assert_eq!(download(&stream, there.log_probs()), before.log_probs().to_slice().unwrap(), "{context}");
                assert_eq!(download(&stream, there.values()), before.values().to_slice().unwrap(), "{context}");
                assert_eq!(download(&stream, there.last_values()), before.last_values(), "{context}");
                let masks = there.masks().map(|masks| download(&stream, masks));
                assert_eq!(masks.as_deref(), before.masks().as_ref().map(|masks| masks.as_slice().unwrap()), "{context}");
                there.obs().zip(before.obs()).unwrap().either(
                    |(there, before)| assert_eq!(download(&stream, there), before.as_slice().unwrap(), "{context}"),
                    |(there, before)| assert_eq!(download(&stream, there), before.as_slice().unwrap(), "{context}"),
                );
                there.actions().zip(before.actions()).unwrap().either(
                    |(there, before)| assert_eq!(download(&stream, there), before.as_slice().unwrap(), "{context}"),
                    |(there, before)| assert_eq!(download(&stream, there), before.as_slice().unwrap(), "{context}"),
                );
            }
            let other = Rollout::new(RolloutShape { n_steps: 4, ..shape }).unwrap();
            assert!(matches!(there.upload(&stream, &other), Err(rl_cuda::Error::Kind { .. })));
        }
    }
}
