//! Rollouts that several devices share.
//!
//! Each device steps its share of the environments and collects their columns of the rollout. The twin of
//! [`Collector::of_rank`](crate::Collector::of_rank). The columns pass through the host's memory to all devices, so that each has
//! the rollout that one device alone would have collected.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use rl_buffer::{DeviceRollout, Memory, Pinned, Rollout, RolloutShape};
use rl_cuda::{Buffer, CpuAccess, Device, PinnedSlab};
use rl_envs::ObsRows;

use crate::device::descent::{DeviceDescent, download};
use crate::device::times::DevicePhase;
use crate::ranks::{Ranks, columns, gather_with, read_columns};
use crate::{Episode, Error};

/// Maximum number of episodes that a device reports for a rollout, the last to end.
pub const MAX_LATEST: usize = 100;

/// A rank's columns of a rollout that several devices share.
pub(crate) struct DeviceShare {
    pub(crate) ranks: Arc<dyn Ranks>,
    /// Environments of each rank.
    columns: Vec<Range<usize>>,
    /// Columns of this rank, (T, n).
    pub(crate) rollout: DeviceRollout,
    pub(crate) next_values: Buffer<f32>, // (T, n)
    /// The same columns on the host.
    here: Rollout,
    /// Next values of all environments, (T, N).
    all_next_values: PinnedSlab<f32>,
}

impl fmt::Debug for DeviceShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceShare").field("columns", &self.columns).finish_non_exhaustive()
    }
}

impl DeviceShare {
    /// Allocates this rank's columns of rollouts of a shape.
    ///
    /// # Errors
    /// [`Error::Ranks`] if there are fewer slices than ranks; [`Error::Device`].
    pub(crate) fn new(
        device: &Device,
        ranks: &Arc<dyn Ranks>,
        slices: &[Range<usize>],
        shape: RolloutShape,
    ) -> Result<Self, Error> {
        let columns = columns(slices, ranks.n_ranks())?;
        let own = RolloutShape { n_envs: columns[ranks.rank()].len(), ..shape };
        let pinned: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
        Ok(Self {
            ranks: ranks.clone(),
            columns,
            rollout: DeviceRollout::new(device, own)?,
            next_values: Buffer::zeros(device, own.n_steps * own.n_envs)?,
            here: Rollout::new_in(own, &pinned)?,
            all_next_values: PinnedSlab::zeros(Some(device), shape.n_steps * shape.n_envs, CpuAccess::ReadWrite)?,
        })
    }

    /// Gives every rank the columns of all ranks.
    ///
    /// Writes them to `rollout` and, with the values of the next observations, to the learner's memory on the device. `n_ended`
    /// of this rank's episodes ended; `latest` are the last of them, at most [`MAX_LATEST`]. Returns number and episodes of all
    /// ranks. Blocks until every rank has called it.
    ///
    /// # Errors
    /// [`Error::Device`], [`Error::PeerEnded`].
    pub(crate) fn gather(
        &mut self,
        descent: &mut DeviceDescent,
        rollout: &mut Rollout,
        n_ended: usize,
        latest: Vec<Episode>,
    ) -> Result<(usize, Vec<Episode>), Error> {
        let DeviceDescent { stream, times, rollout: all, computed, .. } = descent;
        let Self { ranks, columns, here, .. } = self;
        let RolloutShape { n_envs, obs_len: d, state_len: s, .. } = rollout.shape();
        times.mark(stream, DevicePhase::Copies)?;
        self.rollout.download(stream, here)?;
        let next_values = download(stream, &self.next_values.view())?;
        times.mark(stream, None)?;
        let mut final_obs = ObsRows::zeros(rollout.shape().obs, 0);
        final_obs.extend(rollout.final_obs());
        let own = ((n_ended, latest), rollout.final_at().to_vec(), (final_obs, rollout.final_states().to_vec()));
        let to = self.all_next_values.write()?;
        let write = |message: &mut Vec<u8>| {
            here.columns().each_row(&mut |row| message.extend_from_slice(row));
            next_values.iter().for_each(|x| message.extend(x.to_le_bytes()));
        };
        let read = |rank: usize, message: &[u8]| {
            let columns: &Range<usize> = &columns[rank];
            let next_values = read_columns(rollout, columns, message).as_chunks().0.chunks_exact(columns.len());
            for (to, from) in to.chunks_exact_mut(n_envs).zip(next_values) {
                to[columns.clone()].iter_mut().zip(from).for_each(|(to, &x)| *to = f32::from_le_bytes(x));
            }
        };
        let of_ranks = gather_with(&**ranks, Ok(own), write, read)?;
        times.mark(stream, DevicePhase::Copies)?;
        all.upload(stream, rollout)?;
        stream.upload_async(&computed.next_values.view_mut(), &self.all_next_values)?;
        times.mark(stream, None)?;
        let (mut n_ended, mut latest) = (0, Vec::with_capacity(columns.len()));
        for (rank, ((n, episodes), final_at, (final_obs, states))) in of_ranks.into_iter().enumerate() {
            n_ended += n;
            latest.push(std::iter::repeat_n(None, n - episodes.len()).chain(episodes.into_iter().map(Some)));
            if rank != ranks.rank() {
                for (i, &(t, n)) in final_at.iter().enumerate() {
                    rollout.push_final(t, n, final_obs.as_slice().row(i, d), &[], &states[i * s..(i + 1) * s]);
                }
            }
        }
        let rank_of_env: Vec<usize> =
            columns.iter().enumerate().flat_map(|(rank, columns)| columns.clone().map(move |_| rank)).collect();
        let flags = rollout.terminated().into_iter().zip(rollout.truncated());
        let ends = flags.zip(rank_of_env.iter().cycle()).filter(|((terminated, truncated), _)| **terminated | **truncated != 0);
        let mut episodes: Vec<_> = ends.filter_map(|(_, &rank)| latest[rank].next().flatten()).collect();
        episodes.drain(..episodes.len().saturating_sub(MAX_LATEST));
        Ok((n_ended, episodes))
    }
}

