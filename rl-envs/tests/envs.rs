//! Every environment of the catalog against the contract, and against the references.

use ndarray::{Array1, Array2, Axis};
use rl_envs::{
    ActionSpace, Actions, Canvas, Error, MaskBatch, ObsViewMut, Pool, RandomActions, StepBatch, SyncVecEnv, VecEnv, cartpole,
    catalog,
};
use serde_json::Value;

/// All that a batch writes, and the actions that drive it.
struct Memory {
    obs: Array2<f32>,
    final_obs: Array2<f32>,
    rewards: Array1<f32>,
    terminated: Array1<u8>,
    truncated: Array1<u8>,
    actions: Array1<u32>,
    random: RandomActions,
}

impl Memory {
    fn new(envs: &dyn VecEnv, seed: u64) -> Self {
        let (n, d) = (envs.n_envs(), envs.observation_space().len());
        let ActionSpace::Discrete { n: n_actions, .. } = *envs.action_space() else { panic!("discrete actions") };
        Self {
            obs: Array2::zeros((n, d)),
            final_obs: Array2::zeros((n, d)),
            rewards: Array1::zeros(n),
            terminated: Array1::zeros(n),
            truncated: Array1::zeros(n),
            actions: Array1::zeros(n),
            random: RandomActions::new(seed, n, n_actions),
        }
    }

    fn reset(&mut self, envs: &mut dyn VecEnv, seed: u64) {
        envs.reset(seed, ObsViewMut::F32(self.obs.view_mut()), None).expect("resets");
    }

    fn step(&mut self, envs: &mut dyn VecEnv) -> Result<(), Error> {
        self.random.fill(self.actions.view_mut());
        self.step_with_actions(envs)
    }

    fn step_with_actions(&mut self, envs: &mut dyn VecEnv) -> Result<(), Error> {
        envs.step(
            Actions::Discrete(self.actions.view()),
            StepBatch {
                obs: ObsViewMut::F32(self.obs.view_mut()),
                rewards: self.rewards.view_mut(),
                terminated: self.terminated.view_mut(),
                truncated: self.truncated.view_mut(),
                final_obs: ObsViewMut::F32(self.final_obs.view_mut()),
                masks: None,
            },
        )
    }

    /// Everything as bits, so that equal means equal.
    fn bits(&self) -> Vec<u32> {
        let floats = self.obs.iter().chain(&self.final_obs).chain(&self.rewards).map(|x| x.to_bits());
        let flags = self.terminated.iter().chain(&self.truncated).map(|&x| u32::from(x));
        floats.chain(flags).collect()
    }
}

const SIZES: [usize; 7] = [1, 31, 33, 64, 65, 200, 1000];

#[test]
fn threads_give_the_same_bits_as_one_after_the_other() {
    for entry in catalog::ENVS {
        for n in SIZES {
            for n_threads in [1, 2, 3] {
                let pool = Pool::new(n_threads).expect("threads start");
                let mut sync = entry.sync(n).expect("makes");
                let mut pooled = entry.pooled(n, &pool).expect("makes");
                let (mut a, mut b) = (Memory::new(&*sync, 5), Memory::new(&*pooled, 5));
                a.reset(&mut *sync, 11);
                b.reset(&mut *pooled, 11);
                for t in 0..300 {
                    assert_eq!(a.bits(), b.bits(), "{} n={n} threads={n_threads} t={t}", entry.name);
                    a.step(&mut *sync).expect("steps");
                    b.step(&mut *pooled).expect("steps");
                }
            }
        }
    }
}

#[test]
fn a_larger_batch_does_not_change_the_trajectory_of_an_environment() {
    for entry in catalog::ENVS {
        let (mut small, mut large) = (entry.sync(3).expect("makes"), entry.sync(70).expect("makes"));
        let (mut a, mut b) = (Memory::new(&*small, 5), Memory::new(&*large, 5));
        a.reset(&mut *small, 2);
        b.reset(&mut *large, 2);
        for _ in 0..100 {
            assert_eq!(a.obs.row(2), b.obs.row(2), "{}", entry.name);
            a.step(&mut *small).expect("steps");
            b.step(&mut *large).expect("steps");
        }
    }
}

#[test]
fn the_seed_decides() {
    for entry in catalog::ENVS {
        let trajectory = |seed| {
            let mut envs = entry.sync(4).expect("makes");
            let mut memory = Memory::new(&*envs, 5);
            memory.reset(&mut *envs, seed);
            (0..50).for_each(|_| memory.step(&mut *envs).expect("steps"));
            memory.bits()
        };
        assert_eq!(trajectory(1), trajectory(1), "{}", entry.name);
        assert_ne!(trajectory(1), trajectory(2), "{}", entry.name);
    }
}

