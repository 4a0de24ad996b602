//! Actions: layers, head, choice.

use core::mem::{swap, take};

use crate::error::Error;
use crate::format::{ELU, EPSILON, GELU, LIMIT, LOG_STD_RANGE, LONG, MASKED, NORM_LANES, PART, RELU, SILU, TANH};
use crate::fused::{add_row, fused};
use crate::math::{
    activation_elu, activation_gelu, activation_silu, activation_tanh, clamp, exp, gate_sigmoid, ln, normal, sqrt, tanh, uniform,
    words,
};
use crate::read::{Conv, Kind, Policy, StoredHead, StoredLayer, StoredPart, inputs_of};
use crate::words::Floats;

/// An observation.
#[derive(Clone, Copy, Debug)]
pub enum Obs<'a> {
    /// Numbers, (D).
    F32(&'a [f32]),
    /// Bytes, (D).
    U8(&'a [u8]),
}

/// Rule that selects an action.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// The most likely action.
    Greedy,
    /// A random action, where the policy has a distribution; else the greedy one.
    ///
    /// It is the action that the trainer draws with this seed in this step of this environment.
    Sample {
        /// Seed of the random numbers.
        seed: u64,
        /// Index of the environment.
        env: u32,
        /// Step of the environment, over all its episodes.
        step: u64,
    },
}

/// Output buffer of an action.
#[derive(Debug)]
pub enum Action<'a> {
    /// A choice from each head.
    Discrete(&'a mut [u32]),
    /// Numbers within the environment's bounds.
    Continuous(&'a mut [f32]),
}

/// Adds a frame to an observation that stacks several, the oldest first.
///
/// The `first` frame of an episode fills the whole observation.
///
/// # Panics
/// If the observation is not one or more whole frames.
pub fn stack<T: Copy>(obs: &mut [T], frame: &[T], first: bool) {
    assert!(!obs.is_empty() && obs.len().is_multiple_of(frame.len()), "an observation is one or more whole frames");
    if first {
        obs.chunks_exact_mut(frame.len()).for_each(|to| to.copy_from_slice(frame));
    } else {
        obs.copy_within(frame.len().., 0);
        let last = obs.len() - frame.len();
        obs[last..].copy_from_slice(frame);
    }
}

/// Sums of one position, which begin with the biases.
///
/// Sums of many terms are made of sums of [`PART`] terms.
struct Sums<'a> {
    total: &'a mut [f32],
    part: &'a mut [f32],
    /// Index of the part that is being summed.
    at: usize,
    is_long: bool,
}

impl<'a> Sums<'a> {
    /// Begins sums of terms at `places` places.
    fn new(layer: &StoredLayer<'_>, places: usize, total: &'a mut [f32], part: &'a mut [f32]) -> Self {
        total.iter_mut().zip(layer.bias.iter()).for_each(|(to, b)| *to = b);
        Self { total, part: &mut part[..layer.bias.len()], at: 0, is_long: places > LONG }
    }

    /// Adds the term at `place`.
    #[inline(always)]
    fn add<const CHOSEN: bool>(&mut self, place: usize, x: f32, row: &[[u8; 4]]) {
        if self.is_long && place / PART != self.at {
            self.close();
            self.at = place / PART;
        }
        add_row::<CHOSEN>(if self.at == 0 { self.total } else { self.part }, x, row);
    }

    /// Adds the part to the total, and begins another one.
    fn close(&mut self) {
        if self.at > 0 {
            self.total.iter_mut().zip(&*self.part).for_each(|(to, sum)| *to += sum);
        }
        self.part.fill(0.0);
    }
}

/// Computes a layer in which each output reads each input.
#[inline(always)]
fn dense<const CHOSEN: bool>(layer: &StoredLayer<'_>, [real, padded]: [usize; 2], x: &[f32], y: &mut [f32], part: &mut [f32]) {
    let mut sums = Sums::new(layer, x.len() / real * padded, y, part);
    let mut rows = layer.weight.0.chunks_exact(layer.bias.len());
    for (run, x) in x.chunks_exact(real).enumerate() {
        for ((i, &x), row) in x.iter().enumerate().zip(&mut rows) {
            sums.add::<CHOSEN>(run * padded + i, x, row);
        }
    }
    sums.close();
}

