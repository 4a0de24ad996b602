//! Collecting on a device, where environments step beside the learner.
//!
//! The twin of [`Collector`](crate::Collector). Observations, actions and rewards never leave the device: the rollout is filled
//! where it is learnt from, with the CPU's bits. Parameters are those of the learner.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use rl_buffer::{DeviceRollout, DeviceStep, ObsSlice, Rollout, RolloutShape};
use rl_cuda::learner::Episodes;
use rl_cuda::targets::PolicyStreams;
use rl_cuda::{ActionSource, Buffer, CudaVecEnv, StepsGraph, Stream, View};
use rl_envs::catalog::Entry;
use rl_envs::{ActionSpace, Actions, Obs, ObsRows, VecEnv, either, pool, visit};

use crate::collect::slice::State;
use crate::device::Queue;
use crate::device::descent::{DeviceDescent, download, lock};
use crate::device::net::{DeviceNet, Needed};
use crate::device::share::{DeviceShare, MAX_LATEST};
use crate::device::times::DevicePhase;
use crate::kernel::net::Net;
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
use crate::ranks::{self, Ranks, gather};
use crate::{CollectorState, Episode, Error};

/// Maximum steps of a rollout that is captured as a graph, and those with memory.
///
/// A step has some 15 nodes, with two LSTMs some 45. The launches of longer rollouts cost the host less than their graph would
/// take of memory.
const MAX_CAPTURED_STEPS: [usize; 2] = [512, 128];

/// Environments on a device, collected from without leaving it.
#[derive(Debug)]
pub struct DeviceCollector {
    descent: Arc<Mutex<DeviceDescent>>,
    envs: CudaVecEnv,
    net: DeviceNet,
    episodes: Episodes,
    /// Seed of the policy's random numbers, and lifetime steps.
    clock: Buffer<u64>,
    /// Share of the rollout, if several devices have the environments.
    share: Option<DeviceShare>,
    /// Slices of these environments, by their indices.
    slices: Vec<Range<usize>>,
    /// Bounds of continuous actions, (2, A), and actions within them, (N, A).
    clipped: Option<[Buffer<f32>; 2]>,
    /// States to act with next, (N, S); empty without memory.
    states: Buffer<f32>,
    seed: u64,
    /// Lifetime steps of each environment.
    steps: u64,
    /// Graph of a rollout, which is run once before it is captured, unless it is long.
    graph: Option<StepsGraph>,
    ran: bool,
}

impl DeviceCollector {
    /// Creates environments of `env`, as many as the learner's rollouts have.
    ///
    /// With other ranks, those that are this rank's share.
    pub(crate) fn new(
        descent: &Arc<Mutex<DeviceDescent>>,
        net: &Net,
        env: &Entry,
        seed: u64,
        ranks: Option<&Arc<dyn Ranks>>,
    ) -> Result<Self, Error> {
        let learner = lock(descent);
        let (device, shape) = (learner.stream.device(), learner.rollout.shape());
        let mut slices: Vec<_> = pool::slices(shape.n_envs, MAX_SLICES, MIN_SLICE).collect();
        let share = ranks.map(|ranks| DeviceShare::new(device, ranks, &slices, shape)).transpose()?;
        if let Some(ranks) = ranks {
            slices = slices.drain(ranks::share(slices.len(), ranks.rank(), ranks.n_ranks())).collect();
        }
        let n = share.as_ref().map_or(shape, |share| share.rollout.shape()).n_envs;
        let envs = CudaVecEnv::of_entry(device, env, n)?.with_first_env(slices[0].start as u32);
        let of_envs = RolloutShape::new(shape.n_steps, shape.n_envs, envs.observation_space(), envs.action_space());
        if of_envs.with_state_len(shape.state_len) != shape {
            return Err(Error::Spaces);
        }
        let clipped = match envs.action_space() {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => None,
            ActionSpace::Continuous { low, high } => {
                Some([Buffer::of(device, &[&low[..], high].concat())?, Buffer::zeros(device, n * low.len())?])
            }
        };
        let (clock, states) = (Buffer::of(device, &[seed, 0])?, Buffer::zeros(device, n * shape.state_len)?);
        let (net, episodes) = (DeviceNet::new(device, net, n, n, false)?, Episodes::new(device, n, MAX_LATEST)?);
        drop(learner);
        let (descent, steps, graph, ran) = (descent.clone(), 0, None, false);
        let mut collector = Self { descent, envs, net, episodes, clock, share, slices, clipped, states, seed, steps, graph, ran };
        collector.reset(seed)?;
        Ok(collector)
    }

