//! Columns of steps of N environments, with the storage as parameter.
//!
//! One struct serves the batch of a step in vectors ([`Steps`]) or borrowed ([`StepSlices`], [`StepSlicesMut`]), T steps of a
//! rollout, and memory of a device. Columns are flat: an environment's elements are contiguous, environments follow one another,
//! and steps follow one another.

use crate::{ActionKind, ActionSpace, Actions, Dtype, Error, Obs, ObsSliceMut, Space, visit};

/// Columns of steps, in the storages `F` of f32, `U` of u8 and `W` of u32.
///
/// A step reads the actions and writes the other columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps<F = Vec<f32>, U = Vec<u8>, W = Vec<u32>> {
    /// Observations to act on next, (N, D).
    ///
    /// Where an episode has ended, the first observation of the next one.
    pub obs: Obs<F, U>,
    /// Actions of the step, (N) or (N, A).
    pub actions: Actions<W, F>,
    /// Rewards, (N).
    pub rewards: F,
    /// 1 where the task is over, (N); see [`Step`](crate::Step).
    pub terminated: U,
    /// 1 where the episode was cut off, (N).
    pub truncated: U,
    /// Last observations of episodes that have just ended, (N, D).
    ///
    /// Written only where either flag is set.
    pub final_obs: Obs<F, U>,
    /// Legal actions at `obs` and at `final_obs`, (N, A) each.
    ///
    /// `None` if the action space has no masks. The second is written only where either flag is set.
    pub masks: Option<[U; 2]>,
}

/// Columns to be read.
pub type StepSlices<'a> = Steps<&'a [f32], &'a [u8], &'a [u32]>;
/// Columns to be written.
pub type StepSlicesMut<'a> = Steps<&'a mut [f32], &'a mut [u8], &'a mut [u32]>;
/// Numbers of elements of the columns.
pub type StepLens = Steps<usize, usize, usize>;

impl<F, U, W> Steps<F, U, W> {
    /// Replaces the storage of each column, in the order of the fields.
    #[inline]
    #[must_use]
    pub fn map<P, Q, R>(
        self,
        mut f32s: impl FnMut(F) -> P,
        mut u8s: impl FnMut(U) -> Q,
        mut u32s: impl FnMut(W) -> R,
    ) -> Steps<P, Q, R> {
        Steps {
            obs: match self.obs {
                Obs::F32(obs) => Obs::F32(f32s(obs)),
                Obs::U8(obs) => Obs::U8(u8s(obs)),
            },
            actions: match self.actions {
                Actions::Discrete(actions) => Actions::Discrete(u32s(actions)),
                Actions::Continuous(actions) => Actions::Continuous(f32s(actions)),
            },
            rewards: f32s(self.rewards),
            terminated: u8s(self.terminated),
            truncated: u8s(self.truncated),
            final_obs: match self.final_obs {
                Obs::F32(obs) => Obs::F32(f32s(obs)),
                Obs::U8(obs) => Obs::U8(u8s(obs)),
            },
            masks: self.masks.map(|[masks, final_masks]| [u8s(masks), u8s(final_masks)]),
        }
    }

    /// Pairs the columns of both, or returns `None` if any are of different kinds.
    #[expect(clippy::type_complexity, reason = "pairs of three storages")]
    #[inline]
    pub fn zip<P, Q, R>(self, other: Steps<P, Q, R>) -> Option<Steps<(F, P), (U, Q), (W, R)>> {
        Some(Steps {
            obs: self.obs.zip(other.obs)?,
            actions: self.actions.zip(other.actions)?,
            rewards: (self.rewards, other.rewards),
            terminated: (self.terminated, other.terminated),
            truncated: (self.truncated, other.truncated),
            final_obs: self.final_obs.zip(other.final_obs)?,
            masks: match (self.masks, other.masks) {
                (None, None) => None,
                (Some([a, b]), Some([p, q])) => Some([(a, p), (b, q)]),
                _ => return None,
            },
        })
    }

    /// Borrows the storages.
    #[inline]
    #[must_use]
    pub fn as_ref(&self) -> Steps<&F, &U, &W> {
        Steps {
            obs: self.obs.as_ref(),
            actions: self.actions.as_ref(),
            rewards: &self.rewards,
            terminated: &self.terminated,
            truncated: &self.truncated,
            final_obs: self.final_obs.as_ref(),
            masks: self.masks.as_ref().map(|masks| masks.each_ref()),
        }
    }

    /// Borrows the storages for writing.
    #[inline]
    #[must_use]
    pub fn as_mut(&mut self) -> Steps<&mut F, &mut U, &mut W> {
        Steps {
            obs: self.obs.as_mut(),
            actions: self.actions.as_mut(),
            rewards: &mut self.rewards,
            terminated: &mut self.terminated,
            truncated: &mut self.truncated,
            final_obs: self.final_obs.as_mut(),
            masks: self.masks.as_mut().map(|masks| masks.each_mut()),
        }
    }
}