#[test]
fn an_ended_episode_leaves_its_last_observation_and_the_first_of_the_next() {
    for entry in catalog::ENVS {
        let mut envs = entry.sync(33).expect("makes");
        let mut memory = Memory::new(&*envs, 5);
        memory.reset(&mut *envs, 4);
        let mut ends = 0;
        for _ in 0..600 {
            memory.final_obs.fill(f32::NAN);
            memory.step(&mut *envs).expect("steps");
            for i in 0..33 {
                let done = memory.terminated[i] | memory.truncated[i] == 1;
                let final_obs = memory.final_obs.row(i);
                assert_eq!(done, final_obs.iter().all(|x| x.is_finite()), "{}: written if and only if done", entry.name);
                assert!(memory.obs.row(i).iter().all(|x| x.is_finite()));
                if done {
                    ends += 1;
                    assert_ne!(final_obs, memory.obs.row(i), "{}: obs is the new episode's first", entry.name);
                }
            }
        }
        assert!(ends > 0, "{}: no episode ended", entry.name);
    }
}

#[test]
fn any_environment_of_a_batch_is_drawn_by_its_index() {
    for entry in catalog::ENVS {
        let pool = Pool::new(2).expect("threads start");
        let mut sync = entry.sync(200).expect("makes");
        let mut pooled = entry.pooled(200, &pool).expect("makes");
        Memory::new(&*sync, 5).reset(&mut *sync, 11);
        Memory::new(&*pooled, 5).reset(&mut *pooled, 11);
        let picture = |envs: &dyn VecEnv, env_idx| {
            let mut canvas = Canvas::new(400, 400);
            envs.render(env_idx, &mut canvas);
            canvas
        };
        for env_idx in [0, 1, 63, 64, 65, 199] {
            assert_eq!(picture(&*sync, env_idx), picture(&*pooled, env_idx), "{} {env_idx}", entry.name);
        }
        assert!(!picture(&*sync, 0).is_empty(), "{} draws itself", entry.name);
        assert_ne!(picture(&*sync, 64), picture(&*sync, 65), "{}: two starts", entry.name);
    }
}

#[test]
fn a_saved_batch_continues_as_if_nothing_had_happened() {
    for entry in catalog::ENVS {
        let pool = Pool::new(2).expect("threads start");
        for n in [1, 65, 200] {
            let mut envs = entry.pooled(n, &pool).expect("makes");
            let mut memory = Memory::new(&*envs, 5);
            memory.reset(&mut *envs, 8);
            (0..37).for_each(|_| memory.step(&mut *envs).expect("steps"));
            let saved = envs.save().expect("saves");
            let actions: Vec<Array1<u32>> = (0..60).map(|t| Array1::from_shape_fn(n, |i| ((i + t) % 2) as u32)).collect();
            let run = |envs: &mut dyn VecEnv| {
                let mut memory = Memory::new(envs, 0);
                let mut bits = Vec::new();
                for actions in &actions {
                    memory.actions.assign(actions);
                    memory.step_with_actions(envs).expect("steps");
                    bits.push(memory.bits());
                }
                bits
            };
            let continued = run(&mut *envs);
            let mut other = entry.pooled(n, &pool).expect("makes");
            other.load(&saved).expect("loads");
            assert_eq!(run(&mut *other), continued, "{} n={n}", entry.name);
        }
    }
}

