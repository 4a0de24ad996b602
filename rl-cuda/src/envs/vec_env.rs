//! N environments on the device, one thread each.

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod corners;
mod host;

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use rl_envs::catalog::Entry;
use rl_envs::wrappers::Wrappers;
use rl_envs::{ActionSpace, Dtype, Space, either};

use crate::driver::args::{Args, args};
use crate::driver::kernel::{Kernel, KernelInfo};
use crate::envs::steps::Host;
use crate::envs::twins::{self, EnvKernels, StateColumns, Twin};
use crate::error::length;
use crate::{
    ActionViews, Buffer, Device, DeviceSteps, Error, Graph, Module, ObsViews, StepViews, Stream, ViewMut, driver::sources,
};

/// Default number of threads per block.
const BLOCK: u32 = 128;
/// Maximum number of constants among a kernel's arguments.
const MAX_CONSTANTS: usize = 48;
/// Value of the fault word while every action was in range.
const NO_FAULT: u32 = u32::MAX;

/// The address of observations whose type, length and alignment are as expected.
fn address(obs: &ObsViews<'_>, what: &'static str, dtype: Dtype, len: usize, align: u64) -> Result<u64, Error> {
    if obs.dtype() != dtype {
        return Err(Error::Kind { what, expected: if dtype == Dtype::F32 { "f32" } else { "u8" } });
    }
    let (found, address) = either!(Obs, obs.as_ref(), |obs| (obs.len(), obs.address()));
    length(what, len, found)?;
    aligned(what, address, align)
}

fn aligned(what: &'static str, address: u64, align: u64) -> Result<u64, Error> {
    let error = Error::Kind { what, expected: "memory aligned to the widest store of the kernels: whole steps of a buffer" };
    if address.is_multiple_of(align) { Ok(address) } else { Err(error) }
}

/// Device memory that the kernels of a batch keep between launches.
#[derive(Debug)]
struct Memory {
    words: Buffer<u32>,
    /// Seed, and lifetime steps at the beginning of a launch.
    clock: Buffer<u64>,
    fault: Buffer<u32>,
}

/// Elements of observations that are hidden.
#[derive(Debug)]
struct Hidden {
    kernel: Kernel,
    elements: Buffer<u32>,
}

/// N environments on the device.
///
/// The batch owns only the states of the environments; the caller owns the memory that steps read and write. Methods that take a
/// stream queue work on it and do not wait. The implementation of [`VecEnv`](rl_envs::VecEnv) waits, and copies everything to
/// and from the host.
///
/// All work must go to one stream, or to streams that wait for each other. Results and saved states equal those of `SyncVecEnv`
/// of rl-envs bit for bit.
#[derive(Debug)]
pub struct CudaVecEnv {
    device: Device,
    stream: Stream, // for the host-side `VecEnv`
    twin: Twin,
    n_envs: usize,
    first_env: u32,
    block: u32,
    params: Vec<u32>,
    reset: Kernel,
    step: Kernel,
    step_random: Kernel,
    clock_advance: Kernel,
    /// `None` if nothing is hidden.
    hidden: Option<Hidden>,
    memory: Arc<Memory>,
    seed: u64,
    /// Lifetime steps.
    steps: u64,
    /// Lifetime steps that the device's clock holds.
    clock_steps: u64,
    observation_space: Space,
    action_space: ActionSpace,
    /// True if work may be in flight on a stream other than `stream`.
    elsewhere: bool,
    /// Staging memory, allocated at first use; `None` while `with_host` borrows it.
    host: Option<Host>,
}

/// Captured steps of environments, with other work.
///
/// See [`CudaVecEnv::capture_steps`].
#[derive(Debug)]
pub struct StepsGraph {
    graph: Graph,
    stream: Stream,
    memory: Arc<Memory>,
    /// Lifetime steps that one replay takes.
    taken: u64,
}

/// Captured rollout; see [`CudaVecEnv::capture`].
#[derive(Debug)]
pub struct RolloutGraph {
    graph: StepsGraph,
    steps: DeviceSteps,
}

impl RolloutGraph {
    /// Returns the columns that the last replay wrote.
    ///
    /// The columns are complete once the stream has finished the replay.
    #[must_use]
    pub fn steps(&self) -> &DeviceSteps {
        &self.steps
    }

    /// Borrows the rows of `steps` for writing, to set the actions of the next replay.
    ///
    /// # Panics
    /// If `steps` is out of bounds.
    pub fn rows(&mut self, steps: Range<usize>) -> StepViews<'_> {
        self.steps.rows(steps)
    }
}

