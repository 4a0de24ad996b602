//! Batches of environments that step into NumPy arrays.

use std::sync::{Mutex, MutexGuard, TryLockError};

use numpy::{PyArray1, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2, PyReadwriteArray1};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rl_envs::wrappers::{Hidden, Wrappers};
use rl_envs::{ActionSpace, Actions, Canvas, Dtype, Obs, Pool, Space, StepLens, StepSlicesMut, Steps, VecEnv};
use rl_runtime::config::keys;
use toml::Value;

use crate::array::view;
use crate::error::{bad, raised};

/// Columns of a step in NumPy's memory, each flat.
type Columns = Steps<Py<PyArray1<f32>>, Py<PyArray1<u8>>, Vec<u32>>;

/// Environments and the arrays that they write.
struct Batch {
    envs: Box<dyn VecEnv>,
    columns: Columns,
    /// True once there are episodes to step.
    begun: bool,
}

/// N environments that step together.
#[pyclass(frozen, module = "samebits._samebits")]
pub(crate) struct Envs {
    /// `None` once closed.
    batch: Mutex<Option<Batch>>,
    obs: Space,
    actions: ActionSpace,
    n_envs: usize,
    /// Process that has made the threads; `None` if there are none.
    process: Option<u32>,
}

/// Returns the names and descriptions of all environments.
#[pyfunction]
pub(crate) fn catalog() -> Vec<(&'static str, &'static str)> {
    rl_envs::catalog::ENVS.iter().map(|entry| (entry.name, entry.about)).collect()
}

/// Describes a space as keyword arguments of the class that Python makes of it.
pub(crate) fn describe_obs<'py>(py: Python<'py>, space: &Space) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    described.set_item("shape", space.shape())?;
    described.set_item("dtype", if space.dtype() == Dtype::F32 { "float32" } else { "uint8" })?;
    described.set_item("low", space.low())?;
    described.set_item("high", space.high())?;
    Ok(described)
}

/// Describes a space of actions: `n`, `nvec`, or `low` and `high`; and `masked`.
pub(crate) fn describe_actions<'py>(py: Python<'py>, space: &ActionSpace) -> PyResult<Bound<'py, PyDict>> {
    let described = PyDict::new(py);
    match space {
        ActionSpace::Discrete { n, .. } => described.set_item("n", n)?,
        ActionSpace::MultiDiscrete { sizes } => described.set_item("nvec", sizes)?,
        ActionSpace::Continuous { low, high } => {
            described.set_item("low", low)?;
            described.set_item("high", high)?;
        }
    }
    described.set_item("masked", space.masked())?;
    Ok(described)
}

/// Borrows an array for writing; an error if something else does.
fn writable<'py, T: numpy::Element>(py: Python<'py>, array: &Py<PyArray1<T>>) -> Option<PyReadwriteArray1<'py, T>> {
    array.bind(py).try_readwrite().ok()
}

/// The elements of a borrowed array; none if it is not there or was made strided.
fn elements<'a, T: numpy::Element>(array: &'a mut Option<PyReadwriteArray1<'_, T>>) -> &'a mut [T] {
    array.as_mut().and_then(|array| array.as_slice_mut().ok()).unwrap_or_default()
}