#[cfg(test)]
mod tests {
    use rl_cuda::Device;
    use rl_envs::catalog::{self, Entry};
    use rl_envs::{Pool, codec};

    use super::*;
    use crate::fixture::{bits, has_fma};
    use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
    use crate::ranks::tests::on_ranks;
    use crate::{ActorCritic, Agent, Collector, CollectorState, MemoryKind, NetConfig, Ppo, PpoConfig};

    /// Trains in environments on the CPU, or on a device as one of some ranks.
    ///
    /// Returns episodes, metrics, agent and environments after each update.
    fn train_in(
        entry: &Entry,
        (n_envs, n_steps): (usize, usize),
        normalized: bool,
        memory: MemoryKind,
        there: Option<(&Device, Arc<dyn Ranks>)>,
    ) -> Vec<String> {
        let (pool, rl_envs::Spaces { obs, actions }) = (Pool::new(1).unwrap(), entry.spaces());
        let net = NetConfig { hidden: vec![9], normalize_obs: normalized, memory, memory_size: 6, ..NetConfig::default() };
        let config = PpoConfig { n_steps, batch_size: n_envs * n_steps, n_epochs: 2, ..PpoConfig::default() };
        let config = PpoConfig { normalize_reward: normalized, ..config };
        let mut agent = Ppo::new(ActorCritic::new(&obs, &actions, &net, 3).unwrap(), config, n_envs, 5).unwrap();
        let mut here = Collector::of(entry.slices(n_envs, MAX_SLICES, MIN_SLICE).unwrap(), &pool, 1).unwrap();
        here.remember(agent.policy().state_len());
        let mut collector = None;
        if let Some((device, ranks)) = there {
            agent = agent.on_device(device, here.shape(n_steps)).unwrap();
            collector = Some(agent.collector(entry, 1, Some(&ranks)).unwrap());
            agent.shared().unwrap().share(ranks);
        }
        let mut rollout =
            Rollout::new_in(here.shape(n_steps), &agent.device().map_or_else(<dyn Memory>::host, |device| device.memory(false)))
                .unwrap();
        let mut iterate = |iteration: usize| {
            let (n_ended, latest) = match &mut collector {
                Some(there) => there.collect(agent.policy().weights().version, &mut rollout).unwrap(),
                None => {
                    let mut episodes = here.collect(agent.policy(), &mut rollout).unwrap();
                    (episodes.len(), episodes.split_off(episodes.len().saturating_sub(MAX_LATEST)))
                }
            };
            let (metrics, learnt) = (agent.update(&rollout, 1.0, &pool).unwrap(), agent.save().unwrap());
            let state = collector.as_ref().map_or_else(|| here.save(), |there| there.save()).unwrap();
            let context = format!("{n_ended} {latest:?} {metrics:?} {:?}", codec::encode(&state).unwrap());
            // The same environments, then new episodes.
            let state = if iteration == 0 { state } else { CollectorState::without_envs(77) };
            collector.as_mut().map_or_else(|| here.load(state.clone()), |there| there.load(state.clone())).unwrap();
            format!("{context} {:?} {:?}", bits(&learnt.params), (learnt.counters, learnt.statistics))
        };
        (0..3).map(&mut iterate).collect()
    }

    #[test]
    fn environments_on_any_number_of_devices_fill_the_cpus_rollouts() {
        if !has_fma() {
            return;
        }
        let find = |name| catalog::find(name).unwrap();
        // More episodes of each rank than are kept; ends in the first rollout, by the task and by time; masks.
        let cases = [
            (find("cartpole"), (48, 140), false, MemoryKind::None, 2 * MAX_LATEST + 20),
            (find("cartpole"), (12, 60), true, MemoryKind::None, 10),
            (find("pendulum"), (12, 205), true, MemoryKind::Lstm, 12),
            (find("snake"), (13, 40), false, MemoryKind::Gru, 0),
        ];
        for device in &Device::for_tests() {
            // The stand-in is slow.
            for (entry, size, normalized, memory, least) in if device.is_stand_in() { &cases[1..3] } else { &cases } {
                let size = if device.is_stand_in() { (12, 5) } else { *size };
                let expected = train_in(entry, size, *normalized, *memory, None);
                let n_ended: usize = expected[0].split(' ').next().unwrap().parse().unwrap();
                assert!(n_ended >= *least || device.is_stand_in(), "{}: {n_ended} episodes", entry.name);
                let n_ranks: &[usize] = if device.is_stand_in() { &[2] } else { &[1, 2, 3] };
                for &n_ranks in n_ranks {
                    let found = on_ranks(n_ranks, |ranks| train_in(entry, size, *normalized, *memory, Some((device, ranks))));
                    for (rank, found) in found.iter().enumerate() {
                        assert!(*found == expected, "{device}, {}, {size:?}, rank {rank} of {n_ranks}", entry.name);
                    }
                }
            }
        }
    }
}
