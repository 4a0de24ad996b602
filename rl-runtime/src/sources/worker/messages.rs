//! Messages between this program and a worker: `docs/worker-protocol.md`.

use std::ops::Range;

use rl_envs::{ActionSlice, ActionSpace, Actions, MAX_CATEGORIES, ObsSliceMut, Part, Space, Spaces, codec};
use serde::Deserialize;

use super::memory::Memory;

/// Version of the protocol.
pub(super) const PROTOCOL: u32 = 1;

/// Request: step every environment.
pub(super) const STEP: u32 = 0;
/// Request: step one environment; its index is in the upper 24 bits.
pub(super) const STEP_ONE: u32 = 1;
/// Request: start an episode in one environment.
pub(super) const RESTART: u32 = 2;
/// Request: start an episode in as many environments as seeds follow.
pub(super) const BEGIN: u32 = 3;
/// Request: draw one environment.
pub(super) const RENDER: u32 = 4;
/// Request: close the environments and end.
pub(super) const CLOSE: u32 = 5;

/// Tag of a reply.
pub(super) const REPLY: u32 = 0;
/// Tag of a greeting.
pub(super) const HELLO: u32 = 0xA000_0000;
/// Tag of a report of an exception.
pub(super) const FAILED: u32 = 0xE000_0000;

/// Largest text that a worker may send.
pub(super) const MAX_JSON: usize = 64 << 20;
/// Largest number of elements of an observation, and of a network's inputs.
const MAX_LEN: usize = 1 << 26;
/// Largest number of choices at once.
const MAX_HEADS: usize = 1024;

/// Greeting of a worker: its environments' spaces.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Hello {
    protocol: u32,
    /// Versions of the programs involved, for people.
    #[serde(default)]
    pub(super) worker: String,
    /// True if the worker can leave observations in memory.
    #[serde(default)]
    pub(super) memory: bool,
    /// Directory of the environment's module: `env.path` or the current one; or empty.
    #[serde(default)]
    pub(super) path: String,
    observation: ObservationSpace,
    action: ActionsAllowed,
    #[serde(default)]
    masked: bool,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct ObservationSpace {
    dtype: String,
    shape: Vec<usize>,
    /// Bounds of each element, `null` without one; empty for bytes.
    #[serde(default)]
    low: Vec<Option<f32>>,
    #[serde(default)]
    high: Vec<Option<f32>>,
    /// Number of categories of each element, 0 for a number; empty if all are numbers.
    #[serde(default)]
    categories: Vec<u64>,
    /// Factor that a learner multiplies bytes by.
    #[serde(default = "of_bytes")]
    scale: f32,
    /// Named parts, in order; empty if the observation is one.
    #[serde(default)]
    parts: Vec<NamedPart>,
}

