//! Critics of observations and actions on a device.
//!
//! The twin of [`Critics`](crate::algorithms::critics::Critics).

use std::ops::Range;

use rl_buffer::TransitionViews;
use rl_cuda::learner::{
    ContinuousKernels, Entropy, LearnerKernels, LearnerState, OneHotInputs, QLearningKernels, TD_TERMS, ValueGradients, Values,
};
use rl_cuda::{Buffer, Device, Stream, View, ViewMut};
use rl_envs::{Actions, Obs};

use crate::Error;
use crate::device::Queue;
use crate::device::descent::{download, unsupported};
use crate::device::net::DeviceNet;
use crate::device::replayed::learnt::LearntNet;
use crate::kernel::net::PackedNet;
use crate::learner::BatchSizes;
use crate::learner::optim::Optimizer;
use crate::policy::network::Network;
use crate::policy::twin_q::TwinQ;

/// Stream of an update, and its kernels.
#[derive(Clone, Copy)]
pub(crate) struct Launches<'a> {
    pub(crate) queue: Queue<'a>,
    pub(crate) q_learning: &'a QLearningKernels,
    pub(crate) continuous: &'a ContinuousKernels,
}

/// Kernels of an update.
#[derive(Debug)]
pub(crate) struct Kernels {
    learner: LearnerKernels,
    q_learning: QLearningKernels,
    continuous: ContinuousKernels,
}

impl Kernels {
    pub(crate) fn new(device: &Device) -> Result<Self, Error> {
        let (learner, q_learning) = (LearnerKernels::new(device)?, QLearningKernels::new(device)?);
        Ok(Self { learner, q_learning, continuous: ContinuousKernels::new(device)? })
    }

    pub(crate) fn on<'a>(&'a self, stream: &'a Stream) -> Launches<'a> {
        let Self { learner: kernels, q_learning, continuous } = self;
        Launches { queue: Queue { stream, kernels }, q_learning, continuous }
    }
}

/// Critics with their targets, and what they need to learn from B samples.
#[derive(Debug)]
pub(crate) struct DeviceCritics {
    pub(crate) online: LearntNet,
    target: Buffer<f32>,
    /// The critics once more, for gradients of their inputs.
    of_inputs: DeviceNet,
    /// Chain of the first critic.
    one: usize,
    /// Chain of the second critic, if there are two.
    other: Option<usize>,
    rows: CriticRows,
    scale: f32,
    bounds: Buffer<f32>,             // (A, 2)
    pub(crate) targets: Buffer<f32>, // (B)
    pub(crate) errors: Buffer<f32>,  // (B)
    terms: Buffer<f32>,              // (2, B)
}

/// Observations and actions of a minibatch, which become rows.
#[derive(Clone, Copy)]
struct Joined<'a> {
    obs: &'a Obs<View<'a, f32>, View<'a, u8>>,
    actions: &'a View<'a, f32>,
    /// Middle and half of the range of each dimension, for actions of the environment.
    bounds: Option<&'a View<'a, f32>>,
}

/// Rows that critics read: observations, of which bytes are scaled, and actions.
#[derive(Debug)]
struct CriticRows {
    /// Factor that bytes are multiplied by.
    scale: f32,
    /// Inputs of rows with categories.
    one_hot: Option<OneHotInputs>,
    numbers: Buffer<f32>, // (B, D), of bytes; else empty
    joined: Buffer<f32>,  // (B, D + A), with categories; else empty
    b: usize,
}

impl CriticRows {
    /// Allocates memory for `b` rows with `a` dimensions of an action.
    ///
    /// Bytes are multiplied by `scale`; `None` for numbers.
    fn new(device: &Device, network: &Network, scale: Option<f32>, a: usize, b: usize) -> Result<Self, rl_cuda::Error> {
        let (one_hot, len) = (network.categories(), network.obs_len());
        let matrix = |needed: bool, columns: usize| Buffer::zeros(device, if needed { b * columns } else { 0 });
        Ok(Self {
            numbers: matrix(scale.is_some(), len - a)?,
            joined: matrix(one_hot.is_some(), len)?,
            scale: scale.unwrap_or(1.0),
            one_hot: one_hot.map(|of| OneHotInputs::new(device, of.sizes())).transpose()?,
            b,
        })
    }

    fn bytes(&self) -> usize {
        self.numbers.bytes() + self.joined.bytes()
    }