    /// Begins new episodes.
    ///
    /// Their first observations are those after the last step of the rollout.
    fn reset(&mut self, seed: u64) -> Result<(), Error> {
        let mut descent = lock(&self.descent);
        let DeviceDescent { stream, rollout, .. } = &mut *descent;
        let none = vec![0.0; self.states.len()];
        stream.upload(&self.states.view_mut(), &none)?;
        let (obs, masks) = own(rollout, &mut self.share).last();
        self.envs.reset_on(stream, seed, &obs, masks.as_ref())?;
        Ok(self.episodes.set_running(stream, &vec![(0.0, 0); self.envs.n_envs()])?)
    }

    /// Dimensions of the rollouts.
    #[must_use]
    pub fn shape(&self) -> RolloutShape {
        lock(&self.descent).rollout.shape()
    }

    /// Fills the learner's rollout on the device with T steps of every environment.
    ///
    /// `rollout` stands for it, with the version of the policy. With other ranks it holds the columns of all of them, and blocks
    /// until every rank has called this. Returns the number of episodes that ended, and the last ones in the order of their ends.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn collect(&mut self, version: u64, rollout: &mut Rollout) -> Result<(usize, Vec<Episode>), Error> {
        let Self { descent, envs, net, episodes, clock, share, clipped, states, steps, graph, ran, .. } = self;
        let descent = &mut *lock(descent);
        let stream = descent.stream.clone();
        rollout.clear();
        // The first statistics include this rollout, so its final observations are valued after it was added to them.
        let keeps_finals = descent.inputs.normalizer.as_ref().is_some_and(|normalizer| normalizer.is_empty);
        descent.times.mark(&stream, DevicePhase::Acting)?;
        let (of_share, clipped) = (share.as_mut(), clipped.as_mut());
        let mut acting = ActingOnDevice { descent, net, episodes, clock, share: of_share, clipped, states };
        match graph {
            _ if keeps_finals => acting.enqueue(envs, Some(rollout))?,
            Some(graph) => envs.replay_steps(graph)?,
            None if *ran && acting.descent.rollout.shape().n_steps <= acting.max_captured_steps() => {
                let captured = envs.capture_steps(&stream, |envs| acting.enqueue(envs, None))?;
                envs.replay_steps(graph.insert(captured))?;
            }
            None => acting.enqueue(envs, None)?,
        }
        *ran = true;
        acting.descent.times.mark(&stream, None)?;
        *steps += acting.descent.rollout.shape().n_steps as u64;
        envs.check_actions(&stream)?;
        let (mut n_ended, latest) = episodes.ended(&stream)?;
        let mut latest = latest.into_iter().map(episode).collect();
        rollout.policy_version_mut().fill(version);
        rollout.on_device = true;
        if let Some(share) = share {
            (n_ended, latest) = share.gather(descent, rollout, n_ended, latest)?;
        } else if descent.computed.normalizes() {
            // The statistics of rewards are the host's.
            descent.times.mark(&stream, DevicePhase::Copies)?;
            descent.rollout.download_rewards(&stream, rollout)?;
            descent.times.mark(&stream, None)?;
        }
        descent.times.report()?;
        Ok((n_ended, latest))
    }

    /// Returns the state to continue from, that of all ranks' environments.
    ///
    /// A [`Collector`](crate::Collector) of as many environments can load it.
    ///
    /// # Errors
    /// [`Error::Device`] or [`Error::Env`].
    pub fn save(&self) -> Result<CollectorState, Error> {
        let descent = lock(&self.descent);
        let DeviceDescent { stream, rollout, .. } = &*descent;
        let rollout = self.share.as_ref().map_or(rollout, |share| &share.rollout);
        let (n, d) = (self.envs.n_envs(), self.envs.observation_space().len());
        let mut obs = ObsRows::zeros(self.envs.observation_space().dtype(), n * d);
        if let Some(both) = obs.as_mut().zip(rollout.last_obs()) {
            either!(Obs, both, |(to, from)| stream.download(to, &from)?);
        }
        let mut masks = Vec::new();
        if let Some(from) = rollout.last_masks() {
            masks.resize(from.len(), 0);
            stream.download(&mut masks, &from)?;
        }
        let running: Vec<Episode> = self.episodes.running(stream)?.into_iter().map(episode).collect();
        let first = self.slices[0].start;
        let state = |slice: &Range<usize>| {
            let range = slice.start - first..slice.end - first;
            let mut rows = ObsRows::zeros(self.envs.observation_space().dtype(), 0);
            rows.extend(obs.as_slice().rows(range.clone(), d));
            let a = masks.len() / n;
            State { obs: rows, masks: masks[range.start * a..range.end * a].to_vec(), running: running[range].to_vec() }
        };
        let saved = self.envs.save_ranges(self.slices.iter().cloned())?;
        let slices = self.slices.iter().map(state).zip(saved.into_iter().map(Some)).collect();
        let own = CollectorState { steps: self.steps, slices, memory: download(stream, &self.states.view())? };
        let Some(DeviceShare { ranks, .. }) = &self.share else { return Ok(own) };
        let mut whole = CollectorState::without_envs(self.steps);
        for CollectorState { slices, memory, .. } in gather(&**ranks, Ok(own))? {
            whole.slices.extend(slices);
            whole.memory.extend(memory);
        }
        Ok(whole)
    }

    /// Continues after this many lifetime steps.
    fn set_clock(&mut self, steps: u64) -> Result<(), Error> {
        self.steps = steps;
        Ok(lock(&self.descent).stream.upload(&self.clock.view_mut(), &[self.seed, steps])?)
    }

    /// Restores the state of a collector.
    ///
    /// Environments that were not saved begin new episodes.
    ///
    /// # Errors
    /// [`Error::Snapshot`] if it does not fit; [`Error::Device`] or [`Error::Env`].
    pub fn load(&mut self, mut saved: CollectorState) -> Result<(), Error> {
        if !saved.has_envs() {
            self.set_clock(saved.steps)?;
            return self.reset(self.seed.wrapping_add(saved.steps));
        }
        let other = || Error::Snapshot("it belongs to another batch of environments".into());
        if let Some(DeviceShare { ranks, .. }) = &self.share {
            let own = ranks::share(saved.slices.len(), ranks.rank(), ranks.n_ranks());
            saved.slices = saved.slices.drain(own).collect();
            let first = self.slices[0].start * (self.states.len() / self.envs.n_envs());
            saved.memory = saved.memory.get(first..first + self.states.len()).ok_or_else(other)?.to_vec();
        }
        if saved.memory.len() != self.states.len() {
            return Err(other());
        }
        let mut descent = lock(&self.descent);
        let DeviceDescent { stream, rollout, .. } = &mut *descent;
        let mut obs = ObsRows::zeros(self.envs.observation_space().dtype(), 0);
        let (mut masks, mut running) = (Vec::new(), Vec::new());
        for (state, _) in &saved.slices {
            if state.obs.as_slice().dtype() != obs.as_slice().dtype() {
                return Err(other());
            }
            obs.extend(state.obs.as_slice());
            masks.extend_from_slice(&state.masks);
            running.extend(state.running.iter().map(|episode| (episode.episode_return, episode.length)));
        }
        let (to, to_masks) = own(rollout, &mut self.share).last();
        if running.len() != self.envs.n_envs() || masks.len() != to_masks.as_ref().map_or(0, |masks| masks.len()) {
            return Err(other());
        }
        let fits = match (&to, obs.as_slice()) {
            (Obs::F32(to), ObsSlice::F32(from)) => to.len() == from.len(),
            (Obs::U8(to), ObsSlice::U8(from)) => to.len() == from.len(),
            _ => false,
        };
        if !fits {
            return Err(other());
        }
        let ranges: Vec<&[u8]> = saved.slices.iter().filter_map(|(_, envs)| envs.as_deref()).collect();
        self.envs.load_ranges(&ranges)?;
        match (to, obs.as_slice()) {
            (Obs::F32(to), ObsSlice::F32(from)) => stream.upload(&to, from)?,
            (Obs::U8(to), ObsSlice::U8(from)) => stream.upload(&to, from)?,
            _ => unreachable!("of one kind, as checked above"),
        }
        if let Some(to) = to_masks {
            stream.upload(&to, &masks)?;
        }
        stream.upload(&self.states.view_mut(), &saved.memory)?;
        self.episodes.set_running(stream, &running)?;
        drop(descent);
        self.set_clock(saved.steps)
    }
}

