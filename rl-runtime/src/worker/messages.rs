//! Messages between this program and a worker: `docs/worker-protocol.md`.

use rl_envs::{ActionSlice, ActionSpace, Actions, MAX_CATEGORIES, ObsSliceMut, Space};
use serde::Deserialize;

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

/// Greeting of a worker: its environments' spaces.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Hello {
    protocol: u32,
    /// Versions of the programs involved, for people.
    #[serde(default)]
    pub(super) worker: String,
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
    categories: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum ActionsAllowed {
    Discrete {
        n: u32,
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

fn bounds(bounds: &[Option<f32>], unbounded: f32) -> Vec<f32> {
    bounds.iter().map(|bound| bound.unwrap_or(unbounded)).collect()
}

/// Makes elements of a space categories, or returns what is wrong with them.
fn with_categories(space: Space, categories: &[u32]) -> Result<Space, String> {
    if categories.is_empty() {
        return Ok(space);
    }
    if categories.len() != space.len() {
        return Err(format!("numbers of categories of {} of {} elements of an observation", categories.len(), space.len()));
    }
    if let Some((i, n)) = categories.iter().enumerate().find(|(_, n)| **n > MAX_CATEGORIES) {
        return Err(format!(
            "element {i} of the observations is one of {n} categories; f32 tells {MAX_CATEGORIES} apart at most"
        ));
    }
    let n_inputs: u64 = categories.iter().map(|&n| u64::from(n.max(1))).sum();
    if n_inputs > MAX_LEN as u64 {
        return Err(format!("observations with {n_inputs} categories in all; {MAX_LEN} at most"));
    }
    Ok(space.with_categories(categories))
}

impl Hello {
    /// Returns the spaces, or what is wrong with them.
    pub(super) fn spaces(&self) -> Result<(Space, ActionSpace), String> {
        let Self { protocol, observation: ObservationSpace { dtype, shape, low, high, categories }, action, masked, .. } = self;
        if *protocol != PROTOCOL {
            return Err(format!("it speaks version {protocol} of the protocol, this program version {PROTOCOL}"));
        }
        let len = shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis)).filter(|len| (1..=MAX_LEN).contains(len));
        let len = len.ok_or_else(|| format!("observations of the shape {shape:?}"))?;
        let space = match dtype.as_str() {
            "u8" => Space::bytes(shape, u8::MAX, 1.0 / 255.0),
            "f32" if (low.len(), high.len()) == (len, len) => {
                let space = Space::vector(&bounds(low, f32::NEG_INFINITY), &bounds(high, f32::INFINITY));
                with_categories(space, categories)?
            }
            "f32" => return Err(format!("{} and {} bounds of {len} elements of an observation", low.len(), high.len())),
            other => return Err(format!("observations of the type \"{other}\"; f32 or u8")),
        };
        let actions = match action {
            &ActionsAllowed::Discrete { n } if n > 0 => ActionSpace::Discrete { n, masked: *masked },
            ActionsAllowed::MultiDiscrete { sizes }
                if !sizes.is_empty() && sizes.iter().try_fold(1u32, |n, &size| n.checked_mul(size)).is_some_and(|n| n > 0) =>
            {
                ActionSpace::MultiDiscrete { sizes: sizes.clone() }
            }
            ActionsAllowed::Box { low, high } if low.len() == high.len() && !low.is_empty() => {
                ActionSpace::Continuous { low: bounds(low, f32::NEG_INFINITY), high: bounds(high, f32::INFINITY) }
            }
            other => return Err(format!("actions {other:?}")),
        };
        Ok((space, actions))
    }
}

/// Lengths and offsets of the messages of k environments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) k: usize,
    /// Bytes of an observation.
    row: usize,
    /// Bytes of a mask; 0 without masks.
    mask: usize,
    /// Bytes of a request.
    pub(super) request: usize,
    /// Offset of the observations in a reply.
    obs: usize,
}

/// Bytes of a reply.
pub(super) struct Answer<'a> {
    shape: &'a Shape,
    bytes: &'a [u8],
}

impl Shape {
    pub(super) fn new(k: usize, (space, actions): &(Space, ActionSpace)) -> Self {
        let row = space.len() * space.dtype().size();
        let mask = if actions.masked() { actions.len() } else { 0 };
        let words = if actions.n_discrete().is_some() { 1 } else { actions.len() };
        Self { k, row, mask, request: 4 + 4 * k * words, obs: (4 + 6 * k + k * mask).next_multiple_of(8) }
    }

    /// Bytes of a reply without final observations.
    pub(super) fn reply(&self) -> usize {
        self.obs + self.k * self.row
    }

    /// Bytes of a reply in which every episode ends.
    pub(super) fn longest_reply(&self) -> usize {
        self.reply() + self.k * (self.row + self.mask)
    }

    /// Bytes of the reply that begins with `reply`.
    pub(super) fn whole_reply(&self, reply: &[u8]) -> usize {
        let (terminated, truncated) = reply[4 + 4 * self.k..][..2 * self.k].split_at(self.k);
        let ended = terminated.iter().zip(truncated).filter(|(a, b)| **a | **b != 0).count();
        self.reply() + ended * (self.row + self.mask)
    }

    /// Reads a reply.
    pub(super) fn read<'a>(&'a self, bytes: &'a [u8]) -> Answer<'a> {
        Answer { shape: self, bytes }
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
        copy(&self.bytes[obs + first * row..][..n * row], to);
    }

    /// Final observation and mask of episode `i` of the `n` that have ended.
    pub(super) fn last(&self, i: usize, n: usize, to: ObsSliceMut<'_>) -> &[u8] {
        let (Shape { row, mask, .. }, at) = (*self.shape, self.shape.reply());
        copy(&self.bytes[at + i * row..][..row], to);
        &self.bytes[at + n * row + i * mask..][..mask]
    }
}

fn copy(from: &[u8], to: ObsSliceMut<'_>) {
    match to {
        ObsSliceMut::F32(to) => {
            let (from, _) = from.as_chunks::<4>();
            to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_le_bytes(*from));
        }
        ObsSliceMut::U8(to) => to.copy_from_slice(from),
    }
}
