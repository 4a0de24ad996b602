//! Device batches driven beside their Rust originals.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::cmp::Ordering;

use rl_cuda::{ActionSource, CudaVecEnv, Device, DeviceActions, DeviceSteps, Error};
use rl_envs::{ActionRows, ActionSlice, ActionSpace, Actions, Obs, ObsRows, RandomActions, Steps, VecEnv, catalog};

/// Batch sizes that the tests cover.
pub(crate) const SIZES: [usize; 5] = [1, 31, 33, 65, 1000];

/// Everything that one step of a batch writes, as bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rows {
    obs: Obs<Vec<u32>, Vec<u8>>,
    rewards: Vec<u32>,
    terminated: Vec<u8>,
    truncated: Vec<u8>,
    final_obs: Obs<Vec<u32>, Vec<u8>>,
    masks: Option<[Vec<u8>; 2]>,
}

/// A batch and its latest outputs.
pub(crate) struct Driven {
    pub(crate) envs: Box<dyn VecEnv>,
    steps: Steps,
}

impl Driven {
    pub(crate) fn new(envs: Box<dyn VecEnv>) -> Self {
        Self { steps: Steps::new(&envs), envs }
    }

    pub(crate) fn reset(&mut self, seed: u64) -> Result<(), rl_envs::Error> {
        self.envs.reset(seed, &mut self.steps)
    }

    pub(crate) fn step(&mut self, actions: ActionSlice<'_>) -> Result<(), rl_envs::Error> {
        self.steps.actions = actions.map(<[u32]>::to_vec, <[f32]>::to_vec);
        self.envs.step(&mut self.steps)
    }

    pub(crate) fn rows(&self) -> Rows {
        let float_bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let bits = |obs: &ObsRows| obs.as_ref().map(|obs| float_bits(obs), Vec::clone);
        let Steps { obs, rewards, terminated, truncated, final_obs, masks, .. } = self.steps.clone();
        let (obs, final_obs, rewards) = (bits(&obs), bits(&final_obs), float_bits(&rewards));
        Rows { obs, rewards, terminated, truncated, final_obs, masks }
    }

    pub(crate) fn rewards(&self) -> &[f32] {
        &self.steps.rewards
    }

    pub(crate) fn ended(&self) -> usize {
        (0..self.envs.n_envs()).filter(|&i| self.steps.done(i)).count()
    }
}

/// Player for tests: random actions, improved for every second environment.
///
/// With masks, those environments take legal actions; in CartPole, actions that keep the pole up; in Breakout, the paddle follows
/// the ball.
pub(crate) struct Player {
    random: RandomActions,
    actions: ActionRows,
}

impl Player {
    pub(crate) fn new(seed: u64, n: usize, space: &ActionSpace) -> Self {
        Self { random: RandomActions::new(seed, n, space), actions: ActionRows::zeros(space, n) }
    }

    pub(crate) fn play(&mut self, name: &str, driven: &Driven) -> ActionSlice<'_> {
        self.random.fill(self.actions.as_mut_slice());
        if let Actions::Discrete(actions) = &mut self.actions {
            for i in (0..actions.len()).step_by(2) {
                if let ("cartpole", Obs::F32(obs)) = (name, &driven.steps.obs) {
                    let row = &obs[4 * i..][..4];
                    actions[i] = (row[2] + 0.5 * row[3] + 0.1 * row[1] + 0.05 * row[0] > 0.0).into();
                } else if let ("breakout", Obs::U8(obs)) = (name, &driven.steps.obs) {
                    let channel = |channel: usize| &obs[400 * i + 100 * channel..][..100];
                    let column = |channel: &[u8]| channel.iter().position(|&cell| cell == 1).unwrap_or(0) % 10;
                    actions[i] = match column(channel(1)).cmp(&column(channel(0))) {
                        Ordering::Less => 1,
                        Ordering::Equal => 0,
                        Ordering::Greater => 2,
                    };
                } else if let Some([masks, _]) = &driven.steps.masks {
                    let drawn = actions[i] as usize;
                    let legal = (0..4).map(|j| (drawn + j) % 4).find(|&j| masks[4 * i + j] == 1);
                    actions[i] = legal.unwrap_or(drawn) as u32;
                }
            }
        }
        self.actions.as_slice()
    }
}