/// Returns the columns of these environments.
fn own<'a>(all: &'a mut DeviceRollout, share: &'a mut Option<DeviceShare>) -> &'a mut DeviceRollout {
    share.as_mut().map_or(all, |share| &mut share.rollout)
}

/// Memory and kernels of acting on a device.
struct ActingOnDevice<'a> {
    descent: &'a mut DeviceDescent,
    net: &'a mut DeviceNet,
    episodes: &'a mut Episodes,
    clock: &'a mut Buffer<u64>,
    share: Option<&'a mut DeviceShare>,
    clipped: Option<&'a mut [Buffer<f32>; 2]>,
    states: &'a mut Buffer<f32>,
}

impl ActingOnDevice<'_> {
    /// Maximum steps of a rollout that is captured.
    fn max_captured_steps(&self) -> usize {
        MAX_CAPTURED_STEPS[usize::from(self.net.memory().is_some())]
    }

    /// Enqueues a rollout.
    ///
    /// `finals` takes the final observations, for which the host waits at each step.
    fn enqueue(&mut self, envs: &mut CudaVecEnv, mut finals: Option<&mut Rollout>) -> Result<(), Error> {
        let Self { descent, net, episodes, clock, share, clipped, states } = self;
        let DeviceDescent { stream, kernels, targets, chains, inputs, rollout, computed, params, log_std, .. } = &mut **descent;
        let queue = Queue { stream, kernels };
        let (columns, next_values) = match share {
            Some(DeviceShare { rollout, next_values, .. }) => (rollout, next_values),
            None => (rollout, &mut computed.next_values),
        };
        let RolloutShape { n_steps, n_envs: n, .. } = columns.shape();
        let ([actor, critic], params) = (*chains, params.view());
        columns.restart(stream)?;
        let remembers = net.memory().is_some();
        if remembers {
            stream.copy(&columns.first_states_mut(), &states.view())?;
        }
        for t in 0..n_steps {
            let DeviceStep { obs, masks, mut steps, log_probs, values } = columns.step(t);
            let needed = Needed { states: remembers.then(|| states.view()), ..Needed::default() };
            inputs.forward(queue, net, &params, &obs, n, needed)?;
            if let Some(memory) = net.memory() {
                memory.put(queue, n, &states.view_mut())?;
            }
            stream.copy(&values, &net.outputs(critic, n))?;
            let outputs = net.outputs(actor, n);
            let streams = PolicyStreams { clock: clock.view(), t: 1 + t as u64, first_env: envs.first_env() };
            match (&steps.actions, clipped.as_mut()) {
                (Actions::Discrete(actions), None) => {
                    targets.sample_categorical(stream, &outputs, masks.as_ref(), streams, actions, &log_probs)?;
                }
                (Actions::Continuous(actions), Some([bounds, clipped])) => {
                    let (log_std, clipped) = (params.slice(log_std.clone()), clipped.view_mut());
                    let to = [actions, &clipped, &log_probs];
                    targets.sample_gaussian(stream, &outputs, &log_std, &bounds.view(), streams, to)?;
                    steps.actions = Actions::Continuous(clipped);
                }
                _ => return Err(Error::ActionKind),
            }
            envs.step_on(stream, 1, ActionSource::Given, &steps)?;
            let final_obs = visit!(Obs, steps.final_obs, |obs| obs.into_view());
            let ended = [steps.terminated.into_view(), steps.truncated.into_view()];
            let of_ended = remembers.then(|| states.view());
            let needed = Needed { not_chain: Some(actor), ended: Some(ended), states: of_ended };
            inputs.forward(queue, net, &params, &final_obs, n, needed)?;
            let ended = ended.each_ref();
            if let Some(rollout) = &mut finals {
                push_finals(stream, t, envs.first_env(), ended, &final_obs, &states.view(), rollout)?;
            }
            if let Some(memory) = net.memory() {
                memory.forget(queue, ended, &states.view_mut())?;
            }
            let next_values = next_values.view_mut().into_slice(t * n..(t + 1) * n);
            kernels.ended_values(stream, &net.outputs(critic, n), ended, &next_values)?;
        }
        let needed = Needed { not_chain: Some(actor), ended: None, states: remembers.then(|| states.view()) };
        inputs.forward(queue, net, &params, &columns.last_obs(), n, needed)?;
        stream.copy(&columns.last_values_mut(), &net.outputs(critic, n))?;
        let (rewards, flags) = (columns.rewards(), [&columns.terminated(), &columns.truncated()]);
        let (values, last_values) = (columns.values(), columns.last_values());
        kernels.continued_values(stream, &values, &last_values, flags, &next_values.view_mut())?;
        episodes.add(stream, &rewards, flags[0], flags[1])?;
        Ok(targets.advance_clock(stream, &clock.view_mut(), n_steps as u64)?)
    }
}

