//! Minibatches that several devices share.
//!
//! Each device computes the gradients of its slices. The twin of
//! [`Slices::gradient`](crate::kernel::gradient::Slices::gradient) with ranks. Gradients of whole subtrees of the tree of
//! slices and the terms of each sample's loss pass through the host's memory, which is page-locked. Each device then has what
//! one device alone would have computed, and continues with the same kernels.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rl_cuda::learner::MinibatchSlices;
use rl_cuda::{Buffer, CpuAccess, PinnedSlab, View, ViewMut};

use crate::Error;
use crate::device::Queue;
use crate::device::net::{DeviceNet, SlicedMinibatch};
use crate::ranks::{Exchange, Ranks};

/// Memory of a minibatch's gradient on a device.
pub(crate) struct SharedBuffers<'a, 'b> {
    /// Partial gradients, rows of P numbers.
    pub(crate) partial: &'a mut Buffer<f32>,
    /// Gradient (P).
    pub(crate) gradient: &'a mut Buffer<f32>,
    /// Gradient (P) on the host.
    pub(crate) here: &'a mut PinnedSlab<f32>,
    /// Terms of each sample, columns of n numbers.
    ///
    /// Parts of the loss (5, n), and terms of the standard deviations (A, n); of Q-learning and critics, terms of the loss
    /// (2, n), and errors (n); none of actors.
    pub(crate) terms: &'a mut [&'b mut Buffer<f32>],
}

/// Exchange of gradients with the devices of other ranks.
pub(crate) struct DeviceExchange {
    exchange: Exchange,
    /// The terms on the host, allocated at first use.
    terms: Vec<PinnedSlab<f32>>,
}

impl fmt::Debug for DeviceExchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceExchange").finish_non_exhaustive()
    }
}

impl DeviceExchange {
    pub(crate) fn new(ranks: Arc<dyn Ranks>) -> Self {
        Self { exchange: Exchange::new(ranks), terms: Vec::new() }
    }

    /// Returns the slices whose gradients this rank computes.
    ///
    /// A minibatch of one slice is computed by every rank.
    pub(crate) fn own(&self, slices: &MinibatchSlices) -> Range<usize> {
        let count = slices.count();
        if count == 1 { 0..1 } else { self.exchange.own(count) }
    }

