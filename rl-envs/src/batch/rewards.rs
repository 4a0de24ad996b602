//! Wrappers of a batch that read or clip its rewards.

use serde::{Deserialize, Serialize};

use crate::batch::vec_env::inherited;
use crate::{ActionSpace, Canvas, Error, ObsSliceMut, Space, StepSlicesMut, VecEnv, numerics::codec};

/// An ended episode.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// Index of the environment in the batch.
    pub env_idx: usize,
    /// Sum of the rewards, not discounted.
    pub episode_return: f64,
    /// Number of steps.
    pub length: u32,
}

/// A batch that records return and length of each episode.
#[derive(Clone, Debug)]
pub struct EpisodeStats<V> {
    envs: V,
    running: Vec<Episode>, // (N)
    finished: Vec<Episode>,
    raw: Vec<f32>, // (N)
}

/// Adds a step to an episode, which is finished if `done`.
fn count(episode: &mut Episode, reward: f32, done: bool, finished: &mut Vec<Episode>) {
    episode.episode_return += f64::from(reward);
    episode.length += 1;
    if done {
        finished.push(*episode);
        (episode.episode_return, episode.length) = (0.0, 0);
    }
}

/// Saved state of [`EpisodeStats`].
#[derive(Serialize, Deserialize)]
struct SavedStats {
    envs: Vec<u8>,
    running: Vec<Episode>,
    finished: Vec<Episode>,
}

impl<V: VecEnv> EpisodeStats<V> {
    /// Wraps `envs`.
    #[must_use]
    pub fn new(envs: V) -> Self {
        let running = Self::start(envs.n_envs());
        Self { raw: vec![0.0; envs.n_envs()], envs, running, finished: Vec::new() }
    }

    fn start(n_envs: usize) -> Vec<Episode> {
        (0..n_envs).map(|env_idx| Episode { env_idx, episode_return: 0.0, length: 0 }).collect()
    }

    /// Returns the episodes that ended since the last call, in order of their ends.
    ///
    /// Episodes of the same step are in order of their index. They are kept until taken, even over a reset.
    pub fn take_finished(&mut self) -> Vec<Episode> {
        std::mem::take(&mut self.finished)
    }
}

impl<V: VecEnv> VecEnv for EpisodeStats<V> {
    inherited!(|self| self.envs);

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.reset_into(seed, obs, masks)?;
        self.running = Self::start(self.envs.n_envs());
        Ok(())
    }

    fn step_into(&mut self, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.step_into(steps.view_mut())?;
        let ends = steps.terminated.iter().zip(&*steps.truncated).map(|(terminated, truncated)| terminated | truncated != 0);
        self.raw.copy_from_slice(steps.rewards);
        self.envs.raw_rewards(&mut self.raw);
        for (i, ((episode, &reward), ended)) in self.running.iter_mut().zip(&self.raw).zip(ends).enumerate() {
            count(episode, reward, ended && !self.envs.goes_on(i), &mut self.finished);
        }
        Ok(())
    }

    /// Restarts an environment; its episode counts only if its last step ended it.
    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.restart(env_idx, obs, masks)?;
        self.running[env_idx] = Episode { env_idx, episode_return: 0.0, length: 0 };
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.repeat_step(env_idx, steps.view_mut())?;
        self.raw[env_idx] = steps.rewards[0];
        self.envs.raw_rewards(&mut self.raw);
        let done = steps.terminated[0] | steps.truncated[0] != 0 && !self.envs.goes_on(env_idx);
        count(&mut self.running[env_idx], self.raw[env_idx], done, &mut self.finished);
        Ok(())
    }

    fn raw_rewards(&self, rewards: &mut [f32]) {
        self.envs.raw_rewards(rewards);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        let (running, finished) = (self.running.clone(), self.finished.clone());
        codec::encode(&SavedStats { envs: self.envs.save()?, running, finished })
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let saved: SavedStats = codec::decode(bytes)?;
        let n = self.envs.n_envs();
        let in_order = saved.running.iter().map(|episode| episode.env_idx).eq(0..n);
        if !in_order || saved.finished.iter().any(|episode| episode.env_idx >= n) {
            return Err(Error::BadState(format!("its episodes are not those of {n} environments")));
        }
        self.envs.load(&saved.envs)?;
        (self.running, self.finished) = (saved.running, saved.finished);
        Ok(())
    }
}

/// A batch with rewards clipped to bounds; NaN stays NaN.
#[derive(Clone, Debug)]
pub struct RewardClip<V> {
    envs: V,
    low: f32,
    high: f32,
    raw: Vec<f32>, // (N)
}

impl<V: VecEnv> RewardClip<V> {
    /// Clips the rewards of `envs` to `low` and `high`.
    ///
    /// # Panics
    /// If `low` exceeds `high`, or either is NaN.
    #[must_use]
    pub fn new(envs: V, low: f32, high: f32) -> Self {
        assert!(low <= high, "rewards are clipped to [{low}, {high}]");
        Self { raw: vec![0.0; envs.n_envs()], envs, low, high }
    }

    /// Returns the inner batch, for example for its episodes.
    ///
    /// Stepping it directly gives rewards without clipping.
    pub fn envs_mut(&mut self) -> &mut V {
        &mut self.envs
    }
}

impl<V: VecEnv> VecEnv for RewardClip<V> {
    inherited!(|self| self.envs);

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.reset_into(seed, obs, masks)
    }

    fn step_into(&mut self, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.step_into(steps.view_mut())?;
        self.raw.copy_from_slice(steps.rewards);
        self.envs.raw_rewards(&mut self.raw);
        steps.rewards.iter_mut().for_each(|reward| *reward = reward.clamp(self.low, self.high));
        Ok(())
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.restart(env_idx, obs, masks)
    }

    fn repeat_step(&mut self, env_idx: usize, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.repeat_step(env_idx, steps.view_mut())?;
        self.raw[env_idx] = steps.rewards[0];
        self.envs.raw_rewards(&mut self.raw);
        steps.rewards.iter_mut().for_each(|reward| *reward = reward.clamp(self.low, self.high));
        Ok(())
    }

    fn raw_rewards(&self, rewards: &mut [f32]) {
        rewards.copy_from_slice(&self.raw);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        self.envs.save()
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.envs.load(bytes)
    }
}
