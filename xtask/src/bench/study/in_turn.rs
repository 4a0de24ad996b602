//! PPO with memory, several inputs or Atari, in turn with its peers.
//!
//! Speed and returns beside Stable-Baselines3 and PufferLib, with equal settings.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, peers_python, spread};
use crate::bench::presets::{mean_and_error, with_error};
use crate::bench::sb3::SEED_STRIDE;
use crate::bench::study::memory::{EPISODES, return_of};
use crate::bench::study::programs::Study;

const SEEDS: u64 = 5;
/// Seeds of what differs too little for five.
const MORE_SEEDS: u64 = 40;
/// Env steps of a training with memory.
const STEPS: u64 = 102_400;
/// Equal settings for both, in 8 environments: those of `train_recurrent.py`.
const RECURRENT: &str = "--envs 8 --threads 2 --set memory=lstm --set hidden=[64] --set ppo.n_steps=128 --set ppo.batch_size=256 --set \
                         ppo.n_epochs=10 --set ppo.gamma=0.98 --set ppo.gae_lambda=0.9 --set ppo.learning_rate=lin_0.001 --set \
                         ppo.clip_range=0.2 --set ppo.ent_coef=0 --set ppo.normalize_reward=false --set log_std_init=0 --set eval_episodes=100";
/// Equal settings for both, in 16 environments: those of `train_inputs.py`.
const INPUTS: &str = "--envs 16 --threads 2 --set ppo.n_steps=128 --set ppo.batch_size=256 --set ppo.n_epochs=4 --set \
                      ppo.learning_rate=1e-3 --set ppo.ent_coef=0.01 --set eval_episodes=100";
/// Env steps of a game whose speed alone is measured.
const ATARI_STEPS: u64 = 16_384;

/// A training of ours and one of theirs.
struct Pairing {
    what: &'static str,
    steps: u64,
    /// Arguments of `rl train`, and of the peer's script.
    ours: String,
    theirs: &'static str,
}

/// Env steps/s and mean returns, ours and theirs.
#[derive(Default)]
struct Found {
    rates: [Vec<f64>; 2],
    returns: [Vec<f64>; 2],
}

impl Pairing {
    /// Trains ours and theirs in turn, and returns a row of the record.
    fn row(&self, study: &Study<'_>, script: &str, threads: u32) -> Result<String> {
        let Self { what, steps, ours, theirs } = self;
        let mut found = Found::default();
        for seed in (0..SEEDS).map(|k| k * SEED_STRIDE) {
            let run = study.train(&format!("{ours} --steps {steps}"), seed)?;
            let peer = study.peer(script, &format!("{theirs} {steps} {seed} {EPISODES} {threads}"))?;
            let figure = |name: &str| peer[name].as_f64().with_context(|| name.to_owned());
            let [rates, returns] = [[run.rate, figure("env_steps_per_s")?], [return_of(&run)?, figure("return_mean")?]];
            found.rates.iter_mut().zip(rates).for_each(|(rates, rate)| rates.push(rate));
            found.returns.iter_mut().zip(returns).for_each(|(returns, mean)| returns.push(mean));
            println!("{what}, seed {seed}: {:?}, {:?}", found.rates, found.returns);
        }
        Ok(found.row(what))
    }
}

impl Found {
    fn row(self, what: &str) -> String {
        let [ours, theirs] = self.rates.map(spread);
        let ratio = ours.0 / theirs.0;
        let figure = |returns: Vec<f64>| if returns.is_empty() { String::new() } else { with_error(mean_and_error(&returns)) };
        let [our_return, their_return] = self.returns.map(figure);
        let (ours, theirs) = (k_range(ours), k_range(theirs));
        format!("| {what} | {ours} | {theirs} | {ratio:.1} | {our_return} | {their_return} |\n")
    }
}

/// Head of the table.
const HEAD: &str = "\n| environment | ours, env steps/s | theirs | ratio | our return | theirs |\n|---|---|---|---|---|---|\n";