#[test]
fn a_damaged_or_foreign_state_is_refused_and_changes_nothing() {
    for entry in catalog::ENVS {
        let pool = Pool::new(1).expect("starts");
        let mut envs = entry.pooled(130, &pool).expect("makes");
        let mut memory = Memory::new(&*envs, 5);
        memory.reset(&mut *envs, 8);
        let before = envs.save().expect("saves");
        let mut other = entry.pooled(131, &pool).expect("makes");
        Memory::new(&*other, 5).reset(&mut *other, 9);
        let foreign = other.save().expect("saves");
        assert!(matches!(envs.load(&foreign), Err(Error::BadState(_))));
        for cut in 0..before.len() {
            assert!(envs.load(&before[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(envs.save().expect("saves"), before);
    }
}

#[test]
fn a_bad_batch_is_refused_before_any_environment_steps() {
    let pool = Pool::new(2).expect("threads start");
    let envs: [Box<dyn VecEnv>; 2] =
        [catalog::ENVS[0].sync(100).expect("makes"), catalog::ENVS[0].pooled(100, &pool).expect("makes")];
    for mut envs in envs {
        let mut memory = Memory::new(&*envs, 5);
        memory.reset(&mut *envs, 8);
        let before = envs.save().expect("saves");

        memory.actions[99] = 2;
        let error = memory.step_with_actions(&mut *envs).unwrap_err();
        assert_eq!(error.to_string(), "environment 99: action 2 is out of range, the action space is 0..2");
        memory.actions = Array1::zeros(99);
        assert!(matches!(memory.step_with_actions(&mut *envs), Err(Error::Shape { what: "actions", .. })));
        memory.actions = Array1::zeros(100);
        memory.rewards = Array1::zeros(101);
        assert!(matches!(memory.step_with_actions(&mut *envs), Err(Error::Shape { what: "rewards", .. })));
        memory.rewards = Array1::zeros(100);
        memory.final_obs = Array2::zeros((100, 5));
        assert!(matches!(memory.step_with_actions(&mut *envs), Err(Error::Shape { what: "final_obs", .. })));
        memory.final_obs = Array2::zeros((100, 4));

        let continuous = Array2::<f32>::zeros((100, 1));
        let (mut bytes, mut masks) =
            (Array2::<u8>::zeros((100, 4)), [Array2::<u8>::zeros((100, 2)), Array2::<u8>::zeros((100, 2))]);
        let [masks_a, masks_b] = &mut masks;
        let error = envs.step(
            Actions::Continuous(continuous.view()),
            StepBatch {
                obs: ObsViewMut::U8(bytes.view_mut()),
                rewards: memory.rewards.view_mut(),
                terminated: memory.terminated.view_mut(),
                truncated: memory.truncated.view_mut(),
                final_obs: ObsViewMut::F32(memory.final_obs.view_mut()),
                masks: Some(MaskBatch { masks: masks_a.view_mut(), final_masks: masks_b.view_mut() }),
            },
        );
        assert!(matches!(error, Err(Error::Kind { what: "actions", .. })));
        let mut columns = Array2::<f32>::zeros((4, 100));
        let transposed = ObsViewMut::F32(columns.view_mut().reversed_axes());
        assert!(matches!(envs.reset(1, transposed, None), Err(Error::Shape { what: "obs", .. })));
        assert_eq!(envs.save().expect("saves"), before);
    }
}

#[test]
fn random_actions_take_their_documented_word() {
    let mut random = RandomActions::new(9, 3, 5);
    for step in 0..9 {
        let mut actions = Array1::zeros(3);
        random.fill(actions.view_mut());
        for (i, &action) in actions.iter().enumerate() {
            let word = rl_envs::rng::word(9, i as u32, step, rl_envs::Purpose::RandomAction);
            assert_eq!(action, rl_envs::rng::below(word, 5));
        }
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = catalog::find("cartpool").map(|e| e.name).unwrap_err();
    assert!(error.to_string().starts_with("unknown environment \"cartpool\"; there are: cartpole"), "{error}");
}

/// Compares with rows of {init, action, obs, reward, terminated, truncated} from a reference.
fn compare_with_golden(name: &str, json: &str, tolerance: f64) {
    let rows: Vec<Value> = serde_json::from_str(json).expect("is JSON");
    let column = |key: &str| Value::Array(rows.iter().map(|row| row[key].clone()).collect());
    let steps = catalog::find(name).expect("exists").trace(&column("init"), &column("action")).expect("traces");
    for (i, (row, step)) in rows.iter().zip(&steps).enumerate() {
        for (expected, got) in row["obs"].as_array().expect("is an array").iter().zip(&step.obs) {
            let (expected, got) = (expected.as_f64().expect("a number"), got.as_f64().expect("a number"));
            assert!((expected - got).abs() <= tolerance * expected.abs().max(1.0), "row {i}: {row} but {step:?}");
        }
        assert_eq!(row["reward"].as_f64(), Some(f64::from(step.reward)), "row {i}");
        assert_eq!(row["terminated"], step.terminated, "row {i}");
        assert_eq!(row["truncated"], step.truncated, "row {i}");
    }
    let count = |key: &str| rows.iter().filter(|row| row[key] == true).count();
    assert!(count("terminated") > 0 && count("truncated") > 0, "the golden trace covers both flags");
}

#[test]
fn cartpole_follows_gymnasium() {
    compare_with_golden("cartpole", include_str!("golden/cartpole.json"), 1e-6);
}

#[test]
fn cartpole_observations_of_running_episodes_lie_in_their_space() {
    let mut envs = SyncVecEnv::new(65, cartpole::CartPole::default());
    let mut memory = Memory::new(&envs, 5);
    memory.reset(&mut envs, 1);
    for _ in 0..1000 {
        memory.step(&mut envs).expect("steps");
        for row in memory.obs.axis_iter(Axis(0)).chain(memory.final_obs.axis_iter(Axis(0))) {
            assert!(envs.observation_space().contains(row.as_slice().expect("contiguous")));
        }
    }
}
