//! Memory of a policy: the state that it carries from step to step.

/// States of a policy with memory, a row of S elements for each environment.
#[derive(Debug)]
pub(crate) struct PolicyMemory {
    /// Number of elements S; 0 without memory.
    len: usize,
    /// States to act with next, zeros at an episode's first step.
    states: Vec<f32>, // (n, S)
    /// States that the policy acted with last.
    before: Vec<f32>, // (n, S)
}

impl PolicyMemory {
    pub(crate) fn new(n_envs: usize, len: usize) -> Self {
        Self { len, states: vec![0.0; n_envs * len], before: vec![0.0; n_envs * len] }
    }

    pub(crate) fn state_len(&self) -> usize {
        self.len
    }

    /// Returns the states to act with next, (n, S).
    pub(crate) fn states(&self) -> &[f32] {
        &self.states
    }

    /// Returns the states to act with next, (n, S), for writing.
    pub(crate) fn states_mut(&mut self) -> &mut [f32] {
        &mut self.states
    }

    /// Returns the state of environment `i`, for writing.
    pub(crate) fn state_mut(&mut self, i: usize) -> &mut [f32] {
        &mut self.states[i * self.len..(i + 1) * self.len]
    }

    /// Returns all states for a policy that acts, which replaces them.
    pub(crate) fn acting(&mut self) -> &mut [f32] {
        self.before.copy_from_slice(&self.states);
        &mut self.states
    }

    /// Gives up the latest step of environment `i`.
    ///
    /// Returns the state that the step before it led to.
    pub(crate) fn give_up(&mut self, i: usize) -> &[f32] {
        self.state_mut(i).fill(0.0);
        &self.before[i * self.len..(i + 1) * self.len]
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use rl_buffer::{ObsSlice, Rollout};
    use rl_envs::{Action, ActionSpace, Actions, Env, Obs, Pool, Rng, Space, Step, SyncVecEnv, VecEnv, pool};

    use crate::collect::play::evaluate;
    use crate::ranks::tests::on_ranks;
    use crate::settings::OnNonfinite;
    use crate::{Acted, Acting, Collector, CollectorState, Error, Policy, Scratch, Weights};

    /// Environment with episodes of 2 to 9 steps, whose observations are random numbers.
    ///
    /// Half of them end by truncation. If it is faulty, one in four has a reward that is not a number, after the first step.
    #[derive(Clone, Debug)]
    struct Uneven {
        faulty: bool,
        left: u32,
        bad: u32,
    }

    impl Env for Uneven {
        type Obs = f32;
        type State = (u32, u32);

        fn observation_space(&self) -> Space {
            Space::vector(&[0.0], &[1.0])
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 10, masked: false }
        }

        fn reset(&mut self, rng: &mut Rng, obs: &mut [f32]) {
            self.left = 2 + rng.below(8);
            let bad = rng.below(3 * self.left);
            self.bad = if self.faulty && bad + 1 < self.left { bad } else { u32::MAX };
            obs[0] = rng.below(16) as f32 / 16.0;
        }

        fn step(&mut self, _: Action<'_>, rng: &mut Rng, obs: &mut [f32]) -> Step {
            self.left -= 1;
            obs[0] = rng.below(16) as f32 / 16.0;
            let (over, even) = (self.left == 0, rng.below(2) == 0);
            Step {
                reward: if self.left == self.bad { f32::NAN } else { 1.0 },
                terminated: over && even,
                truncated: over && !even,
            }
        }

        fn state(&self) -> Option<(u32, u32)> {
            Some((self.left, self.bad))
        }

        fn set_state(&mut self, (left, bad): (u32, u32)) -> Result<(), rl_envs::Error> {
            (self.left, self.bad) = (left, bad);
            Ok(())
        }
    }

    /// Policy that adds up the observations of an episode, and counts them.
    #[derive(Clone)]
    struct Accumulator;