/// LSTMs beside sb3-contrib's RecurrentPPO and PufferLib's trainer.
pub(crate) fn recurrent(study: &Study<'_>) -> Result<()> {
    let about = format!(
        "Equal settings (`xtask/peers/train_recurrent.py`, `train_puffer.py`): LSTMs of 64, 8 environments, rollouts of 128 steps, minibatches \
         of\n256, 10 epochs, {STEPS} env steps, {SEEDS} seeds; in turn. Theirs step in their processes with one thread of PyTorch, which is faster\n\
         than two here; Pendulum steps in two worker processes of ours. Returns of {EPISODES} greedy episodes, with the standard error over the\n\
         seeds. RecurrentPPO has an LSTM each for policy and value function. PufferLib 3.0.0, installed without its own environments, has one\nfor \
         both, which learns with `vf_coef = 0.002`; it zeroes the state where a rollout begins, and not where an episode ends. PyTorch's biases are\n\
         about 0: `forget_bias = 0`."
    );
    let mut text = study.head("Beside recurrent PPO of sb3-contrib and PufferLib", &about) + HEAD;
    let puffer = Study { python: peers_python(study.root, "target/peers-puffer", "requirements-puffer.txt")?, ..*study };
    for (what, study, script, ours, theirs) in [
        (
            "RecurrentPPO: CartPole-v1 without velocities",
            study,
            "train_recurrent.py",
            "cartpole --set env.hide=velocities",
            "CartPole-v1 1,3",
        ),
        ("RecurrentPPO: Pendulum-v1", study, "train_recurrent.py", "gym:Pendulum-v1", "Pendulum-v1 -"),
        (
            "PufferLib: CartPole-v1 without velocities",
            &puffer,
            "train_puffer.py",
            "cartpole --set env.hide=velocities --set shared_trunk=true --set ppo.vf_coef=0.002",
            "CartPole-v1 1,3",
        ),
    ] {
        let pairing = Pairing { what, steps: STEPS, ours: format!("{ours} {RECURRENT} --set forget_bias=0"), theirs };
        text += &pairing.row(study, script, 1)?;
    }
    let _ =
        write!(text, "\nOur CartPole beside RecurrentPPO over {MORE_SEEDS} seeds:\n\n| `forget_bias` | return |\n|---|---|\n");
    for bias in [0, 1] {
        let args = format!("cartpole --set env.hide=velocities {RECURRENT} --set forget_bias={bias} --steps {STEPS}");
        let returns = (0..MORE_SEEDS).map(|seed| return_of(&study.train(&args, seed)?)).collect::<Result<Vec<_>>>()?;
        let _ = writeln!(text, "| {bias} | {} |", with_error(mean_and_error(&returns)));
    }
    study.write(&text, None)
}

/// Several inputs, and Atari, beside Stable-Baselines3.
pub(crate) fn inputs(study: &Study<'_>) -> Result<()> {
    let about = format!(
        "PPO with equal networks and settings (`xtask/peers/train_inputs.py`: MultiInputPolicy with the convolutions that `rl` chooses): 16\n\
         environments, rollouts of 128 steps, minibatches of 256, 4 epochs, {SEEDS} seeds; in turn. Theirs steps in its process\n(DummyVecEnv), \
         ours in two worker processes; two threads learn. Returns of {EPISODES} greedy episodes, with the standard error over the\nseeds. Pong \
         with RL Zoo's settings: {ATARI_STEPS} env steps of three seeds, theirs in SubprocVecEnv (`xtask/peers/train_atari.py`); speed alone."
    );
    let mut text = study.head("Several inputs and Atari beside Stable-Baselines3", &about) + HEAD;
    for (what, steps, ours, theirs) in [
        (
            "MiniGrid-DoorKey-5x5-v0 (picture of 7 x 7, direction), 81,920 env steps",
            81_920,
            "gym:MiniGrid-DoorKey-5x5-v0 --set env.keys=direction,image --set env.normalize_images=false",
            "MiniGrid-DoorKey-5x5-v0 [[16,2,1],[32,2,1],[64,2,1]] 0",
        ),
        (
            "`xtask/peers/robot.py` (camera of 24 x 24, position, gripper), 163,840 env steps",
            163_840,
            "gym:robot:Robot --set env.path=xtask/peers",
            "robot [[16,4,2],[32,3,2]] 1",
        ),
    ] {
        let pairing = Pairing { what, steps, ours: format!("{ours} {INPUTS}"), theirs };
        text += &pairing.row(study, "train_inputs.py", 2)?;
    }
    let mut found = Found::default();
    for seed in 0..3 {
        let ours = study.train(&format!("gym:ALE/Pong-v5 --threads 2 --set eval_episodes=1 --steps {ATARI_STEPS}"), seed)?.rate;
        let peer = study.peer("train_atari.py", &format!("ALE/Pong-v5 {ATARI_STEPS} {seed} 2"))?;
        let theirs = peer["env_steps_per_s"].as_f64().context("env_steps_per_s")?;
        found.rates.iter_mut().zip([ours, theirs]).for_each(|(rates, rate)| rates.push(rate));
        println!("Pong, seed {seed}: {:?}", found.rates);
    }
    text += &found.row("ALE/Pong-v5 (four frames of 84 x 84)");
    study.write(&text, None)
}