/// Source of a step's actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionSource {
    /// The kernel reads the actions.
    Given,
    /// The kernel draws the actions and writes them.
    ///
    /// The actions equal those of [`rl_envs::RandomActions`] with the seed of the last reset.
    Random,
}

impl CudaVecEnv {
    /// Creates `n_envs` environments of the type `name` on `device`.
    ///
    /// # Errors
    /// [`Error::NoKernels`], [`rl_envs::Error::EnvCount`], [`Error::Memory`], [`Error::Module`] or [`Error::Driver`].
    pub fn new(device: &Device, name: &str, n_envs: usize) -> Result<Self, Error> {
        Self::of_twin(device, *twins::find(name)?, sources::module(name), n_envs)
    }

    /// Creates `n_envs` environments of `entry`, in its wrappers.
    ///
    /// # Errors
    /// [`Error::NoKernels`] if the entry has no kernels; [`Error::Kind`] if it has other wrappers than `hide`; [`Error::Rules`]
    /// if its own kernels step an environment with other spaces, with observations that are not `D` numbers, or with more than 48
    /// constants; [`Error::NoKernel`]; [`Error::Emulation`] if the source does not compile for the host; and as
    /// [`CudaVecEnv::new`].
    pub fn of_entry(device: &Device, entry: &Entry, n_envs: usize) -> Result<Self, Error> {
        if !entry.wrapped(Wrappers::default()).is_twinned() {
            return Err(twins::unknown(entry.name));
        }
        if !entry.is_twinned() {
            return Err(Error::Kind { what: "wrappers on a device", expected: "none but env.hide" });
        }
        let envs = match entry.kernels() {
            None => Self::new(device, entry.name, n_envs)?,
            Some(kernels) => {
                let kernels: &dyn Any = kernels;
                let not_ours = Error::Kind { what: "kernels of the entry", expected: "an EnvKernels" };
                Self::with_kernels(device, kernels.downcast_ref().ok_or(not_ours)?, entry, n_envs)?
            }
        };
        envs.with_hidden(&entry.hidden())
    }

    /// Creates `n_envs` environments with kernels outside of this crate.
    fn with_kernels(device: &Device, kernels: &EnvKernels, entry: &Entry, n_envs: usize) -> Result<Self, Error> {
        let EnvKernels { twin, module, n_observed } = *kernels;
        let (spaces, refused) = ((twin.spaces)(), |what| Err(Error::Rules { module: module.name, what }));
        if spaces.obs.dtype() != Dtype::F32 || spaces.obs.len() != n_observed {
            return refused("the observation space does not have D numbers");
        }
        if (twin.params)().len() > MAX_CONSTANTS {
            return refused("more than 48 constants");
        }
        if spaces != entry.spaces() {
            return refused("the spaces are not those of the entry with these kernels");
        }
        Self::of_twin(device, twin, module, n_envs)
    }

    fn of_twin(device: &Device, twin: Twin, module: &'static Module, n_envs: usize) -> Result<Self, Error> {
        if n_envs == 0 || u32::try_from(n_envs).is_err() {
            return Err(rl_envs::Error::EnvCount { n_envs }.into());
        }
        let rl_envs::Spaces { obs: observation_space, actions: action_space } = (twin.spaces)();
        let kernel = |what: &str| device.kernel_of(module, format!("{}_{what}", twin.name));
        let stream = device.stream()?;
        let mut memory = Memory {
            words: Buffer::zeros(device, twin.columns.len(n_envs))?,
            clock: Buffer::zeros(device, 2)?,
            fault: Buffer::zeros(device, 1)?,
        };
        stream.upload(&memory.fault.view_mut(), &[NO_FAULT])?;
        Ok(Self {
            twin,
            n_envs,
            first_env: 0,
            block: BLOCK,
            params: (twin.params)(),
            reset: kernel("reset")?,
            step: kernel("step")?,
            step_random: kernel("step_random")?,
            clock_advance: device.kernel("clock", "clock_advance".into())?,
            hidden: None,
            memory: Arc::new(memory),
            seed: 0,
            steps: 0,
            clock_steps: 0,
            elsewhere: false,
            host: None,
            observation_space,
            action_space,
            device: device.clone(),
            stream,
        })
    }

    /// Makes this a slice of a larger batch, from the environment `first_env` on.
    ///
    /// Its environments and random actions are then those of the whole, after the next reset.
    #[must_use]
    pub fn with_first_env(mut self, first_env: u32) -> Self {
        self.first_env = first_env;
        self
    }

