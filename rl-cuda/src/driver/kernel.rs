//! Kernels and their launches.

use std::fmt;
use std::sync::PoisonError;

use crate::driver::Driver;
use crate::driver::api::{CudaFunction, DriverError, Ptx, result, sys};
use crate::driver::args::Args;
use crate::driver::captures::no_capture;
use crate::driver::emulated::{HostKernel, Work};
use crate::error::said;
use crate::{Device, Error, Module, Stream, driver::sources};

/// Loaded kernel of a GPU or of the host.
#[derive(Clone)]
pub(crate) enum Loaded {
    Cuda(CudaFunction),
    Emulated(HostKernel),
}

/// Loaded kernel, with its name for messages.
#[derive(Clone)]
pub(crate) struct Kernel {
    name: String,
    function: Loaded,
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The driver's figures for a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// Registers per thread.
    pub registers: i32,
    /// Bytes of local memory per thread; above 0 where registers were spilled.
    pub local_bytes: i32,
    /// Maximum number of threads per block.
    pub max_threads: i32,
    /// Block size with the best occupancy, as the driver computes it.
    pub suggested_block: u32,
}

impl Device {
    /// Returns kernel `name` of the module `module` of this crate.
    pub(crate) fn kernel(&self, module: &str, name: String) -> Result<Kernel, Error> {
        self.kernel_of(sources::module(module), name)
    }

    /// Returns kernel `name` of `module`, loading the module at first use.
    pub(crate) fn kernel_of(&self, module: &'static Module, name: String) -> Result<Kernel, Error> {
        let function = match self.driver() {
            Driver::Cuda { context, modules } => {
                let refused = |error| Error::load(module.name, module.ptx.len(), error);
                context.bind_to_thread().map_err(refused)?;
                let mut modules = modules.lock().unwrap_or_else(PoisonError::into_inner);
                let loaded = match modules.get(module.ptx) {
                    Some(loaded) => loaded.clone(),
                    None => {
                        let _lock = no_capture();
                        let loaded = context.load_module(Ptx::from_src(module.ptx)).map_err(refused)?;
                        modules.insert(module.ptx, loaded.clone());
                        loaded
                    }
                };
                let function = loaded.load_function(&name).map_err(|error| match error.0 {
                    sys::CUresult::CUDA_ERROR_NOT_FOUND => Error::NoKernel { module: module.name, kernel: name.clone() },
                    _ => refused(error),
                });
                Loaded::Cuda(function?)
            }
            Driver::Emulated(emulated) => Loaded::Emulated(emulated.function(module, &name)?),
        };
        Ok(Kernel::new(name, function))
    }
}

impl Kernel {
    pub(crate) fn new(name: String, function: Loaded) -> Self {
        Self { name, function }
    }

    /// Returns the driver's figures, or `None` for an emulated kernel.
    pub(crate) fn info(&self) -> Result<Option<KernelInfo>, Error> {
        let Loaded::Cuda(function) = &self.function else { return Ok(None) };
        extern "C" fn no_shared_memory(_: i32) -> usize {
            0
        }
        let ask = || -> Result<_, DriverError> {
            let (_, block) = function.occupancy_max_potential_block_size(no_shared_memory, 0, 0, None)?;
            Ok(KernelInfo {
                registers: function.num_regs()?,
                local_bytes: function.local_size_bytes()?,
                max_threads: function.max_threads_per_block()?,
                suggested_block: block,
            })
        };
        ask().map(Some).map_err(Error::driver("asking about a kernel"))
    }