impl<A, B, C, P, Q, R> Steps<(A, P), (B, Q), (C, R)> {
    /// Separates pairs.
    #[inline]
    #[must_use]
    pub fn unzip(self) -> (Steps<A, B, C>, Steps<P, Q, R>) {
        let (obs, other_obs) = self.obs.unzip();
        let (actions, other_actions) = self.actions.unzip();
        let (final_obs, other_final_obs) = self.final_obs.unzip();
        let (masks, other_masks) = self.masks.map(|[(a, p), (b, q)]| ([a, b], [p, q])).unzip();
        let ((rewards, other_rewards), (terminated, other_terminated)) = (self.rewards, self.terminated);
        let (truncated, other_truncated) = self.truncated;
        (
            Steps { obs, actions, rewards, terminated, truncated, final_obs, masks },
            Steps {
                obs: other_obs,
                actions: other_actions,
                rewards: other_rewards,
                terminated: other_terminated,
                truncated: other_truncated,
                final_obs: other_final_obs,
                masks: other_masks,
            },
        )
    }
}

impl Steps {
    /// True if the episode of environment `env_idx` ended in the last step.
    ///
    /// # Panics
    /// If there is no environment `env_idx`.
    #[must_use]
    pub fn done(&self, env_idx: usize) -> bool {
        self.terminated[env_idx] | self.truncated[env_idx] != 0
    }
}

impl<F: AsRef<[f32]>, U: AsRef<[u8]>, W: AsRef<[u32]>> Steps<F, U, W> {
    /// Borrows the columns.
    #[inline]
    #[must_use]
    pub fn view(&self) -> StepSlices<'_> {
        self.as_ref().map(AsRef::as_ref, AsRef::as_ref, AsRef::as_ref)
    }

    /// Numbers of elements.
    #[inline]
    #[must_use]
    pub fn lens(&self) -> StepLens {
        self.view().map(<[_]>::len, <[_]>::len, <[_]>::len)
    }
}

impl<F: AsMut<[f32]>, U: AsMut<[u8]>, W: AsMut<[u32]>> Steps<F, U, W> {
    /// Borrows the columns for writing.
    #[inline]
    #[must_use]
    pub fn view_mut(&mut self) -> StepSlicesMut<'_> {
        self.as_mut().map(AsMut::as_mut, AsMut::as_mut, AsMut::as_mut)
    }
}

impl StepSlices<'_> {
    /// Returns the columns of environment `env_idx` of one step alone.
    ///
    /// # Panics
    /// If there is no such environment.
    #[must_use]
    pub fn env(self, env_idx: usize) -> Self {
        fn row<T>(all: &[T], env_idx: usize, n: usize) -> &[T] {
            let len = all.len() / n;
            &all[env_idx * len..][..len]
        }
        let n = self.rewards.len();
        visit!(Steps, self, |x| row(x, env_idx, n))
    }
}

