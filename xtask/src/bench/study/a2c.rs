//! A2C beside Stable-Baselines3's, with the use of the processor.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, spread};
use crate::bench::presets::{mean_and_error, with_error};
use crate::bench::study::programs::Study;

const ENVS: [usize; 3] = [4, 16, 64];
const STEPS: u64 = 100_000;
const SEEDS: std::ops::Range<u64> = 100..103;

/// Ways of theirs, and environments of ours.
const WAYS: [(&str, bool, &str); 4] = [
    ("Stable-Baselines3, DummyVecEnv", false, "dummy"),
    ("Stable-Baselines3, SubprocVecEnv", false, "subproc"),
    ("ours, Gymnasium in 2 workers", true, "gym:CartPole-v1"),
    ("ours, `cartpole`", true, "cartpole"),
];

/// Trains in turn, seed by seed.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text = study.head(
        "A2C beside Stable-Baselines3's",
        &format!(
            "CartPole, Stable-Baselines3's default settings, {STEPS} env steps, three seeds; runs alternate between the ways. Env steps/s: medians with minimum and maximum. \
             Cores:\nprocessor seconds per second, including child processes (and, for ours, startup and the final evaluation). Return: mean of 100 greedy episodes, \
             with the standard error over the seeds.\n"
        ),
    );
    let _ =
        writeln!(text, "| environments | way | env steps/s | against DummyVecEnv | cores | return |\n|---|---|---|---|---|---|");
    for n in ENVS {
        let mut runs = vec![(Vec::new(), Vec::new(), Vec::new()); WAYS.len()];
        for seed in SEEDS {
            for ((_, ours, way), (rates, cores, returns)) in WAYS.iter().zip(&mut runs) {
                let (rate, used, of) = if *ours {
                    // Settings of the library, not of a preset.
                    let settings = "--set a2c.n_steps=5 --set a2c.learning_rate=7e-4 --set a2c.ent_coef=0 --set a2c.gae_lambda=1";
                    let args = format!("{way} --algo a2c --threads 2 --envs {n} --steps {STEPS} {settings}");
                    let run = study.train(&args, seed)?;
                    (run.rate, run.cores, run.done["eval"]["return_mean"].as_f64().context("return_mean")?)
                } else {
                    let answer = study.peer("study_sb3.py", &format!("a2c CartPole-v1 {n} {way} 1 {STEPS} {seed} 100"))?;
                    let figure = |name: &str| answer[name].as_f64().with_context(|| name.to_string());
                    (figure("env_steps_per_s")?, figure("cores")?, figure("return_mean")?)
                };
                rates.push(rate);
                cores.push(used);
                returns.push(of);
            }
        }
        let base = spread(runs[0].0.clone()).0;
        for ((way, ..), (rates, cores, returns)) in WAYS.iter().zip(runs) {
            let rate = spread(rates);
            let row = format!(
                "| {n} | {way} | {} | {:.1} | {:.2} | {} |",
                k_range(rate),
                rate.0 / base,
                spread(cores).0,
                with_error(mean_and_error(&returns))
            );
            println!("{row}");
            let _ = writeln!(text, "{row}");
        }
    }
    study.write(&text, None)
}
