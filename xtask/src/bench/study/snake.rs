//! Snake with training: speed by number of environments, DQN at high speed.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::k;
use crate::bench::study::programs::Study;

const ENVS: [usize; 4] = [1, 16, 64, 256];

/// Trains PPO by number of environments, then DQN with fewer and fewer updates.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text = study.head(
        "Snake with training",
        "Snake on a 12 x 12 board, two threads, one run each. Settings that are not named are the preset's.",
    );
    let _ = writeln!(
        text,
        "\n## PPO by number of environments\n\nRollouts of 4,096 samples, minibatches of 512, 4 epochs, 300,000 env steps.\n\n\
         | environments | env steps/s | minutes for 1 M env steps | cores |\n|---|---|---|---|"
    );
    for n in ENVS {
        let args = format!("snake --threads 2 --envs {n} --steps 300000 --set eval_episodes=1 --set ppo.n_steps={}", 4096 / n);
        let run = study.train(&args, 100)?;
        let row = format!("| {n} | {} | {:.1} | {:.2} |", k(run.rate), 1e6 / run.rate / 60.0, run.cores);
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    let _ = writeln!(
        text,
        "\n## DQN with fewer updates and smaller networks\n\n256 environments, batch 256; the preset has an update of 256 samples every 64 env steps. Length: mean of \
         100 greedy episodes (a random policy has 7).\n\n| network | env steps per update | env steps | env steps/s | \
         seconds | share of acting | of learning | length |\n|---|---|---|---|---|---|---|---|"
    );
    const CONV: &str = "--set conv=[[16,3,1],[32,3,1]] --set hidden=[128]";
    const SMALL: &str = "--set conv=[[8,3,2]] --set hidden=[64]";
    const DENSE: &str = "--set conv=[] --set hidden=[64]";
    let cases = [
        ("preset", CONV, 64, 300_000),
        ("preset", CONV, 256, 500_000),
        ("preset", CONV, 1024, 1_000_000),
        ("one convolution 8x3x2, 64", SMALL, 256, 1_000_000),
        ("one convolution 8x3x2, 64", SMALL, 1024, 4_000_000),
        ("dense 64", DENSE, 256, 1_000_000),
        ("dense 64", DENSE, 1024, 4_000_000),
        ("dense 64", DENSE, 4096, 4_000_000),
    ];
    let mut preset = None;
    for (name, net, every, steps) in cases {
        let (train_freq, gradient_steps) = if every < 256 { (256, 256 / every) } else { (every, 1) };
        let args = format!(
            "snake --algo dqn --threads 2 --steps {steps} {net} --set dqn.train_freq={train_freq} --set dqn.gradient_steps={gradient_steps}"
        );
        let run = study.train(&args, 100)?;
        let seconds = run.metrics.last("time/time_elapsed")?;
        let length = 1.0 + run.done["eval"]["return_mean"].as_f64().context("return_mean")?;
        let (policy, update) = (run.metrics.last("time/policy")?, run.metrics.last("time/update")?);
        preset.get_or_insert((1e6 * policy / steps as f64, 1e3 * update * every as f64 / steps as f64));
        let row = format!(
            "| {name} | {every} | {steps} | {} | {seconds:.1} | {:.0}% | {:.0}% | {length:.1} |",
            k(run.rate),
            100.0 * policy / seconds,
            100.0 * update / seconds
        );
        println!("{row}");
        let _ = writeln!(text, "{row}");
    }
    let (acting, update) = preset.context("the preset")?;
    let _ = writeln!(
        text,
        "\nWhat keeps the preset from 100 k env steps/s: the network takes {acting:.1} us an env step to act, which alone \
         allows {}\nenv steps/s, and {update:.1} ms an update, of which 100 k env steps/s with one every 64 steps would need 1,562 a second.",
        k(1e6 / acting)
    );
    study.write(&text, None)
}