    /// Replaces elements of each observation by 0, in the place of those hidden before.
    ///
    /// The observation space keeps their bounds. Graphs captured before do not change.
    ///
    /// # Errors
    /// [`Error::Kind`] if observations are bytes, [`Error::Length`] if one has fewer elements; errors of the device.
    pub(crate) fn with_hidden(mut self, elements: &[usize]) -> Result<Self, Error> {
        let d = self.observation_space.len();
        self.hidden = None;
        if elements.is_empty() {
            return Ok(self);
        }
        if self.observation_space.dtype() != Dtype::F32 {
            return Err(Error::Kind { what: "observations with hidden elements", expected: "f32" });
        }
        if let Some(&past) = elements.iter().find(|&&element| element >= d) {
            length("elements of an observation", past + 1, d)?;
        }
        let elements: Vec<u32> = elements.iter().map(|&element| element as u32).collect();
        let kernel = self.device.kernel("hide", "hide_elements".into())?;
        self.hidden = Some(Hidden { kernel, elements: Buffer::of(&self.device, &elements)? });
        Ok(self)
    }

    /// Sets the number of threads per block.
    #[must_use]
    pub fn with_block(mut self, block: u32) -> Self {
        self.block = block;
        self
    }

    /// Returns the number of threads per block.
    #[must_use]
    pub fn block(&self) -> u32 {
        self.block
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the bytes of one environment's state.
    pub(crate) fn state_bytes(&self) -> usize {
        let StateColumns { words, halves } = self.twin.columns;
        4 * words + 2 * halves
    }

    /// Returns the driver's figures for the step kernel with these actions.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn kernel_info(&self, actions: ActionSource) -> Result<Option<KernelInfo>, Error> {
        self.kernel(actions).info()
    }

    fn kernel(&self, actions: ActionSource) -> &Kernel {
        match actions {
            ActionSource::Given => &self.step,
            ActionSource::Random => &self.step_random,
        }
    }

    /// Builds the arguments `Params` and `Envs` of the kernels.
    fn args(&self) -> Args {
        let Memory { words, clock, fault } = &*self.memory;
        let number_and_first = u64::from(self.first_env) << 32 | self.n_envs as u64;
        args![&self.params[..], [words.address(), clock.address(), fault.address(), number_and_first]]
    }

    /// Returns the alignment of one observation, in bytes.
    ///
    /// The kernels store up to 16 bytes at once; the alignment is the widest store that divides the observation's size.
    fn align(&self) -> u64 {
        let bytes = self.observation_space.len() * self.observation_space.dtype().size();
        1 << bytes.trailing_zeros().min(4)
    }

    /// Resets all environments from `seed`.
    ///
    /// Writes first observations (N, D), and masks (N, A) if the action space has them.
    ///
    /// # Errors
    /// [`Error::Length`], [`Error::Kind`], [`Error::Launch`] or [`Error::Driver`].
    pub fn reset_on(
        &mut self,
        stream: &Stream,
        seed: u64,
        obs: &ObsViews<'_>,
        masks: Option<&ViewMut<'_, u8>>,
    ) -> Result<(), Error> {
        let (n, d) = (self.n_envs, self.observation_space.len());
        let obs = address(obs, "obs", self.observation_space.dtype(), n * d, self.align())?;
        let masks = self.masks_address("masks", masks, n)?;
        self.set_clock(stream, seed, 0)?;
        self.elsewhere = true;
        self.launch_reset(stream, obs, masks)?;
        self.hide(stream, [obs, 0], n)
    }

    /// Hides elements of rows of observations, given by their address.
    ///
    /// Also of as many final ones, unless their address is 0.
    #[allow(unsafe_code)]
    fn hide(&self, stream: &Stream, [obs, final_obs]: [u64; 2], n_rows: usize) -> Result<(), Error> {
        let Some(Hidden { kernel, elements }) = &self.hidden else { return Ok(()) };
        let (n, d) = (elements.len(), self.observation_space.len());
        let args = args![obs, final_obs, elements, n as u32, d as u32, n_rows as u64];
        // SAFETY: the parameters are those of `hide_elements`; the callers checked lengths, and `with_hidden` the elements.
        unsafe { kernel.launch(stream, (n * n_rows) as u64, BLOCK, args) }
    }

