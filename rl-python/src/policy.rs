//! Trained policies.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use numpy::{IntoPyArray as _, PyReadonlyArray1};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rl_agents::{Acted, Acting, Choice, Scratch};
use rl_envs::{ActionSpace, Actions, Obs, Spaces};
use rl_runtime::checkpoint::SavedPolicy;

use crate::envs::{describe_actions, describe_obs};
use crate::error::{bad, raised};
use crate::replay::Observed;
use crate::train::open_saved;

/// The policy of a checkpoint.
#[pyclass(frozen, module = "samebits._samebits")]
pub(crate) struct Policy {
    saved: SavedPolicy,
    spaces: Spaces,
    scratch: Mutex<Scratch>,
    /// Calls that have sampled.
    sampled: AtomicU64,
}

#[pymethods]
impl Policy {
    /// Loads the policy of a checkpoint, or of a run's newest or best one.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, best: bool, trust: bool, python: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let entry = open_saved(&path, best, trust, python)?;
            let saved = rl_runtime::checkpoint::policy(&path, best, &entry).map_err(raised)?;
            entry.batches().into_iter().for_each(|batches| batches.close());
            let spaces = saved.entry.spaces();
            Ok(Self { saved, spaces, scratch: Mutex::default(), sampled: AtomicU64::new(0) })
        })
    }

    /// Path of the checkpoint.
    #[getter]
    fn path(&self) -> PathBuf {
        self.saved.path.clone()
    }

    /// Number of elements of the policy's state.
    #[getter]
    fn state_len(&self) -> usize {
        self.saved.policy.state_len()
    }

    /// Describes the spaces of observations and actions.
    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        Ok((describe_obs(py, &self.spaces.obs)?, describe_actions(py, &self.spaces.actions)?))
    }

    /// Acts on N flat observations; returns actions and states, flat.
    ///
    /// Vectors are clipped to their bounds.
    fn act<'py>(
        &self,
        py: Python<'py>,
        obs: Observed<'_>,
        states: PyReadonlyArray1<'_, f32>,
        masks: PyReadonlyArray1<'_, u8>,
        seed: Option<u64>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
        let obs = obs.as_slice()?;
        let (len, matches) = match (obs, self.spaces.obs.dtype()) {
            (Obs::F32(obs), rl_envs::Dtype::F32) => (obs.len(), true),
            (Obs::U8(obs), rl_envs::Dtype::U8) => (obs.len(), true),
            (Obs::F32(obs), _) => (obs.len(), false),
            (Obs::U8(obs), _) => (obs.len(), false),
        };
        let n = len / self.spaces.obs.len();
        let masks = masks.as_slice().map_err(|error| bad(error.to_string()))?;
        let n_masks =
            if self.spaces.actions.masked() { n * self.spaces.actions.n_discrete().map_or(0, |n| n as usize) } else { 0 };
        let mut states = states.as_slice().map_err(|error| bad(error.to_string()))?.to_vec();
        if !matches || len != n * self.spaces.obs.len() || n == 0 {
            return Err(bad("type or length of the observations do not fit the policy"));
        }
        if !masks.is_empty() && masks.len() != n_masks {
            return Err(bad(format!("there are {} elements of masks instead of {n_masks}", masks.len())));
        }
        if states.len() != n * self.saved.policy.state_len() {
            return Err(bad("the states are not those of the observations"));
        }
        let choice = seed.map_or(Choice::Greedy, |seed| Choice::Sample {
            seed,
            step: self.sampled.fetch_add(1, Ordering::Relaxed),
            first_env: 0,
        });
        let mut actions = match &self.spaces.actions {
            ActionSpace::Continuous { low, .. } => Actions::Continuous(vec![0.0; n * low.len()]),
            _ => Actions::Discrete(vec![0; n]),
        };
        // Without masks, every action is legal.
        let all = if masks.is_empty() { vec![1; n_masks] } else { Vec::new() };
        let masks = if masks.is_empty() { &all } else { masks };
        py.detach(|| {
            let mut scratch = self.scratch.lock().map_err(|_| PyRuntimeError::new_err("this policy has failed"))?;
            let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
            let acted =
                Acted { actions: actions.as_mut_slice(), log_probs: &mut log_probs, values: &mut values, states: &mut states };
            let acting = Acting { obs, masks, choice };
            self.saved.policy.act(acting, acted, &mut scratch).map_err(raised)
        })?;
        let actions = match actions {
            Actions::Discrete(actions) => self.heads(&actions).into_pyarray(py).into_any(),
            Actions::Continuous(mut actions) => {
                if let ActionSpace::Continuous { low, high } = &self.spaces.actions {
                    let bounds = low.iter().zip(high).cycle();
                    actions.iter_mut().zip(bounds).for_each(|(action, (low, high))| *action = action.clamp(*low, *high));
                }
                actions.into_pyarray(py).into_any()
            }
        };
        Ok((actions, states.into_pyarray(py).into_any()))
    }
}

impl Policy {
    /// Takes the choices of the heads out of one number, if there are several.
    fn heads(&self, actions: &[u32]) -> Vec<i64> {
        let ActionSpace::MultiDiscrete { sizes } = &self.spaces.actions else {
            return actions.iter().map(|action| i64::from(*action)).collect();
        };
        let mut rows = vec![0; actions.len() * sizes.len()];
        for (row, &action) in rows.chunks_exact_mut(sizes.len()).zip(actions) {
            let mut rest = action;
            for (choice, &size) in row.iter_mut().zip(sizes).rev() {
                (*choice, rest) = (i64::from(rest % size), rest / size);
            }
        }
        rows
    }
}