/// Factor that makes numbers from 0 to 1 of bytes.
fn of_bytes() -> f32 {
    1.0 / 255.0
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct NamedPart {
    name: String,
    shape: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum ActionsAllowed {
    Discrete {
        n: u64,
    },
    #[serde(rename = "multi_discrete")]
    MultiDiscrete {
        sizes: Vec<u32>,
    },
    Box {
        low: Vec<Option<f32>>,
        high: Vec<Option<f32>>,
    },
}

/// Returns the bounds of `what`, or what is wrong with them.
fn bounds(what: &str, low: &[Option<f32>], high: &[Option<f32>]) -> Result<(Vec<f32>, Vec<f32>), String> {
    let given = |bounds: &[Option<f32>], none: f32| bounds.iter().map(|bound| bound.unwrap_or(none)).collect::<Vec<_>>();
    let (low, high) = (given(low, f32::NEG_INFINITY), given(high, f32::INFINITY));
    // No number lies between equal infinities.
    let is_range = |(low, high): (&f32, &f32)| low <= high && *low < f32::INFINITY && *high > f32::NEG_INFINITY;
    match low.iter().zip(&high).position(|bounds| !is_range(bounds)) {
        Some(i) => Err(format!("element {i} of {what} has the bounds {} and {}, which no number is between", low[i], high[i])),
        None => Ok((low, high)),
    }
}

/// Makes elements of a space categories, or returns what is wrong with them.
fn with_categories(space: Space, categories: &[u64]) -> Result<Space, String> {
    if categories.is_empty() {
        return Ok(space);
    }
    if categories.len() != space.len() {
        return Err(format!("numbers of categories of {} of {} elements of an observation", categories.len(), space.len()));
    }
    if let Some((i, n)) = categories.iter().enumerate().find(|(_, n)| **n > u64::from(MAX_CATEGORIES)) {
        return Err(format!(
            "element {i} of the observations is one of {n} categories; f32 tells {MAX_CATEGORIES} apart at most"
        ));
    }
    let n_inputs: u64 = categories.iter().map(|&n| n.max(1)).sum();
    if n_inputs > MAX_LEN as u64 {
        return Err(format!("observations with {n_inputs} categories in all; {MAX_LEN} at most"));
    }
    let categories: Vec<_> = categories.iter().map(|&n| n as u32).collect();
    Ok(space.with_categories(&categories))
}

/// Names the parts of a space, or returns what is wrong with them.
fn with_parts(space: Space, parts: &[NamedPart]) -> Result<Space, String> {
    if parts.is_empty() {
        return Ok(space);
    }
    let len = |part: &NamedPart| part.shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis)).filter(|len| *len > 0);
    if let Some(part) = parts.iter().find(|part| len(part).is_none() || ![1, 3].contains(&part.shape.len())) {
        return Err(format!("a part \"{}\" of the shape {:?}; numbers have 1 axis, pictures 3", part.name, part.shape));
    }
    let total = parts.iter().filter_map(len).fold(0usize, usize::saturating_add);
    if total != space.len() {
        return Err(format!("parts with {total} of {} elements of an observation", space.len()));
    }
    let mut first = 0;
    for part in parts {
        let elements = first..first + len(part).unwrap_or(0);
        first = elements.end;
        if part.shape.len() == 3 && space.categories().get(elements).is_some_and(|of| of.iter().any(|n| *n > 0)) {
            return Err(format!("categories in the picture \"{}\"", part.name));
        }
    }
    let mut names: Vec<_> = parts.iter().map(|part| &*part.name).collect();
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("two parts of an observation with the name \"{}\"", pair[0]));
    }
    let parts: Vec<_> = parts.iter().map(|NamedPart { name, shape }| Part { name: name.clone(), shape: shape.clone() }).collect();
    Ok(space.with_parts(&parts))
}

impl Hello {
    /// Returns the spaces, or what is wrong with them.
    pub(super) fn spaces(&self) -> Result<Spaces, String> {
        let Self {
            protocol,
            observation: ObservationSpace { dtype, shape, low, high, categories, scale, parts },
            action,
            masked,
            ..
        } = self;
        if *protocol != PROTOCOL {
            return Err(format!("it speaks version {protocol} of the protocol, this program version {PROTOCOL}"));
        }
        let len = shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis)).filter(|len| (1..=MAX_LEN).contains(len));
        let len = len.ok_or_else(|| format!("observations of the shape {shape:?} have not 1 to {MAX_LEN} elements"))?;
        let obs = match dtype.as_str() {
            "u8" if !(*scale > 0.0 && *scale <= 1.0) => {
                return Err(format!("bytes with the scale {scale}; it is above 0 and at most 1"));
            }
            "u8" => Space::bytes(shape, u8::MAX, *scale),
            "f32" if (low.len(), high.len()) == (len, len) => {
                let (low, high) = bounds("an observation", low, high)?;
                with_parts(with_categories(Space::vector(&low, &high), categories)?, parts)?
            }
            "f32" => return Err(format!("{} and {} bounds of {len} elements of an observation", low.len(), high.len())),
            other => return Err(format!("observations of the type \"{other}\"; f32 or u8")),
        };
        let actions = match action {
            &ActionsAllowed::Discrete { n } if (1..=u64::from(u32::MAX)).contains(&n) => {
                ActionSpace::Discrete { n: n as u32, masked: *masked }
            }
            ActionsAllowed::MultiDiscrete { sizes }
                if (1..=MAX_HEADS).contains(&sizes.len())
                    && sizes.iter().try_fold(1u32, |n, &size| n.checked_mul(size)).is_some_and(|n| n > 0) =>
            {
                ActionSpace::MultiDiscrete { sizes: sizes.clone() }
            }
            ActionsAllowed::Box { low, high } if low.len() == high.len() && !low.is_empty() => {
                let (low, high) = bounds("an action", low, high)?;
                ActionSpace::Continuous { low, high }
            }
            ActionsAllowed::Discrete { n } => return Err(format!("{n} actions; there may be 1 to 2^32 - 1")),
            ActionsAllowed::MultiDiscrete { sizes } => {
                let n = sizes.len();
                return Err(format!("actions of {n} choices; there may be 1 to {MAX_HEADS}, with 1 to 2^32 - 1 combinations"));
            }
            ActionsAllowed::Box { low, high } => return Err(format!("actions with {} and {} bounds", low.len(), high.len())),
        };
        Ok(Spaces { obs, actions })
    }
}