    /// Launches `n` threads on the stream, in blocks of `threads`; a no-op for `n` = 0.
    ///
    /// # Safety
    /// `args` have the types of the kernel's parameters. Addresses among them point to as much device memory as the kernel reads
    /// and writes, and that memory stays allocated until the stream has finished the launch.
    #[allow(unsafe_code)]
    pub(crate) unsafe fn launch(&self, stream: &Stream, n: u64, threads: u32, mut args: Args) -> Result<(), Error> {
        #[cfg(test)]
        tests::note(&self.name, &args);
        let failed = |blocks, reason| Error::Launch { kernel: self.name.clone(), blocks, threads, reason };
        let blocks = n.div_ceil(u64::from(threads.max(1)));
        if threads == 0 || blocks > i32::MAX as u64 {
            return Err(failed(0, format!("{n} threads do not fit into a grid of such blocks")));
        }
        if n == 0 {
            return Ok(()); // the driver rejects an empty grid
        }
        let blocks = blocks as u32;
        match &self.function {
            Loaded::Cuda(function) => {
                let Some(cuda) = stream.cuda() else {
                    return Err(failed(blocks, "the stream belongs to another device".into()));
                };
                let (mut pointers, len) = (args.pointers(), args.len);
                cuda.context().bind_to_thread().map_err(|error| failed(blocks, said(error)))?;
                // SAFETY: the function stays loaded while `self` lives, the driver copies the arguments before it returns, and
                // the caller guarantees their types and their memory.
                let launched = unsafe {
                    result::launch_kernel(
                        function.cu_function(),
                        (blocks, 1, 1),
                        (threads, 1, 1),
                        0,
                        cuda.cu_stream(),
                        &mut pointers[..len],
                    )
                };
                launched.map_err(|error| match error.0 {
                    sys::CUresult::CUDA_ERROR_INVALID_VALUE | sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
                        failed(blocks, format!("{}; try smaller blocks", said(error)))
                    }
                    _ => Error::driver("launching a kernel, or work before it")(error),
                })
            }
            Loaded::Emulated(function) => {
                let work = Work::Launch { function: function.clone(), blocks, threads, args };
                stream.emulate(work).ok_or_else(|| failed(blocks, "the stream belongs to another device".into()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use rl_envs::{Actions, Obs, Spaces};

    use super::*;
    use crate::elementary::{self, Function};
    use crate::learner::{
        ActionDistribution, Activation, CellBuffers, CellKind, CellState, ClippedNoise, ContinuousKernels, ConvLayer, ConvShape,
        DenseLayer, DenseParams, Entropy, Episodes, EpochOrder, Gate, HeadSizes, JudgedSamples, LearnerKernels, LearnerState,
        LossColumns, LossHeads, MatrixColumns, MemoryKernels, MinibatchSlices, NarrowLayer, NarrowNet, NarrowNumbers,
        NarrowSamples, NextColumns, Noise, NormParams, Objective, OffPolicyKernels, OneHotInputs, PARTS, QLearningKernels,
        SequenceColumns, SequencePart, SquashedColumns, TD_TERMS, TdColumns, TemperatureStep, Terms, ValueGradients, Values,
    };
    use crate::targets::{ObsSlices, PolicyStreams, Row, Steps, TargetKernels, WordBuffers};
    use crate::{ActionSource, Buffer, CudaVecEnv, DeviceSteps, View};

    /// Bytes of the arguments of every kernel that was launched, by name.
    static LAUNCHED: Mutex<BTreeMap<String, Vec<usize>>> = Mutex::new(BTreeMap::new());

    pub(super) fn note(kernel: &str, args: &Args) {
        LAUNCHED.lock().unwrap().insert(kernel.into(), args.sizes());
    }

    /// Launches every kernel once.
    fn launch_all(device: &Device) -> Result<(), Error> {
        let stream = device.stream()?;
        for entry in rl_envs::catalog::twinned() {
            let mut envs = CudaVecEnv::new(device, entry.name, 3)?;
            if entry.name == "cartpole" {
                envs = envs.with_hidden(&[1, 3])?;
            }
            let Spaces { obs: observation_space, actions: action_space } = entry.spaces();
            let mut steps = DeviceSteps::zeros(device, 1, 3, &observation_space, &action_space)?;
            let rows = steps.rows(0..1);
            envs.reset_on(&stream, 1, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks))?;
            envs.step_on(&stream, 1, ActionSource::Random, &rows)?;
            envs.step_on(&stream, 1, ActionSource::Given, &rows)?;
            let mut graph = envs.capture(&stream, ActionSource::Random, 1, steps)?;
            envs.replay(&mut graph)?;
        }
        elementary::apply(device, Function::Exp, &[1.0])?;
        elementary::random(device, 1, 1, rl_envs::Purpose::Reset, 1, 1)?;
        let kernels = TargetKernels::new(device)?;
        let (mut floats, mut bytes) = (Buffer::<f32>::zeros(device, 4)?, Buffer::<u8>::zeros(device, 4)?);
        let (clock, indices, mut words) =
            (Buffer::<u64>::zeros(device, 2)?, Buffer::<u32>::zeros(device, 1)?, Buffer::<u32>::zeros(device, 4)?);
        let (mut advantages, mut log_probs) = (Buffer::zeros(device, 4)?, Buffer::zeros(device, 4)?);
        let [one, two] = [Buffer::zeros(device, 1)?, Buffer::zeros(device, 2)?];
        let [mut drawn, mut more, mut others] = [Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?];
        let columns = floats.view();
        let steps = Steps {
            n_envs: 2,
            rewards: columns,
            terminated: bytes.view(),
            truncated: bytes.view(),
            next_values: columns,
            values: columns,
        };
        kernels.gae(&stream, &steps, 0.9, 0.9, &advantages.view_mut())?;
        let streams = PolicyStreams { clock: clock.view(), t: 0, first_env: 0 };
        kernels.sample_categorical(&stream, &columns, None, streams, &words.view_mut(), &log_probs.view_mut())?;
        let to = [&drawn.view_mut(), &more.view_mut(), &others.view_mut()];
        kernels.sample_gaussian(&stream, &one.view(), &one.view(), &two.view(), streams, to)?;
        let mut episodes = Episodes::new(device, 2, 1)?;
        episodes.add(&stream, &columns, &bytes.view(), &bytes.view())?;
        kernels.moments(&stream, &columns, &mut ObsSlices::new(device, &[0, 2], 1)?)?;
        let (mean, precision) = (Buffer::zeros(device, 2)?, Buffer::zeros(device, 2)?);
        kernels.normalize(&stream, &floats.view_mut(), &mean.view(), &precision.view())?;
        let row = Row { obs: 1, action: 0, mask_len: 0 };
        let to = &mut WordBuffers::zeros(device, row, 1)?;
        kernels.gather_words(&stream, &words.view(), row, &indices.view(), &to.columns())?;
        let from = Buffer::zeros(device, 4)?;
        kernels.gather_bytes(&stream, &from.view(), 4, 1..3, &indices.view(), &bytes.view_mut().slice_mut(0..2))?;
        launch_learner(device, &stream)?;
        device.synchronize()
    }

    /// Launches every kernel of a learner once.
    fn launch_learner(device: &Device, stream: &Stream) -> Result<(), Error> {
        let kernels = LearnerKernels::new(device)?;
        let [mut floats, mut others, mut more] =
            [Buffer::<f32>::zeros(device, 2)?, Buffer::zeros(device, 2)?, Buffer::zeros(device, 2)?];
        let (mut words, mut state) = (Buffer::<u32>::zeros(device, 1)?, LearnerState::new(device)?);
        let (mut sum, mut scratch) = (Buffer::<f64>::zeros(device, 1)?, Buffer::<f64>::zeros(device, 4)?);
        let (bytes, one) = (Buffer::<u8>::zeros(device, 1)?, Buffer::<f32>::zeros(device, 1)?);
        let slices = MinibatchSlices::new(1, 1, 2, 2);
        let number = one.view();
        kernels.samples(stream, &Obs::F32(number), 1.0, 1, None, &floats.view_mut().into_slice(0..1))?;
        kernels.samples(stream, &Obs::U8(bytes.view()), 1.0, 1, Some(&words.view()), &floats.view_mut().into_slice(0..1))?;
        let one_hot = OneHotInputs::new(device, &[1])?;
        kernels.one_hot(stream, &number, &one_hot, None, &floats.view_mut().into_slice(0..1))?;
        // Few outputs, few samples, and many.
        [(1, 1, 1), (1, 9, 9), (8192, 12, 64)].into_iter().try_for_each(|sizes| launch_dense(&kernels, stream, sizes))?;
        kernels.sum_gradients(stream, &slices, &floats.view(), &others.view_mut())?;
        kernels.gate(stream, Gate::Silu, &floats.view_mut(), Some(&others.view_mut()))?;
        kernels.gate_gradient(stream, &floats.view_mut(), &others.view())?;
        let activation = Activation::Tanh;
        let norm = NormParams { gains: number, offsets: number };
        let (mut normed, mut sums) = (Buffer::<f32>::zeros(device, 1)?, Buffer::<f32>::zeros(device, 1)?);
        kernels.normalize_sums(stream, norm, activation, &sums.view_mut(), None)?;
        kernels.normalized_gradient(stream, norm, &sums.view_mut(), &normed.view_mut(), &number)?;
        kernels.term_gradient(stream, &MinibatchSlices::new(1, 1, 1, 1), &number, &sums.view_mut())?;
        let column = MatrixColumns { matrix: number, width: 1, first: 0 };
        let to = MatrixColumns { matrix: floats.view_mut().into_slice(0..1), width: 1, first: 0 };
        kernels.copy_columns(stream, &column, &to, 1)?;
        kernels.derive_columns(stream, &column, activation, &number, &to.matrix)?;
        let shape =
            ConvShape { n_in: 1, n_out: 1, kernel: 1, stride: 1, in_size: [1, 1], planes: false, activation, together: 1 };
        let conv = ConvLayer::new(device, shape)?;
        conv.forward(stream, &others.view(), &number, &floats.view_mut().into_slice(0..1))?;
        conv.input_gradient(stream, &others.view(), &number, activation, &number, &floats.view_mut().into_slice(0..1))?;
        conv.gradient(stream, &slices, &number, &number, &floats.view_mut())?;
        let layer = NarrowLayer { layer: DenseLayer { n_in: 1, n_out: 1, activation }, params: 0, outputs: 0, deltas: 0 };
        let narrow = NarrowNet::new(device, vec![vec![layer]])?.unwrap();
        let params = others.view();
        let many = Buffer::<f32>::zeros(device, 1 << 14)?;
        let mut outputs = Buffer::zeros(device, many.len())?;
        for inputs in [number.slice(0..1), many.view()] {
            let samples = NarrowSamples { params, inputs, outputs: outputs.view_mut(), keeps: true, first: 0, needed: None };
            kernels.narrow_forward(stream, &narrow, 0..1, samples)?;
        }
        let numbers = NarrowNumbers { params, inputs: number.slice(0..1), outputs: params, deltas: params, held: 0, first: 0 };
        kernels.narrow_gradient(stream, &narrow, &slices, numbers, &floats.view_mut())?;
        let many = Buffer::<f32>::zeros(device, 300)?;
        kernels.sum(stream, &many.view(), None, Terms::Numbers, &scratch.view_mut(), &sum.view_mut())?;
        kernels.begin(stream, &mut state)?;
        kernels.epoch(stream, &mut state)?;
        kernels.rows(stream, &state, EpochOrder { n_samples: 1, shuffled: true }, &words.view_mut())?;
        let (mut terms, one_head) = (Buffer::zeros(device, PARTS)?, HeadSizes::new(device, &[1])?);
        for objective in [Objective::ClippedSurrogate, Objective::PolicyGradient] {
            for kind in 0..3 {
                let continuous = kind == 1;
                let columns = LossColumns {
                    rows: words.view(),
                    actions: if continuous { Actions::Continuous(number) } else { Actions::Discrete(words.view()) },
                    masks: None,
                    log_probs: number,
                    advantages: number,
                    values: number,
                    returns: number,
                    moments: None,
                };
                let heads = LossHeads {
                    outputs: number,
                    values: number,
                    d_outputs: floats.view_mut().into_slice(0..1),
                    d_values: others.view_mut().into_slice(0..1),
                    terms: terms.view_mut(),
                    std_terms: more.view_mut().into_slice(0..1),
                    distribution: match kind {
                        0 => ActionDistribution::Categorical,
                        1 => ActionDistribution::Gaussian(number),
                        _ => ActionDistribution::Heads(&one_head),
                    },
                };
                kernels.objective(stream, objective, &columns, &heads, &state)?;
            }
        }
        let mut tiles = Buffer::zeros(device, PARTS)?;
        kernels.loss(stream, &slices, &terms.view(), &tiles.view_mut(), &mut state)?;
        kernels.log_std(stream, &slices, &number, &tiles.view_mut().into_slice(0..1), &floats.view_mut().into_slice(0..1))?;
        kernels.step(stream, &sum.view(), &mut state)?;
        let [params, m, v] = [&mut floats, &mut others, &mut more].map(|buffer| buffer.view_mut().into_slice(0..1));
        kernels.adam(stream, &number, &params, [&m, &v], &state)?;
        kernels.rms_prop(stream, &number, &params, &v, &state)?;
        kernels.next_values(stream, &number, &number, &number, &words.view(), &params)?;
        let flags = [&bytes.view(), &bytes.view()];
        kernels.ended_values(stream, &number, flags, &params)?;
        kernels.continued_values(stream, &number, &number, flags, &params)?;
        kernels.returns(stream, &number, &number, &params)?;
        kernels.explained_variance(stream, [&number, &number], &scratch.view_mut(), &mut state)?;
        launch_off_policy(device, stream, &number)?;
        launch_memory(device, stream)?;
        launch_q_learning(device, stream, &number, &mut state)?;
        launch_continuous(device, stream, &number, &mut state)
    }

    /// Launches every kernel of memory once.
    fn launch_memory(device: &Device, stream: &Stream) -> Result<(), Error> {
        let kernels = MemoryKernels::new(device)?;
        let (words, flags, mut states) =
            (Buffer::<u32>::zeros(device, 1)?, Buffer::<u8>::zeros(device, 1)?, Buffer::<f32>::zeros(device, 2)?);
        let (slices, part) = (MinibatchSlices::of_columns(1, 1, 1, 1, 1, 1), CellState { offset: 0, len: 2 });
        let mut cell = CellBuffers::new(device, CellKind::Lstm, 1, 1, true)?;
        let mut rows = Buffer::zeros(device, 1)?;
        kernels.rows(stream, &words.view(), &slices, 1, &rows.view_mut())?;
        kernels.take(stream, &states.view(), part, 1, &mut cell)?;
        kernels.step(stream, 1, None, &mut cell)?;
        kernels.put(stream, &cell, part, 1, &states.view_mut())?;
        kernels.forget(stream, [&flags.view(), &flags.view()], &states.view_mut())?;
        let (rows, ends) = (rows.view(), [flags.view(), flags.view()]);
        let of = SequenceColumns { rows, ends, first_states: states.view(), n_envs: 1, horizon: 0 };
        kernels.step_back(stream, &SequencePart { of, slices: &slices, first: 0, held: 0 }, 0, &mut cell)
    }

    /// Launches the kernels of a dense layer of some samples, inputs and outputs.
    fn launch_dense(kernels: &LearnerKernels, stream: &Stream, (m, n_in, n_out): (usize, usize, usize)) -> Result<(), Error> {
        let floats = |n: usize| Buffer::<f32>::zeros(stream.device(), n);
        let (layer, n_params) = (DenseLayer { n_in, n_out, activation: Activation::Tanh }, (n_in + 1) * n_out);
        let slices = MinibatchSlices::new(m, 1, n_params, usize::MAX);
        let (params, x, dz) = (floats(n_params)?, floats(m * n_in)?, floats(m * n_out)?);
        let [mut y, mut dx, mut partial] = [floats(m * n_out)?, floats(m * n_in)?, floats(slices.rows() * n_params)?];
        let of_layer = DenseParams { layer, params: params.view() };
        kernels.forward(stream, of_layer, &x.view(), &y.view_mut())?;
        kernels.input_gradient(stream, of_layer, &dz.view(), None, false, &dx.view_mut())?;
        kernels.gradient(stream, layer, &slices, &x.view(), &dz.view(), &partial.view_mut())
    }

    /// Launches every kernel of off-policy corrections once.
    fn launch_off_policy(device: &Device, stream: &Stream, &number: &View<'_, f32>) -> Result<(), Error> {
        let (kernels, words) = (OffPolicyKernels::new(device)?, Buffer::<u32>::zeros(device, 1)?);
        let (flags, sums) = (Buffer::<u8>::zeros(device, 1)?, Buffer::<f64>::zeros(device, 1)?);
        let [mut to, mut returns, mut weights] =
            [Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?, Buffer::zeros(device, 1)?];
        let (one_head, discrete) = (HeadSizes::new(device, &[1])?, Actions::Discrete(words.view()));
        for (distribution, actions) in [
            (ActionDistribution::Categorical, discrete),
            (ActionDistribution::Heads(&one_head), discrete),
            (ActionDistribution::Gaussian(number), Actions::Continuous(number)),
        ] {
            let samples = JudgedSamples { outputs: number, distribution, rows: None, actions, masks: None };
            kernels.log_probs(stream, &samples, &to.view_mut())?;
        }
        let steps = Steps {
            n_envs: 1,
            rewards: number,
            terminated: flags.view(),
            truncated: flags.view(),
            next_values: number,
            values: number,
        };
        let all = [&to.view_mut(), &returns.view_mut(), &weights.view_mut()];
        kernels.vtrace(stream, &steps, [&number, &number], 0.9, 0.9, all)?;
        let moments = Some([sums.view(), sums.view()]);
        kernels.weigh(stream, &words.view(), &number, moments, &number, &to.view_mut())
    }

    /// Launches every kernel of Q-learning once.
    fn launch_q_learning(
        device: &Device,
        stream: &Stream,
        &number: &View<'_, f32>,
        state: &mut LearnerState,
    ) -> Result<(), Error> {
        let (kernels, actions) = (QLearningKernels::new(device)?, Buffer::<u32>::zeros(device, 1)?);
        let [mut one, mut other] = [Buffer::<f32>::zeros(device, 1)?, Buffer::zeros(device, 1)?];
        let mut terms = Buffer::zeros(device, TD_TERMS)?;
        kernels.dueling(stream, [&number, &number], &one.view_mut())?;
        kernels.dueling_gradient(stream, &number, [&one.view_mut(), &other.view_mut()])?;
        let next = NextColumns { q: number, by: number, masks: None, rewards: number, discounts: number };
        kernels.targets(stream, &next, &one.view_mut())?;
        let columns = TdColumns { q: number, actions: actions.view(), targets: number, weights: number };
        kernels.loss(stream, &columns, [&one.view_mut(), &other.view_mut(), &terms.view_mut()])?;
        kernels.totals(stream, &MinibatchSlices::new(1, 1, 1, 1), &terms.view(), state, None)?;
        kernels.follow(stream, &number, &one.view_mut(), 0.5, state, None)
    }

    /// Launches every kernel of continuous actions once.
    fn launch_continuous(
        device: &Device,
        stream: &Stream,
        &number: &View<'_, f32>,
        state: &mut LearnerState,
    ) -> Result<(), Error> {
        let (kernels, update) = (ContinuousKernels::new(device)?, Buffer::<u64>::zeros(device, 1)?);
        let [mut one, mut other, mut more] = [(); 3].map(|()| Buffer::<f32>::zeros(device, 1));
        let [one, other, more] = [&mut one, &mut other, &mut more].map(|buffer| buffer.as_mut().unwrap().view_mut());
        let (mut two, mut square) = (Buffer::zeros(device, TD_TERMS)?, Buffer::<f64>::zeros(device, 1)?);
        let (of, noise) =
            (SquashedColumns { means: number, log_stds: number }, Noise { seed: 1, update: update.view(), first: 3 });
        kernels.rows(stream, [&number, &number], None, 1, &two.view_mut())?;
        kernels.squash(stream, &of, noise, [&one, &other, &more])?;
        let d_rows = Buffer::zeros(device, 2)?;
        kernels.squash_gradient(stream, &of, [&number, &d_rows.view(), &number], 1, [&one, &other])?;
        kernels.choose(stream, &number, Some(ClippedNoise { noise, std: 1.0, clip: 1.0 }), 1, &one)?;
        kernels.choose_gradient(stream, [&number, &d_rows.view()], 1, &one)?;
        let q = Values { one: number, other: Some(number) };
        let entropy = Entropy { log_probs: number, temperature: number, log_alpha: Some(number) };
        kernels.targets(stream, &q, Some(entropy), [&number, &number], &one)?;
        let gradients = ValueGradients { one: other, other: Some(more) };
        kernels.loss(stream, &q, [&number, &number], 0.5, &gradients, [&one, &two.view_mut()])?;
        kernels.value(stream, &q, Some(entropy), false, &gradients, &two.view_mut())?;
        let (stops, ValueGradients { one: gradient, .. }) = (LearnerState::new(device)?, gradients);
        let to = TemperatureStep { temperature: one, gradient, square: square.view_mut() };
        kernels.temperature(stream, [&number, &number], -1.0, &to, [&stops; 2], state)
    }

    #[test]
    fn every_call_site_passes_arguments_of_the_sizes_that_its_kernel_declares() {
        let Some(device) = Device::for_tests().pop() else { return };
        launch_all(&device).unwrap();
        let launched = LAUNCHED.lock().unwrap();
        for module in sources::MODULES {
            for kernel in standin::parse(module.ptx).unwrap() {
                let declared: Vec<usize> = kernel.params.iter().map(|param| param.size).collect();
                assert_eq!(launched.get(&kernel.name), Some(&declared), "{}", kernel.name);
            }
        }
    }
}
