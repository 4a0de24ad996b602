//! Wrapper of a batch that stacks observations.

use serde::{Deserialize, Serialize};

use crate::batch::frames::preprocess;
use crate::batch::vec_env::inherited;
use crate::{
    ActionSpace, Canvas, Error, Obs, ObsRows, ObsSliceMut, Space, StepLens, StepSlicesMut, VecEnv, numerics::codec, visit,
};

/// A batch that observes its last k observations, oldest first.
///
/// It gives the bits of [`FrameStack`](crate::wrappers::FrameStack) to environments whose type is not known here.
#[derive(Clone, Debug)]
pub struct StackedVecEnv<V> {
    envs: V,
    space: Space,
    /// Last k observations of each environment, (N, k, D).
    frames: ObsRows,
    /// Observations and final observations of the latest step, (N, D).
    latest: ObsRows,
    last: ObsRows,
}

/// Saved state of [`StackedVecEnv`].
#[derive(Serialize, Deserialize)]
struct SavedStacks {
    envs: Vec<u8>,
    frames: ObsRows,
}

/// Reason why columns are of one kind: they are checked, or made for the space.
const SAME_KIND: &str = "observations of one space";

/// Makes a stack of one frame.
fn fill<T: Copy>(stack: &mut [T], frame: &[T]) {
    stack.chunks_exact_mut(frame.len()).for_each(|to| to.copy_from_slice(frame));
}

/// Appends a frame to a stack, and drops the oldest.
fn push<T: Copy>(stack: &mut [T], frame: &[T]) {
    stack.copy_within(frame.len().., 0);
    let newest = stack.len() - frame.len();
    stack[newest..].copy_from_slice(frame);
}

impl<V: VecEnv> StackedVecEnv<V> {
    /// Stacks the last `k` observations of `envs`.
    ///
    /// # Panics
    /// If `k` is 0.
    #[must_use]
    pub fn new(envs: V, k: usize) -> Self {
        assert!(k > 0, "a stack holds one observation at least");
        let (n, own) = (envs.n_envs(), envs.observation_space());
        let zeros = |len: usize| Obs::new(own.dtype(), || vec![0.0; len], || vec![0; len]);
        let (frames, latest) = (zeros(n * k * own.len()), zeros(n * own.len()));
        Self { space: own.stacked(k), last: latest.clone(), latest, frames, envs }
    }

    /// Elements of a frame and of a stack.
    fn lens(&self) -> [usize; 2] {
        [self.envs.observation_space().len(), self.space.len()]
    }

    /// Writes first stacks: the latest observations of environments from `first` on.
    fn begin(&mut self, first: usize, obs: ObsSliceMut<'_>) {
        let [d, len] = self.lens();
        let Self { frames, latest, .. } = self;
        preprocess(|| {
            let all = frames.as_mut().zip(latest.as_ref()).and_then(|all| all.zip(obs)).expect(SAME_KIND);
            let _ = visit!(Obs, all, |((frames, latest), obs)| {
                let stacks = frames[first * len..].chunks_exact_mut(len).zip(latest[first * d..].chunks_exact(d));
                for (obs, (stack, frame)) in obs.chunks_exact_mut(len).zip(stacks) {
                    fill(stack, frame);
                    obs.copy_from_slice(stack);
                }
            });
        });
    }

    /// Writes the next stacks of the environments from `first` on.
    fn append(&mut self, first: usize, steps: StepSlicesMut<'_>) {
        let [d, len] = self.lens();
        let Self { frames, latest, last, .. } = self;
        let StepSlicesMut { obs, final_obs, terminated, truncated, .. } = steps;
        let frames = frames.as_mut().zip(latest.as_ref()).and_then(|all| all.zip(last.as_ref()));
        let all = frames.and_then(|all| all.zip(obs)).and_then(|all| all.zip(final_obs)).expect(SAME_KIND);
        preprocess(|| {
            let _ = visit!(Obs, all, |((((frames, latest), last), obs), final_obs)| {
                let rows = obs.chunks_exact_mut(len).zip(final_obs.chunks_exact_mut(len)).enumerate();
                for (row, (obs, final_obs)) in rows {
                    let env = first + row;
                    let (stack, frame) = (&mut frames[env * len..][..len], &latest[env * d..][..d]);
                    if terminated[row] | truncated[row] != 0 {
                        push(stack, &last[env * d..][..d]);
                        final_obs.copy_from_slice(stack);
                        fill(stack, frame);
                    } else {
                        push(stack, frame);
                    }
                    obs.copy_from_slice(stack);
                }
            });
        });
    }
}

/// Borrows rows of one environment for writing.
fn row(rows: &mut ObsRows, env_idx: usize, d: usize) -> ObsSliceMut<'_> {
    visit!(Obs, rows, |rows| &mut rows[env_idx * d..][..d])
}

impl<V: VecEnv> VecEnv for StackedVecEnv<V> {
    inherited!(|self| self.envs, observation_space: &self.space);

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        StepLens::check_reset(self.n_envs(), &self.space, self.envs.action_space(), &obs, masks.as_deref())?;
        self.envs.reset_into(seed, self.latest.as_mut_slice(), masks)?;
        self.begin(0, obs);
        Ok(())
    }

    fn step_into(&mut self, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        steps.check(self.n_envs(), &self.space, self.envs.action_space())?;
        let (obs, final_obs) = (self.latest.as_mut_slice(), self.last.as_mut_slice());
        self.envs.step_into(StepSlicesMut { obs, final_obs, ..steps.view_mut() })?;
        self.append(0, steps);
        Ok(())
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        StepLens::check_reset(1, &self.space, self.envs.action_space(), &obs, masks.as_deref())?;
        let [d, _] = self.lens();
        self.envs.restart(env_idx, row(&mut self.latest, env_idx, d), masks)?;
        self.begin(env_idx, obs);
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        steps.check(1, &self.space, self.envs.action_space())?;
        let [d, _] = self.lens();
        let (obs, final_obs) = (row(&mut self.latest, env_idx, d), row(&mut self.last, env_idx, d));
        self.envs.repeat_step(env_idx, StepSlicesMut { obs, final_obs, ..steps.view_mut() })?;
        self.append(env_idx, steps);
        Ok(())
    }

    fn raw_rewards(&self, rewards: &mut [f32]) {
        self.envs.raw_rewards(rewards);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        codec::encode(&SavedStacks { envs: self.envs.save()?, frames: self.frames.clone() })
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let SavedStacks { envs, frames } = codec::decode(bytes)?;
        let lens = |rows: &ObsRows| rows.as_ref().map(Vec::len, Vec::len);
        if lens(&frames) != lens(&self.frames) {
            return Err(Error::BadState("the stacked frames are those of another batch".into()));
        }
        self.envs.load(&envs)?;
        self.frames = frames;
        Ok(())
    }
}
