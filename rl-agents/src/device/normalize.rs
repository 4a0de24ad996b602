//! Normalization of observations on a device.
//!
//! The twin of [`normalize`](mod@crate::network::normalize). The statistics are the host's. Where the environments step on the
//! device, only the moments of each slice of them come to the host.

use std::ops::Range;

use rl_buffer::RolloutShape;
use rl_cuda::learner::OneHotInputs;
use rl_cuda::targets::{ObsSlices, TargetKernels};
use rl_cuda::{Device, Stream, View, ViewMut};
use rl_envs::{Dtype, Obs, pool, visit};

use crate::Error;
use crate::device::Queue;
use crate::device::net::{DeviceNet, Needed};
use crate::device::staged::Staged;
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
use crate::network::normalize::{Moments, Normalizer};
use crate::policy::network::Network;

/// Statistics of observations in device memory.
#[derive(Debug)]
pub(crate) struct DeviceNormalizer {
    kernels: TargetKernels,
    mean: Staged<f32>,    // (I), of the inputs of the network
    inv_std: Staged<f32>, // (I)
    /// Slices of environments on the device.
    ///
    /// `None` for bytes and categories, which have no kernel.
    slices: Option<ObsSlices>,
    /// Steps times environments of each slice.
    counts: Vec<usize>,
    /// True if there are no statistics yet.
    pub(crate) is_empty: bool,
}

impl DeviceNormalizer {
    pub(crate) fn new(device: &Device, shape: RolloutShape, one_hot: Option<&OneHotInputs>) -> Result<Self, rl_cuda::Error> {
        let slices = || pool::slices(shape.n_envs, MAX_SLICES, MIN_SLICE);
        let starts: Vec<u32> = std::iter::once(0).chain(slices().map(|columns| columns.end as u32)).collect();
        let has_kernel = shape.obs == Dtype::F32 && one_hot.is_none();
        let n_inputs = one_hot.map_or(shape.obs_len, OneHotInputs::len);
        Ok(Self {
            kernels: TargetKernels::new(device)?,
            mean: Staged::new(device, n_inputs)?,
            inv_std: Staged::new(device, n_inputs)?,
            slices: has_kernel.then(|| ObsSlices::new(device, &starts, shape.obs_len)).transpose()?,
            counts: slices().map(|columns| columns.len() * shape.n_steps).collect(),
            is_empty: true,
        })
    }

    /// Copies the host's statistics to the device.
    pub(crate) fn set(&mut self, stream: &Stream, normalizer: &Normalizer) -> Result<(), rl_cuda::Error> {
        self.is_empty = normalizer.moments().count() == 0.0;
        self.mean.upload(stream, normalizer.mean().iter().copied())?;
        self.inv_std.upload(stream, normalizer.inv_std().iter().copied())
    }

    /// Computes the moments of each slice of observations (T, N, D).
    ///
    /// `None` for bytes and categories.
    pub(crate) fn moments(
        &mut self,
        stream: &Stream,
        obs: &Obs<View<'_, f32>, View<'_, u8>>,
    ) -> Result<Option<Vec<Moments>>, rl_cuda::Error> {
        let (Some(slices), Obs::F32(obs)) = (&mut self.slices, obs) else { return Ok(None) };
        let (means, m2s) = self.kernels.moments(stream, obs, slices)?;
        let d = self.mean.there.len();
        let parts = self.counts.iter().zip(means.chunks(d)).zip(m2s.chunks(d));
        Ok(Some(parts.map(|((&count, mean), m2)| Moments::of(count as f64, mean, m2)).collect()))
    }
}

/// Inputs of a network, which are made of observations.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// Numbers D of an observation.
    pub(crate) obs_len: usize,
    /// Factor that bytes are multiplied by.
    scale: f32,
    /// Inputs of observations with categories.
    pub(crate) one_hot: Option<OneHotInputs>,
    pub(crate) normalizer: Option<DeviceNormalizer>,
}

impl Inputs {
    /// Describes the inputs of a network, not normalized.
    pub(crate) fn new(device: &Device, network: &Network, obs_len: usize) -> Result<Self, rl_cuda::Error> {
        let one_hot = network.categories().map(|of| OneHotInputs::new(device, of.sizes())).transpose()?;
        Ok(Self { obs_len, scale: network.obs_scale(), one_hot, normalizer: None })
    }

    /// Runs the first `n` observations through a network, as far as they are needed.
    pub(crate) fn forward(
        &self,
        queue: Queue<'_>,
        net: &mut DeviceNet,
        params: &View<'_, f32>,
        obs: &Obs<View<'_, f32>, View<'_, u8>>,
        n: usize,
        needed: Needed<'_>,
    ) -> Result<(), Error> {
        match obs {
            Obs::F32(obs) if self.one_hot.is_none() && self.normalizer.is_none() => {
                net.forward_from(queue, params, obs.slice(0..n * self.obs_len), needed)
            }
            obs => {
                self.write(queue, obs, None, &net.inputs_mut(n))?;
                net.forward(queue, params, n, needed)
            }
        }
    }

    /// Writes the inputs (n, I) for the n observations at `samples`.
    pub(crate) fn write_samples(
        &self,
        queue: Queue<'_>,
        obs: &Obs<View<'_, f32>, View<'_, u8>>,
        samples: Range<usize>,
        inputs: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let numbers = samples.start * self.obs_len..samples.end * self.obs_len;
        self.write(queue, &visit!(Obs, obs.as_ref(), |obs| obs.slice(numbers.clone())), None, inputs)
    }

    /// Writes the inputs (n, I) for observations (rows, D) at `rows`, or the first n.
    pub(crate) fn write(
        &self,
        Queue { stream, kernels }: Queue<'_>,
        obs: &Obs<View<'_, f32>, View<'_, u8>>,
        rows: Option<&View<'_, u32>>,
        inputs: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        match (&self.one_hot, obs) {
            (Some(one_hot), Obs::F32(obs)) => kernels.one_hot(stream, obs, one_hot, rows, inputs)?,
            _ => kernels.samples(stream, obs, self.scale, self.obs_len, rows, inputs)?,
        }
        let Some(DeviceNormalizer { kernels, mean, inv_std, .. }) = &self.normalizer else { return Ok(()) };
        kernels.normalize(stream, inputs, &mean.there.view(), &inv_std.there.view())
    }
}