/// Copies the final observations of the episodes that step `t` ended to the host.
fn push_finals(
    stream: &Stream,
    t: usize,
    first_env: u32,
    ended: [&View<'_, u8>; 2],
    final_obs: &Obs<View<'_, f32>, View<'_, u8>>,
    states: &View<'_, f32>,
    rollout: &mut Rollout,
) -> Result<(), Error> {
    let RolloutShape { obs_len: d, state_len: s, .. } = rollout.shape();
    let mut flags = [(); 2].map(|()| vec![0; ended[0].len()]);
    flags.iter_mut().zip(ended).try_for_each(|(to, from)| stream.download(to, from))?;
    let ends = |n: &usize| flags[0][*n] | flags[1][*n] != 0;
    for n in (0..flags[0].len()).filter(ends) {
        let mut row = ObsRows::zeros(rollout.shape().obs, d);
        if let Some(both) = row.as_mut().zip(final_obs.as_ref()) {
            either!(Obs, both, |(to, from)| stream.download(to, &from.slice(n * d..(n + 1) * d))?);
        }
        let state = download(stream, &states.slice(n * s..(n + 1) * s))?;
        rollout.push_final(t, first_env as usize + n, row.as_slice(), &[], &state);
    }
    Ok(())
}

fn episode((episode_return, length): (f64, u32)) -> Episode {
    Episode { episode_return, length }
}

#[cfg(test)]
mod tests {
    use rl_cuda::Device;
    use rl_envs::catalog;
    use rl_envs::wrappers::{Hidden, Wrappers};
    use rl_envs::{Pool, Purpose, Rng, codec};

    use super::*;
    use crate::fixture::{bits, has_fma};
    use crate::{ActorCritic, Agent, Collector, MemoryKind, NetConfig, Ppo, PpoConfig};

    /// Trains on the CPU and on a device, and exchanges the environments' states on the way.
    fn compare(device: &Device, entry: &Entry, size: (usize, usize), normalized: bool) {
        compare_with(device, entry, size, &NetConfig { normalize_obs: normalized, ..NetConfig::default() });
    }

    /// Trains with the memory of `net`, and its normalization.
    fn compare_with(device: &Device, entry: &Entry, (n, n_steps): (usize, usize), net: &NetConfig) {
        let normalized = net.normalize_obs;
        let pool = Pool::new(2).unwrap();
        let mut here = Collector::of(entry.slices(n, MAX_SLICES, MIN_SLICE).unwrap(), &pool, 1).unwrap();
        let rl_envs::Spaces { obs, actions } = entry.spaces();
        let net = NetConfig { hidden: vec![9], ..net.clone() };
        let config = PpoConfig { n_steps, batch_size: n * n_steps, n_epochs: 2, ..PpoConfig::default() };
        let config = PpoConfig { normalize_reward: normalized, ..config };
        let policy = ActorCritic::new(&obs, &actions, &net, 3).unwrap();
        here.remember(policy.network().state_len());
        let agent = || Ppo::new(policy.clone(), config.clone(), n, 5).unwrap();
        let (mut cpu, mut gpu) = (agent(), agent().on_device(device, here.shape(n_steps)).unwrap());
        let mut there = gpu.collector(entry, 1, None).unwrap();
        let [mut expected, mut found] = [here.rollout(n_steps).unwrap(), here.rollout(n_steps).unwrap()];
        for iteration in 0..4 {
            let context = format!("{device}, {}, {n} x {n_steps}, iteration {iteration}", entry.name);
            let episodes = here.collect(cpu.policy(), &mut expected).unwrap();
            let (ended, latest) = there.collect(gpu.policy().weights().version, &mut found).unwrap();
            assert_eq!((ended, &latest[..]), (episodes.len(), &episodes[ended.saturating_sub(MAX_LATEST)..]), "{context}");
            {
                let descent = lock(&there.descent);
                let mut copy = found.clone();
                descent.rollout.download(&descent.stream, &mut copy).unwrap();
                let all = |rollout: &Rollout| {
                    let floats = [rollout.rewards(), rollout.log_probs(), rollout.values()];
                    let flags =
                        [rollout.terminated(), rollout.truncated()].map(|flags| flags.iter().copied().collect::<Vec<_>>());
                    let actions = rollout.actions().either(
                        |actions| actions.iter().copied().collect::<Vec<_>>(),
                        |actions| actions.iter().map(|x| x.to_bits()).collect(),
                    );
                    let floats = floats.map(|column| column.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                    (floats, flags, actions, bits(rollout.last_values()), bits(rollout.first_states()))
                };
                assert_eq!(all(&copy), all(&expected), "{context}");
                assert_eq!(copy.obs(), expected.obs(), "{context}");
                assert_eq!(copy.masks(), expected.masks(), "{context}");
            }
            let metrics = cpu.update(&expected, 1.0, &pool).unwrap();
            assert_eq!(format!("{metrics:?}"), format!("{:?}", gpu.update(&found, 1.0, &pool).unwrap()), "{context}");
            // The second rollout is a graph, and the second of the two minibatches of an update.
            let captured = (there.graph.is_some(), lock(&there.descent).is_captured());
            assert_eq!(captured, (iteration > 0, true), "{context}");
            let (a, b) = (cpu.save().unwrap(), gpu.save().unwrap());
            assert!(bits(&a.params) == bits(&b.params) && a.counters == b.counters && a.statistics == b.statistics, "{context}");
            let states = [here.save().unwrap(), there.save().unwrap()];
            let [a, b] = [&states[0], &states[1]].map(|state| codec::encode(state).unwrap());
            assert!(a == b, "state of the environments: {context}");
            if iteration == 1 {
                let [a, b] = states;
                here.load(b).unwrap();
                there.load(a).unwrap();
            } else if iteration == 2 {
                // New episodes.
                here.load(CollectorState::without_envs(77)).unwrap();
                there.load(CollectorState::without_envs(77)).unwrap();
            }
        }
    }

    #[test]
    fn environments_on_a_device_fill_the_cpus_rollouts() {
        if !has_fma() {
            return;
        }
        for device in &Device::for_tests() {
            for entry in catalog::twinned() {
                compare(device, entry, (3, 5), false);
            }
            if device.is_stand_in() {
                continue; // slow
            }
            let find = |name| catalog::find(name).unwrap();
            compare(device, find("cartpole"), (65, 31), false);
            compare(device, find("pendulum"), (33, 16), true);
            // Episodes that end in the first rollout, and bytes.
            compare(device, find("cartpole"), (9, 60), true);
            compare(device, find("snake"), (5, 40), true);
        }
    }

    #[test]
    fn states_of_a_policy_go_from_step_to_step_on_a_device() {
        if !has_fma() {
            return;
        }
        let (cartpole, pendulum) = (catalog::find("cartpole").unwrap(), catalog::find("pendulum").unwrap());
        let net = |memory, memory_size, shared_trunk, normalize_obs| NetConfig {
            memory,
            memory_size,
            shared_trunk,
            normalize_obs,
            ..NetConfig::default()
        };
        for device in &Device::for_tests() {
            let (n, n_steps) = if device.is_stand_in() { (3, 14) } else { (9, 60) }; // the stand-in is slow
            compare_with(device, cartpole, (n, n_steps), &net(MemoryKind::Lstm, 5, false, false));
            let blind = cartpole.wrapped(Wrappers { hide: Hidden::Velocities, ..Wrappers::default() });
            compare_with(device, &blind, (n, n_steps), &net(MemoryKind::Gru, 20, true, true));
            compare_with(device, pendulum, (5, 9), &net(MemoryKind::Gru, 4, false, false));
        }
        let mistakes = [
            ["terminated[i / len] |", ""],
            ["| truncated[i / len]", ""],
            ["to[cell.size + j] = cell.c_now[i];", ""],
            ["(u64)column * len + offset", "(u64)column * len"],
        ];
        let unnoticed = Device::unnoticed("memory.cu", &mistakes, |device| {
            compare_with(device, cartpole, (9, 60), &net(MemoryKind::Lstm, 5, false, false));
            compare_with(device, pendulum, (3, 80), &net(MemoryKind::Lstm, 4, false, false)); // ends by time
        });
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }

    /// Compares the statistics of episodes with sums of one step after the other.
    fn compare_episodes(device: &Device) {
        let stream = device.stream().unwrap();
        let mut random = Rng::new(3, 0, 0, Purpose::Init);
        for (t, n) in [(1, 1), (40, 33), (9, 65)] {
            let keep = 20;
            let mut episodes = Episodes::new(device, n, keep).unwrap();
            let mut running = vec![(0.0, 0); n];
            for round in 0..3 {
                let rewards: Vec<f32> = (0..t * n).map(|_| random.normal()).collect();
                let mut flags = || (0..t * n).map(|_| u8::from(random.below(9) == 0)).collect::<Vec<_>>();
                let flags = [flags(), flags()];
                let mut ended = Vec::new();
                for at in 0..t * n {
                    let (sum, length) = &mut running[at % n];
                    (*sum, *length) = (*sum + f64::from(rewards[at]), *length + 1);
                    if flags[0][at] | flags[1][at] == 1 {
                        ended.push(std::mem::take(&mut running[at % n]));
                    }
                }
                let there = Buffer::of(device, &rewards).unwrap();
                let flags = flags.map(|flags| Buffer::of(device, &flags).unwrap());
                episodes.add(&stream, &there.view(), &flags[0].view(), &flags[1].view()).unwrap();
                let latest = ended[ended.len().saturating_sub(keep)..].to_vec();
                assert_eq!(episodes.ended(&stream).unwrap(), (ended.len(), latest), "{device}: {t} x {n}, round {round}");
                assert_eq!(episodes.running(&stream).unwrap(), running, "{device}: {t} x {n}, round {round}");
            }
        }
    }

    #[test]
    fn episodes_on_a_device_are_those_of_the_steps() {
        Device::for_tests().iter().for_each(compare_episodes);
        let mistakes = [
            ["running.lengths[at] : 0", "running.lengths[0] : 0"],
            ["rank >= first", "rank > first"],
            ["all - latest.keep", "all - latest.keep + 1"],
            ["        length = 0;", ""],
            ["at >= n_envs && !ended(rollout, at - n_envs)", "at >= n_envs"],
            ["rollout.terminated[at] | rollout.truncated[at]", "rollout.truncated[at]"],
        ];
        let unnoticed = Device::unnoticed("episodes.cu", &mistakes, compare_episodes);
        assert!(unnoticed.is_empty(), "{unnoticed:?}");
    }
}
