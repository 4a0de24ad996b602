//! Every environment of the catalog against the contract and the references.

use rl_envs::{
    Action, ActionRows, ActionSpace, Actions, Canvas, Dtype, Env, Error, Isa, ObsRows, ObsSliceMut, Pool, Purpose, RandomActions,
    Rng, Steps, SyncVecEnv, TraceStep, VecEnv, acrobot, asterix, breakout::Breakout, cartpole, catalog, freeway,
    lanes::LanesVecEnv, minatar, minatar::MinAtar, pendulum, seaquest, snake::Snake, space_invaders,
};
use serde_json::Value;

/// Observation `i` of `n` as numbers.
fn row(obs: &ObsRows, i: usize, n: usize) -> Vec<f32> {
    let d = obs.len() / n;
    obs.as_slice().row(i, d).either(<[f32]>::to_vec, |obs| obs.iter().map(|&x| f32::from(x)).collect())
}

/// Writes values that no environment writes.
fn poison(obs: &mut ObsRows) {
    obs.as_mut().either(|obs| obs.fill(f32::NAN), |obs| obs.fill(238));
}

fn bits(obs: &ObsRows) -> Vec<u32> {
    obs.as_ref().either(|obs| obs.iter().map(|x| x.to_bits()).collect(), |obs| obs.iter().map(|&x| x.into()).collect())
}

/// The output of a batch, and the actions that drive it.
struct Memory {
    steps: Steps,
    random: RandomActions,
}

impl Memory {
    fn new(envs: &dyn VecEnv, seed: u64) -> Self {
        Self { steps: Steps::new(envs), random: RandomActions::new(seed, envs.n_envs(), envs.action_space()) }
    }

    fn reset(&mut self, envs: &mut dyn VecEnv, seed: u64) {
        envs.reset(seed, &mut self.steps).expect("resets");
    }

    /// Steps with uniform actions; with masks mostly legal ones, so that episodes last.
    fn step(&mut self, envs: &mut dyn VecEnv) -> Result<(), Error> {
        let Steps { actions, masks, .. } = &mut self.steps;
        self.random.fill(actions.as_mut_slice());
        if let (Actions::Discrete(actions), Some([masks, _])) = (actions, masks) {
            let n = envs.action_space().len() as u32;
            for (i, action) in actions.iter_mut().enumerate().filter(|(_, action)| **action > 0) {
                *action = (0..n).map(|k| (*action + k) % n).find(|&k| masks[i * n as usize + k as usize] == 1).unwrap_or(0);
            }
        }
        envs.step(&mut self.steps)
    }

    fn discrete(&mut self) -> &mut Vec<u32> {
        let Actions::Discrete(actions) = &mut self.steps.actions else { panic!("discrete actions") };
        actions
    }

    /// Returns everything as bits, so that equal means bitwise equal.
    fn bits(&self) -> Vec<u32> {
        let Steps { obs, rewards, terminated, truncated, final_obs, masks, .. } = &self.steps;
        let flags = terminated.iter().chain(truncated).chain(masks.iter().flatten().flatten()).map(|&x| x.into());
        let floats = bits(obs).into_iter().chain(bits(final_obs)).chain(rewards.iter().map(|x| x.to_bits()));
        floats.chain(flags).collect()
    }
}

const SIZES: [usize; 5] = [1, 31, 33, 65, 200];

