//! Replay memories that take and give NumPy arrays.

use std::sync::{Mutex, MutexGuard};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rl_buffer::{ActionKind, Batch, Dtype, PrioritizedReplayBuffer, ReplayBuffer, StepSlices, TransitionShape};
use rl_envs::{Actions, Obs, ObsSlice, Purpose, Rng, StepLens};

use crate::error::{bad, raised_by_buffer};

/// Uniform or prioritized.
enum Memory {
    Uniform(ReplayBuffer),
    Prioritized(PrioritizedReplayBuffer),
}

impl Memory {
    fn replay(&self) -> &ReplayBuffer {
        match self {
            Self::Uniform(replay) => replay,
            Self::Prioritized(replay) => replay.replay(),
        }
    }
}

struct Store {
    memory: Memory,
    /// Latest draw; `None` before it.
    batch: Option<Batch>,
    seed: u64,
    /// Number of draws so far, each with random words of its own.
    draws: u64,
}

/// A ring of transitions.
#[pyclass(frozen, module = "samebits._samebits")]
pub(crate) struct Replay {
    store: Mutex<Store>,
    shape: TransitionShape,
}

/// Observations of either type, flat.
#[derive(FromPyObject)]
pub(crate) enum Observed<'py> {
    F32(PyReadonlyArray1<'py, f32>),
    U8(PyReadonlyArray1<'py, u8>),
}

impl Observed<'_> {
    pub(crate) fn as_slice(&self) -> PyResult<ObsSlice<'_>> {
        Ok(match self {
            Self::F32(obs) => Obs::F32(slice(obs)?),
            Self::U8(obs) => Obs::U8(slice(obs)?),
        })
    }
}

/// Actions of either kind, flat.
#[derive(FromPyObject)]
enum Acted<'py> {
    Discrete(PyReadonlyArray1<'py, u32>),
    Continuous(PyReadonlyArray1<'py, f32>),
}

/// Type and length of observations.
pub(crate) fn lens(obs: ObsSlice<'_>) -> Obs<usize, usize> {
    obs.map(<[f32]>::len, <[u8]>::len)
}

fn slice<'a, T: numpy::Element>(array: &'a PyReadonlyArray1<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|error| bad(error.to_string()))
}

