//! Steps and replayed transitions from a loop of Python, beside packages of Python.

use std::fmt::Write as _;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::bench::peers::{peers_python, run, spread};
use crate::bench::study::programs::Study;
use crate::wheel;

const ROUNDS: usize = 3;

/// Row of the record, ours first among those who can do its work.
struct Loop {
    name: &'static str,
    /// Arguments of `from_python.py`.
    args: &'static str,
    who: &'static [&'static str],
}

const STEPS: &[&str] = &["samebits", "samebits-copy", "envpool", "sync", "vector", "gymnax"];
const REPLAYS: &[&str] = &["samebits", "cpprb", "torchrl"];

const CASES: [Loop; 9] = [
    Loop { name: "CartPole, 1 environment", args: "steps cartpole 1", who: STEPS },
    Loop { name: "CartPole, 64 environments", args: "steps cartpole 64", who: STEPS },
    Loop { name: "CartPole, 4,096 environments", args: "steps cartpole 4096", who: STEPS },
    Loop { name: "Snake, 1,024 environments", args: "steps snake 1024", who: &["samebits", "samebits-copy", "envpool"] },
    Loop { name: "transitions added, 4,096 at once", args: "add 4096", who: REPLAYS },
    Loop { name: "drawn, 256 at once", args: "sample 256", who: REPLAYS },
    Loop { name: "drawn, 4,096 at once", args: "sample 4096", who: REPLAYS },
    Loop { name: "drawn by priorities and updated, 256", args: "update 256", who: REPLAYS },
    Loop { name: "drawn by priorities and updated, 4,096", args: "update 4096", who: REPLAYS },
];

/// Measures every case, all programs in turn.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let python = peers_python(study.root, "target/peers-python", "requirements-python.txt")?;
    let wheel = wheel::build(study.root)?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps"]).arg(wheel))?;
    let study = &Study { root: study.root, name: study.name, python };
    let mut text = study.head(
        "From a loop of Python",
        &format!(
            "Environment steps per second with random actions that NumPy draws inside the clock, and transitions per second of a replay memory of a million\n\
             (4-float observations); medians of {ROUNDS} interleaved runs of a second, their lowest and highest, and how many times as fast ours is, with copies. `samebits` steps up to 256 environments on one thread, more \
             on two;\nits arrays are copies, or those of the next step (`copy=False`). EnvPool is synchronous, on two threads. sync and vector are Gymnasium's SyncVectorEnv and \
             CartPoleVectorEnv,\ngymnax is a jitted step that a loop of Python calls.\n"
        ),
    );
    for (names, cases) in [(STEPS, &CASES[..4]), (REPLAYS, &CASES[4..])] {
        let _ = writeln!(text, "| | {} |\n|---|{}", names.join(" | "), "---|".repeat(names.len()));
        for Loop { name, args, who } in cases {
            let mut rates = vec![Vec::new(); who.len()];
            for _ in 0..ROUNDS {
                for (who, rates) in who.iter().zip(&mut rates) {
                    rates.push(study.peer("from_python.py", &format!("{who} {args} 1"))?.as_f64().context("a rate")?);
                }
            }
            let spreads: Vec<(f64, f64, f64)> = rates.into_iter().map(spread).collect();
            let ours = spreads[who.iter().position(|who| *who == "samebits-copy").unwrap_or(0)].0;
            let cell = |name: &str| match who.iter().position(|who| *who == name).map(|i| spreads[i]) {
                Some((median, low, high)) => {
                    let ratio =
                        if name.starts_with("samebits") { String::new() } else { format!(", ours {:.1}x", ours / median) };
                    format!("{} ({} to {}){ratio}", si(median), si(low), si(high))
                }
                None => "-".into(),
            };
            let cells: Vec<String> = names.iter().map(|name| cell(name)).collect();
            println!("{name}: {}", cells.join(" | "));
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        let _ = writeln!(text);
    }
    study.write(&text, None)
}

/// A rate in thousands or millions.
fn si(rate: f64) -> String {
    if rate >= 1e6 { format!("{:.2} M", rate * 1e-6) } else { format!("{:.1} k", rate * 1e-3) }
}