/// Computes a first layer in which categories have a row of the weights each.
///
/// A number that is no category of its element reads no row.
#[inline(always)]
fn gather<const CHOSEN: bool>(layer: &StoredLayer<'_>, categories: &[[u8; 4]], x: &[f32], y: &mut [f32], part: &mut [f32]) {
    let n = layer.bias.len();
    let mut sums = Sums::new(layer, layer.n_in, y, part);
    let mut first = 0;
    for (&x, n_categories) in x.iter().zip(categories) {
        let input = match u32::from_le_bytes(*n_categories) {
            0 => Some((first, x)),
            n => category(x, n).map(|category| (first + category, 1.0)),
        };
        if let Some((i, x)) = input {
            sums.add::<CHOSEN>(i, x, &layer.weight.0[i * n..][..n]);
        }
        first += inputs_of(n_categories) as usize;
    }
    sums.close();
}

/// Index of a category of an element; `None` for a number that is none.
fn category(x: f32, n: u32) -> Option<usize> {
    let category = x as u32;
    (category < n && category as f32 == x).then_some(category as usize)
}

/// Writes numbers, and a one-hot vector for each category.
///
/// Returns the number of them all.
fn one_hot(categories: &[[u8; 4]], x: &[f32], to: &mut [f32]) -> usize {
    let mut len = 0;
    for (i, &x) in x.iter().enumerate() {
        let n = categories.get(i).map_or(0, |n| u32::from_le_bytes(*n));
        let to = &mut to[len..][..n.max(1) as usize];
        if n == 0 {
            to[0] = x;
        } else {
            to.fill(0.0);
            category(x, n).into_iter().for_each(|category| to[category] = 1.0);
        }
        len += to.len();
    }
    len
}

/// Computes a convolution, position after position.
#[inline(always)]
fn convolve<const CHOSEN: bool>(layer: &StoredLayer<'_>, conv: Conv, x: &[f32], y: &mut [f32], part: &mut [f32]) {
    let Conv { channels, rows, columns, kernel, stride, planes } = conv;
    let n = layer.bias.len();
    let terms = channels * kernel * kernel;
    let out_columns = (columns - kernel) / stride + 1;
    for (position, y) in y.chunks_exact_mut(n).enumerate() {
        let (row, column) = (position / out_columns * stride, position % out_columns * stride);
        let mut sums = Sums::new(layer, terms, y, part);
        for (term, weights) in layer.weight.0.chunks_exact(n).enumerate() {
            let at = if planes {
                let (c, i, j) = (term / (kernel * kernel), term / kernel % kernel, term % kernel);
                (c * rows + row + i) * columns + column + j
            } else {
                let (i, j, c) = (term / (kernel * channels), term / channels % kernel, term % channels);
                ((row + i) * columns + column + j) * channels + c
            };
            sums.add::<CHOSEN>(term, x[at], weights);
        }
        sums.close();
    }
}

/// Returns a sum of terms.
///
/// Term i is added to lane i % 32; then the second half of the lanes is added to the first, until one is left.
#[inline(always)]
fn lane_sum(terms: &[f32], add: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; NORM_LANES];
    for terms in terms.chunks(NORM_LANES) {
        lanes.iter_mut().zip(terms).for_each(|(lane, &x)| *lane = add(*lane, x));
    }
    let mut half = NORM_LANES / 2;
    while half > 0 {
        let (a, b) = lanes.split_at_mut(half);
        a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
        half /= 2;
    }
    lanes[0]
}