    /// Writes the gradient of a minibatch of several slices, and the terms of the loss.
    ///
    /// The outputs and their gradients are those of this rank's samples, whose observations `write` writes. Blocks until every
    /// rank has called it.
    pub(crate) fn gradient(
        &mut self,
        Queue { stream, kernels }: Queue<'_>,
        net: &mut DeviceNet,
        params: &View<'_, f32>,
        minibatch: SlicedMinibatch<'_>,
        buffers: SharedBuffers<'_, '_>,
        write: impl Fn(Range<usize>, &ViewMut<'_, f32>) -> Result<(), rl_cuda::Error>,
    ) -> Result<(), Error> {
        let SharedBuffers { partial, gradient, here, terms } = buffers;
        let slices = minibatch.slices;
        let (count, n, row) = (slices.count(), slices.samples(0..slices.count()).len(), gradient.len());
        let (own, subtrees) = self.exchange.begin(count);
        let first_row = |slice: usize| slices.first(slice - own.start).rows() * row;
        net.gradient(Queue { stream, kernels }, params, own.clone(), minibatch, &mut partial.view_mut(), write)?;
        for subtree in subtrees {
            let rows = partial.view().slice(first_row(subtree.start)..first_row(subtree.end));
            kernels.sum_gradients(stream, &slices.first(subtree.len()), &rows, &gradient.view_mut())?;
            stream.download_async(here, &gradient.view())?;
            self.exchange.push(here.read()?);
        }

        let here_of = &mut self.terms;
        if here_of.len() < terms.len() {
            let slab = |terms: &&mut Buffer<f32>| PinnedSlab::zeros(Some(stream.device()), terms.len(), CpuAccess::ReadWrite);
            *here_of = terms.iter().map(slab).collect::<Result<_, _>>()?;
        }
        for (there, here) in terms.iter().zip(&mut *here_of) {
            stream.download_async(here, &there.view())?;
        }
        let message = self.exchange.stats_mut();
        let numbers = here_of.iter().map(PinnedSlab::read).collect::<Result<Vec<_>, _>>()?;
        let columns = numbers.into_iter().flat_map(|numbers| numbers.chunks_exact(n));
        for slice in own {
            let samples = slices.samples(slice..slice + 1);
            columns.clone().flat_map(|column| &column[samples.clone()]).for_each(|x| message.extend(x.to_le_bytes()));
        }
        let n_columns = here_of.iter().map(PinnedSlab::len).sum::<usize>() / n;
        let terms_len = |slice: usize| size_of::<f32>() * n_columns * slices.samples(slice..slice + 1).len();
        let numbers = here_of.iter_mut().map(PinnedSlab::write).collect::<Result<Vec<_>, _>>()?;
        let mut columns: Vec<_> = numbers.into_iter().flat_map(|numbers| numbers.chunks_exact_mut(n)).collect();
        self.exchange.gather(count, terms_len, here.write()?, |slice, message| {
            let (samples, numbers) = (slices.samples(slice..slice + 1), message.as_chunks().0);
            for (column, numbers) in columns.iter_mut().zip(numbers.chunks_exact(samples.len())) {
                column[samples.clone()].iter_mut().zip(numbers).for_each(|(to, &x)| *to = f32::from_le_bytes(x));
            }
        })?;
        stream.upload_async(&gradient.view_mut(), here)?;
        for (there, here) in terms.iter_mut().zip(here_of) {
            stream.upload_async(&there.view_mut(), here)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rl_cuda::Device;
    use rl_envs::{Pool, cartpole::CartPole, pendulum::Pendulum, snake::Snake};

    use super::*;
    use crate::fixture::{bits, has_fma};
    use crate::ranks::tests::on_ranks;
    use crate::{A2c, A2cConfig, ActorCritic, Agent, Collector, MemoryKind, NetConfig, Ppo, PpoConfig};

    /// A training: environments, network, steps of a rollout, and the settings of either algorithm.
    struct Case<'a> {
        collector: &'a (dyn Fn() -> Collector + Sync),
        net: NetConfig,
        ppo: Option<PpoConfig>,
        a2c: A2cConfig,
    }

    /// Counters, parameters, moments and metrics after each update.
    type Learnt = Vec<(crate::Counters, Vec<Vec<u32>>, Vec<(&'static str, u32)>)>;

    impl Case<'_> {
        /// Trains on the CPU, or on a device as one of some ranks.
        fn train(&self, device: Option<&Device>, ranks: Option<Arc<dyn Ranks>>) -> Learnt {
            let (mut collector, pool) = ((self.collector)(), Pool::new(1).unwrap());
            let n_steps = self.ppo.as_ref().map_or(self.a2c.n_steps, |ppo| ppo.n_steps);
            let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &self.net, 3).unwrap();
            collector.remember(policy.network().state_len());
            let (n_envs, mut rollout) = (collector.n_envs(), collector.rollout(n_steps).unwrap());
            let mut agent: Box<dyn Agent> = match (&self.ppo, device) {
                (Some(ppo), None) => Box::new(Ppo::new(policy, ppo.clone(), n_envs, 5).unwrap()),
                (None, None) => Box::new(A2c::new(policy, self.a2c.clone(), n_envs, 5).unwrap()),
                (Some(ppo), Some(device)) => {
                    Box::new(Ppo::new(policy, ppo.clone(), n_envs, 5).unwrap().on_device(device, rollout.shape()).unwrap())
                }
                (None, Some(device)) => {
                    Box::new(A2c::new(policy, self.a2c.clone(), n_envs, 5).unwrap().on_device(device, rollout.shape()).unwrap())
                }
            };
            ranks.into_iter().for_each(|ranks| agent.shared().unwrap().share(ranks));
            let update = |_| {
                collector.collect(agent.acting(1.0), &mut rollout).unwrap();
                let metrics = agent.update(&rollout, 1.0, &pool).unwrap();
                let saved = agent.save().unwrap();
                let numbers = std::iter::once(&saved.params).chain(saved.moments.iter().map(|(_, moments)| moments));
                let numbers = numbers.map(|numbers| bits(numbers)).collect();
                (saved.counters, numbers, metrics.iter().map(|(name, x)| (name, x.to_bits())).collect())
            };
            (0..2).map(update).collect()
        }

        fn compare(&self, device: &Device, n_ranks: &[usize]) {
            let expected = self.train(None, None);
            for &n_ranks in n_ranks {
                let found = on_ranks(n_ranks, |ranks| self.train(Some(device), Some(ranks)));
                for (rank, found) in found.into_iter().enumerate() {
                    let context = format!("{device}, rank {rank} of {n_ranks}, {:?}, {:?}, {:?}", self.net, self.ppo, self.a2c);
                    for (found, expected) in found.iter().zip(&expected) {
                        assert!(found.1 == expected.1, "parameters or moments: {context}");
                        assert_eq!((found.0, &found.2), (expected.0, &expected.2), "{context}");
                    }
                }
            }
        }
    }

    fn net(hidden: &[usize], conv: &[[usize; 3]]) -> NetConfig {
        NetConfig { hidden: hidden.into(), conv: conv.into(), shared_trunk: !conv.is_empty(), ..NetConfig::default() }
    }

    #[test]
    fn any_number_of_devices_leaves_the_cpus_bits() {
        if !has_fma() {
            return;
        }
        let pool = || Pool::new(1).unwrap();
        let ppo = |n_steps, batch_size| {
            let micro_batch = if batch_size == 515 { 140 } else { 0 };
            PpoConfig { n_steps, batch_size, micro_batch, n_epochs: 2, ent_coef: 0.1, ..PpoConfig::default() }
        };
        let whole = |n_steps| A2cConfig { n_steps, ent_coef: 0.1, ..A2cConfig::default() };
        for device in &Device::for_tests() {
            // One slice; two; four; eight, of which the three of a rank differ from a minibatch's; four of several tiles.
            let sizes = [(3, 22, 33), (5, 39, 195), (7, 41, 287), (5, 103, 515), (4, 200, 400)];
            for (i, (n_envs, n_steps, batch_size)) in sizes.into_iter().enumerate() {
                let cartpole = || Collector::new(n_envs, &CartPole::default(), &pool(), 1).unwrap();
                let pendulum = || Collector::new(n_envs, &Pendulum::default(), &pool(), 1).unwrap();
                let both = [&cartpole as &(dyn Fn() -> Collector + Sync), &pendulum];
                // The stand-in is slow: one environment for each size.
                let collectors = if device.is_stand_in() { &both[i % 2..][..1] } else { &both[..] };
                for &collector in collectors {
                    for ppo in [Some(ppo(n_steps, batch_size)), None] {
                        let case = Case { collector, net: net(&[9, 5], &[]), ppo, a2c: whole(n_steps) };
                        let n_ranks: &[usize] = if device.is_stand_in() { &[2] } else { &[1, 2, 3, 5] };
                        case.compare(device, n_ranks);
                    }
                }
            }
        }
    }

    #[test]
    fn convolutions_memory_and_an_early_stop_leave_the_cpus_bits_on_several_devices() {
        if !has_fma() {
            return;
        }
        let snake = || Collector::new(3, &Snake::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let cartpole = || Collector::new(8, &CartPole::default(), &Pool::new(1).unwrap(), 1).unwrap();
        let ppo = PpoConfig { n_steps: 97, batch_size: 291, n_epochs: 1, ..PpoConfig::default() };
        let stopped = PpoConfig { n_steps: 32, batch_size: 128, n_epochs: 10, target_kl: 1e-4, ..PpoConfig::default() };
        let a2c = A2cConfig::default();
        for device in &Device::for_tests() {
            let conv = net(&[8], &[[4, 3, 3], [16, 2, 1]]);
            Case { collector: &snake, net: conv, ppo: Some(ppo.clone()), a2c: a2c.clone() }.compare(device, &[2, 3]);
            let memory = NetConfig { memory: MemoryKind::Lstm, memory_size: 5, ..net(&[7], &[]) };
            // Two slices of 20 columns; four of 12 or 13, of which the three of a rank differ from a minibatch's.
            for (n_envs, n_steps) in [(40, 4), (50, 6)] {
                let cartpole = || Collector::new(n_envs, &CartPole::default(), &Pool::new(1).unwrap(), 1).unwrap();
                let a2c = A2cConfig { n_steps, ent_coef: 0.1, ..A2cConfig::default() };
                Case { collector: &cartpole, net: memory.clone(), ppo: None, a2c }.compare(device, &[2, 3]);
            }
            let of_stopped = Case { collector: &cartpole, net: net(&[8], &[]), ppo: Some(stopped.clone()), a2c: a2c.clone() };
            of_stopped.compare(device, &[2]);
        }
    }
}