impl Batch {
    /// Works with the columns, without the interpreter's lock.
    ///
    /// A column that cannot be written is empty, which every environment refuses before it changes anything.
    fn work(
        &mut self,
        py: Python<'_>,
        work: impl FnOnce(&mut dyn VecEnv, StepSlicesMut<'_>) -> Result<(), rl_envs::Error> + Send,
    ) -> PyResult<bool> {
        let Self { envs, columns, .. } = self;
        let mut lent = columns.as_ref().map(|array| writable(py, array), |array| writable(py, array), |_| ());
        let mut steps = lent.as_mut().map(elements, elements, |()| &mut [][..]);
        if let Actions::Discrete(actions) = &mut columns.actions {
            steps.actions = Actions::Discrete(actions);
        }
        py.detach(|| work(&mut **envs, steps)).map_err(|error| match error {
            rl_envs::Error::Length { .. } => PyRuntimeError::new_err("an array of these environments cannot be written"),
            error => raised(error),
        })?;
        let Steps { terminated, truncated, .. } = lent.as_mut().map(elements, elements, |()| ());
        Ok(terminated.iter().chain(&*truncated).fold(0, |any, flag| any | flag) != 0)
    }

    /// Steps all environments; true if an episode has ended.
    fn step(&mut self, py: Python<'_>) -> PyResult<bool> {
        if !self.begun {
            return Err(PyRuntimeError::new_err("these environments have no episodes yet; call reset first"));
        }
        self.work(py, |envs, steps| envs.step_into(steps))
    }
}

#[pymethods]
impl Envs {
    /// Makes `n_envs` environments of the catalog.
    #[new]
    #[pyo3(signature = (name, n_envs, threads, frame_stack, time_limit, action_repeat, pixels, reward_clip, hide))]
    #[expect(clippy::too_many_arguments, reason = "keywords of Python")]
    fn new(
        py: Python<'_>,
        name: &str,
        n_envs: usize,
        threads: usize,
        frame_stack: usize,
        time_limit: u32,
        action_repeat: u32,
        pixels: usize,
        reward_clip: f32,
        hide: &str,
    ) -> PyResult<Self> {
        let entry = rl_envs::catalog::find(name).map_err(raised)?;
        let int = |n: usize| i64::try_from(n).map_or(Value::Float(f64::INFINITY), Value::Integer);
        // The ranges are those of the program's settings.
        for (name, value) in [
            ("threads", int(threads)),
            ("env.frame_stack", int(frame_stack)),
            ("env.action_repeat", int(action_repeat as usize)),
            ("env.pixels", int(pixels)),
            ("env.reward_clip", f64::from(reward_clip).into()),
            ("env.hide", hide.into()),
        ] {
            let key = keys().find(|key| key.name == name).expect("a setting of the program");
            if !key.kind.allows(&value) {
                return Err(bad(format!("{} is {value}; it must be {}", key.field(), key.kind.allowed())));
            }
        }
        if pixels > 0 && !entry.draws().map_err(raised)? {
            return Err(bad(format!("pixels is {pixels}, but {name} does not draw itself")));
        }
        let hide = if hide == "velocities" { Hidden::Velocities } else { Hidden::Nothing };
        if hide == Hidden::Velocities && (pixels > 0 || entry.spaces().obs.velocities().is_empty()) {
            return Err(bad(format!("hide is velocities, but {name} observes none")));
        }
        let entry = entry.wrapped(Wrappers { frame_stack, time_limit, action_repeat, pixels, reward_clip, hide });
        let rl_envs::Spaces { obs, actions } = entry.spaces();
        let columns =
            2 * obs.len() * obs.dtype().size() + 4 * actions.len() + 2 * actions.n_discrete().map_or(0, |n| n as usize) + 6;
        let (needed, available) = (n_envs as u128 * (entry.bytes_per_env() + columns) as u128, rl_buffer::memory::available());
        if available.is_some_and(|available| needed > u128::from(available)) {
            let of = available.unwrap_or_default();
            return Err(PyMemoryError::new_err(format!("{n_envs} environments take {needed} bytes, {of} are available")));
        }
        let envs = py.detach(|| match threads {
            1 => entry.slice(0..n_envs),
            _ => entry.pooled(n_envs, &Pool::new(threads)?),
        });
        let envs = envs.map_err(raised)?;
        let lens: StepLens = StepLens::batch(n_envs, &obs, &actions);
        let columns = lens.map(
            |len| PyArray1::zeros(py, len, false).unbind(),
            |len| PyArray1::zeros(py, len, false).unbind(),
            |len| vec![0; len],
        );
        let process = (threads > 1).then(std::process::id);
        Ok(Self { batch: Mutex::new(Some(Batch { envs, columns, begun: false })), obs, actions, n_envs, process })
    }

