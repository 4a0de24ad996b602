//! Time of an iteration by number of processes: measured, fitted, predicted.
//!
//! `cargo xtask bench --scale` writes `bench/scale.md`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::bench::peers::spread;
use crate::bench::ranks;
use crate::process::machine;

/// Widths of the hidden layers, and env steps of a training of some seconds.
const NETS: [(&[u64], u64); 3] = [(&[64, 64], 2_000_000), (&[256, 256], 250_000), (&[1024, 1024, 512, 256], 32_768)];
/// Numbers of processes, of one thread each, and the cores that they share.
const RANKS: [usize; 3] = [1, 2, 4];
const CORES: f64 = 2.0;
/// Environments, steps, minibatch and epochs of the runs.
const ARGS: &str = "cartpole --envs 256 --set ppo.n_steps=32 --set ppo.batch_size=2048 --set ppo.n_epochs=4";
const SAMPLES: f64 = 256.0 * 32.0;
const EPOCHS: f64 = 4.0;
const MINIBATCHES: f64 = EPOCHS * SAMPLES / 2048.0;
/// Bytes of a transition of CartPole that ranks exchange.
const ROW: f64 = 4.0 * 4.0 + 4.0 + 14.0;
const ROUNDS: usize = 3;
/// Minibatch of the prediction, 1,024 slices; a rollout has four.
const LARGE: f64 = 65_536.0;
/// Interconnects: seconds of a message, bytes per second.
const INTERCONNECTS: [(&str, f64, f64); 2] =
    [("Ethernet, 10 Gbit/s, 30 us per message", 30e-6, 1.25e9), ("InfiniBand, 200 Gbit/s, 2 us per message", 2e-6, 25e9)];
const PREDICTED: [u32; 6] = [1, 4, 16, 64, 256, 1024];

/// Costs of sharing a minibatch, fitted to the runs.
struct Fit {
    /// Seconds per parameter that every rank spends: summing and the optimizer's step.
    step: f64,
    /// Seconds of an exchange for each doubling of the ranks.
    latency: f64,
    /// Seconds per byte received.
    byte: f64,
}

/// Parameters of the networks of the policy and of the value on CartPole.
fn n_params(hidden: &[u64]) -> f64 {
    let of = |outputs: u64| {
        let widths: Vec<u64> = [4].into_iter().chain(hidden.iter().copied()).chain([outputs]).collect();
        widths.windows(2).map(|pair| (pair[0] + 1) * pair[1]).sum::<u64>()
    };
    (of(2) + of(1)) as f64
}

/// Factors of step, latency and byte in the time of a shared minibatch.
///
/// More processes than cores compute and copy in turn.
fn factors(n_params: f64, n_ranks: f64) -> [f64; 3] {
    let crowd = n_ranks.max(CORES) / CORES;
    [n_params * crowd, n_ranks.log2() * crowd, (n_ranks - 1.0) * 4.0 * n_params * crowd]
}

/// Seconds of an iteration, from that of one process.
fn modelled(alone: f64, n_params: f64, n_ranks: f64, fit: &Fit) -> f64 {
    let shared = alone - MINIBATCHES * fit.step * n_params;
    let [step, latency, byte] = factors(n_params, n_ranks);
    shared / n_ranks.min(CORES) + MINIBATCHES * (fit.step * step + fit.latency * latency + fit.byte * byte)
}

/// Fits the costs, none below zero.
///
/// `times` are parameters, and seconds of an iteration by number of processes, for each network.
fn fit(times: &[(f64, [f64; 3])]) -> Fit {
    let mut rows = Vec::new();
    for (n_params, seconds) in times {
        for (n_ranks, found) in RANKS.into_iter().zip(seconds).skip(1) {
            let cores = (n_ranks as f64).min(CORES);
            let [step, latency, byte] = factors(*n_params, n_ranks as f64);
            let factors = [step - n_params / cores, latency, byte].map(|factor| MINIBATCHES * factor / found);
            rows.push((factors, (found - seconds[0] / cores) / found));
        }
    }
    let mut costs = [0.0; 3];
    for _ in 0..100_000 {
        for j in 0..3 {
            let (mut along, mut norm) = (0.0, 0.0);
            for (factors, rest) in &rows {
                let others: f64 = (0..3).filter(|k| *k != j).map(|k| factors[k] * costs[k]).sum();
                along += factors[j] * (rest - others);
                norm += factors[j] * factors[j];
            }
            costs[j] = (along / norm).max(0.0);
        }
    }
    let [step, latency, byte] = costs;
    Fit { step, latency, byte }
}

/// Predicts the seconds of an iteration of four large minibatches.
///
/// Each rank has a core on a machine of its own.
/// `tree`: gradients are summed along a tree of ranks and sent back, in place of the gathering that is built.
fn predicted(sample: f64, n_params: f64, n_ranks: f64, step: f64, (latency, rate): (f64, f64), tree: bool) -> f64 {
    let (messages, copies) = if tree { (2.0, 2.0 * n_ranks.log2()) } else { (1.0, n_ranks - 1.0) };
    let minibatch = step * n_params + messages * n_ranks.log2() * latency + copies * 4.0 * n_params / rate;
    let exchanged = 4.0 * LARGE * ROW * (1.0 - 1.0 / n_ranks) / rate;
    4.0 * LARGE * EPOCHS * sample / n_ranks + 4.0 * EPOCHS * minibatch + exchanged
}

