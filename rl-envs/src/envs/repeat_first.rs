//! Repeat first: name the suit of the first of many cards, again and again.
//!
//! Source: POPGym 1.0.7's `RepeatFirst` (Morad et al., 2023) with two decks. Only memory solves it: each card but the first is a
//! distraction.
//!
//! - Observation, f32 (1), a category of four: the suit of the card that has just been dealt.
//! - Action, discrete (4): the suit of the first card of the episode.
//! - Reward: 1 / (cards - 1) for the right suit, otherwise as much less than 0; so a return is between -1 and 1.
//! - `terminated`: the last card is dealt, at step 103.
//! - `truncated`: never.
//! - Start: the first card of 104, 26 of each suit, which are dealt in random order.
//! - State, by field name: `first` and `card` (suits), `left` (cards of each suit still to be dealt).
//!
//! Departure from the reference: a card is drawn when it is dealt, not when the deck is shuffled.

use serde::{Deserialize, Serialize};

use crate::{Action, ActionSpace, Canvas, Env, Error, Rng, Space, Step};

/// Constants of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Cards of each suit.
    pub cards_per_suit: u16,
}

impl Default for Params {
    fn default() -> Self {
        Self { cards_per_suit: 26 }
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Suit of the first card.
    pub first: u8,
    /// Suit of the latest card.
    pub card: u8,
    /// Cards of each suit still to be dealt.
    pub left: [u16; 4],
}

/// The RepeatFirst environment.
#[derive(Clone, Copy, Debug)]
pub struct RepeatFirst {
    params: Params,
    state: State,
}

impl Default for RepeatFirst {
    fn default() -> Self {
        Self::new(Params::default())
    }
}

impl RepeatFirst {
    /// Creates an environment with the given constants.
    ///
    /// # Panics
    /// If there are no cards.
    #[must_use]
    pub fn new(params: Params) -> Self {
        let n = params.cards_per_suit;
        assert!(n > 0, "a card of each suit at least");
        Self { params, state: State { first: 0, card: 0, left: [n - 1, n, n, n] } }
    }

    /// Deals a card, uniformly among those that are left.
    #[inline(always)]
    fn deal(&mut self, rng: &mut Rng) {
        let State { card, left, .. } = &mut self.state;
        let mut rank = rng.below(left.iter().map(|&n| u32::from(n)).sum());
        *card = 0;
        for (suit, &n) in (1..).zip(&left[..3]) {
            if rank < u32::from(n) {
                break;
            }
            rank -= u32::from(n);
            *card = suit;
        }
        left[usize::from(*card)] -= 1;
    }
}

impl Env for RepeatFirst {
    type Obs = f32;
    type State = State;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[3.0]).with_categories(&[4])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 4, masked: false }
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
        self.state.left = [self.params.cards_per_suit; 4];
        self.deal(rng);
        self.state.first = self.state.card;
        obs[0] = f32::from(self.state.card);
    }

    #[inline(always)]
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
        let reward = 1.0 / (4.0 * f32::from(self.params.cards_per_suit) - 1.0);
        let right = action.discrete() == u32::from(self.state.first);
        self.deal(rng);
        obs[0] = f32::from(self.state.card);
        Step { reward: if right { reward } else { -reward }, terminated: self.state.left == [0; 4], truncated: false }
    }

    fn render(&self, canvas: &mut Canvas) {
        const COLORS: [[u8; 3]; 4] = [[45, 55, 72], [200, 55, 60], [66, 133, 90], [221, 122, 53]];
        canvas.view(0.0..4.0, 0.0..2.0, [250, 250, 247]);
        for (x, suit) in [(1.0, self.state.first), (3.0, self.state.card)] {
            canvas.rect(x - 0.6..x + 0.6, 0.2..1.8, [200, 200, 205]);
            canvas.rect(x - 0.55..x + 0.55, 0.25..1.75, [255, 255, 255]);
            canvas.disc([x, 1.0], 0.35, COLORS[usize::from(suit & 3)]);
        }
    }

    fn state(&self) -> Option<State> {
        Some(self.state)
    }

    fn set_state(&mut self, state: State) -> Result<(), Error> {
        let (all, left) = (self.params.cards_per_suit, state.left);
        if state.first > 3 || state.card > 3 {
            return Err(Error::BadState(format!("suits are 0 to 3, not {} and {}", state.first, state.card)));
        }
        if left.iter().any(|&n| n > all) || left == [0; 4] {
            return Err(Error::BadState(format!("0 to {all} cards of each suit are left, and one of them at least")));
        }
        if [state.first, state.card].iter().any(|&suit| left[usize::from(suit)] == all) {
            return Err(Error::BadState(format!("all {all} cards of a suit that was dealt are left")));
        }
        self.state = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;

    #[test]
    fn an_episode_deals_every_card_once_and_rewards_the_first_suit() {
        let mut env = RepeatFirst::default();
        let (mut rng, mut obs) = (Rng::new(1, 0, 0, Purpose::Reset), [0.0]);
        for answer_is_right in [true, false] {
            env.reset(&mut rng, &mut obs);
            let first = obs[0] as u32;
            let mut dealt = [0; 4];
            dealt[first as usize] += 1;
            let (mut total, mut steps) = (0.0, 0);
            loop {
                let action = if answer_is_right { first } else { (first + 1) % 4 };
                let step = env.step(Action::Discrete(action), &mut rng, &mut obs);
                dealt[obs[0] as usize] += 1;
                (total, steps) = (total + step.reward, steps + 1);
                assert!(!step.truncated);
                if step.terminated {
                    break;
                }
            }
            assert_eq!((dealt, steps), ([26; 4], 103));
            assert!((total - if answer_is_right { 1.0 } else { -1.0 }).abs() < 1e-5, "{total}");
        }
    }

    #[test]
    fn a_state_that_no_episode_has_is_refused() {
        let mut env = RepeatFirst::new(Params { cards_per_suit: 2 });
        let good = State { first: 1, card: 3, left: [2, 1, 2, 1] };
        env.set_state(good).unwrap();
        assert_eq!(env.state(), Some(good));
        for bad in [
            State { first: 4, ..good },
            State { left: [3, 1, 2, 1], ..good },
            State { left: [0; 4], ..good },
            State { left: [2, 2, 2, 1], ..good },
        ] {
            assert!(env.set_state(bad).is_err(), "{bad:?}");
        }
    }
}