/// Steps a device batch beside its original and counts ended episodes.
///
/// Fails at the first difference.
pub(crate) fn compare(device: &Device, name: &str, n: usize, seed: u64, n_steps: usize) -> Result<usize, String> {
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{name}, {n} environments: {what}: {error}");
    let entry = catalog::find(name).map_err(|error| failed("catalog", &error))?;
    let original = entry.sync(n).map_err(|error| failed("original", &error))?;
    let twin = CudaVecEnv::new(device, name, n).map_err(|error| failed("twin", &error))?;
    compare_batches(name, [original, Box::new(twin)], seed, n_steps)
}

/// As [`compare`], for an environment and its twin.
pub(crate) fn compare_batches(name: &str, both: [Box<dyn VecEnv>; 2], seed: u64, n_steps: usize) -> Result<usize, String> {
    let n = both[0].n_envs();
    let failed = |what: &str, error: &dyn std::fmt::Display| format!("{name}, {n} environments: {what}: {error}");
    let [mut original, mut twin] = both.map(Driven::new);
    let mut player = Player::new(seed, n, original.envs.action_space());
    let same = |t: usize, original: &Driven, twin: &Driven| {
        if original.rows() != twin.rows() {
            return Err(failed(&format!("step {t}"), &"what is written differs"));
        }
        if t.is_multiple_of(97) || t == n_steps {
            let saved = [original, twin].map(|driven| driven.envs.save());
            if !matches!(&saved, [Ok(a), Ok(b)] if a == b) {
                return Err(failed(&format!("step {t}"), &"states differ"));
            }
        }
        Ok(())
    };
    original.reset(seed).map_err(|error| failed("reset", &error))?;
    twin.reset(seed).map_err(|error| failed("reset", &error))?;
    same(0, &original, &twin)?;
    let mut ended = 0;
    for t in 1..=n_steps {
        let actions = player.play(name, &original);
        original.step(actions).map_err(|error| failed("step", &error))?;
        twin.step(actions).map_err(|error| failed("step", &error))?;
        same(t, &original, &twin)?;
        ended += original.ended();
    }
    Ok(ended)
}

/// Checks the bound of a discrete kernel's actions; a no-op for continuous ones.
///
/// Every legal action must be taken. For `n`, `n + 1` and the largest number the kernel must report a fault and take 0 instead.
///
/// # Panics
/// If the kernel treats an action differently.
pub(crate) fn check_bound(device: &Device, name: &str) {
    let ActionSpace::Discrete { n, .. } = catalog::find(name).unwrap().spaces().actions else { return };
    let stream = device.stream().unwrap();
    let stepped = |action: u32| {
        let mut envs = CudaVecEnv::new(device, name, 5).unwrap();
        let mut steps = DeviceSteps::zeros(device, 1, 5, envs.observation_space(), envs.action_space()).unwrap();
        let DeviceActions::Discrete(actions) = &mut steps.columns.actions else { unreachable!("{name}'s actions are discrete") };
        stream.upload(&actions.view_mut(), &[0, 0, 0, action, 0]).unwrap();
        let rows = steps.rows(0..1);
        envs.reset_on(&stream, 7, &rows.obs, rows.masks.as_ref().map(|[masks, _]| masks)).unwrap();
        envs.step_on(&stream, 1, ActionSource::Given, &rows).unwrap();
        let noted = envs.check_actions(&stream);
        (noted, envs.save().unwrap())
    };
    let (_, with_0) = stepped(0);
    for action in 0..n {
        assert!(stepped(action).0.is_ok(), "{name}: {action} is legal");
    }
    for action in [n, n + 1, u32::MAX] {
        let (noted, states) = stepped(action);
        assert!(matches!(noted, Err(Error::ActionOutOfRange { env_idx: 3 })), "{name}: {action} is out of range, {noted:?}");
        assert!(states == with_0, "{name}: 0 is taken in the place of {action}");
    }
}