/// Normalizes numbers.
#[inline(always)]
fn normalize<const CHOSEN: bool>(layer: &StoredLayer<'_>, x: &[f32], y: &mut [f32]) {
    let share = 1.0 / x.len() as f32;
    let mean = lane_sum(x, |sum, x| sum + x) * share;
    y.iter_mut().zip(x).for_each(|(y, x)| *y = x - mean);
    let squares = lane_sum(y, |sum, x| fused::<CHOSEN>(x, x, sum));
    let inverse = 1.0 / sqrt(fused::<CHOSEN>(squares, share, EPSILON));
    for (y, (gain, offset)) in y.iter_mut().zip(layer.weight.iter().zip(layer.bias.iter())) {
        *y = fused::<CHOSEN>(*y * inverse, gain, offset);
    }
}

/// Takes a step of a memory.
///
/// `a` are the gates' sums of the inputs, `u` becomes those of h, and then begins with the outputs.
#[inline(always)]
fn remember<const CHOSEN: bool>(layer: &StoredLayer<'_>, a: &mut [f32], u: &mut [f32], state: &mut [f32], part: &mut [f32]) {
    let n = layer.n_out;
    let (h, c) = state.split_at_mut(n);
    dense::<CHOSEN>(layer, [n, n], h, u, part);
    // In a GRU, r scales the last gate's sum of h before it is added.
    let n_added = if layer.kind == Kind::Gru { 2 * n } else { 4 * n };
    a[..n_added].iter_mut().zip(&*u).for_each(|(a, u)| *a += u);
    for j in 0..n {
        let [first, second, third] = [j, n + j, 2 * n + j];
        if layer.kind == Kind::Gru {
            let (r, z) = (gate_sigmoid::<CHOSEN>(a[first]), gate_sigmoid::<CHOSEN>(a[second]));
            let new = activation_tanh::<CHOSEN>(fused::<CHOSEN>(r, u[third], a[third]));
            h[j] = fused::<CHOSEN>(z, h[j] - new, new);
        } else {
            let (i, f) = (gate_sigmoid::<CHOSEN>(a[first]), gate_sigmoid::<CHOSEN>(a[second]));
            let o = gate_sigmoid::<CHOSEN>(a[3 * n + j]);
            c[j] = fused::<CHOSEN>(f, c[j], i * activation_tanh::<CHOSEN>(a[third]));
            h[j] = o * activation_tanh::<CHOSEN>(c[j]);
        }
    }
    u[..n].copy_from_slice(h);
}

/// Applies an activation of the format to each output.
#[inline(always)]
fn activate<const CHOSEN: bool>(activation: u32, outputs: &mut [f32]) {
    match activation {
        TANH => outputs.iter_mut().for_each(|y| *y = activation_tanh::<CHOSEN>(*y)),
        RELU => outputs.iter_mut().for_each(|y| *y = if *y > 0.0 { *y } else { 0.0 }),
        ELU => outputs.iter_mut().for_each(|y| *y = activation_elu::<CHOSEN>(*y)),
        SILU => outputs.iter_mut().for_each(|y| *y = activation_silu::<CHOSEN>(*y)),
        GELU => outputs.iter_mut().for_each(|y| *y = activation_gelu::<CHOSEN>(*y)),
        _ => {}
    }
}

/// Converts logits to log-probabilities, in place.
fn log_softmax(logits: &mut [f32]) {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max });
    let sum = logits.iter().fold(0.0, |sum, logit| sum + exp(logit - max));
    let log_sum = ln(sum);
    logits.iter_mut().for_each(|logit| *logit = *logit - max - log_sum);
}

/// Draws an index from log-probabilities with a uniform number.
fn draw(log_probs: &[f32], uniform: f32) -> u32 {
    let (mut cumulative, mut last) = (0.0, 0);
    for (action, &log_prob) in (0..).zip(log_probs) {
        let probability = exp(log_prob);
        if probability > 0.0 {
            last = action;
            cumulative += probability;
            if cumulative > uniform {
                break;
            }
        }
    }
    last
}

/// Returns the index of the greatest number, the first of equals.
fn greatest(numbers: &[f32]) -> u32 {
    let best = |best: usize, i: usize| if numbers[i] > numbers[best] { i } else { best };
    (1..numbers.len()).fold(0, best) as u32
}