    impl Accumulator {
        fn next([sum, count]: [f32; 2], obs: f32) -> [f32; 2] {
            [sum + obs, count + 1.0]
        }

        fn value([sum, count]: [f32; 2]) -> f32 {
            100.0 * count + sum
        }
    }

    impl Policy for Accumulator {
        fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error> {
            self.values(acting.obs, acting.masks, acted.states, acted.values, scratch)?;
            let (ObsSlice::F32(obs), Actions::Discrete(actions)) = (acting.obs, acted.actions) else { panic!("f32, discrete") };
            for ((state, &obs), action) in acted.states.as_chunks_mut().0.iter_mut().zip(obs).zip(actions) {
                *state = Self::next(*state, obs);
                *action = state[1] as u32;
            }
            Ok(())
        }

        fn values(&self, obs: ObsSlice<'_>, _: &[u8], states: &[f32], values: &mut [f32], _: &mut Scratch) -> Result<(), Error> {
            let ObsSlice::F32(obs) = obs else { panic!("f32") };
            assert_eq!([obs.len(), states.len() / 2], [values.len(); 2], "a state for each observation");
            for ((value, &obs), &state) in values.iter_mut().zip(obs).zip(states.as_chunks().0) {
                *value = Self::value(Self::next(state, obs));
            }
            Ok(())
        }

        fn state_len(&self) -> usize {
            2
        }