    /// Prepares the rows of a minibatch: scales bytes, joins rows with categories.
    fn prepare(&mut self, launches: Launches<'_>, Joined { obs, actions, bounds }: Joined<'_>) -> Result<(), Error> {
        let (Queue { stream, kernels }, Self { scale, one_hot, numbers, joined, b }) = (launches.queue, self);
        match obs {
            Obs::U8(_) => kernels.samples(stream, obs, *scale, numbers.len() / *b, None, &numbers.view_mut())?,
            Obs::F32(obs) if one_hot.is_some() => {
                launches.continuous.rows(stream, [obs, actions], bounds, *b, &joined.view_mut())?;
            }
            Obs::F32(_) => {}
        }
        Ok(())
    }

    /// Writes the inputs of some samples, whose rows have been prepared.
    fn write(
        &self,
        launches: Launches<'_>,
        Joined { obs, actions, bounds }: Joined<'_>,
        samples: Range<usize>,
        inputs: &ViewMut<'_, f32>,
    ) -> Result<(), rl_cuda::Error> {
        let Queue { stream, kernels } = launches.queue;
        let rows = |len: usize| samples.start * (len / self.b)..samples.end * (len / self.b);
        if let Some(one_hot) = &self.one_hot {
            let joined = self.joined.view().slice(rows(self.joined.len()));
            return kernels.one_hot(stream, &joined, one_hot, None, inputs);
        }
        let numbers = self.numbers.view();
        let obs = if let Obs::F32(obs) = obs { obs } else { &numbers };
        let [obs, actions] = [obs, actions].map(|all| all.slice(rows(all.len())));
        launches.continuous.rows(stream, [&obs, &actions], bounds, samples.len(), inputs)
    }
}