impl Policy<'_> {
    /// Computes the outputs of the network.
    ///
    /// The outputs are logits, action values or means; a dueling network's value follows its action values, a squashed policy's
    /// logarithms of standard deviations follow its means.
    /// `memory` has [`Policy::memory_len`] or more numbers, and holds the outputs. A policy that remembers takes a step of its
    /// state there.
    ///
    /// # Errors
    /// [`Error::Call`] if a length or a type differs.
    pub fn outputs<'m>(&self, obs: Obs<'_>, memory: &'m mut [f32]) -> Result<&'m mut [f32], Error> {
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            #[expect(unsafe_code, reason = "code for some processors of the target")]
            // SAFETY: the processor has both features.
            return unsafe { self.outputs_fused(obs, memory) };
        }
        self.outputs_by::<false>(obs, memory)
    }

    /// Computes the outputs on processors that fuse multiply-adds.
    #[cfg(all(feature = "std", target_arch = "x86_64"))]
    #[target_feature(enable = "avx2,fma")]
    fn outputs_fused<'m>(&self, obs: Obs<'_>, memory: &'m mut [f32]) -> Result<&'m mut [f32], Error> {
        self.outputs_by::<true>(obs, memory)
    }

    /// Computes the outputs, with multiply-adds that are instructions if `CHOSEN`.
    #[inline(always)]
    fn outputs_by<'m, const CHOSEN: bool>(&self, obs: Obs<'_>, memory: &'m mut [f32]) -> Result<&'m mut [f32], Error> {
        if memory.len() < self.memory_len() {
            return Err(Error::Call("memory"));
        }
        let (mut states, rest) = memory.split_at_mut(self.state_len);
        let (mut x, rest) = rest.split_at_mut(self.widest);
        let (mut y, rest) = rest.split_at_mut(self.widest);
        let (of_parts, part) = rest.split_at_mut(2 * self.widest_of_part);
        self.read_obs(obs, &mut x[..self.d])?;
        let mut n_in = self.d;
        if !self.parts.is_empty() {
            n_in = self.read_parts::<CHOSEN>(&x[..n_in], y, of_parts, part);
            swap(&mut x, &mut y);
        }
        for (i, layer) in self.layers.enumerate() {
            if layer.state_len > 0 {
                let (state, others) = take(&mut states).split_at_mut(layer.state_len);
                remember::<CHOSEN>(&layer, &mut x[..n_in], &mut y[..n_in], state, part);
                states = others;
            }
            let (input, output) = (&x[..n_in], &mut y[..layer.n_out]);
            match layer.kind {
                Kind::Dense { .. } if i == 0 && self.parts.is_empty() && !self.categories.is_empty() => {
                    gather::<CHOSEN>(&layer, self.categories, input, output, part)
                }
                Kind::Dense { real, padded } => dense::<CHOSEN>(&layer, [real, padded], input, output, part),
                Kind::Conv(conv) => convolve::<CHOSEN>(&layer, conv, input, output, part),
                Kind::Norm => normalize::<CHOSEN>(&layer, input, output),
                Kind::Gru | Kind::Lstm => {}
            }
            activate::<CHOSEN>(layer.activation, output);
            swap(&mut x, &mut y);
            n_in = layer.n_out;
        }
        let outputs = &mut x[..self.n_outputs];
        if let StoredHead::Values { n, dueling: true, .. } = self.head {
            let (advantages, value) = outputs.split_at_mut(n);
            let sum = advantages.iter().fold(0.0, |sum, x| sum + x);
            let offset = value[0] - sum * (1.0 / n as f32);
            advantages.iter_mut().for_each(|q| *q += offset);
        }
        Ok(outputs)
    }

    /// Computes the outputs of all parts of an observation, in order.
    ///
    /// Returns the number of them all.
    #[inline(always)]
    fn read_parts<const CHOSEN: bool>(&self, x: &[f32], features: &mut [f32], of_parts: &mut [f32], part: &mut [f32]) -> usize {
        let (mut first, mut len) = (0, 0);
        for StoredPart { len: n_elements, layers } in self.parts {
            let elements = first..first + n_elements;
            let (mut from, mut to) = of_parts.split_at_mut(self.widest_of_part);
            let mut n_in = n_elements;
            for (i, layer) in layers.enumerate() {
                let (input, output) = (if i == 0 { &x[elements.clone()] } else { &from[..n_in] }, &mut to[..layer.n_out]);
                if let Kind::Conv(conv) = layer.kind {
                    convolve::<CHOSEN>(&layer, conv, input, output, part);
                }
                activate::<CHOSEN>(layer.activation, output);
                swap(&mut from, &mut to);
                n_in = layer.n_out;
            }
            len += if layers.is_empty() {
                one_hot(self.categories.get(elements.clone()).unwrap_or_default(), &x[elements], &mut features[len..])
            } else {
                features[len..][..n_in].copy_from_slice(&from[..n_in]);
                n_in
            };
            first += n_elements;
        }
        len
    }

    /// Scales and normalizes an observation.
    fn read_obs(&self, obs: Obs<'_>, to: &mut [f32]) -> Result<(), Error> {
        match (obs, self.bytes) {
            (Obs::F32(obs), None) if obs.len() == to.len() => to.copy_from_slice(obs),
            (Obs::U8(obs), Some(scale)) if obs.len() == to.len() => {
                to.iter_mut().zip(obs).for_each(|(to, &x)| *to = f32::from(x) * scale);
            }
            _ => return Err(Error::Call("observation")),
        }
        if let Some([mean, inv_std]) = self.normalize {
            let is_number = |i: usize| self.categories.get(i).is_none_or(|n| *n == [0; 4]);
            for (i, x) in to.iter_mut().enumerate().filter(|(i, _)| is_number(*i)) {
                *x = clamp((*x - mean.at(i)) * inv_std.at(i), -LIMIT, LIMIT);
            }
        }
        Ok(())
    }

    /// Acts on an observation.
    ///
    /// `mask` holds 1 for each legal action and 0 for the others, and is empty where [`Policy::mask_len`] is 0. `memory` has
    /// [`Policy::memory_len`] or more numbers, the state among them; `action` has [`Policy::action_len`] elements.
    ///
    /// # Errors
    /// [`Error::Call`] if a length or a type differs.
    pub fn act(&self, obs: Obs<'_>, mask: &[u8], choice: Choice, memory: &mut [f32], action: Action<'_>) -> Result<(), Error> {
        if mask.len() != self.mask_len() {
            return Err(Error::Call("mask"));
        }
        let (is_discrete, action_len) = match &action {
            Action::Discrete(action) => (true, action.len()),
            Action::Continuous(action) => (false, action.len()),
        };
        // Before a state has changed.
        if (is_discrete, action_len) != (self.is_discrete(), self.action_len()) {
            return Err(Error::Call("action"));
        }
        let outputs = self.outputs(obs, memory)?;
        match (action, self.head) {
            (Action::Discrete(action), StoredHead::Categorical { sizes, .. }) if action.len() == sizes.len() => {
                outputs.iter_mut().zip(mask).filter(|(_, legal)| **legal == 0).for_each(|(logit, _)| *logit = MASKED);
                let mut rest = outputs;
                for ((action, size), head) in action.iter_mut().zip(sizes).zip(0..) {
                    let (logits, others) = rest.split_at_mut(u32::from_le_bytes(*size) as usize);
                    log_softmax(logits);
                    *action = match choice {
                        Choice::Greedy => greatest(logits),
                        Choice::Sample { seed, env, step } => {
                            draw(logits, uniform(words(seed, env, step >> 2, head)[(step & 3) as usize]))
                        }
                    };
                    rest = others;
                }
            }
            (Action::Discrete([action]), StoredHead::Values { n, .. }) => {
                let mut best = None;
                for (i, &q) in outputs[..n].iter().enumerate().filter(|(i, _)| mask.get(*i).is_none_or(|legal| *legal != 0)) {
                    best = if best.is_none_or(|(_, value)| q > value) { Some((i, q)) } else { best };
                }
                *action = best.map_or(0, |(i, _)| i as u32);
            }
            (
                Action::Continuous(action),
                StoredHead::Gaussian { bounds, .. } | StoredHead::Squashed { bounds } | StoredHead::Deterministic { bounds },
            ) if action.len() == bounds[0].len() => {
                for (j, action) in action.iter_mut().enumerate() {
                    *action = self.continuous(j, outputs, choice);
                }
            }
            _ => return Err(Error::Call("action")),
        }
        Ok(())
    }

    /// Dimension `j` of an action.
    fn continuous(&self, j: usize, outputs: &[f32], choice: Choice) -> f32 {
        let noise = |seed, env, step| normal(words(seed, env, step, j as u32 >> 2), j & 3);
        let scaled = |[low, high]: [Floats<'_>; 2], y: f32| {
            let (low, high) = (low.at(j), high.at(j));
            clamp(0.5 * (low + high) + 0.5 * (high - low) * y, low, high)
        };
        match (self.head, choice) {
            (StoredHead::Gaussian { bounds: [low, high], log_std }, choice) => {
                let mean = outputs[j];
                let action = match choice {
                    Choice::Greedy => mean,
                    Choice::Sample { seed, env, step } => mean + exp(log_std.at(j)) * noise(seed, env, step),
                };
                clamp(action, low.at(j), high.at(j))
            }
            (StoredHead::Squashed { bounds }, Choice::Sample { seed, env, step }) => {
                let log_std = clamp(outputs[bounds[0].len() + j], LOG_STD_RANGE[0], LOG_STD_RANGE[1]);
                scaled(bounds, tanh(outputs[j] + exp(log_std) * noise(seed, env, step)))
            }
            (StoredHead::Squashed { bounds } | StoredHead::Deterministic { bounds }, _) => scaled(bounds, tanh(outputs[j])),
            (StoredHead::Categorical { .. } | StoredHead::Values { .. }, _) => unreachable!("a continuous action"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "write")]
    #[test]
    fn multiply_adds_in_software_give_the_bits_of_instructions() {
        let mut rng = rl_envs::Rng::new(3, 0, 0, rl_envs::Purpose::Init);
        for exported in crate::kinds::policies() {
            let file = crate::write::file(&exported);
            let policy = Policy::new(&file).expect("a policy");
            let [mut here, mut software] = [0; 2].map(|_| fresh_memory(&policy));
            for _ in 0..200 {
                let bytes: Vec<u8> = (0..policy.obs_len()).map(|_| rng.next_u32() as u8).collect();
                let floats: Vec<f32> = bytes.iter().map(|&x| f32::from(x % 8) / if x % 3 == 0 { 3.0 } else { 1.0 }).collect();
                let obs = || if policy.reads_bytes() { Obs::U8(&bytes) } else { Obs::F32(&floats) };
                let expected = policy.outputs(obs(), &mut here).expect("an observation");
                let found = policy.outputs_by::<false>(obs(), &mut software).expect("an observation");
                let bits = |outputs: &[f32]| outputs.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found), bits(expected), "{}", exported.about);
            }
        }
    }

    /// Returns the memory of a new episode.
    #[cfg(feature = "write")]
    fn fresh_memory(policy: &Policy<'_>) -> Vec<f32> {
        let mut memory = vec![0.0; policy.memory_len()];
        policy.reset(&mut memory);
        memory
    }

    #[test]
    fn a_draw_is_an_action_with_a_probability() {
        let log_probs = [-0.7, -0.7, MASKED]; // 0.4966 each: less than 1 in sum
        assert_eq!(draw(&log_probs, 0.0), 0);
        assert_eq!(draw(&log_probs, exp(-0.7)), 1, "the first ends before its probability");
        assert_eq!(draw(&log_probs, 0.999), 1, "the last has none");
    }
}