        fn weights(&self) -> Weights<'_> {
            Weights { version: 0, params: Cow::Borrowed(&[]), obs: None }
        }
    }

    /// Checks the states of a rollout; returns its number of ended episodes.
    ///
    /// Each column is added up again, from the states in `carried`.
    fn check(rollout: &Rollout, carried: &mut [[f32; 2]]) -> usize {
        let Obs::F32(obs) = rollout.obs() else { panic!("f32") };
        let (first, finals) = (rollout.first_states().as_chunks::<2>().0, rollout.final_states().as_chunks::<2>().0);
        let mut ends = 0;
        for (n, state) in carried.iter_mut().enumerate() {
            if !(rollout.cut_before && first[n] == [0.0; 2]) {
                assert_eq!(first[n], *state, "column {n} continues with the state after the last rollout");
            }
            *state = first[n];
            for t in 0..rollout.shape().n_steps {
                *state = Accumulator::next(*state, obs[[t, n, 0]]);
                assert_eq!(rollout.values()[[t, n]], Accumulator::value(*state), "step {t} of column {n}");
                if rollout.terminated()[[t, n]] | rollout.truncated()[[t, n]] == 1 {
                    let end = rollout.final_at().iter().position(|&at| at == (t, n)).expect("each end is reported");
                    assert_eq!(finals[end], *state, "the end at step {t} of column {n}");
                    *state = [0.0; 2];
                    ends += 1;
                }
            }
            let last = Accumulator::next(*state, obs[[rollout.shape().n_steps, n, 0]]);
            assert_eq!(rollout.last_values()[n], Accumulator::value(last), "after the last step of column {n}");
        }
        assert_eq!(ends, rollout.final_at().len());
        ends
    }

    const N_ENVS: usize = 70;

    fn collector(faulty: bool) -> Collector {
        let env = Uneven { faulty, left: 0, bad: 0 };
        let mut collector = Collector::new(N_ENVS, &env, &Pool::new(2).unwrap(), 3).unwrap();
        collector.remember(2);
        collector.with_on_nonfinite(OnNonfinite::Truncate)
    }

    fn collect(collector: &mut Collector) -> Rollout {
        let mut rollout = collector.rollout(7).unwrap();
        collector.collect(&Accumulator, &mut rollout).unwrap();
        rollout
    }

    #[test]
    fn the_state_of_an_episode_goes_from_step_to_step_and_ends_with_it() {
        for faulty in [false, true] {
            let (mut collector, mut carried) = (collector(faulty), [[0.0; 2]; N_ENVS]);
            let (mut ends, mut cut) = (0, 0);
            for _ in 0..20 {
                let rollout = collect(&mut collector);
                ends += check(&rollout, &mut carried);
                cut += u32::from(rollout.cut_before);
            }
            let truncated = collector.anomalies().truncated;
            assert!(ends > 1000 && (truncated > 100) == faulty && (cut > 5) == faulty, "{ends} {truncated} {cut}");
        }
    }

    #[test]
    fn a_saved_collector_continues_with_the_states_on_any_number_of_ranks() {
        let mut whole = collector(true);
        collect(&mut whole);
        let saved = whole.save().unwrap();
        let expected = collect(&mut whole);
        let slices: Vec<_> = pool::slices(N_ENVS, 4, 1).collect();
        let states = |rollout: &Rollout| (rollout.first_states().to_vec(), rollout.final_states().len());
        for n_ranks in [1, 2, 3] {
            let found = on_ranks(n_ranks, |ranks| {
                let make =
                    |range| Ok(Box::new(SyncVecEnv::slice(range, Uneven { faulty: true, left: 0, bad: 0 })) as Box<dyn VecEnv>);
                let pool = Pool::new(1).unwrap();
                let mut part =
                    Collector::of_rank(ranks, &slices, make, &pool, 3).unwrap().with_on_nonfinite(OnNonfinite::Truncate);
                part.remember(2);
                let first = collect(&mut part);
                let state: CollectorState = part.save().unwrap();
                collect(&mut part);
                part.load(state).unwrap();
                (first, collect(&mut part))
            });
            for (first, second) in found {
                assert_eq!((second.values(), states(&second)), (expected.values(), states(&expected)));
                check(&first, &mut [[0.0; 2]; N_ENVS]);
            }
        }
        collect(&mut whole);
        whole.load(saved).unwrap();
        assert_eq!(collect(&mut whole).values(), expected.values());
        let mut forgetful = Collector::new(N_ENVS, &Uneven { faulty: true, left: 0, bad: 0 }, &Pool::new(1).unwrap(), 3).unwrap();
        assert!(matches!(forgetful.load(whole.save().unwrap()), Err(Error::Snapshot(_))));
        let error = forgetful.collect(&Accumulator, &mut expected.clone()).unwrap_err();
        assert!(matches!(error, Error::StateLen { policy: 2, rollout: 2, collector: 0 }), "{error}");
        let env = Uneven { faulty: true, left: 0, bad: 0 };
        let mut more = Collector::new(N_ENVS + 1, &env, &Pool::new(1).unwrap(), 3).unwrap();
        more.remember(2);
        assert!(matches!(more.collect(&Accumulator, &mut expected.clone()), Err(Error::Spaces)));
        more.collect(&Accumulator, &mut more.rollout(1).unwrap()).unwrap();
    }

    /// Environment that goes on while the action is the number of the step, for 20 steps at most.
    #[derive(Clone, Debug, Default)]
    struct Counted(u32);

    impl Env for Counted {
        type Obs = f32;
        type State = ();

        fn observation_space(&self) -> Space {
            Space::vector(&[0.0], &[0.0])
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 100, masked: false }
        }

        fn reset(&mut self, rng: &mut Rng, _: &mut [f32]) {
            self.0 = 10 + rng.below(10);
        }

        fn step(&mut self, action: Action<'_>, _: &mut Rng, _: &mut [f32]) -> Step {
            self.0 -= 1;
            Step { reward: action.discrete() as f32, terminated: self.0 == 0, truncated: false }
        }

        fn state(&self) -> Option<()> {
            None
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    #[test]
    fn an_evaluation_carries_the_states_too() {
        let episodes = evaluate(&Accumulator, &mut SyncVecEnv::new(30, Counted::default()), 5).unwrap();
        for episode in &episodes {
            let n = f64::from(episode.length);
            assert_eq!(episode.episode_return, n * (n + 1.0) / 2.0, "actions count the steps");
        }
        assert!(episodes.iter().any(|episode| episode.length != episodes[0].length));
    }
}