/// Lengths and offsets of the messages of k environments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) k: usize,
    /// True if the loss of a life may end an episode.
    lives: bool,
    /// Bytes of an observation.
    row: usize,
    /// Bytes of an observation in a reply: 0 if it is in memory.
    sent: usize,
    /// Bytes of a mask; 0 without masks.
    mask: usize,
    /// Bytes of a request.
    pub(super) request: usize,
    /// Offset of the observations in a reply.
    obs: usize,
}

/// Smallest batch of observations that a worker leaves in memory, in bytes.
///
/// Ratio of steps/s, memory to socket, in turn on two cores of an AMD EPYC (Zen 4): 1.1 with one picture of 84 x 84 x 4 a worker,
/// 1.2 with two, 1.4 with four, 1.3 with eight; 1.5 with eight of 256 x 256 x 3, 2.0 of a megabyte.
const LARGE: usize = 24 << 10;

/// Flag of an episode that the loss of a life terminates; the game continues.
pub(super) const LIFE_LOST: u8 = 2;

/// Bytes of a reply.
pub(super) struct Answer<'a> {
    shape: &'a Shape,
    bytes: &'a [u8],
    memory: Option<&'a Memory>,
}

impl Shape {
    /// `has_memory`: the worker can leave observations in memory.
    pub(super) fn new(k: usize, Spaces { obs, actions }: &Spaces, lives: bool, has_memory: bool) -> Self {
        let row = obs.len() * obs.dtype().size();
        let sent = if has_memory && k * row >= LARGE { 0 } else { row };
        let mask = if actions.masked() { actions.len() } else { 0 };
        let words = if actions.n_discrete().is_some() { 1 } else { actions.len() };
        Self { k, lives, row, sent, mask, request: 4 + 4 * k * words, obs: (4 + 6 * k + k * mask).next_multiple_of(8) }
    }

    /// Length of the memory for observations in bytes; 0 if replies carry them.
    ///
    /// Observations (k), then final observations (k).
    pub(super) fn memory(&self) -> usize {
        if self.sent == self.row { 0 } else { 2 * self.k * self.row }
    }

    /// Bytes of a reply without final observations.
    pub(super) fn reply(&self) -> usize {
        self.obs + self.k * self.sent
    }

    /// Bytes of a reply in which every episode ends.
    pub(super) fn longest_reply(&self) -> usize {
        self.reply() + self.k * (self.sent + self.mask)
    }

    /// Bytes of the reply that begins with `reply`, or a violation in its flags.
    ///
    /// Only episodes of the environments `stepped` may end.
    pub(super) fn whole_reply(&self, reply: &[u8], stepped: Range<usize>) -> Result<usize, String> {
        let flags = &reply[4 + 4 * self.k..][..2 * self.k];
        if flags.iter().all(|flag| *flag == 0) {
            return Ok(self.reply());
        }
        let (terminated, truncated) = flags.split_at(self.k);
        let is_known = |(i, &flag): (usize, &u8)| flag <= 1 || flag == LIFE_LOST && self.lives && i < self.k && truncated[i] == 0;
        if let Some((_, flag)) = flags.iter().enumerate().find(|&flag| !is_known(flag)) {
            return Err(format!("a flag is {flag}; it must be 0 or 1"));
        }
        let ended = || (0..self.k).filter(|&i| terminated[i] | truncated[i] != 0);
        match ended().find(|i| !stepped.contains(i)) {
            Some(i) => Err(format!("the episode of its environment {i} ends without a step")),
            None => Ok(self.reply() + ended().count() * (self.sent + self.mask)),
        }
    }

