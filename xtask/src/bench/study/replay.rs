//! Speed of a replay memory in a file, also one larger than the machine's memory.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::bench::peers::run;
use crate::bench::study::programs::Study;

/// Capacities in transitions; the last one is measured in a file only.
const CAPACITIES: [u64; 3] = [1_000_000, 100_000_000, 600_000_000];
/// Bytes of a transition.
const ROW: u64 = 44;

/// Measures memory and file at each capacity.
pub(crate) fn measure(study: &Study<'_>) -> Result<()> {
    let dir = study.root.join("target/study-replay");
    fs::create_dir_all(&dir)?;
    let info = fs::read_to_string("/proc/meminfo")?;
    let total =
        info.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).context("/proc/meminfo")? / (1 << 20) as f64;
    let mut text = study.head(
        "Replay memory in a file",
        &format!(
            "Transitions of {ROW} bytes (CartPole's), one thread, batches of 256, additions of 4,096: per second, medians of five parts with minimum \
             and maximum.\nThe machine has {total:.0} GiB of memory; the file is on its disk.\n"
        ),
    );
    let _ = writeln!(text, "| transitions | GB | in | draws | additions |\n|---|---|---|---|---|");
    for capacity in CAPACITIES {
        for (place, option) in [("memory", None), ("a file", Some(&dir))] {
            if option.is_none() && capacity == CAPACITIES[2] {
                continue;
            }
            let mut command = study.rl();
            command.args(["bench", "replay", "--batch", "256", "--seconds", "20", "--json", "--capacity", &capacity.to_string()]);
            if let Some(dir) = option {
                command.arg("--dir").arg(dir);
            }
            let output = run(&mut command)?;
            let lines: Vec<Value> = output.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("our answers")?;
            let millions = |line: &Value| -> Result<String> {
                let [median, low, high] =
                    ["value", "min", "max"].map(|name| line[name].as_f64().map_or(f64::NAN, |rate| rate / 1e6));
                anyhow::ensure!(median.is_finite(), "{line}");
                Ok(format!("{median:.3} M ({low:.3} M to {high:.3} M)"))
            };
            let [added, drawn] = &lines[..] else { anyhow::bail!("two figures: {output}") };
            let gigabytes = (capacity * ROW) as f64 / 1e9;
            let row = format!(
                "| {} M | {gigabytes:.1} | {place} | {} | {} |",
                capacity / 1_000_000,
                millions(drawn)?,
                millions(added)?
            );
            println!("{row}");
            let _ = writeln!(text, "{row}");
        }
    }
    study.write(&text, None)
}
