//! A batch whose slices are stepped by several threads.

use std::ops::Range;

use crate::{
    ActionSpace, Canvas, Env, Error, Isa, ObsSliceMut, Pool, Space, StepLens, StepSlicesMut, SyncVecEnv, VecEnv, batch::pool,
    numerics::codec, visit,
};

/// N environments in fixed slices, stepped by the threads of a [`Pool`].
///
/// Equal to [`SyncVecEnv`] bit for bit.
#[derive(Debug)]
pub struct PooledVecEnv<V> {
    slices: Vec<V>,
    n_envs: usize,
    pool: Pool,
    /// Faults of all slices.
    faults: Vec<(usize, String)>,
}

/// Maximum number of slices, and minimum length of one.
///
/// Below 64 environments, handing work to another thread costs more than the work.
const MAX_SLICES: usize = 64;
const MIN_SLICE: usize = 64;

impl<E: Env> PooledVecEnv<SyncVecEnv<E>> {
    /// Creates `n_envs` copies of `env`, stepped by the threads of `pool`.
    ///
    /// # Panics
    /// If `n_envs` is 0 or does not fit u32.
    pub fn new(n_envs: usize, env: &E, pool: &Pool) -> Self {
        Self::of(n_envs, pool, |range| SyncVecEnv::slice(range, env.clone()).with_isa(Isa::best()))
    }
}

impl<V: VecEnv> PooledVecEnv<V> {
    /// Creates `n_envs` environments in slices made by `slice` from ranges of indices.
    ///
    /// # Panics
    /// If `n_envs` is 0 or does not fit u32.
    pub fn of(n_envs: usize, pool: &Pool, slice: impl FnMut(Range<usize>) -> V) -> Self {
        assert!(n_envs > 0 && u32::try_from(n_envs).is_ok(), "1 to 2^32 - 1 environments");
        let slices = pool::slices(n_envs, MAX_SLICES, MIN_SLICE).map(slice).collect();
        Self { slices, n_envs, pool: pool.clone(), faults: Vec::new() }
    }
}

fn reset_slices<V: VecEnv>(slices: &mut [V], seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
    let Some((first, rest)) = slices.split_first_mut() else { return Ok(()) };
    let n = first.n_envs();
    let d = first.observation_space().len();
    let (obs_a, obs_b) = visit!(Obs, obs, |obs| obs.split_at_mut(n * d)).unzip();
    let (masks_a, masks_b) = masks.map(|masks| masks.split_at_mut(n * first.action_space().len())).unzip();
    first.reset_into(seed, obs_a, masks_a)?;
    reset_slices(rest, seed, obs_b, masks_b)
}

impl<V: VecEnv> PooledVecEnv<V> {
    /// Returns the slice with environment `env_idx`, and the environment's index there.
    fn slice_of(&self, env_idx: usize) -> (usize, usize) {
        let mut first = 0;
        for (i, slice) in self.slices.iter().enumerate() {
            if env_idx < first + slice.n_envs() {
                return (i, env_idx - first);
            }
            first += slice.n_envs();
        }
        panic!("environment {env_idx} of {}", self.n_envs);
    }

    fn gather_faults(&mut self) {
        let Self { slices, faults, .. } = self;
        faults.clear();
        let mut first = 0;
        for slice in slices {
            faults.extend(slice.faults().iter().map(|(env_idx, why)| (first + env_idx, why.clone())));
            first += slice.n_envs();
        }
    }
}

impl<V: VecEnv> VecEnv for PooledVecEnv<V> {
    fn n_envs(&self) -> usize {
        self.n_envs
    }

    fn first_env(&self) -> u32 {
        self.slices[0].first_env()
    }

    fn observation_space(&self) -> &Space {
        self.slices[0].observation_space()
    }

    fn action_space(&self) -> &ActionSpace {
        self.slices[0].action_space()
    }

    fn reset_into(&mut self, seed: u64, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        // Everything that could fail in one slice is checked before any slice resets.
        StepLens::check_reset(self.n_envs, self.observation_space(), self.action_space(), &obs, masks.as_deref())?;
        let result = reset_slices(&mut self.slices, seed, obs, masks);
        self.gather_faults();
        result
    }

    fn faults(&self) -> &[(usize, String)] {
        &self.faults
    }

    fn step_into(&mut self, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        // Everything that could fail in one slice is checked before any slice steps.
        steps.check(self.n_envs, self.observation_space(), self.action_space())?;
        let mut work = Vec::with_capacity(self.slices.len());
        let mut rest = steps;
        for slice in &mut self.slices {
            let (first, others) = rest.split_at(slice.n_envs());
            rest = others;
            work.push((slice, Some(first), Ok(())));
        }
        self.pool.each(&mut work, &|(slice, steps, result)| {
            if let Some(steps) = steps.take() {
                *result = slice.step_into(steps);
            }
        });
        let result = work.into_iter().try_for_each(|(.., result)| result);
        self.gather_faults();
        result
    }

    fn restart(&mut self, env_idx: usize, obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        let (slice, env_idx) = self.slice_of(env_idx);
        let result = self.slices[slice].restart(env_idx, obs, masks);
        self.gather_faults();
        result
    }

    fn repeat_step(&mut self, env_idx: usize, steps: StepSlicesMut<'_>) -> Result<(), Error> {
        let (slice, env_idx) = self.slice_of(env_idx);
        let result = self.slices[slice].repeat_step(env_idx, steps);
        self.gather_faults();
        result
    }

    fn raw_rewards(&self, mut rewards: &mut [f32]) {
        for slice in &self.slices {
            let (first, rest) = rewards.split_at_mut(slice.n_envs());
            slice.raw_rewards(first);
            rewards = rest;
        }
    }

    fn goes_on(&self, env_idx: usize) -> bool {
        let (slice, env_idx) = self.slice_of(env_idx);
        self.slices[slice].goes_on(env_idx)
    }

    fn render(&self, env_idx: usize, canvas: &mut Canvas) {
        let (slice, env_idx) = self.slice_of(env_idx);
        self.slices[slice].render(env_idx, canvas);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        let slices = self.slices.iter().map(VecEnv::save).collect::<Result<Vec<_>, _>>()?;
        codec::encode(&slices)
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let slices: Vec<Vec<u8>> = codec::decode(bytes)?;
        if slices.len() != self.slices.len() {
            return Err(Error::BadState(format!("it holds {} slices, not {}", slices.len(), self.slices.len())));
        }
        let before = self.save()?;
        let loaded = self.slices.iter_mut().zip(&slices).try_for_each(|(slice, bytes)| slice.load(bytes));
        if loaded.is_err() {
            let slices: Vec<Vec<u8>> = codec::decode(&before)?;
            self.slices.iter_mut().zip(&slices).try_for_each(|(slice, bytes)| slice.load(bytes))?;
        }
        loaded
    }
}