    /// Describes the spaces of observations and actions.
    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        Ok((describe_obs(py, &self.obs)?, describe_actions(py, &self.actions)?))
    }

    /// Returns the arrays that a step writes, flat.
    ///
    /// Observations, rewards, terminated, truncated, final observations; with masks, those and the final ones.
    fn arrays<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let batch = self.lock()?;
        let columns = &open(&batch)?.columns;
        let obs = |obs: &Obs<Py<PyArray1<f32>>, Py<PyArray1<u8>>>| match obs {
            Obs::F32(array) => array.bind(py).clone().into_any(),
            Obs::U8(array) => array.bind(py).clone().into_any(),
        };
        let bytes = |array: &Py<PyArray1<u8>>| array.bind(py).clone().into_any();
        let rewards = columns.rewards.bind(py).clone().into_any();
        let flags = [&columns.terminated, &columns.truncated].map(bytes);
        let masks = columns.masks.iter().flatten().map(bytes);
        Ok([obs(&columns.obs), rewards].into_iter().chain(flags).chain([obs(&columns.final_obs)]).chain(masks).collect())
    }

    /// Resets all environments into the arrays.
    fn reset(&self, py: Python<'_>, seed: u64) -> PyResult<()> {
        let reset = |envs: &mut dyn VecEnv, steps: StepSlicesMut<'_>| {
            envs.reset_into(seed, steps.obs, steps.masks.map(|[masks, _]| masks))
        };
        let mut batch = self.lock()?;
        let batch = open_mut(&mut batch)?;
        batch.work(py, reset)?;
        batch.begun = true;
        Ok(())
    }

    /// Steps all environments with one number each; true if an episode has ended.
    fn step_discrete(&self, py: Python<'_>, actions: PyReadonlyArray1<'_, i64>) -> PyResult<bool> {
        let Some(n) = self.actions.n_discrete() else { return Err(bad("these environments take vectors as actions")) };
        let actions = view(&actions)?;
        self.check_rows(actions.len())?;
        let mut batch = self.lock()?;
        let batch = open_mut(&mut batch)?;
        let Actions::Discrete(column) = &mut batch.columns.actions else { unreachable!("actions are discrete") };
        for (env_idx, (action, &given)) in column.iter_mut().zip(actions).enumerate() {
            let fits = u32::try_from(given).ok().filter(|given| *given < n);
            *action = fits.ok_or_else(|| bad(format!("action {given} of environment {env_idx} is not in 0 to {}", n - 1)))?;
        }
        batch.step(py)
    }

    /// Steps all environments with one number for each head, (N, heads).
    ///
    /// True if an episode has ended.
    fn step_heads(&self, py: Python<'_>, actions: PyReadonlyArray2<'_, i64>) -> PyResult<bool> {
        let ActionSpace::MultiDiscrete { sizes } = &self.actions else {
            return Err(bad("these environments take one action each"));
        };
        let actions = view(&actions)?;
        self.check_rows(actions.nrows())?;
        if actions.ncols() != sizes.len() {
            return Err(bad(format!("actions have {} heads instead of {}", actions.ncols(), sizes.len())));
        }
        let mut batch = self.lock()?;
        let batch = open_mut(&mut batch)?;
        let Actions::Discrete(column) = &mut batch.columns.actions else { unreachable!("actions are discrete") };
        for (env_idx, (action, row)) in column.iter_mut().zip(actions.rows()).enumerate() {
            *action = 0;
            for (&given, &size) in row.iter().zip(sizes) {
                let fits = u32::try_from(given).ok().filter(|given| *given < size);
                let choice =
                    fits.ok_or_else(|| bad(format!("action {given} of environment {env_idx} is not in 0 to {}", size - 1)))?;
                *action = *action * size + choice;
            }
        }
        batch.step(py)
    }

    /// Steps all environments with vectors, (N * A); true if an episode has ended.
    fn step_continuous(&self, py: Python<'_>, actions: PyReadonlyArray1<'_, f32>) -> PyResult<bool> {
        let ActionSpace::Continuous { low, .. } = &self.actions else {
            return Err(bad("these environments take whole numbers as actions"));
        };
        let actions = view(&actions)?;
        self.check_rows(actions.len() / low.len())?;
        let mut batch = self.lock()?;
        let batch = open_mut(&mut batch)?;
        let Actions::Continuous(column) = &mut batch.columns.actions else { unreachable!("actions are vectors") };
        let mut column = writable(py, column);
        for (i, (action, &given)) in elements(&mut column).iter_mut().zip(actions).enumerate() {
            if !given.is_finite() {
                return Err(bad(format!("an action of environment {} is {given}", i / low.len())));
            }
            *action = given;
        }
        drop(column);
        batch.step(py)
    }

    /// Returns the rewards of the latest step before they were clipped.
    fn raw_rewards<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let mut rewards = vec![0.0; self.n_envs];
        open(&self.lock()?)?.envs.raw_rewards(&mut rewards);
        Ok(PyArray1::from_vec(py, rewards))
    }

    /// Draws an environment: height, width and RGB bytes.
    ///
    /// A height of 0 if it does not draw itself.
    fn render(&self, env_idx: usize, size: usize) -> PyResult<(usize, usize, Vec<u8>)> {
        if env_idx >= self.n_envs {
            return Err(bad(format!("there is no environment {env_idx}, only {}", self.n_envs)));
        }
        let batch = self.lock()?;
        let mut canvas = Canvas::new(size, size);
        open(&batch)?.envs.render(env_idx, &mut canvas);
        Ok((canvas.height(), canvas.width(), canvas.pixels().to_vec()))
    }

    /// Encodes the state of all environments.
    fn save(&self) -> PyResult<Vec<u8>> {
        open(&self.lock()?)?.envs.save().map_err(raised)
    }

    /// Continues from a state that `save` has encoded.
    fn load(&self, state: &[u8]) -> PyResult<()> {
        let mut batch = self.lock()?;
        let batch = open_mut(&mut batch)?;
        batch.envs.load(state).map_err(raised)?;
        batch.begun = true;
        Ok(())
    }

    /// Frees the environments; every later call is an error.
    fn close(&self) -> PyResult<()> {
        if self.is_foreign() {
            return Ok(());
        }
        *self.lock()? = None;
        Ok(())
    }
}

