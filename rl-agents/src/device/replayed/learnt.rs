//! A network that learns from minibatches on a device, with its optimizer.

use std::ops::Range;
use std::sync::Arc;

use rl_cuda::learner::{LearnerCounters, LearnerKernels, LearnerState, MinibatchSlices, Terms, UpdateSettings};
use rl_cuda::{Buffer, CpuAccess, Device, PinnedSlab, Stream, ViewMut};

use crate::Error;
use crate::device::Queue;
use crate::device::descent::{download, held, minibatch_slices, unsupported};
use crate::device::exchange::{DeviceExchange, SharedBuffers};
use crate::device::net::{DeviceNet, SlicedMinibatch};
use crate::kernel::net::PackedNet;
use crate::learner::BatchSizes;
use crate::learner::optim::{Optimizer, Rule, StepCount};
use crate::policy::network::Network;
use crate::ranks::Ranks;

/// A network on a device, with parameters (P), their moments and gradient.
#[derive(Debug)]
pub(crate) struct LearntNet {
    pub(crate) net: DeviceNet,
    pub(crate) params: Buffer<f32>,
    pub(crate) state: LearnerState,
    pub(crate) slices: MinibatchSlices,
    pub(crate) gradient: Buffer<f32>,
    moments: [Buffer<f32>; 2],
    partial: Buffer<f32>,
    scratch: Buffer<f64>,
    squares: Buffer<f64>,
    here: PinnedSlab<f32>,
    /// Exchange with the devices of other ranks, if there are any.
    exchange: Option<DeviceExchange>,
}

impl LearntNet {
    /// Allocates memory to learn from minibatches.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the network; [`Error::Device`].
    pub(crate) fn new(device: &Device, network: &Network, sizes: BatchSizes) -> Result<Self, Error> {
        let BatchSizes { batch_size: b, micro_batch } = sizes;
        let Some(PackedNet { net, .. }) = network.kernel() else { return Err(unsupported("learner", "reference".into())) };
        let n_params = network.params().len();
        let slices = minibatch_slices(b, n_params, net);
        let floats = |len: usize| Buffer::<f32>::zeros(device, len);
        Ok(Self {
            net: DeviceNet::new(device, net, held(&slices, micro_batch), b, true)?,
            params: floats(n_params)?,
            state: LearnerState::new(device)?,
            gradient: floats(n_params)?,
            moments: [floats(n_params)?, floats(n_params)?],
            partial: floats(slices.rows() * n_params)?,
            slices,
            scratch: Buffer::zeros(device, LearnerKernels::sum_scratch(n_params))?,
            squares: Buffer::zeros(device, 1)?,
            here: PinnedSlab::zeros(Some(device), n_params, CpuAccess::ReadWrite)?,
            exchange: None,
        })
    }

