//! Env steps and seconds to solve CartPole by number of environments.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k, spread};
use crate::bench::study::programs::Study;
use crate::plot::{Axis, Chart};

const SIZES: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];
const SEEDS: std::ops::Range<u64> = 100..105;
/// Samples of a rollout of fixed size.
const ROLLOUT: usize = 1024;
const N_STEPS: usize = 32;
const SETTINGS: &str = "--threads 2 --target-return 475 --set ppo.learning_rate=1e-3 --set ppo.clip_range=0.2";

/// Trains with each number of environments until CartPole is solved.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text = study.head(
        "Steps and seconds to solve CartPole by number of environments",
            "PPO with the preset, but for a constant learning rate of 1e-3 and clip range of 0.2; five seeds each, two threads. Solved: a mean \
             return of 475 in\n100 greedy episodes, tried every 2,048 env steps, or after each rollout if that is longer. Medians with minimum \
             and maximum; a run that does not solve it counts with all its steps and seconds. The seconds exclude evaluations.\n\n![steps and seconds to solve](study-envs.svg)\n",
    );
    let kept = [
        (format!("rollouts of {N_STEPS} steps of each environment, 4 minibatches an epoch"), "#1b9e77", "fixed n_steps"),
        (format!("rollouts of {ROLLOUT} samples, minibatches of 256"), "#d95f02", "fixed rollout"),
    ];
    let mut curves = Vec::new();
    for (i, (what, color, label)) in kept.into_iter().enumerate() {
        let _ = writeln!(text, "\n## {what}\n\n| environments | solved | env steps | seconds |\n|---|---|---|---|");
        let mut points = Vec::new();
        for n in SIZES.into_iter().filter(|&n| i == 0 || n <= ROLLOUT) {
            let [n_steps, batch, most] =
                if i == 0 { [N_STEPS, 8 * n, (N_STEPS * n * 150).max(300_000)] } else { [ROLLOUT / n, 256, 300_000] };
            let every = (n_steps * n).max(2048);
            let args = format!(
                "cartpole --envs {n} --steps {most} {SETTINGS} --set ppo.n_steps={n_steps} --set ppo.batch_size={batch} --set eval_every={every}"
            );
            let (mut steps, mut seconds, mut solved) = (Vec::new(), Vec::new(), 0);
            for seed in SEEDS {
                let run = study.train(&args, seed)?;
                solved += usize::from(run.done["end"] == "target");
                steps.push(run.done["env_steps"].as_f64().context("env_steps")?);
                seconds.push(run.metrics.last("time/time_elapsed")? - run.metrics.last("time/evaluation")?);
            }
            let seeds = steps.len();
            let ((s, s_low, s_high), (t, t_low, t_high)) = (spread(steps), spread(seconds));
            let row = format!(
                "| {n} | {solved} of {seeds} | {} ({} to {}) | {t:.2} ({t_low:.2} to {t_high:.2}) |",
                k(s),
                k(s_low),
                k(s_high)
            );
            println!("{row}");
            let _ = writeln!(text, "{row}");
            points.push((n as f64, [s, t]));
        }
        curves.push((label, color, points));
    }
    let mut chart = Chart::new();
    for (i, y) in [Axis::log("env steps to solve", 1e4, 1e7), Axis::log("seconds to solve", 0.01, 100.0)].into_iter().enumerate()
    {
        let mut panel = chart.panel(Axis::log("environments", 1.0, 4096.0), y);
        for (label, color, points) in &curves {
            panel.line(points.iter().map(|&(n, of)| (n, of[i])), color);
            panel.label(label, color);
        }
    }
    study.write(&text, Some(chart))
}