    /// Finds a violation in the masks of a reply whose flags are checked.
    pub(super) fn check_masks(&self, reply: &[u8]) -> Result<(), String> {
        if self.mask == 0 {
            return Ok(());
        }
        let answer = Answer { shape: self, bytes: reply, memory: None };
        let [terminated, truncated] = answer.flags();
        let ended: Vec<usize> = (0..self.k).filter(|&i| terminated[i] | truncated[i] != 0).collect();
        let next = answer.masks(0, self.k).chunks(self.mask).enumerate().map(|(i, mask)| (i, mask, true));
        let last = reply[self.reply() + ended.len() * self.sent..].chunks(self.mask).zip(&ended);
        // After the end of a game there may be no action.
        let last = last.map(|(mask, &i)| (i, mask, terminated[i] == 0));
        for (i, mask, acts) in next.chain(last) {
            match mask.iter().fold(0, |all, legal| all | legal) {
                2.. => return Err(format!("a mask of its environment {i} has numbers other than 0 and 1")),
                0 if acts => return Err(format!("a mask of its environment {i} allows no action")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Reads a reply, and its observations from `memory` if they are there.
    pub(super) fn read<'a>(&'a self, bytes: &'a [u8], memory: Option<&'a Memory>) -> Answer<'a> {
        debug_assert_eq!(memory.map_or(0, Memory::len), self.memory(), "the process has the memory of its batch");
        Answer { shape: self, bytes, memory }
    }

    /// Writes a request, with actions from `first` on.
    pub(super) fn request(&self, request: &mut [u8], what: u32, first: usize, actions: ActionSlice<'_>) {
        request[..4].copy_from_slice(&what.to_le_bytes());
        let words = (self.request - 4) / (4 * self.k);
        let (to, _) = request[4 + 4 * words * first..].as_chunks_mut::<4>();
        match actions {
            Actions::Discrete(actions) => to.iter_mut().zip(actions).for_each(|(to, action)| *to = action.to_le_bytes()),
            Actions::Continuous(actions) => to.iter_mut().zip(actions).for_each(|(to, action)| *to = action.to_le_bytes()),
        }
    }
}

impl Answer<'_> {
    /// Rewards, (k).
    pub(super) fn rewards(&self) -> impl Iterator<Item = f32> {
        let (rewards, _) = self.bytes[4..4 + 4 * self.shape.k].as_chunks::<4>();
        rewards.iter().map(|reward| f32::from_le_bytes(*reward))
    }

    /// Flags of terminated and of truncated episodes, (k) each.
    pub(super) fn flags(&self) -> [&[u8]; 2] {
        let k = self.shape.k;
        [&self.bytes[4 + 4 * k..4 + 5 * k], &self.bytes[4 + 5 * k..4 + 6 * k]]
    }

    /// Legal actions of `n` environments from `first` on.
    pub(super) fn masks(&self, first: usize, n: usize) -> &[u8] {
        let Shape { k, mask, .. } = *self.shape;
        &self.bytes[4 + 6 * k + first * mask..][..n * mask]
    }

    /// Observations of `n` environments from `first` on.
    pub(super) fn obs(&self, first: usize, n: usize, to: ObsSliceMut<'_>) {
        let Shape { row, obs, .. } = *self.shape;
        match self.memory {
            Some(memory) => copy_from_memory(memory, first * row, to),
            None => copy(&self.bytes[obs + first * row..][..n * row], to),
        }
    }

    /// Final observation and mask of an episode that has ended.
    ///
    /// The episode is that of environment `env`, and number `i` of the `n` that have ended.
    pub(super) fn last(&self, i: usize, n: usize, env: usize, to: ObsSliceMut<'_>) -> &[u8] {
        let (Shape { k, row, sent, mask, .. }, at) = (*self.shape, self.shape.reply());
        match self.memory {
            Some(memory) => copy_from_memory(memory, (k + env) * row, to),
            None => copy(&self.bytes[at + i * row..][..row], to),
        }
        &self.bytes[at + n * sent + i * mask..][..mask]
    }
}

fn copy_from_memory(memory: &Memory, at: usize, to: ObsSliceMut<'_>) {
    match to {
        ObsSliceMut::F32(to) => {
            memory.read(at, bytemuck::cast_slice_mut(to));
            to.iter_mut().for_each(|x| *x = f32::from_bits(u32::from_le(x.to_bits())));
        }
        ObsSliceMut::U8(to) => memory.read(at, to),
    }
}

fn copy(from: &[u8], to: ObsSliceMut<'_>) {
    match to {
        ObsSliceMut::F32(to) => codec::copy_floats(from, to),
        ObsSliceMut::U8(to) => to.copy_from_slice(from),
    }
}