#[test]
fn threads_give_the_same_bits_as_one_after_the_other() {
    for entry in catalog::ENVS {
        for n in SIZES {
            for n_threads in [1, 3] {
                let pool = Pool::new(n_threads).expect("threads start");
                let mut sync = entry.sync(n).expect("makes");
                let mut pooled = entry.pooled(n, &pool).expect("makes");
                let (mut a, mut b) = (Memory::new(&*sync, 5), Memory::new(&*pooled, 5));
                a.reset(&mut *sync, 11);
                b.reset(&mut *pooled, 11);
                for t in 0..120 {
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
            assert_eq!(row(&a.steps.obs, 2, 3), row(&b.steps.obs, 2, 70), "{}", entry.name);
            a.step(&mut *small).expect("steps");
            b.step(&mut *large).expect("steps");
        }
    }
}

#[test]
fn an_environment_accepts_its_state_before_the_first_reset_and_steps_from_it() {
    for entry in catalog::ENVS {
        let mut envs = entry.sync(2).expect("makes");
        let state = envs.save().expect("saves");
        envs.load(&state).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
        Memory::new(&*envs, 5).step(&mut *envs).expect("steps");
    }
}

#[test]
fn actions_of_minatar_stick_as_often_as_its_constants_say() {
    for (sticky, least, most) in [(0.0, 0, 0), (0.1, 100, 260), (1.0, 1000, 1000)] {
        let mut env = Breakout::new(minatar::Params { sticky, max_steps: u32::MAX });
        let (mut rng, mut obs) = (Rng::new(3, 0, 0, Purpose::Step), vec![0; env.observation_space().len()]);
        env.reset(&mut rng, &mut obs);
        // Each action is another one than the action before, so that one that sticks is that of the next step, too.
        let stuck = (0..1000).filter(|t| {
            let before = env.state().expect("is saved").last_action;
            let step = env.step(Action::Discrete(1 + t % 2), &mut rng, &mut obs);
            let after = env.state().expect("is saved").last_action;
            if step.terminated {
                env.reset(&mut rng, &mut obs);
            }
            after == before
        });
        let n = stuck.count();
        assert!((least..=most).contains(&n), "{sticky}: {n}");
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
        let (mut ends, mut steps) = (0, 0);
        while ends < 33 {
            poison(&mut memory.steps.obs);
            poison(&mut memory.steps.final_obs);
            memory.step(&mut *envs).expect("steps");
            let space = envs.observation_space();
            for i in 0..33 {
                let done = memory.steps.done(i);
                let final_obs = row(&memory.steps.final_obs, i, 33);
                let untouched = final_obs.iter().all(|x| x.is_nan() || *x == 238.0);
                assert_eq!(done, !untouched, "{}: written if and only if done", entry.name);
                assert!(space.contains(&row(&memory.steps.obs, i, 33)), "{}", entry.name);
                if done {
                    ends += 1;
                    assert!(space.contains(&final_obs), "{}", entry.name);
                    // One card of four may follow itself.
                    let repeats = entry.name == "repeat_first";
                    assert!(
                        repeats || final_obs != row(&memory.steps.obs, i, 33),
                        "{}: obs is the new episode's first",
                        entry.name
                    );
                }
            }
            steps += 1;
            assert!(steps < 5000, "{}: {ends} episodes ended", entry.name);
        }
    }
}

#[test]
fn any_environment_of_a_batch_is_drawn_by_its_index() {
    for entry in catalog::ENVS {
        let pool = Pool::new(2).expect("threads start");
        let mut sync = entry.sync(200).expect("makes");
        let mut pooled = entry.pooled(200, &pool).expect("makes");
        let (mut a, mut b) = (Memory::new(&*sync, 5), Memory::new(&*pooled, 5));
        a.reset(&mut *sync, 11);
        b.reset(&mut *pooled, 11);
        // Some games have one start.
        for _ in 0..20 {
            a.step(&mut *sync).expect("steps");
            b.step(&mut *pooled).expect("steps");
        }
        let picture = |envs: &dyn VecEnv, env_idx| {
            let mut canvas = Canvas::new(400, 400);
            envs.render(env_idx, &mut canvas);
            canvas
        };
        for env_idx in [0, 1, 63, 64, 65, 199] {
            assert_eq!(picture(&*sync, env_idx), picture(&*pooled, env_idx), "{} {env_idx}", entry.name);
        }
        assert!(!picture(&*sync, 0).is_empty(), "{} draws itself", entry.name);
        assert!((1..20).any(|i| picture(&*sync, i) != picture(&*sync, 0)), "{}: all look alike", entry.name);
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
            let masks = memory.steps.masks.clone();
            let run = |envs: &mut dyn VecEnv| {
                let mut memory = Memory::new(envs, 6);
                memory.steps.masks = masks.clone();
                let step = |_| {
                    memory.step(envs).expect("steps");
                    memory.bits()
                };
                (0..60).map(step).collect::<Vec<_>>()
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
        for cut in (0..before.len()).step_by(before.len() / 500 + 1) {
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

        memory.discrete()[99] = 2;
        let error = envs.step(&mut memory.steps).unwrap_err();
        assert_eq!(error.to_string(), "environment 99: action 2 is out of range, the action space is 0..2");
        *memory.discrete() = vec![0; 99];
        assert!(matches!(envs.step(&mut memory.steps), Err(Error::Length { what: "actions", .. })));
        *memory.discrete() = vec![0; 100];
        memory.steps.rewards = vec![0.0; 101];
        assert!(matches!(envs.step(&mut memory.steps), Err(Error::Length { what: "rewards", .. })));
        memory.steps.rewards = vec![0.0; 100];
        memory.steps.final_obs = ObsRows::zeros(Dtype::F32, 500);
        assert!(matches!(envs.step(&mut memory.steps), Err(Error::Length { what: "final_obs", .. })));
        memory.steps.final_obs = ObsRows::zeros(Dtype::F32, 400);

        memory.steps.actions = Actions::Continuous(vec![0.0; 100]);
        memory.steps.obs = ObsRows::zeros(Dtype::U8, 400);
        memory.steps.masks = Some([vec![0; 200], vec![0; 200]]);
        let error = envs.step(&mut memory.steps);
        assert!(matches!(error, Err(Error::Kind { what: "actions", .. })));
        let mut short = [0.0; 399];
        assert!(matches!(envs.reset_into(1, ObsSliceMut::F32(&mut short), None), Err(Error::Length { what: "obs", .. })));
        assert_eq!(envs.save().expect("saves"), before);
    }
}

#[test]
fn random_actions_take_their_documented_words() {
    let discrete = ActionSpace::Discrete { n: 5, masked: false };
    let continuous = ActionSpace::Continuous { low: vec![-1.0, 0.0, f32::NEG_INFINITY], high: vec![1.0, 8.0, f32::INFINITY] };
    let (mut a, mut b) = (RandomActions::slice(9, 2..5, &discrete), RandomActions::new(9, 5, &continuous));
    let word = |i: usize, k: u64| rl_envs::rng::word(9, i as u32, k, rl_envs::Purpose::RandomAction);
    for step in 0..9 {
        let (mut actions, mut vectors) = (vec![0; 3], vec![0.0; 15]);
        a.fill(Actions::Discrete(&mut actions));
        b.fill(Actions::Continuous(&mut vectors));
        for (i, &action) in actions.iter().enumerate() {
            assert_eq!(action, rl_envs::rng::below(word(i + 2, step), 5));
        }
        for i in 0..5 {
            for (j, (low, high)) in [(-1.0, 1.0), (0.0, 8.0), (-1.0, 1.0)].into_iter().enumerate() {
                assert_eq!(vectors[3 * i + j], low + (high - low) * rl_envs::rng::uniform(word(i, 3 * step + j as u64)));
            }
        }
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    fn compare(name: &str, n: usize, batch: &mut dyn VecEnv) {
        let mut sync = catalog::find(name).expect("exists").sync(n).expect("makes");
        let (mut a, mut b) = (Memory::new(&*sync, 5), Memory::new(batch, 5));
        a.reset(&mut *sync, 11);
        b.reset(batch, 11);
        for t in 0..250 {
            assert_eq!(a.bits(), b.bits(), "{name} n={n} t={t}");
            a.step(&mut *sync).expect("steps");
            b.step(batch).expect("steps");
        }
        assert_eq!(sync.save().expect("saves"), batch.save().expect("saves"), "{name}");
    }
    for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
        for n in [1, 33, 130] {
            compare("cartpole", n, &mut LanesVecEnv::slice(0..n, cartpole::Params::default()).with_isa(isa));
            compare("acrobot", n, &mut LanesVecEnv::slice(0..n, acrobot::Params::default()).with_isa(isa));
            compare("pendulum", n, &mut LanesVecEnv::slice(0..n, pendulum::Params::default()).with_isa(isa));
            compare("snake", n, &mut SyncVecEnv::new(n, Snake::default()).with_isa(isa));
        }
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = catalog::find("cartpool").map(|e| e.name).unwrap_err();
    assert!(error.to_string().starts_with("unknown environment \"cartpool\"; there are: cartpole"), "{error}");
}

/// Compares with rows of {init, action, obs, reward, terminated, truncated}.
///
/// Observations must agree within `tolerance` times the row's greatest magnitude (in Acrobot a fast joint's rounding reaches the
/// slow one) or 1, rewards within it times their own.
fn compare_with_golden(name: &str, json: &str, tolerance: f64) -> Vec<Value> {
    let rows: Vec<Value> = serde_json::from_str(json).expect("is JSON");
    let column = |key: &str| Value::Array(rows.iter().map(|row| row[key].clone()).collect());
    let entry = catalog::find(name).expect("exists");
    let steps = entry.trace(&column("init"), &column("action")).expect("traces");
    let d = entry.spaces().obs.len();
    for (i, (row, step)) in rows.iter().zip(&steps).enumerate() {
        let mut expected = vec![0.0; d];
        for (j, x) in row["obs"].as_array().into_iter().flatten().enumerate() {
            expected[j] = x.as_f64().expect("a number");
        }
        for pair in row["obs_nonzero"].as_array().into_iter().flatten() {
            expected[pair[0].as_u64().expect("an index") as usize] = pair[1].as_f64().expect("a number");
        }
        let scale = expected.iter().fold(1.0, |scale: f64, x| scale.max(x.abs()));
        let got: Vec<f64> = step.obs.iter().map(|x| x.as_f64().expect("a number")).collect();
        // A new fruit is placed at random: that plane is not compared where a fruit was eaten.
        let chance = match name {
            "snake" if row["reward"] == 1.0 => 3 * 144..4 * 144,
            "repeat_first" => 0..1, // the next card
            _ => 0..0,
        };
        for (j, (expected, got)) in expected.iter().zip(&got).enumerate().filter(|(j, _)| !chance.contains(j)) {
            let error = (expected - got).abs();
            assert!(error <= tolerance * scale, "{name} row {i}, obs {j}: {row} but {step:?}");
        }
        let reward = row["reward"].as_f64().expect("a number");
        let error = (reward - f64::from(step.reward)).abs();
        assert!(error <= tolerance * reward.abs().max(1.0), "{name} row {i}: {row} but {step:?}");
        // The reference of Snake calls its time limit a termination.
        let limit = name == "snake" && row["init"]["elapsed"] == 3999;
        assert_eq!(step.terminated, row["terminated"] == true && !limit, "{name} row {i}: {row}");
        assert_eq!(step.truncated, row["truncated"] == true || limit, "{name} row {i}: {row}");
        if let Some(mask) = row["mask"].as_array() {
            let mask: Vec<u8> = mask.iter().map(|legal| u8::from(legal == true)).collect();
            // Which cells next to the head are free does not depend on the fruit, so masks are compared everywhere.
            assert_eq!(step.mask.as_ref(), Some(&mask), "{name} row {i}: {row}");
        }
    }
    rows
}

fn count(rows: &[Value], key: &str) -> usize {
    rows.iter().filter(|row| row[key] == true).count()
}

#[test]
fn gymnasium_s_environments_are_followed() {
    for (name, json) in [
        ("cartpole", include_str!("golden/cartpole.json")),
        ("mountain_car", include_str!("golden/mountain_car.json")),
        ("mountain_car_continuous", include_str!("golden/mountain_car_continuous.json")),
        ("acrobot", include_str!("golden/acrobot.json")),
        ("pendulum", include_str!("golden/pendulum.json")),
    ] {
        let rows = compare_with_golden(name, json, 1e-5);
        assert!(rows.len() > 900 && count(&rows, "truncated") > 0);
        assert_eq!(count(&rows, "terminated") > 0, name != "pendulum", "the trace covers both flags");
    }
}

#[test]
fn snake_follows_envpool_and_breakout_follows_minatar() {
    for (name, json, n_rewards) in
        [("snake", include_str!("golden/snake.json"), 50), ("breakout", include_str!("golden/breakout.json"), 50)]
    {
        let rows = compare_with_golden(name, json, 0.0);
        assert!(count(&rows, "terminated") >= 20);
        assert!(rows.iter().filter(|row| row["reward"] == 1.0).count() >= n_rewards);
    }
}

#[test]
fn four_more_games_follow_minatar() {
    for (name, json, n_rewards, n_ends) in [
        ("asterix", include_str!("golden/asterix.json"), 50, 20),
        ("freeway", include_str!("golden/freeway.json"), 0, 0),
        ("seaquest", include_str!("golden/seaquest.json"), 50, 20),
        ("space_invaders", include_str!("golden/space_invaders.json"), 50, 20),
    ] {
        let rows = compare_with_golden(name, json, 0.0);
        assert!(rows.len() > 450 && count(&rows, "terminated") >= n_ends, "{name}");
        assert!(rows.iter().filter(|row| row["reward"].as_f64() > Some(0.0)).count() >= n_rewards, "{name}");
        match name {
            "asterix" => follow_states(MinAtar::<asterix::State>::default(), &rows),
            "freeway" => follow_states(MinAtar::<freeway::State>::default(), &rows),
            "seaquest" => follow_states(MinAtar::<seaquest::State>::default(), &rows),
            _ => follow_states(MinAtar::<space_invaders::State>::default(), &rows),
        }
    }
}

#[test]
fn grid_worlds_follow_minigrid() {
    for (name, json, n_ends) in [
        ("empty", include_str!("golden/minigrid/empty.json"), 10),
        ("door_key", include_str!("golden/minigrid/door_key.json"), 10),
        ("multi_room", include_str!("golden/minigrid/multi_room.json"), 5),
    ] {
        let rows = compare_with_golden(name, json, 1e-7);
        assert!(count(&rows, "terminated") >= n_ends && count(&rows, "truncated") > 0, "{name}");
    }
}

/// Compares the states after steps, of which an observation shows a part.
fn follow_states<E: Env<Obs = u8>>(mut env: E, rows: &[Value]) {
    let mut obs = vec![0; env.observation_space().len()];
    for (row, i) in rows.iter().zip(0..) {
        env.set_state(serde_json::from_value(row["init"].clone()).expect("is a state")).expect("is valid");
        let action = row["action"].as_u64().expect("an index") as u32;
        env.step(Action::Discrete(action), &mut Rng::new(0, i, 0, Purpose::Step), &mut obs);
        let mut next = serde_json::to_value(env.state()).expect("is plain");
        let fields = next.as_object_mut().expect("has fields");
        assert_eq!(fields.remove("last_action"), Some(row["action"].clone()));
        assert_eq!(fields.remove("elapsed").and_then(|n| n.as_u64()), row["init"]["elapsed"].as_u64().map(|n| n + 1));
        assert_eq!(next, row["next"], "row {i}: {row}");
    }
}

#[test]
fn repeat_first_follows_popgym() {
    let rows = compare_with_golden("repeat_first", include_str!("golden/repeat_first.json"), 1e-7);
    assert_eq!((rows.len(), count(&rows, "terminated")), (309, 3));
    assert!(rows.iter().filter(|row| row["reward"].as_f64() < Some(0.0)).count() > 90);
}

/// Returns states of episodes recorded from the references.
fn recorded_states(name: &str) -> Vec<Value> {
    let read = |folder| std::fs::read_to_string(format!("{}/tests/golden/{folder}{name}.json", env!("CARGO_MANIFEST_DIR")));
    let text = read("").or_else(|_| read("minigrid/")).expect("is recorded");
    let rows: Vec<Value> = serde_json::from_str(&text).expect("is JSON");
    rows.into_iter().map(|mut row| row["init"].take()).collect()
}

/// Draws more actions than any episode has steps, as a trace takes them.
fn random_actions(space: &ActionSpace, seed: u64) -> Value {
    let (mut random, mut actions) = (RandomActions::new(seed, 4100, space), ActionRows::zeros(space, 4100));
    random.fill(actions.as_mut_slice());
    actions
        .either(|actions| actions.iter().copied().collect(), |actions| actions.chunks(space.len()).map(<[f32]>::to_vec).collect())
}

/// Checks that only the last step ends the episode, and observations are in space.
fn check_trace(entry: &catalog::Entry, steps: &[TraceStep], context: &Value) {
    let space = entry.spaces().obs;
    for (i, step) in steps.iter().enumerate() {
        let obs: Vec<f32> = step.obs.iter().map(|x| x.as_f64().map_or(f32::NAN, |x| x as f32)).collect();
        assert!(space.contains(&obs), "{} from {context}, step {i}: {obs:?}", entry.name);
        assert_eq!(step.terminated | step.truncated, i + 1 == steps.len(), "{} from {context}, step {i}", entry.name);
    }
}

#[test]
fn a_trace_ends_with_its_episode_in_every_environment() {
    for entry in catalog::ENVS {
        let states = recorded_states(entry.name);
        for (seed, state) in states.iter().step_by(states.len() / 20).enumerate() {
            let actions = random_actions(&entry.spaces().actions, seed as u64);
            check_trace(entry, &entry.trace(state, &actions).expect("traces"), state);
        }
    }
}

#[test]
fn states_that_no_episode_is_in_are_refused_or_harmless() {
    /// Replaces the `k`-th number by `value`, if there are that many.
    fn replace(json: &mut Value, k: &mut usize, value: &Value) -> bool {
        match json {
            Value::Number(_) => {
                *k = k.wrapping_sub(1);
                if *k == usize::MAX {
                    *json = value.clone();
                }
                *k == usize::MAX
            }
            Value::Array(items) => items.iter_mut().any(|item| replace(item, k, value)),
            Value::Object(fields) => fields.values_mut().any(|item| replace(item, k, value)),
            _ => false,
        }
    }
    let hostile: [Value; 12] =
        serde_json::from_str("[1e18, -1e18, 1e30, 1e39, 1e6, -50.5, -1, 2, 9, 10, 255, 4294967295]").unwrap();
    for entry in catalog::ENVS {
        let (states, actions) = (recorded_states(entry.name), random_actions(&entry.spaces().actions, 1));
        let mut refused = 0;
        for state in states.iter().step_by(states.len() / 5) {
            for value in &hostile {
                for k in 0.. {
                    let mut state = state.clone();
                    if !replace(&mut state, &mut { k }, value) {
                        break;
                    }
                    match entry.trace(&state, &actions) {
                        Ok(steps) => check_trace(entry, &steps, &state),
                        Err(Error::BadState(_) | Error::BadTrace(_)) => refused += 1,
                        Err(error) => panic!("{}: {error}", entry.name),
                    }
                }
            }
        }
        assert!(refused > 50, "{}: {refused}", entry.name);
    }
}

#[test]
fn every_discrete_batch_refuses_its_first_illegal_action() {
    let pool = Pool::new(2).expect("threads start");
    for entry in catalog::ENVS {
        let ActionSpace::Discrete { n, .. } = entry.spaces().actions else { continue };
        for mut envs in [entry.sync(130).expect("makes"), entry.pooled(130, &pool).expect("makes")] {
            let mut memory = Memory::new(&*envs, 5);
            memory.reset(&mut *envs, 8);
            let before = envs.save().expect("saves");
            for (env_idx, action) in [(0, n), (129, n), (64, n + 1), (7, u32::MAX)] {
                memory.discrete().fill(0);
                memory.discrete()[env_idx] = action;
                match envs.step(&mut memory.steps) {
                    Err(Error::ActionOutOfRange { env_idx: i, action: a, n: m }) => {
                        assert_eq!((i, a, m), (env_idx, action, n), "{}", entry.name);
                    }
                    other => panic!("{}, action {action}: {other:?}", entry.name),
                }
            }
            assert_eq!(envs.save().expect("saves"), before, "{}", entry.name);
            memory.discrete().fill(n - 1);
            envs.step(&mut memory.steps).expect("the last action is legal");
        }
    }
}