impl Drop for Envs {
    /// Leaves threads alone that a fork has not copied.
    fn drop(&mut self) {
        if self.is_foreign() {
            std::mem::forget(self.batch.get_mut().map(Option::take));
        }
    }
}

impl Envs {
    /// True in a process that was forked from that of the threads.
    fn is_foreign(&self) -> bool {
        self.process.is_some_and(|process| process != std::process::id())
    }

    /// Borrows the batch for one call.
    fn lock(&self) -> PyResult<MutexGuard<'_, Option<Batch>>> {
        if self.is_foreign() {
            let text = "these environments were made before a fork, which copies no threads; make them in this process";
            return Err(PyRuntimeError::new_err(text));
        }
        match self.batch.try_lock() {
            Ok(batch) => Ok(batch),
            Err(TryLockError::Poisoned(_)) => Err(PyRuntimeError::new_err("these environments have failed; make new ones")),
            Err(TryLockError::WouldBlock) => Err(PyRuntimeError::new_err("another thread is using these environments")),
        }
    }

    fn check_rows(&self, rows: usize) -> PyResult<()> {
        if rows == self.n_envs { Ok(()) } else { Err(bad(format!("there are {rows} actions for {} environments", self.n_envs))) }
    }
}

fn closed() -> PyErr {
    PyRuntimeError::new_err("these environments are closed")
}

fn open<'a>(batch: &'a MutexGuard<'_, Option<Batch>>) -> PyResult<&'a Batch> {
    batch.as_ref().ok_or_else(closed)
}

fn open_mut<'a>(batch: &'a mut MutexGuard<'_, Option<Batch>>) -> PyResult<&'a mut Batch> {
    batch.as_mut().ok_or_else(closed)
}
