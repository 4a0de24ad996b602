//! Trained policies.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use numpy::{IntoPyArray as _, PyArray1, PyArrayMethods as _, PyReadonlyArray1, PyReadonlyArrayDyn, PyUntypedArrayMethods as _};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rl_agents::params::TensorInfo;
use rl_agents::{Acted, Acting, Choice, Scratch};
use rl_envs::{ActionSpace, Actions, Obs, Spaces};
use rl_runtime::checkpoint::SavedPolicy;

use crate::array::view;
use crate::envs::{describe_actions, describe_obs};
use crate::error::{bad, raised};
use crate::replay::{Observed, lens};
use crate::train::{interruptible, open_saved};

/// A policy, with memory to act in.
struct Acts {
    saved: SavedPolicy,
    scratch: Scratch,
}

/// The policy of a checkpoint.
#[pyclass(frozen, module = "samebits._samebits")]
pub(crate) struct Policy {
    path: PathBuf,
    spaces: Spaces,
    state_len: usize,
    acts: Mutex<Acts>,
    /// Calls that have sampled.
    sampled: AtomicU64,
}

#[pymethods]
impl Policy {
    /// Loads the policy of a checkpoint, or of a run's newest or best one.
    #[new]
    fn new(py: Python<'_>, path: PathBuf, best: bool, trust: bool, python: PathBuf) -> PyResult<Self> {
        interruptible(py, "loading", move || {
            let entry = open_saved(&path, best, trust, python)?;
            let saved = rl_runtime::checkpoint::policy(&path, best, &entry).map_err(raised)?;
            let (path, spaces, state_len) = (saved.path.clone(), saved.entry.spaces(), saved.policy.state_len());
            let acts = Mutex::new(Acts { saved, scratch: Scratch::default() });
            Ok(Self { path, spaces, state_len, acts, sampled: AtomicU64::new(0) })
        })
    }

    /// Path of the checkpoint.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Number of elements of the policy's state.
    #[getter]
    fn state_len(&self) -> usize {
        self.state_len
    }

    /// Describes the spaces of observations and actions.
    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        Ok((describe_obs(py, &self.spaces.obs)?, describe_actions(py, &self.spaces.actions)?))
    }

    /// Returns the parameters by name.
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let acts = self.lock()?;
        let (layout, weights, named) = (acts.saved.layout().map_err(raised)?, acts.saved.policy.weights(), PyDict::new(py));
        for TensorInfo { name, shape, range } in layout.tensors() {
            named.set_item(name, PyArray1::from_slice(py, &weights.params[range.clone()]).reshape(shape.clone())?)?;
        }
        Ok(named)
    }

    /// Replaces all parameters.
    fn set_parameters(&self, mut named: HashMap<String, PyReadonlyArrayDyn<'_, f32>>) -> PyResult<()> {
        let mut acts = self.lock()?;
        let layout = acts.saved.layout().map_err(raised)?;
        let mut params = vec![0.0; layout.len()];
        for TensorInfo { name, shape, range } in layout.tensors() {
            let given = named.remove(name).ok_or_else(|| bad(format!("{name} is missing")))?;
            if given.shape() != shape {
                return Err(bad(format!("{name} has shape {:?} instead of {shape:?}", given.shape())));
            }
            params[range.clone()].iter_mut().zip(view(&given)?).for_each(|(param, given)| *param = *given);
        }
        if let Some(name) = named.keys().next() {
            return Err(bad(format!("{name} is no parameter of this policy")));
        }
        acts.saved.set_params(params).map_err(|error| bad(error.to_string()))?;
        // It may hold what was computed from the old ones.
        acts.scratch = Scratch::default();
        Ok(())
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
        let (Obs::F32(len) | Obs::U8(len)) = lens(obs);
        let (n, space) = (len / self.spaces.obs.len(), &self.spaces.obs);
        let expected = Obs::new(space.dtype(), || n * space.len(), || n * space.len());
        let masks = masks.as_slice().map_err(|error| bad(error.to_string()))?;
        let n_masks =
            if self.spaces.actions.masked() { n * self.spaces.actions.n_discrete().map_or(0, |n| n as usize) } else { 0 };
        let mut states = states.as_slice().map_err(|error| bad(error.to_string()))?.to_vec();
        if lens(obs) != expected || n == 0 {
            return Err(bad("type or length of the observations do not fit the policy"));
        }
        if !masks.is_empty() && masks.len() != n_masks {
            return Err(bad(format!("there are {} elements of masks instead of {n_masks}", masks.len())));
        }
        if states.len() != n * self.state_len {
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
            let mut acts = self.lock()?;
            let Acts { saved, scratch } = &mut *acts;
            let (mut log_probs, mut values) = (vec![0.0; n], vec![0.0; n]);
            let acted =
                Acted { actions: actions.as_mut_slice(), log_probs: &mut log_probs, values: &mut values, states: &mut states };
            let acting = Acting { obs, masks, choice, envs: &[] };
            saved.policy.act(acting, acted, scratch).map_err(raised)
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
    fn lock(&self) -> PyResult<MutexGuard<'_, Acts>> {
        self.acts.lock().map_err(|_| PyRuntimeError::new_err("this policy has failed; open it again"))
    }

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