    /// Computes later gradients together with the devices of other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.exchange = Some(DeviceExchange::new(ranks));
    }

    /// Bytes of parameters and moments, of gradients, and of activations.
    pub(crate) fn bytes(&self) -> [usize; 3] {
        let [m, v] = &self.moments;
        [self.params.bytes() + m.bytes() + v.bytes(), self.gradient.bytes() + self.partial.bytes(), self.net.bytes()]
    }

    /// Copies parameters, moments and counters to the device.
    pub(crate) fn load(&mut self, stream: &Stream, network: &Network, optimizer: &Optimizer) -> Result<(), Error> {
        stream.upload(&self.params.view_mut(), network.params())?;
        for (to, from) in self.moments.iter_mut().zip(optimizer.vectors()) {
            stream.upload(&to.view_mut(), from)?;
        }
        set_steps(stream, &mut self.state, optimizer.steps(), network.version())
    }

    /// Begins the updates after some steps of the environments.
    pub(crate) fn begin(&mut self, queue: Queue<'_>, learning_rate: f32, max_norm: f32, rule: Rule) -> Result<(), Error> {
        begin(queue, &mut self.state, learning_rate, max_norm, rule)
    }

    /// True if gradients are exchanged through the host.
    ///
    /// Such an update cannot be captured.
    pub(crate) fn exchanges(&self) -> bool {
        self.exchange.is_some() && self.slices.count() > 1
    }

    /// Samples of a minibatch that pass through the network here.
    ///
    /// The loss of other ranks' samples is computed from stale outputs, and then replaced.
    pub(crate) fn own(&self) -> Range<usize> {
        let slices = self.exchange.as_ref().map_or(0..self.slices.count(), |exchange| exchange.own(&self.slices));
        self.slices.samples(slices)
    }

    /// Enqueues the gradient of a minibatch whose outputs' gradients are set.
    ///
    /// `terms` are the columns of the loss, of which other ranks have the rest. `write` writes the observations.
    pub(crate) fn compute_gradient(
        &mut self,
        queue: Queue<'_>,
        terms: &mut [&mut Buffer<f32>],
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        let Self { net, params, slices, gradient, partial, here, exchange, .. } = self;
        let (params, minibatch) = (params.view(), SlicedMinibatch { slices, columns: None });
        if let Some(exchange) = exchange.as_mut().filter(|_| slices.count() > 1) {
            return exchange.gradient(queue, net, &params, minibatch, SharedBuffers { partial, gradient, here, terms }, write);
        }
        net.gradient(queue, &params, 0..slices.count(), minibatch, &mut partial.view_mut(), write)?;
        Ok(queue.kernels.sum_gradients(queue.stream, slices, &partial.view(), &gradient.view_mut())?)
    }

    /// Enqueues a step along the gradient.
    ///
    /// It has no effect after learning stopped.
    pub(crate) fn step(&mut self, Queue { stream, kernels }: Queue<'_>) -> Result<(), Error> {
        let Self { params, moments: [m, v], gradient, state, scratch, squares, .. } = self;
        let gradient = gradient.view();
        kernels.sum(stream, &gradient, None, Terms::Squares, &scratch.view_mut(), &squares.view_mut())?;
        kernels.step(stream, &squares.view(), state)?;
        Ok(kernels.adam(stream, &gradient, &params.view_mut(), [&m.view_mut(), &v.view_mut()], state)?)
    }

    /// Copies the parameters to a network that acts.
    pub(crate) fn fetch(&mut self, stream: &Stream, version: u64, network: &mut Network) -> Result<(), Error> {
        stream.download_async(&mut self.here, &self.params.view())?;
        network.set_params(self.here.read()?, version)
    }

    /// Copies the moments to the host.
    pub(crate) fn moments(&self, stream: &Stream) -> Result<[Vec<f32>; 2], Error> {
        let [m, v] = &self.moments;
        let here = |from: &Buffer<f32>| download(stream, &from.view());
        Ok([here(m)?, here(v)?])
    }

    /// Leaves the other ranks, until [`LearntNet::set_exchange`].
    pub(crate) fn take_exchange(&mut self) -> Option<DeviceExchange> {
        self.exchange.take()
    }

    /// Computes later gradients with other ranks again.
    pub(crate) fn set_exchange(&mut self, exchange: Option<DeviceExchange>) {
        self.exchange = exchange;
    }
}

/// Replaces the counters of an optimizer's steps.
pub(crate) fn set_steps(stream: &Stream, state: &mut LearnerState, steps: StepCount, version: u64) -> Result<(), Error> {
    let StepCount { taken, skipped } = steps;
    let counters = LearnerCounters { taken, skipped, changes: version, ..LearnerCounters::default() };
    Ok(state.set_counters(stream, &counters)?)
}

/// Begins the updates of an optimizer.
pub(crate) fn begin(
    Queue { stream, kernels }: Queue<'_>,
    state: &mut LearnerState,
    learning_rate: f32,
    max_norm: f32,
    rule: Rule,
) -> Result<(), Error> {
    let Rule::Adam { beta1, beta2, epsilon } = rule else { return Err(unsupported("optimizer", "RMSprop".into())) };
    let settings = UpdateSettings { learning_rate, max_norm, beta1, beta2, epsilon, ..UpdateSettings::default() };
    state.set_settings(stream, &settings)?;
    Ok(kernels.begin(stream, state)?)
}
