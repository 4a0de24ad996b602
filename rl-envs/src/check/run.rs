//! An environment under random actions, and what a learner sees of it.

use std::fmt;

use crate::check::any_env::AnyEnv;
use crate::check::trace::OwnedAction;
use crate::{ActionSpace, ObsRows, Purpose, Rng, Step};

/// Number of episodes that a recording covers, if they are short enough.
const EPISODES: usize = 3;

/// Number of steps after which an episode counts as endless.
pub(super) const ENDLESS: usize = 20_000;

/// Fills observations of either type with a byte.
fn fill(rows: &mut ObsRows, byte: u8) {
    rows.as_mut().either(|rows| rows.fill(f32::from_le_bytes([byte; 4])), |rows| rows.fill(byte));
}

/// Returns observation `i` of `d` elements as numbers.
pub(super) fn row(rows: &ObsRows, i: usize, d: usize) -> Vec<f32> {
    rows.as_slice().row(i, d).either(<[f32]>::to_vec, |row| row.iter().map(|&x| f32::from(x)).collect())
}

/// Everything a learner sees of a reset or a step.
#[derive(Clone)]
pub(super) struct Frame {
    /// Number of lifetime steps so far.
    pub(super) step: u64,
    /// True for a reset, false for a step.
    pub(super) first: bool,
    pub(super) obs: Vec<f32>,
    pub(super) reward: f32,
    pub(super) terminated: bool,
    pub(super) truncated: bool,
    pub(super) mask: Vec<u8>,
}

impl Frame {
    pub(super) fn done(&self) -> bool {
        self.terminated | self.truncated
    }

    /// Describes the first difference in bits.
    pub(super) fn difference(&self, other: &Self) -> Option<String> {
        let tell = |what: &str, a: &dyn fmt::Display, b: &dyn fmt::Display| Some(format!("{self}: {what} is {a} and then {b}"));
        if (self.first, self.step) != (other.first, other.step) {
            return Some(format!("{self}, but then {other}"));
        }
        let (a, b) = ((self.terminated, self.truncated), (other.terminated, other.truncated));
        if a != b {
            return Some(format!("{self}: (terminated, truncated) is {a:?} and then {b:?}"));
        }
        if self.reward.to_bits() != other.reward.to_bits() {
            return tell("the reward", &self.reward, &other.reward);
        }
        if let Some(i) = (0..self.obs.len()).find(|&i| self.obs[i].to_bits() != other.obs[i].to_bits()) {
            return tell(&format!("obs[{i}]"), &self.obs[i], &other.obs[i]);
        }
        let i = (0..self.mask.len()).find(|&i| self.mask[i] != other.mask[i])?;
        tell(&format!("mask[{i}]"), &self.mask[i], &other.mask[i])
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.step) {
            (true, 0) => write!(f, "at the first reset"),
            (true, step) => write!(f, "at the reset after step {step}"),
            (false, step) => write!(f, "at step {step}"),
        }
    }
}

/// An endless iterator over one environment under random actions, with resets.
pub(super) struct Run {
    pub(super) env: Box<dyn AnyEnv>,
    pub(super) seed: u64,
    pub(super) action_seed: u64,
    pub(super) index: u32,
    pub(super) step: u64,
    /// True if a reset is due.
    pub(super) over: bool,
    pub(super) action_space: ActionSpace,
    pub(super) row: ObsRows,
    pub(super) mask: Vec<u8>,
    /// Byte that fills the row before each reset (true) or each step (false).
    pub(super) poison: Option<(bool, u8)>,
    /// Byte that fills the mask before the environment writes it.
    ///
    /// Not 0: a mask that is not written then looks like no mask.
    pub(super) mask_fill: u8,
    /// Number of times that the mask is requested per step.
    pub(super) mask_asks: u32,
    /// True if a random number has been drawn.
    pub(super) has_drawn: bool,
}

impl Clone for Run {
    fn clone(&self) -> Self {
        let (action_space, row, mask) = (self.action_space.clone(), self.row.clone(), self.mask.clone());
        Self { env: self.env.boxed_clone(), action_space, row, mask, ..*self }
    }
}

