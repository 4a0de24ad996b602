//! Uniformly random actions, without a policy, for benches and checks.

use std::ops::Range;

use crate::batch::isa::{self, Isa, Set, Work};
use crate::{ActionSliceMut, ActionSpace, Actions, Purpose, Steps, numerics::rng};

/// Uniform actions for N environments, step by step.
///
/// Number k of an environment's stream [`Purpose::RandomAction`] is word `k & 3` of block `k >> 2`, so four numbers cost one
/// block. A discrete action at step s takes number s; dimension j of A of a continuous one takes number `s A + j`. Infinite
/// bounds become +-1, or 1 away from the other bound if that exceeds +-1.
#[derive(Clone, Debug)]
pub struct RandomActions {
    isa: Isa,
    seed: u64,
    first_env: u32,
    next: u64,
    space: ActionSpace,
    words: [Vec<u32>; 4], // (N) each
}

impl RandomActions {
    /// Creates actions for `n_envs` environments.
    #[must_use]
    pub fn new(seed: u64, n_envs: usize, space: &ActionSpace) -> Self {
        Self::slice(seed, 0..n_envs, space)
    }

    /// Creates actions for the environments with the indices `range` of a batch.
    #[must_use]
    pub fn slice(seed: u64, range: Range<usize>, space: &ActionSpace) -> Self {
        let mut space = space.clone();
        if let ActionSpace::Continuous { low, high } = &mut space {
            for (low, high) in low.iter_mut().zip(high) {
                *low = if low.is_finite() { *low } else { (*high - 1.0).min(-1.0) };
                *high = if high.is_finite() { *high } else { (*low + 1.0).max(1.0) };
            }
        }
        let words = std::array::from_fn(|_| vec![0; range.len()]);
        Self { isa: Isa::best(), seed, first_env: range.start as u32, next: 0, space, words }
    }

    /// Writes the actions of the next step, whatever the masks.
    ///
    /// # Panics
    /// If `actions` differ from the space in kind or number.
    pub fn fill(&mut self, actions: ActionSliceMut<'_>) {
        match (actions, &self.space) {
            (Actions::Discrete(actions), space) if let Some(n) = space.n_discrete() => {
                let words = self.next_words();
                assert_eq!(actions.len(), words.len(), "an action for each environment");
                actions.iter_mut().zip(words).for_each(|(action, &word)| *action = rng::below(word, n));
            }
            (Actions::Continuous(actions), ActionSpace::Continuous { low, high }) => {
                let bounds: Vec<_> = low.iter().copied().zip(high.iter().copied()).collect();
                let a = bounds.len();
                assert_eq!(actions.len(), self.words[0].len() * a, "an action for each environment");
                for (j, (low, high)) in bounds.into_iter().enumerate() {
                    let words = self.next_words();
                    // Rounding may exceed the bound.
                    let between = |word| rng::between(low, high, rng::uniform(word)).min(high);
                    actions.iter_mut().skip(j).step_by(a).zip(words).for_each(|(action, &word)| *action = between(word));
                }
            }
            _ => panic!("actions of another kind than the space's"),
        }
    }

    /// Writes legal actions of the next step.
    ///
    /// Where a mask forbids an action, the next legal one replaces it.
    ///
    /// # Panics
    /// If the actions differ from the space in kind or number.
    pub fn fill_legal(&mut self, steps: &mut Steps) {
        self.fill(steps.actions.as_mut_slice());
        let (Actions::Discrete(actions), Some([masks, _])) = (&mut steps.actions, &steps.masks) else { return };
        let a = masks.len() / actions.len();
        for (action, mask) in actions.iter_mut().zip(masks.chunks_exact(a)) {
            let legal = (0..a).map(|j| (*action as usize + j) % a).find(|&action| mask[action] != 0);
            *action = legal.map_or(*action, |legal| legal as u32);
        }
    }

    /// Returns the next word of every environment's stream.
    fn next_words(&mut self) -> &[u32] {
        let Self { isa, seed, first_env, next, words, .. } = self;
        if *next & 3 == 0 {
            isa::dispatch(*isa, Blocks { seed: *seed, first_env: *first_env, block: *next >> 2, words });
        }
        *next += 1;
        &self.words[((self.next - 1) & 3) as usize]
    }
}

/// Computes one block of every environment's stream.
struct Blocks<'a> {
    seed: u64,
    first_env: u32,
    block: u64,
    words: &'a mut [Vec<u32>; 4],
}

impl Work for Blocks<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let [a, b, c, d] = self.words;
        for ((((a, b), c), d), index) in a.iter_mut().zip(b).zip(c).zip(d).zip(self.first_env..) {
            [*a, *b, *c, *d] = rng::block(self.seed, index, self.block, Purpose::RandomAction, 0);
        }
    }
}
