//! PPO by network: throughput, memory, and shares of the machine's peak.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

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

/// Runs of each update.
const UPDATE_ROUNDS: usize = 3;

/// Instruction sets: a name, and `RL_ISA`.
const SETS: [(&str, Option<&str>); 2] = [("AVX2", Some("avx2")), ("the machine's widest", None)];
/// Hidden layers and minibatches.
const UPDATE_NETS: [(&[usize], usize); 7] = [
    (&[64, 64], 64),
    (&[64, 64], 512),
    (&[64, 64], 2048),
    (&[256, 256], 512),
    (&[512, 512], 512),
    (&[1024, 1024, 512, 256], 512),
    (&[1024, 1024, 512, 256], 4096),
];

/// One update, measured.
struct Update {
    /// Shares of the peak: whole, forward stage, backward stage.
    shares: [f64; 3],
    /// Parts of the threads' time: inputs, loss, optimizer and packing, waiting.
    times: [f64; 4],
}

impl Update {
    fn read(answer: &Value, hidden: &[usize]) -> Result<Self> {
        let number = |value: &Value, name: &str| value[name].as_f64().with_context(|| name.to_owned());
        let of = |name: &str| number(&answer["stages"], name);
        // CartPole's actor (2 outputs) and critic (1), of 4 inputs each: a product is two operations.
        let chain = |n_out: usize| [4].iter().chain(hidden).zip(hidden.iter().chain([&n_out])).map(|(a, b)| a * b).sum::<usize>();
        let forward = 2.0 * (chain(2) + chain(1)) as f64 / number(answer, "flops_per_sample")?;
        let share = number(answer, "share_of_ceiling")?;
        Ok(Self {
            shares: [share, share * forward / of("forward")?, share * (1.0 - forward) / of("backward")?],
            times: [of("inputs")?, of("loss")?, of("optimizer")? + of("packing")?, of("waiting")?],
        })
    }
}

/// Measures updates with both instruction sets in turn.
pub(crate) fn measure_ceiling(study: &Study<'_>) -> Result<()> {
    let about = format!(
        "PPO updates of two networks of CartPole (`rl bench update`); medians of {UPDATE_ROUNDS} alternating runs, with minimum and maximum for the whole.\n\
         Shares of the peak of multiply-adds, which is measured in each run: of the whole update, and of the forward and the backward stage within\n\
         their own time, activations included. Then parts of the threads' time; what is left are targets, permutations, sums and norms."
    );
    let mut text = study.head("Updates beside the machine's peak", &about);
    let parts = "inputs | loss | optimizer, packing | waiting";
    let _ = writeln!(
        text,
        "\n| set | hidden layers | minibatch | threads | whole | forward | backward | {parts} |\n|{}",
        "---|".repeat(11)
    );
    for (hidden, minibatch) in UPDATE_NETS {
        let layers = hidden.iter().map(ToString::to_string).collect::<Vec<_>>();
        for threads in [1, 2] {
            let args = format!("update --seconds 1 --minibatch {minibatch} --hidden {} --threads {threads}", layers.join(","));
            let mut rounds = SETS.map(|_| Vec::new());
            for _ in 0..UPDATE_ROUNDS {
                for (rounds, (_, set)) in rounds.iter_mut().zip(SETS) {
                    rounds.push(Update::read(&study.bench_answer(&args, set)?, hidden)?);
                }
            }
            for (rounds, (set, _)) in rounds.iter().zip(SETS) {
                let all = |number: &dyn Fn(&Update) -> f64| spread(rounds.iter().map(number).collect());
                let (whole, low, high) = all(&|update| update.shares[0]);
                let stages = [1, 2].map(|i| format!("{:.2} |", all(&|update| update.shares[i]).0)).join(" ");
                let times = [0, 1, 2, 3].map(|i| format!("{:.1} % |", 100.0 * all(&|update| update.times[i]).0)).join(" ");
                let net = format!("{set} | {} | {minibatch} | {threads}", layers.join("-"));
                let line = format!("| {net} | {whole:.2} ({low:.2} to {high:.2}) | {stages} {times}");
                println!("{line}");
                let _ = writeln!(text, "{line}");
            }
        }
    }
    study.write(&text, None)
}
