//! Throughput and memory of PPO by network, rollout and minibatch.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use crate::bench::peers::{k_range, spread};
use crate::bench::study::programs::Study;

const ENVS: usize = 16;
/// Hidden layers, and env steps of a training of some seconds.
const NETS: [(&str, usize); 3] = [("64,64", 2_000_000), ("256,256", 262_144), ("1024,1024,512,256", 32_768)];
const N_STEPS: [usize; 3] = [32, 256, 2048];
const BATCHES: [usize; 3] = [64, 512, 4096];
const ROUNDS: usize = 3;

/// Trains with every combination.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text = study.head(
        "Throughput and memory by network, rollout and minibatch",
        &format!(
            "PPO on CartPole, {ENVS} environments, 4 epochs, two networks of the given hidden layers. Env steps/s are medians of {ROUNDS} runs, with minimum \
             and maximum;\nmemory is the largest resident set of the program. A rollout has at least one minibatch.\n"
        ),
    );
    let _ = writeln!(text, "| hidden layers | n_steps | batch_size | env steps/s | memory, MiB |\n|---|---|---|---|---|");
    for (hidden, steps) in NETS {
        for n_steps in N_STEPS {
            for batch in BATCHES.into_iter().filter(|&batch| batch <= n_steps * ENVS) {
                let args = format!(
                    "cartpole --envs {ENVS} --threads 2 --steps {steps} --set eval_episodes=1 --set hidden=[{hidden}] --set ppo.n_epochs=4 \
                     --set ppo.n_steps={n_steps} --set ppo.batch_size={batch}"
                );
                let runs = (0..ROUNDS).map(|_| study.train(&args, 0)).collect::<Result<Vec<_>>>()?;
                let memory = runs.iter().flat_map(|run| run.metrics.values("system/rss_mb")).fold(0.0, f64::max);
                anyhow::ensure!(memory > 0.0, "no memory was measured: {args}");
                let rate = k_range(spread(runs.iter().map(|run| run.rate).collect()));
                let row = format!("| {} | {n_steps} | {batch} | {rate} | {memory:.0} |", hidden.replace(',', "-"));
                println!("{row}");
                let _ = writeln!(text, "{row}");
            }
        }
    }
    study.write(&text, None).context("the record")
}
