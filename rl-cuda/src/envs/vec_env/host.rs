//! Environments on the device as a [`VecEnv`] of the host: each call waits.

use std::ops::Range;

use rl_envs::{ActionSpace, Canvas, ObsSliceMut, Space, StepLens, StepSlicesMut, VecEnv, either};

use super::{ActionSource, CudaVecEnv};
use crate::envs::steps::Host;
use crate::{Element, Error, PinnedSlab, Stream, View, ViewMut};

/// Wrong element type of the caller's observations.
const WRONG_OBS: Error = Error::Kind { what: "obs", expected: "the environment's element type" };

/// States of environments in consecutive ranges of their indices.
///
/// The first range begins with the index of the first environment. Each state is as a [`VecEnv`] of those environments saves it.
impl CudaVecEnv {
    /// Waits for the device, then returns the states.
    ///
    /// # Errors
    /// [`rl_envs::Error::Device`].
    pub fn save_ranges(&self, ranges: impl Iterator<Item = Range<usize>>) -> Result<Vec<Vec<u8>>, rl_envs::Error> {
        let words = self.words().map_err(of_envs)?;
        ranges.map(|range| (self.twin.save)(&words, &self.indices(), range, self.seed, self.steps)).collect()
    }

    /// Waits for the device, then restores the states of all environments.
    ///
    /// # Errors
    /// [`rl_envs::Error::BadState`] if they do not fit; [`rl_envs::Error::Device`].
    pub fn load_ranges(&mut self, saved: &[&[u8]]) -> Result<(), rl_envs::Error> {
        let (seed, steps, words) = (self.twin.load)(saved, self.indices())?;
        let mut work = || {
            self.device.synchronize()?;
            let stream = self.stream.clone();
            stream.upload(&ViewMut::of_shared(&self.memory.words), &words)?;
            self.set_clock(&stream, seed, steps)
        };
        work().map_err(of_envs)
    }
}

/// Converts to the errors of the [`VecEnv`] contract.
fn of_envs(error: Error) -> rl_envs::Error {
    match error {
        Error::Env(error) => error,
        error => rl_envs::Error::Device(error.to_string()),
    }
}

impl CudaVecEnv {
    /// Runs `work` on the batch's own stream with the staging memory.
    ///
    /// Waits first for work in flight on other streams.
    fn with_host<R>(&mut self, work: impl FnOnce(&mut Self, &Stream, &mut Host) -> Result<R, Error>) -> Result<R, Error> {
        if self.elsewhere {
            self.device.synchronize()?;
        }
        let mut host = match self.host.take() {
            Some(host) => host,
            None => Host::zeros(&self.device, self.n_envs, &self.observation_space, &self.action_space)?,
        };
        let stream = self.stream.clone();
        let result = work(self, &stream, &mut host);
        (self.host, self.elsewhere) = (Some(host), false);
        result
    }

    /// Resets, and copies first observations and masks to the host.
    fn reset_host(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: &mut [u8]) -> Result<(), Error> {
        self.with_host(|envs, stream, host| {
            let rows = host.steps.rows(0..1);
            envs.reset_on(stream, seed, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks))?;
            let from = &host.steps.columns;
            let both = obs.zip(from.obs.as_ref()).ok_or(WRONG_OBS)?;
            either!(Obs, both, |(to, from)| stream.download(to, &from.view()))?;
            from.masks.as_ref().map_or(Ok(()), |[from, _]| stream.download(masks, &from.view()))
        })
    }

    /// Steps once, and copies the results to the host.
    fn step_host(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        let (d, a) = (self.observation_space.len(), self.action_space.len());
        self.with_host(|envs, stream, host| {
            let both = steps.actions.as_slice().zip(host.steps.columns.actions.as_mut());
            let both = both.ok_or(Error::Kind { what: "actions", expected: "those of the action space" })?;
            either!(Actions, both, |(from, to)| stream.upload(&to.view_mut(), from))?;
            envs.step_on(stream, 1, ActionSource::Given, &host.steps.rows(0..1))?;
            let from = &host.steps.columns;
            let both = steps.obs.zip(from.obs.as_ref()).ok_or(WRONG_OBS)?;
            either!(Obs, both, |(to, from)| stream.download(to, &from.view()))?;
            stream.download(steps.rewards, &from.rewards.view())?;
            stream.download(steps.terminated, &from.terminated.view())?;
            stream.download(steps.truncated, &from.truncated.view())?;
            let [masks, final_masks] = steps.masks.unwrap_or_default();
            if let Some([from, _]) = &from.masks {
                stream.download(masks, &from.view())?;
            }
            let ended: Vec<usize> = (0..steps.rewards.len()).filter(|&i| steps.terminated[i] | steps.truncated[i] != 0).collect();
            if ended.is_empty() {
                return Ok(());
            }
            let both = from.final_obs.as_ref().zip(host.finals.as_mut()).and_then(|both| steps.final_obs.zip(both));
            either!(Obs, both.ok_or(WRONG_OBS)?, |(to, (from, slab))| finals(stream, &from.view(), slab, &ended, d, to))?;
            match &from.masks {
                Some([_, from]) => finals(stream, &from.view(), &mut host.masks, &ended, a, final_masks),
                None => Ok(()),
            }
        })
    }
}

/// Copies the rows `ended` of `len` elements each to the host, by way of `slab`.
fn finals<T: Element>(
    stream: &Stream,
    from: &View<'_, T>,
    slab: &mut PinnedSlab<T>,
    ended: &[usize],
    len: usize,
    to: &mut [T],
) -> Result<(), Error> {
    stream.download_async(slab, from)?;
    let rows = slab.read()?;
    ended.iter().for_each(|i| to[i * len..][..len].copy_from_slice(&rows[i * len..][..len]));
    Ok(())
}

impl VecEnv for CudaVecEnv {
    fn n_envs(&self) -> usize {
        self.n_envs
    }

    fn first_env(&self) -> u32 {
        self.first_env
    }

    fn observation_space(&self) -> &Space {
        &self.observation_space
    }

    fn action_space(&self) -> &ActionSpace {
        &self.action_space
    }

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), rl_envs::Error> {
        StepLens::check_reset(self.n_envs, &self.observation_space, &self.action_space, &obs, masks.as_deref())?;
        self.reset_host(seed, obs, masks.unwrap_or_default()).map_err(of_envs)
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), rl_envs::Error> {
        steps.check(self.n_envs, &self.observation_space, &self.action_space)?;
        self.step_host(steps).map_err(of_envs)
    }

    /// Always fails: a device batch cannot restart one environment alone.
    ///
    /// Its environments return only finite numbers, so no caller needs a restart.
    fn restart(&mut self, _: usize, _: ObsSliceMut<'_>, _: Option<&mut [u8]>) -> Result<(), rl_envs::Error> {
        Err(rl_envs::Error::CannotRestart)
    }

    /// Fails, as [`VecEnv::restart`] does.
    fn repeat_step(&mut self, _: usize, _: StepSlicesMut<'_>) -> Result<(), rl_envs::Error> {
        Err(rl_envs::Error::CannotRestart)
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        assert!(env_idx < self.n_envs, "environment {env_idx} of {}", self.n_envs);
        if let Ok(words) = self.words() {
            (self.twin.render)(&words, self.n_envs, env_idx, canvas);
        }
    }

    fn save(&self) -> Result<Vec<u8>, rl_envs::Error> {
        self.save_ranges(std::iter::once(self.indices())).map(|mut saved| saved.swap_remove(0))
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), rl_envs::Error> {
        self.load_ranges(&[bytes])
    }
}
