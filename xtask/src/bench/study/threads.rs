//! Speed by number of threads, also beyond the cores.

use std::fmt::Write as _;

use anyhow::Result;

use crate::bench::peers::{k_range, spread};
use crate::bench::study::programs::Study;

const THREADS: [usize; 6] = [1, 2, 3, 4, 8, 16];
const ROUNDS: usize = 5;

/// Work, and how it is measured: `rl bench`, or `rl train`.
const WORK: [(&str, bool, &str); 6] = [
    ("CartPole, 4,096 environments, env steps/s", true, "env cartpole --envs 4096 --seconds 1"),
    ("Snake, 1,024 environments, env steps/s", true, "env snake --envs 1024 --seconds 1"),
    (
        "Gymnasium's CartPole, 16 environments, one worker per thread, env steps/s",
        true,
        "env gym:CartPole-v1 --envs 16 --seconds 1",
    ),
    ("PPO update, 64-64 networks, minibatch 512, samples/s", true, "update --minibatch 512 --seconds 1"),
    (
        "PPO update, 1024-1024-512-256 networks, minibatch 512, samples/s",
        true,
        "update --minibatch 512 --hidden 1024,1024,512,256 --seconds 1",
    ),
    ("PPO on CartPole, 64 environments, env steps/s", false, "cartpole --envs 64 --steps 1000000 --set ppo.batch_size=2048"),
];

/// Measures all numbers of threads in turn, round by round.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let mut text =
        study.head("Threads beyond the cores", &format!("Medians of {ROUNDS} alternating runs, with minimum and maximum."));
    let header: String = THREADS.iter().map(|n| format!(" {n} |")).collect();
    let _ = writeln!(text, "\n| threads |{header} 3 against 2 | 16 against 2 |\n|---|{}", "---|".repeat(THREADS.len() + 2));
    for (what, bench, args) in WORK {
        let mut rates = vec![Vec::new(); THREADS.len()];
        for _ in 0..ROUNDS {
            for (rates, threads) in rates.iter_mut().zip(THREADS) {
                let args = format!("{args} --threads {threads}");
                rates.push(if bench { study.bench(&args)? } else { study.train(&args, 0)?.rate });
            }
        }
        let spreads: Vec<_> = rates.into_iter().map(spread).collect();
        let cells: String = spreads.iter().map(|spread| format!(" {} |", k_range(*spread))).collect();
        let against_2 = |at: usize| spreads[at].0 / spreads[1].0;
        let cells = format!("{cells} {:.2} | {:.2} |", against_2(2), against_2(5));
        println!("{what}:{cells}");
        let _ = writeln!(text, "| {what} |{cells}");
    }
    study.write(&text, None)
}