    #[allow(unsafe_code)]
    fn launch_reset(&self, stream: &Stream, obs: u64, masks: u64) -> Result<(), Error> {
        let args = args![self.args(); obs, masks];
        // SAFETY: the parameters are those of `NAME_reset(Params, Envs, Obs*, u8*)`; the caller checked kinds and lengths, and
        // buffers free their memory only after the device is done with it.
        unsafe { self.reset.launch(stream, self.n_envs as u64, self.block, args) }
    }

    /// Returns the address of masks (n, A), 0 without masks.
    fn masks_address(&self, what: &'static str, masks: Option<&ViewMut<'_, u8>>, n: usize) -> Result<u64, Error> {
        match (masks, self.action_space.masked()) {
            (None, false) => Ok(0),
            (Some(masks), true) => {
                length(what, n * self.action_space.len(), masks.len())?;
                aligned(what, masks.address(), 4)
            }
            (None, true) => Err(Error::Kind { what, expected: "masks" }),
            (Some(_), false) => Err(Error::Kind { what, expected: "none" }),
        }
    }

    /// Sets seed and lifetime steps, here and on the device.
    fn set_clock(&mut self, stream: &Stream, seed: u64, steps: u64) -> Result<(), Error> {
        let clock = ViewMut::of_shared(&self.memory.clock);
        stream.upload(&clock, &[seed, steps])?;
        (self.seed, self.steps, self.clock_steps) = (seed, steps, steps);
        Ok(())
    }

    /// Steps every environment `k` times in one launch, with its state in registers.
    ///
    /// # Errors
    /// [`Error::Length`] if `rows` hold neither `k` steps nor one, [`Error::Kind`], [`Error::Launch`] or [`Error::Driver`].
    /// Nothing has changed then, unless the launch that hides elements failed.
    pub fn step_on(&mut self, stream: &Stream, k: u32, source: ActionSource, rows: &StepViews<'_>) -> Result<(), Error> {
        let n = self.n_envs;
        let n_rows = if rows.rewards.len() == n { 1 } else { k as usize };
        let (all, dtype, align) = (n * n_rows, self.observation_space.dtype(), self.align());
        length("rewards", all, rows.rewards.len())?;
        length("terminated", all, rows.terminated.len())?;
        length("truncated", all, rows.truncated.len())?;
        let d = self.observation_space.len();
        let obs = address(&rows.obs, "obs", dtype, all * d, align)?;
        let final_obs = address(&rows.final_obs, "final_obs", dtype, all * d, align)?;
        let (masks, final_masks) = rows.masks.as_ref().map(|[masks, final_masks]| (masks, final_masks)).unzip();
        let masks = self.masks_address("masks", masks, all)?;
        let final_masks = self.masks_address("final_masks", final_masks, all)?;
        let actions = match (&rows.actions, &self.action_space) {
            (ActionViews::Discrete(actions), ActionSpace::Discrete { .. }) => {
                length("actions", all, actions.len())?;
                actions.address()
            }
            (ActionViews::Continuous(actions), ActionSpace::Continuous { low, .. }) => {
                length("actions", all * low.len(), actions.len())?;
                actions.address()
            }
            (_, ActionSpace::Continuous { .. }) => return Err(Error::Kind { what: "actions", expected: "continuous ones" }),
            _ => return Err(Error::Kind { what: "actions", expected: "discrete ones" }),
        };
        let places =
            [obs, rows.rewards.address(), rows.terminated.address(), rows.truncated.address(), final_obs, masks, final_masks];
        let args = args![self.args(); actions, places, self.steps - self.clock_steps, k, u32::from(n_rows > 1)];
        self.elsewhere = true;
        self.launch_step(stream, source, args)?;
        self.steps += u64::from(k);
        self.hide(stream, [obs, final_obs], n * n_rows)
    }

    #[allow(unsafe_code)]
    fn launch_step(&self, stream: &Stream, source: ActionSource, args: Args) -> Result<(), Error> {
        // SAFETY: the parameters are those of `NAME_step(Params, Envs, Action*, StepBatch, u64, u32, u32)`; the caller checked
        // kinds and lengths, and buffers free their memory only after the device is done with it.
        unsafe { self.kernel(source).launch(stream, self.n_envs as u64, self.block, args) }
    }

    /// Steps once, then `repeat - 1` more times with the same action.
    ///
    /// The further steps are one launch. All steps write to the same row.
    ///
    /// # Errors
    /// The errors of [`CudaVecEnv::step_on`].
    pub(crate) fn step_repeatedly(
        &mut self,
        stream: &Stream,
        repeat: u32,
        source: ActionSource,
        row: &StepViews<'_>,
    ) -> Result<(), Error> {
        self.step_on(stream, 1, source, row)?;
        if repeat > 1 { self.step_on(stream, repeat - 1, ActionSource::Given, row) } else { Ok(()) }
    }