impl Run {
    pub(super) fn new(env: &dyn AnyEnv, seed: u64) -> Self {
        let action_space = env.action_space();
        Self {
            env: env.boxed_clone(),
            seed,
            action_seed: seed,
            index: 0,
            step: 0,
            over: true,
            row: ObsRows::zeros(env.dtype(), env.observation_space().len()),
            mask: vec![1; if action_space.masked() { action_space.len() } else { 0 }],
            action_space,
            poison: None,
            mask_fill: 1,
            mask_asks: 1,
            has_drawn: false,
        }
    }

    /// Draws the next action, from a stream used for nothing else.
    pub(super) fn action(&self) -> OwnedAction {
        let mut rng = Rng::new(self.action_seed, self.index, self.step, Purpose::RandomAction);
        match &self.action_space {
            ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => {
                let n = self.action_space.n_discrete().expect("discrete actions");
                let legal: Vec<u32> =
                    (0..n).zip(&self.mask).filter(|(_, legal)| **legal != 0).map(|(action, _)| action).collect();
                let any = legal.is_empty() || rng.below(16) == 0;
                OwnedAction::Discrete(if any { rng.below(n) } else { legal[rng.below(legal.len() as u32) as usize] })
            }
            ActionSpace::Continuous { low, high } => {
                OwnedAction::Continuous(low.iter().zip(high).map(|(&low, &high)| number(&mut rng, low, high)).collect())
            }
        }
    }

    pub(super) fn take_action(&mut self, action: &OwnedAction) -> Frame {
        self.poison(false);
        self.step += 1;
        let mut rng = Rng::new(self.seed, self.index, self.step, Purpose::Step);
        let step = self.env.step(action.borrow(), &mut rng, &mut self.row);
        self.over = step.done();
        self.frame(false, step, rng)
    }

    pub(super) fn reset(&mut self) -> Frame {
        self.poison(true);
        let mut rng = Rng::new(self.seed, self.index, self.step, Purpose::Reset);
        self.env.reset(&mut rng, &mut self.row);
        self.over = false;
        self.frame(true, Step::default(), rng)
    }

    fn poison(&mut self, at_reset: bool) {
        if let Some((reset, byte)) = self.poison
            && reset == at_reset
        {
            fill(&mut self.row, byte);
        }
    }

    fn frame(&mut self, first: bool, step: Step, mut rng: Rng) -> Frame {
        let purpose = if first { Purpose::Reset } else { Purpose::Step };
        self.has_drawn |= rng.next_u32() != Rng::new(self.seed, self.index, self.step, purpose).next_u32();
        if !self.mask.is_empty() {
            for _ in 0..self.mask_asks {
                self.mask.fill(self.mask_fill);
                self.env.mask(&mut self.mask);
            }
        }
        Frame {
            step: self.step,
            first,
            obs: row(&self.row, 0, self.row.len()),
            reward: step.reward,
            terminated: step.terminated,
            truncated: step.truncated,
            mask: self.mask.clone(),
        }
    }

    /// Records the next few episodes, within limits of memory and time.
    pub(super) fn record(mut self) -> Vec<Frame> {
        let longest = (4_000_000 / self.row.len().max(1)).clamp(64, 2000);
        let (mut frames, mut ends) = (Vec::new(), 0);
        while frames.len() < longest && ends < EPISODES {
            let Some(frame) = self.next() else { break };
            ends += usize::from(frame.done());
            frames.push(frame);
        }
        frames
    }

    pub(super) fn skip_frames(&mut self, n: usize) {
        self.take(n).for_each(drop);
    }
}

impl Iterator for Run {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        Some(if self.over { self.reset() } else { self.take_action(&self.action()) })
    }
}

/// Draws a number between bounds.
///
/// Each finite bound comes up one time in eight; towards an infinite bound, the distribution is normal.
fn number(rng: &mut Rng, low: f32, high: f32) -> f32 {
    let x = match (low.is_finite(), high.is_finite(), rng.below(8)) {
        (true, _, 0) => low,
        (_, true, 1) => high,
        (true, true, _) => rng.uniform_in(low, high),
        (true, false, _) => low + rng.normal().abs(),
        (false, true, _) => high - rng.normal().abs(),
        (false, false, _) => rng.normal(),
    };
    // Not clamp, which panics if the bounds are crossed: `spaces` reports that.
    x.max(low).min(high)
}

pub(super) fn compare(expected: &[Frame], found: impl Iterator<Item = Frame>) -> Result<(), String> {
    expected.iter().zip(found).find_map(|(expected, found)| expected.difference(&found)).map_or(Ok(()), Err)
}