impl StepSlicesMut<'_> {
    /// Splits one step of a batch before environment `env_idx`.
    ///
    /// # Panics
    /// If there are fewer environments.
    #[must_use]
    pub fn split_at(self, env_idx: usize) -> (Self, Self) {
        let n = self.rewards.len().max(1);
        let at = |len: usize| len / n * env_idx;
        visit!(Steps, self, |x| x.split_at_mut(at(x.len()))).unzip()
    }

    /// Returns the columns of environment `env_idx` alone.
    ///
    /// # Panics
    /// If there is no such environment.
    #[must_use]
    pub fn env(self, env_idx: usize) -> Self {
        self.split_at(env_idx).1.split_at(1).0
    }

    /// Checks one step of `n_envs` environments: kinds, lengths, actions.
    ///
    /// Done once per step, for implementations of [`VecEnv`](crate::VecEnv): what they index with is right from there on.
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Length`] if a column does not fit; [`Error::ActionOutOfRange`] or [`Error::ActionOutOfBounds`]
    /// if an action is outside of the space.
    pub fn check(&self, n_envs: usize, obs: &Space, actions: &ActionSpace) -> Result<(), Error> {
        self.lens().check(&StepLens::batch(n_envs, obs, actions))?;
        self.actions.as_slice().check(actions, n_envs)
    }
}

impl StepLens {
    /// Lengths of `n` rows, with observations of `d` elements each.
    #[must_use]
    pub fn rows(n: usize, dtype: Dtype, d: usize, actions: ActionKind) -> Self {
        let obs = Obs::new(dtype, || n.saturating_mul(d), || n.saturating_mul(d));
        let (actions, mask) = match actions {
            ActionKind::Discrete { masked } => (Actions::Discrete(n), masked),
            ActionKind::Continuous { len } => (Actions::Continuous(n.saturating_mul(len)), None),
        };
        let masks = mask.map(|len| [n.saturating_mul(len); 2]);
        Self { obs, actions, rewards: n, terminated: n, truncated: n, final_obs: obs, masks }
    }

    /// Lengths of one step of `n_envs` environments with these spaces.
    #[must_use]
    pub fn batch(n_envs: usize, obs: &Space, actions: &ActionSpace) -> Self {
        Self::rows(n_envs, obs.dtype(), obs.len(), actions.kind())
    }

    /// Checks the columns that a reset of `n_envs` environments writes.
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Length`] if a column does not fit.
    pub fn check_reset(
        n_envs: usize,
        space: &Space,
        actions: &ActionSpace,
        obs: &ObsSliceMut<'_>,
        masks: Option<&[u8]>,
    ) -> Result<(), Error> {
        let expected = Self::batch(n_envs, space, actions);
        let obs = visit!(Obs, obs.as_ref(), |obs| obs.len());
        Self { obs, masks: masks.map(|masks| [masks.len(), n_envs * actions.len()]), ..expected }.check(&expected)
    }

    /// Checks that kinds and lengths are as expected.
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Length`] of the first column that differs, actions first.
    pub fn check(&self, expected: &Self) -> Result<(), Error> {
        if self == expected { Ok(()) } else { Err(self.difference(expected)) }
    }

    #[cold]
    fn difference(&self, expected: &Self) -> Error {
        let (found_actions, actions) = (self.actions.kind_and_len(), expected.actions.kind_and_len());
        let (found_obs, obs) = (self.obs.kind_and_len(), expected.obs.kind_and_len());
        let (found_final, final_obs) = (self.final_obs.kind_and_len(), expected.final_obs.kind_and_len());
        let mask = |masks: Option<[usize; 2]>, k: usize| masks.map_or(("none", 0), |masks| ("masks", masks[k]));
        let columns = [
            ("actions", found_actions, actions),
            ("obs", found_obs, obs),
            ("rewards", ("f32", self.rewards), ("f32", expected.rewards)),
            ("terminated", ("u8", self.terminated), ("u8", expected.terminated)),
            ("truncated", ("u8", self.truncated), ("u8", expected.truncated)),
            ("final_obs", found_final, final_obs),
            ("masks", mask(self.masks, 0), mask(expected.masks, 0)),
            ("final_masks", mask(self.masks, 1), mask(expected.masks, 1)),
        ];
        let different = columns.into_iter().find(|(_, found, expected)| found != expected);
        let (what, found, expected) = different.expect("one of the columns differs");
        if found.0 == expected.0 {
            Error::Length { what, expected: expected.1, found: found.1 }
        } else {
            Error::Kind { what, expected: expected.0, found: found.0 }
        }
    }
}

impl Obs<usize, usize> {
    fn kind_and_len(self) -> (&'static str, usize) {
        self.either(|len| ("f32", len), |len| ("u8", len))
    }
}

impl Actions<usize, usize> {
    fn kind_and_len(self) -> (&'static str, usize) {
        self.either(|len| ("discrete actions", len), |len| ("continuous actions", len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SyncVecEnv, envs::snake::Snake};

    #[test]
    fn the_parts_of_a_split_are_the_environments_before_and_after() {
        let mut steps = Steps::new(&SyncVecEnv::new(3, Snake::default()));
        let d = steps.obs.len() / 3;
        let (before, after) = steps.view_mut().split_at(1);
        assert_eq!((before.lens(), after.lens().rewards), (StepLens { rewards: 1, ..before.lens() }, 2));
        assert_eq!((before.obs.len(), after.obs.len()), (d, 2 * d));
        after.truncated[0] = 1;
        let [masks, _] = after.masks.expect("masked");
        masks[0] = 7;
        assert!(steps.done(1) && !steps.done(0) && !steps.done(2));
        assert_eq!(steps.masks.expect("masked")[0][4], 7);
    }

    #[test]
    fn the_first_column_that_differs_is_named() {
        let expected = StepLens::rows(5, Dtype::F32, 4, ActionKind::Discrete { masked: Some(2) });
        assert!(expected.check(&expected).is_ok());
        for (found, message) in [
            (StepLens { rewards: 4, ..expected }, "rewards: expected 5 elements, found 4"),
            (StepLens { obs: Obs::U8(20), ..expected }, "obs: expected f32, found u8"),
            (StepLens { final_obs: Obs::F32(19), ..expected }, "final_obs: expected 20 elements, found 19"),
            (StepLens { masks: None, ..expected }, "masks: expected masks, found none"),
            (StepLens { masks: Some([10, 9]), ..expected }, "final_masks: expected 10 elements, found 9"),
            (
                StepLens { actions: Actions::Continuous(5), ..expected },
                "actions: expected discrete actions, found continuous actions",
            ),
        ] {
            assert_eq!(found.check(&expected).expect_err("differs").to_string(), message);
        }
    }
}