    /// Adds `steps` to the device's clock.
    #[allow(unsafe_code)]
    fn advance_clock(&self, stream: &Stream, steps: u64) -> Result<(), Error> {
        let args = args![self.memory.clock, steps];
        // SAFETY: the parameters are those of `clock_advance(Clock*, u64)`; the clock belongs to this batch.
        unsafe { self.clock_advance.launch(stream, 1, 1, args) }
    }

    /// Waits for the stream and reports actions that were out of range.
    ///
    /// The environment took action 0 instead. The error names the lowest index among the affected environments.
    ///
    /// # Errors
    /// [`Error::ActionOutOfRange`] or [`Error::Driver`].
    pub fn check_actions(&mut self, stream: &Stream) -> Result<(), Error> {
        let mut fault = [0];
        stream.download(&mut fault, &self.memory.fault.view())?;
        if fault[0] == NO_FAULT {
            return Ok(());
        }
        stream.upload(&ViewMut::of_shared(&self.memory.fault), &[NO_FAULT])?;
        Err(Error::ActionOutOfRange { env_idx: fault[0] as usize })
    }

    /// Captures a rollout into a graph, one launch per step; nothing is stepped yet.
    ///
    /// The graph keeps the memory of `steps`. With `repeat` above 1, each step is taken and written `repeat` times with the same
    /// action: a heavier step, for measurements.
    ///
    /// # Errors
    /// The errors of [`CudaVecEnv::step_on`].
    pub fn capture(
        &mut self,
        stream: &Stream,
        source: ActionSource,
        repeat: u32,
        mut steps: DeviceSteps,
    ) -> Result<RolloutGraph, Error> {
        let graph = self.capture_steps(stream, |envs| {
            (0..steps.n_steps()).try_for_each(|t| envs.step_repeatedly(stream, repeat, source, &steps.rows(t..t + 1)))
        });
        Ok(RolloutGraph { graph: graph?, steps })
    }

    /// Captures work with steps of these environments into a graph.
    ///
    /// Nothing is stepped yet.
    ///
    /// # Errors
    /// The errors of `work`, and those of [`Stream::capture`].
    pub fn capture_steps<E: From<Error>>(
        &mut self,
        stream: &Stream,
        work: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<StepsGraph, E> {
        let (before, clock_before) = (self.steps, self.clock_steps);
        self.clock_steps = before; // a replay sets the device's clock first
        let graph = stream.capture::<E>(|| {
            work(self)?;
            Ok(self.advance_clock(stream, self.steps - before)?)
        });
        let taken = self.steps - before;
        (self.steps, self.clock_steps) = (before, clock_before);
        Ok(StepsGraph { graph: graph?, stream: stream.clone(), memory: self.memory.clone(), taken })
    }

    /// Queues a captured rollout on its stream.
    ///
    /// # Errors
    /// [`Error::Kind`] if the graph belongs to another batch, or [`Error::Driver`].
    pub fn replay(&mut self, rollout: &mut RolloutGraph) -> Result<(), Error> {
        self.replay_steps(&mut rollout.graph)
    }

    /// Queues captured steps on their stream.
    ///
    /// # Errors
    /// [`Error::Kind`] if the graph belongs to another batch, or [`Error::Driver`].
    pub fn replay_steps(&mut self, captured: &mut StepsGraph) -> Result<(), Error> {
        if !Arc::ptr_eq(&self.memory, &captured.memory) {
            return Err(Error::Kind { what: "graph", expected: "one that was captured from these environments" });
        }
        if self.clock_steps != self.steps {
            self.advance_clock(&captured.stream, self.steps - self.clock_steps)?;
            self.clock_steps = self.steps;
        }
        self.elsewhere = true;
        captured.graph.launch()?;
        self.steps += captured.taken;
        self.clock_steps = self.steps;
        Ok(())
    }

    /// Returns the indices of the environments in the larger batch.
    fn indices(&self) -> Range<usize> {
        let first = self.first_env as usize;
        first..first + self.n_envs
    }

    /// Waits for the device, then returns the states in the kernels' layout.
    fn words(&self) -> Result<Vec<u32>, Error> {
        self.device.synchronize()?;
        let mut words = vec![0; self.memory.words.len()];
        self.stream.download(&mut words, &self.memory.words.view())?;
        Ok(words)
    }
}
