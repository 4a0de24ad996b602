//! PPO with LSTMs beside sb3-contrib's RecurrentPPO: speed and returns.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, spread};
use crate::bench::presets::{mean_and_error, with_error};
use crate::bench::study::memory::{EPISODES, return_of};
use crate::bench::study::programs::Study;

const SEEDS: u64 = 5;
const STEPS: u64 = 102_400;
/// Equal settings for both, in 8 environments: those of `train_recurrent.py`.
const EQUAL: &str = "--envs 8 --threads 2 --set memory=lstm --set hidden=[64] --set ppo.n_steps=128 --set ppo.batch_size=256 --set \
                     ppo.n_epochs=10 --set ppo.gamma=0.98 --set ppo.gae_lambda=0.9 --set ppo.learning_rate=lin_0.001 --set \
                     ppo.clip_range=0.2 --set ppo.ent_coef=0 --set ppo.normalize_reward=false --set log_std_init=0 --set eval_episodes=100";
/// Environment of ours, of theirs, and elements that theirs hides.
const CASES: [(&str, &str, &str); 2] =
    [("cartpole --set env.hide=velocities", "CartPole-v1", "1,3"), ("gym:Pendulum-v1", "Pendulum-v1", "-")];

/// Trains ours and theirs in turn, and writes the record.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let about = format!(
        "Equal settings (`xtask/peers/train_recurrent.py`): LSTMs of 64 for policy and value function, 8 environments, rollouts of 128 \
         steps,\nminibatches of 256, 10 epochs, {STEPS} env steps, seeds 0 to {}; in turn. Theirs steps in its process (DummyVecEnv) with one \
         thread of\nPyTorch, which is faster than two here; Pendulum steps in two worker processes of ours. Returns of {EPISODES} greedy \
         episodes, with the\nstandard error over the seeds.",
        SEEDS - 1
    );
    let mut text = study.head("Beside sb3-contrib's RecurrentPPO", &about);
    text.push_str("\n| environment | ours, env steps/s | theirs | ratio | our return | theirs |\n|---|---|---|---|---|---|\n");
    for (ours, theirs, hide) in CASES {
        let (mut rates, mut returns) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for seed in 0..SEEDS {
            let run = study.train(&format!("{ours} {EQUAL} --steps {STEPS}"), seed)?;
            let peer = study.peer("train_recurrent.py", &format!("{theirs} {hide} {STEPS} {seed} {EPISODES} 1"))?;
            let figure = |name: &str| peer[name].as_f64().with_context(|| name.to_owned());
            for (rates, rate) in rates.iter_mut().zip([run.rate, figure("env_steps_per_s")?]) {
                rates.push(rate);
            }
            for (returns, mean) in returns.iter_mut().zip([return_of(&run)?, figure("return_mean")?]) {
                returns.push(mean);
            }
            println!("{theirs}, seed {seed}: {rates:?}, {returns:?}");
        }
        let [our_rates, their_rates] = rates.map(spread);
        let [our_returns, their_returns] = returns.map(|returns| with_error(mean_and_error(&returns)));
        let ratio = our_rates.0 / their_rates.0;
        let hidden = if hide == "-" { "" } else { " without velocities" };
        let _ = writeln!(
            text,
            "| {theirs}{hidden} | {} | {} | {ratio:.0} | {our_returns} | {their_returns} |",
            k_range(our_rates),
            k_range(their_rates)
        );
    }
    study.write(&text, None)
}