#[pymethods]
impl Replay {
    /// Creates an empty memory; `alpha` and `epsilon` make it a prioritized one.
    #[new]
    #[pyo3(signature = (capacity, obs_len, is_bytes, action_len, n_envs, n_step, gamma, seed, alpha=None, epsilon=0.0))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        capacity: usize,
        obs_len: usize,
        is_bytes: bool,
        action_len: Option<usize>,
        n_envs: usize,
        n_step: usize,
        gamma: f32,
        seed: u64,
        alpha: Option<f32>,
        epsilon: f32,
    ) -> PyResult<Self> {
        let obs = if is_bytes { Dtype::U8 } else { Dtype::F32 };
        let actions = action_len.map_or(ActionKind::Discrete { masked: None }, |len| ActionKind::Continuous { len });
        let shape = TransitionShape { n_envs, obs_len, obs, stack: 1, actions, n_step, gamma };
        let memory = match alpha {
            None => ReplayBuffer::new(shape, capacity).map(Memory::Uniform),
            Some(alpha) => PrioritizedReplayBuffer::new(shape, capacity, alpha, epsilon).map(Memory::Prioritized),
        };
        let memory = memory.map_err(raised_by_buffer)?;
        Ok(Self { store: Mutex::new(Store { memory, batch: None, seed, draws: 0 }), shape })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.lock()?.memory.replay().len())
    }

    /// Adds a step of all environments.
    ///
    /// `next_obs` are final ones where an episode has ended.
    #[expect(clippy::too_many_arguments, reason = "columns of a step")]
    fn add(
        &self,
        py: Python<'_>,
        obs: Observed<'_>,
        actions: Acted<'_>,
        rewards: PyReadonlyArray1<'_, f32>,
        next_obs: Observed<'_>,
        terminated: PyReadonlyArray1<'_, u8>,
        truncated: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<()> {
        let next_obs = next_obs.as_slice()?;
        let step = StepSlices {
            obs: next_obs,
            actions: match &actions {
                Acted::Discrete(actions) => Actions::Discrete(slice(actions)?),
                Acted::Continuous(actions) => Actions::Continuous(slice(actions)?),
            },
            rewards: slice(&rewards)?,
            terminated: slice(&terminated)?,
            truncated: slice(&truncated)?,
            final_obs: next_obs,
            masks: None,
        };
        let (obs, shape) = (obs.as_slice()?, self.shape);
        let expected = StepLens::rows(shape.n_envs, shape.obs, shape.obs_len, shape.actions);
        if step.lens() != expected || lens(obs) != expected.obs {
            return Err(bad("types or lengths of the columns do not fit the memory"));
        }
        let memory = &mut self.lock()?.memory;
        let added = py.detach(|| match memory {
            Memory::Uniform(replay) => replay.push(obs, &step),
            Memory::Prioritized(replay) => replay.push(obs, &step),
        });
        added.map(drop).map_err(raised_by_buffer)
    }

    /// Draws a batch; each column is a new array, flat.
    #[pyo3(signature = (len, beta))]
    fn sample<'py>(&self, py: Python<'py>, len: usize, beta: f32) -> PyResult<Bound<'py, PyDict>> {
        let mut store = self.lock()?;
        let Store { memory, batch, seed, draws } = &mut *store;
        // The latest batch stays if this one cannot be drawn: nothing is written then.
        let reused = batch.take_if(|batch| batch.len() == len);
        let is_reused = reused.is_some();
        let mut next = reused.map_or_else(|| Batch::new(&self.shape, len), Ok).map_err(raised_by_buffer)?;
        let rng = &mut Rng::new(*seed, 0, *draws, Purpose::Replay);
        let drawn = py.detach(|| match memory {
            Memory::Uniform(replay) => replay.sample_with(rng, &mut next),
            Memory::Prioritized(replay) => replay.sample_with(rng, beta, &mut next),
        });
        if let Err(error) = drawn {
            if is_reused {
                *batch = Some(next);
            }
            return Err(raised_by_buffer(error));
        }
        *draws += 1;
        let (columns, drawn) = (batch.insert(next).columns(), PyDict::new(py));
        let observed = |obs: ObsSlice<'_>| match obs {
            Obs::F32(obs) => PyArray1::from_slice(py, obs).into_any(),
            Obs::U8(obs) => PyArray1::from_slice(py, obs).into_any(),
        };
        drawn.set_item("obs", observed(columns.obs))?;
        match columns.actions {
            Actions::Discrete(actions) => drawn.set_item("actions", PyArray1::from_slice(py, actions))?,
            Actions::Continuous(actions) => drawn.set_item("actions", PyArray1::from_slice(py, actions))?,
        }
        for (name, column) in [("rewards", columns.rewards), ("discounts", columns.discounts), ("weights", columns.weights)] {
            drawn.set_item(name, PyArray1::from_slice(py, column))?;
        }
        drawn.set_item("next_obs", observed(columns.next_obs))?;
        drawn.set_item("indices", PyArray1::from_slice(py, columns.indices))?;
        Ok(drawn)
    }

    /// Sets priorities from the errors of drawn transitions; returns how many.
    fn update_priorities(&self, indices: PyReadonlyArray1<'_, u32>, errors: PyReadonlyArray1<'_, f32>) -> PyResult<usize> {
        let (indices, errors) = (slice(&indices)?, slice(&errors)?);
        if indices.len() != errors.len() {
            return Err(bad(format!("there are {} indices and {} errors", indices.len(), errors.len())));
        }
        let mut store = self.lock()?;
        let Store { memory, batch, .. } = &mut *store;
        match (memory, batch) {
            (Memory::Prioritized(replay), Some(batch)) => {
                replay.update_priorities(indices, batch.drawn_at(), errors).map_err(raised_by_buffer)
            }
            _ => Err(bad("priorities can be set once a batch was drawn from a prioritized memory")),
        }
    }

    /// Removes everything.
    fn clear(&self) -> PyResult<()> {
        let mut store = self.lock()?;
        store.batch = None;
        match &mut store.memory {
            Memory::Uniform(replay) => replay.clear(),
            Memory::Prioritized(replay) => replay.clear(),
        }
        Ok(())
    }
}

impl Replay {
    /// Borrows the memory for one call.
    fn lock(&self) -> PyResult<MutexGuard<'_, Store>> {
        self.store.try_lock().map_err(|_| PyRuntimeError::new_err("another thread is using this memory, or has failed in it"))
    }
}