/// Measures, fits, and writes the record.
pub(crate) fn measure(root: &Path) -> Result<()> {
    ranks::build(root)?;
    let mut times = Vec::new();
    for (hidden, steps) in NETS {
        let args = format!("{ARGS} --steps {steps} --set hidden={}", format!("{hidden:?}").replace(' ', ""));
        let mut rates = [const { Vec::new() }; RANKS.len()];
        for _ in 0..ROUNDS {
            for (n_ranks, rates) in RANKS.into_iter().zip(&mut rates) {
                rates.push(ranks::rate(root, n_ranks, 1, &args, Path::new("python3"))?);
            }
        }
        let seconds = rates.map(|rates| SAMPLES / spread(rates).0);
        println!("{hidden:?}: {:.1?} ms", seconds.map(|s| 1e3 * s));
        times.push((n_params(hidden), seconds));
    }
    let fitted = fit(&times);
    let Fit { step, latency, byte } = &fitted;
    let mut text = format!(
        "# Time of an iteration by number of processes\n\nWritten by `cargo xtask bench --scale` on {}. PPO on CartPole, 256 environments, 32 steps, \
         minibatches of 2,048,\n4 epochs; `mpirun -n R rl train` with a thread each (`mpi = sync`), medians of {ROUNDS} rounds. Four processes share \
         two cores.\n\n\
         With R ranks and P parameters, the model adds to the shared work, divided by the cores, for each minibatch: {:.2} ns x P for summing and \
         the\noptimizer, {:.0} us x log2 R for messages, {:.2} ns x (R - 1) 4 P for the gradients' bytes. The three figures are fitted.\n\n\
         | networks | P | R | measured, ms | model, ms |\n|---|---|---|---|---|\n",
        machine(root),
        1e9 * step,
        1e6 * latency,
        1e9 * byte
    );
    let name = |hidden: &[u64]| hidden.iter().map(u64::to_string).collect::<Vec<_>>().join("-");
    for ((hidden, _), (n_params, seconds)) in NETS.iter().zip(&times) {
        for (n_ranks, found) in RANKS.into_iter().zip(seconds) {
            let model = modelled(seconds[0], *n_params, n_ranks as f64, &fitted);
            let _ = writeln!(text, "| {} | {n_params} | {n_ranks} | {:.1} | {:.1} |", name(hidden), 1e3 * found, 1e3 * model);
        }
    }
    let _ = write!(
        text,
        "\n## Prediction\n\nNot measured: iterations of four minibatches of {LARGE}, a rank on a machine of its own with one such core. Speed-up over \
         one rank: as\nbuilt, where each rank gathers the gradients of all, and in brackets with sums along a tree of ranks. Summing and the optimizer \
         cost what\nthey cost here, messages and bytes what the interconnect's figures say. Today's limit is 16 ranks.\n\n\
         | networks | interconnect |{} stops paying at |\n|---|---|{}---|\n",
        PREDICTED.map(|n_ranks| format!(" {n_ranks} |")).concat(),
        "---|".repeat(PREDICTED.len())
    );
    for ((hidden, _), (n_params, seconds)) in NETS.iter().zip(&times) {
        // Of a sample in an epoch; the environments' share is small.
        let sample = (seconds[0] - MINIBATCHES * step * n_params) / (SAMPLES * EPOCHS);
        for (interconnect, message, rate) in INTERCONNECTS {
            let time = |n_ranks: u32, tree| predicted(sample, *n_params, f64::from(n_ranks), *step, (message, rate), tree);
            let cells = PREDICTED.map(|n_ranks| {
                let [built, tree] = [false, true].map(|tree| time(1, tree) / time(n_ranks, tree));
                format!(" {built:.1} ({tree:.1}) |")
            });
            let fastest = |tree| (0..11).map(|i| 1 << i).min_by(|a, b| time(*a, tree).total_cmp(&time(*b, tree))).unwrap_or(1);
            let best = [false, true].map(|tree| match fastest(tree) {
                1024 => "beyond 1,024".into(),
                n_ranks => format!("{n_ranks}"),
            });
            let _ = writeln!(text, "| {} | {interconnect} |{} {} ({}) |", name(hidden), cells.concat(), best[0], best[1]);
        }
    }
    print!("{text}");
    Ok(fs::write(root.join("bench/scale.md"), text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_finds_the_costs_that_made_the_times() {
        let costs = Fit { step: 2e-9, latency: 20e-6, byte: 0.5e-9 };
        let times = NETS.map(|(hidden, _)| {
            let (n_params, alone) = (n_params(hidden), 0.05 + 1e-6 * n_params(hidden));
            (n_params, RANKS.map(|n_ranks| modelled(alone, n_params, n_ranks as f64, &costs)))
        });
        assert!(times.iter().all(|(_, seconds)| (seconds[0] - modelled(seconds[0], 0.0, 1.0, &costs)).abs() < 1e-12));
        let found = fit(&times);
        for (found, made) in [(found.step, costs.step), (found.latency, costs.latency), (found.byte, costs.byte)] {
            assert!((found / made - 1.0).abs() < 1e-3, "{found} {made}");
        }
    }

    #[test]
    fn parameters_are_those_of_both_networks() {
        assert_eq!(n_params(&[64, 64]), (320 + 4160 + 130 + 320 + 4160 + 65) as f64);
    }
}