impl DeviceCritics {
    /// Allocates memory for minibatches of transitions.
    ///
    /// `scale` is the factor of squared errors, `bounds` the middle and half of the range of each dimension of an action.
    /// Bytes of observations are multiplied by `scale_of_bytes`.
    ///
    /// # Errors
    /// [`Error::Setting`] if there are no kernels for the critics; [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        critics: &TwinQ,
        scale: f32,
        scale_of_bytes: Option<f32>,
        bounds: &[[f32; 2]],
        b: usize,
    ) -> Result<Self, Error> {
        let (network, sizes) = (critics.network(), BatchSizes { batch_size: b, micro_batch: 0 });
        let Some(PackedNet { net, .. }) = network.kernel() else { return Err(unsupported("learner", "reference".into())) };
        let floats = |len: usize| Buffer::<f32>::zeros(device, len);
        let chains = critics.chains();
        Ok(Self {
            online: LearntNet::new(device, network, sizes)?,
            target: floats(network.params().len())?,
            of_inputs: DeviceNet::of_inputs(device, net, b)?,
            one: chains[0],
            other: chains.get(1).copied(),
            rows: CriticRows::new(device, network, scale_of_bytes, bounds.len(), b)?,
            scale,
            bounds: Buffer::of(device, bounds.as_flattened())?,
            targets: floats(b)?,
            errors: floats(b)?,
            terms: floats(TD_TERMS * b)?,
        })
    }

    /// Bytes of parameters and moments, of gradients, and of activations.
    pub(crate) fn bytes(&self) -> [usize; 3] {
        let [params, gradients, activations] = self.online.bytes();
        [params + self.target.bytes(), gradients, activations + self.of_inputs.bytes() + self.rows.bytes()]
    }

    /// Copies parameters, moments and counters to the device.
    pub(crate) fn load(&mut self, stream: &Stream, online: &TwinQ, target: &TwinQ, optimizer: &Optimizer) -> Result<(), Error> {
        stream.upload(&self.target.view_mut(), target.network().params())?;
        self.online.load(stream, online.network(), optimizer)
    }

    /// Enqueues targets, `r + discount (least Q_target(s', a') - alpha log_prob)`.
    ///
    /// `actions`, (B, A), are between -1 and 1.
    pub(crate) fn set_targets(
        &mut self,
        launches: Launches<'_>,
        batch: &TransitionViews<'_>,
        actions: &View<'_, f32>,
        entropy: Option<Entropy<'_>>,
    ) -> Result<(), Error> {
        let (own, Launches { queue, continuous, .. }) = (self.online.own(), launches);
        let Self { online: LearntNet { net, .. }, target, one, other, rows, targets, .. } = self;
        let (n, of) = (targets.len(), Joined { obs: &batch.next_obs, actions, bounds: None });
        rows.prepare(launches, of)?;
        net.forward_samples(queue, &target.view(), own, |samples, x| rows.write(launches, of, samples, x))?;
        let next = Values { one: net.outputs(*one, n), other: other.map(|other| net.outputs(other, n)) };
        let columns = [&batch.rewards, &batch.discounts];
        Ok(continuous.targets(queue.stream, &next, entropy, columns, &targets.view_mut())?)
    }

    /// Enqueues the gradient of a minibatch, whose targets are set.
    ///
    /// Learning may have stopped at the actor.
    pub(crate) fn gradient(
        &mut self,
        launches: Launches<'_>,
        batch: &TransitionViews<'_>,
        actor: &LearnerState,
    ) -> Result<(), Error> {
        let (own, Launches { queue, q_learning, continuous }) = (self.online.own(), launches);
        let Self { online, one, other, rows, scale, bounds, targets, errors, terms, .. } = self;
        let Actions::Continuous(actions) = &batch.actions else { return Err(Error::ActionKind) };
        let (n, bounds) = (targets.len(), bounds.view());
        let of = Joined { obs: &batch.obs, actions, bounds: Some(&bounds) };
        rows.prepare(launches, of)?;
        let write = |samples: Range<usize>, x: &ViewMut<'_, f32>| rows.write(launches, of, samples, x);
        let LearntNet { net, params, .. } = &mut *online;
        net.forward_samples(queue, &params.view(), own, write)?;
        let (q, d_q) = heads(net, *one, *other, n);
        let (columns, to) = ([&targets.view(), &batch.weights], [&errors.view_mut(), &terms.view_mut()]);
        continuous.loss(queue.stream, &q, columns, *scale, &d_q, to)?;
        online.compute_gradient(queue, &mut [&mut *terms, errors], write)?;
        let LearntNet { slices, state, .. } = online;
        Ok(q_learning.totals(queue.stream, slices, &terms.view(), state, Some(actor))?)
    }

    /// Enqueues the value that an actor raises.
    ///
    /// The first critic's, or the lesser one. Returns its gradient with respect to the features that dense layers read,
    /// whose last columns are the actions. Also writes the terms of the actor's loss, (2, B).
    pub(crate) fn value(
        &mut self,
        launches: Launches<'_>,
        batch: &TransitionViews<'_>,
        actions: &View<'_, f32>,
        entropy: Option<Entropy<'_>>,
        first: bool,
        terms: &ViewMut<'_, f32>,
    ) -> Result<View<'_, f32>, Error> {
        let Launches { queue, continuous, .. } = launches;
        let Self { online: LearntNet { params, .. }, of_inputs, one, other, rows, targets, .. } = self;
        let (n, params, of) = (targets.len(), params.view(), Joined { obs: &batch.obs, actions, bounds: None });
        rows.prepare(launches, of)?;
        of_inputs.forward_samples(queue, &params, 0..n, |samples, x| rows.write(launches, of, samples, x))?;
        let (q, d_q) = heads(of_inputs, *one, *other, n);
        continuous.value(queue.stream, &q, entropy, first, &d_q, terms)?;
        of_inputs.input_gradient(queue, &params, n)
    }

    /// Moves the targets by the fraction `tau` of the distance to the critics.
    pub(crate) fn follow(&mut self, launches: Launches<'_>, tau: f32, actor: &LearnerState) -> Result<(), Error> {
        let Self { online: LearntNet { params, state, .. }, target, .. } = self;
        let (stream, target) = (launches.queue.stream, &target.view_mut());
        Ok(launches.q_learning.follow(stream, &params.view(), target, tau, state, Some(actor))?)
    }

    /// Copies parameters, targets and moments to the host.
    pub(crate) fn arrays(&self, stream: &Stream) -> Result<[Vec<f32>; 4], Error> {
        let here = |from: &Buffer<f32>| download(stream, &from.view());
        let [m, v] = self.online.moments(stream)?;
        Ok([here(&self.online.params)?, here(&self.target)?, m, v])
    }
}

/// Returns the values of critics, and their gradients for writing.
fn heads(net: &mut DeviceNet, one: usize, other: Option<usize>, n: usize) -> (Values<'_>, ValueGradients<'_>) {
    match other {
        Some(other) => {
            let ([one, other], [d_one, d_other]) = net.heads([one, other], n);
            (Values { one, other: Some(other) }, ValueGradients { one: d_one, other: Some(d_other) })
        }
        None => {
            let (one, d_one) = net.head(one, n);
            (Values { one, other: None }, ValueGradients { one: d_one, other: None })
        }
    }
}
