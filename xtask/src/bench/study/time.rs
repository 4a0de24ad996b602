//! Return over wall time beside Stable-Baselines3.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::spread;
use crate::bench::study::programs::Study;
use crate::plot::{Axis, Chart};

const STEPS: u64 = 150_000;
const SEEDS: std::ops::Range<u64> = 100..105;
const TARGETS: [f64; 3] = [100.0, 300.0, 475.0];
const SETTINGS: &str = "--envs 8 --threads 2 --set ppo.n_steps=256 --set ppo.batch_size=64 --set ppo.n_epochs=10 --set ppo.gamma=0.99 --set \
                        ppo.gae_lambda=0.95 --set ppo.learning_rate=3e-4 --set ppo.clip_range=0.2";
const WHO: [(&str, &str, Option<&str>); 3] = [
    ("Stable-Baselines3", "#d95f02", None),
    ("ours, Gymnasium's CartPole in 2 workers", "#1b9e77", Some("gym:CartPole-v1")),
    ("ours, cartpole", "#7570b3", Some("cartpole")),
];

/// Trains over the seeds, and draws returns over steps and over seconds.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut curves: Vec<Vec<Vec<[f64; 3]>>> = vec![Vec::new(); WHO.len()];
    for seed in SEEDS {
        for ((name, _, env), curves) in WHO.iter().zip(&mut curves) {
            let curve: Vec<[f64; 3]> = if let Some(env) = env {
                let metrics = study.train(&format!("{env} --steps {STEPS} {SETTINGS}"), seed)?.metrics;
                metrics.rows(["time/total_timesteps", "time/time_elapsed", "rollout/ep_rew_mean"])
            } else {
                let answer = study.peer("study_sb3.py", &format!("ppo CartPole-v1 8 dummy 1 {STEPS} {seed} 0"))?;
                serde_json::from_value(answer["curve"].clone()).context("the curve")?
            };
            let [steps, seconds, of] = *curve.last().context("an empty curve")?;
            println!("{name}, seed {seed}: {of:.0} after {steps:.0} env steps, {seconds:.1} s");
            curves.push(curve);
        }
    }
    let mut text = study.head(
        "Return over time beside Stable-Baselines3",
        &format!(
            "PPO on CartPole with Stable-Baselines3's default settings and 8 environments, {STEPS} env steps, five seeds, runs alternating; \
             Stable-Baselines3 with\nDummyVecEnv and one thread of PyTorch, its fastest way here. The return is the mean of the last 100 training episodes. \
             Medians with minimum and\nmaximum; a seed that does not reach the return counts as infinite.\n\n![return over steps and seconds](study-time.svg)\n"
        ),
    );
    let _ = writeln!(text, "| return | library | env steps | seconds |\n|---|---|---|---|");
    for target in TARGETS {
        for ((name, ..), curves) in WHO.iter().zip(&curves) {
            let reached = |i: usize| {
                let at =
                    |curve: &Vec<[f64; 3]>| curve.iter().find(|point| point[2] >= target).map_or(f64::INFINITY, |point| point[i]);
                spread(curves.iter().map(at).collect())
            };
            let ((s, s_low, s_high), (t, t_low, t_high)) = (reached(0), reached(1));
            let row = format!("| {target} | {name} | {s:.0} ({s_low:.0} to {s_high:.0}) | {t:.2} ({t_low:.2} to {t_high:.2}) |");
            let _ = writeln!(text, "{}", row.replace("inf", "not reached"));
        }
    }
    let longest = curves.iter().flatten().flat_map(|curve| curve.last()).map(|point| point[1]).fold(0.0, f64::max).ceil();
    let mut chart = Chart::new();
    for (i, x) in [Axis::linear("environment steps", STEPS as f64), Axis::log("seconds", 0.01, longest)].into_iter().enumerate() {
        let mut panel = chart.panel(x, Axis::linear("mean return of the last 100 episodes", 500.0));
        for ((name, color, _), curves) in WHO.iter().zip(&curves) {
            for curve in curves {
                panel.line(curve.iter().map(|point| (point[i], point[2])), color);
            }
            panel.label(name, color);
        }
    }
    study.write(&text, Some(chart))
}
