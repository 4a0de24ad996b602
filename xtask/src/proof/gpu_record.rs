//! Record of a GPU: `bench/gpu-NAME.md`, with pictures and raw measurements.
//!
//! `cargo xtask gpu-record DIR` reads the results that `run.sh` of the bundle left in DIR.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::bench::growth::{Curve, duration, panel};
use crate::plot::Chart;

const MODES: [(&str, &str); 3] = [("launches", "#d95f02"), ("graph", "#1b9e77"), ("fused", "#7570b3")];
const BLOCKS: [(u64, &str, &str); 6] = [
    (32, "32 threads a block", "#a6cee3"),
    (64, "64", "#1f78b4"),
    (128, "128", "#33a02c"),
    (256, "256", "#fdbf6f"),
    (512, "512", "#ff7f00"),
    (1024, "1024", "#e31a1c"),
];
const PEERS: [(&str, &str); 4] =
    [("torch", "#999999"), ("numba", "#666666"), ("gymnax", "#e7298a"), ("gymnasium-async", "#a6761d")];
/// Required speed as a multiple of gymnax's.
const LEAST_OF_GYMNAX: f64 = 20.0;
/// Number of environments in the plot of step time against work.
const WORK_ENVS: f64 = 65_536.0;

/// Writes the record.
pub(crate) fn write(root: &Path, dir: &Path) -> Result<()> {
    let lines = |name: &str| -> Result<Vec<Value>> {
        let text = fs::read_to_string(dir.join(name)).with_context(|| dir.join(name).display().to_string())?;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| format!("{name}: {line}"))).collect()
    };
    let (rows, outcomes) = (lines("bench.jsonl")?, lines("results.jsonl")?);
    let peers = if dir.join("peers.jsonl").exists() { lines("peers.jsonl")? } else { Vec::new() };
    let named = |name: &'static str| rows.iter().filter(move |row| row["name"] == name);
    let device = named("device").find_map(|row| row["device"].as_str()).context("bench.jsonl names no device")?;
    ensure!(!device.contains("stand-in"), "{device} gives no figures");
    let name = device.split(['(', ',']).nth(1).unwrap_or(device).trim().to_lowercase();
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();

    let mut text =
        format!("# {device}\n\nWritten by `cargo xtask gpu-record` from the bundle's measurements on this device.\n\n");
    text.push_str("| comparison | outcome |\n|---|---|\n");
    for (what, outcome) in outcomes.iter().filter_map(Value::as_object).flatten() {
        let _ = writeln!(text, "| {what} | {} |", outcome.as_str().unwrap_or_default());
    }
    text.push_str("\n| bar | measured | least | met |\n|---|---|---|---|\n");
    let bar = |text: &mut String, what: &str, value: f64, least: Option<f64>| {
        let met = least.map_or("", |least| if value >= least { "yes" } else { "no" });
        let measured = if value.is_nan() { "not measured".into() } else { format!("{value:.3e}") };
        let _ = writeln!(
            text,
            "| {what} | {measured} | {} | {met} |",
            least.map_or_else(String::new, |least| format!("{least:.1e}"))
        );
    };
    for row in named("bar") {
        bar(&mut text, row["what"].as_str().unwrap_or_default(), of(row, "value"), row["least"].as_f64());
    }
    let best = |rows: &mut dyn Iterator<Item = &Value>| rows.map(|row| of(row, "value")).fold(f64::NAN, f64::max);
    let cartpole = || named("steps").filter(|row| row["env"] == "cartpole");
    let ours = best(&mut cartpole().filter(|row| row["mode"] == "graph" && row["repeat"] == 1));
    let gymnax = best(&mut peers.iter().filter(|row| row["peer"] == "gymnax" && row["repeat"] == 1));
    bar(&mut text, "CartPole by graph, times gymnax, each at its best size", ours / gymnax, Some(LEAST_OF_GYMNAX));
    for row in named("failed") {
        let _ = writeln!(
            text,
            "\nNot measured: {}: {}.",
            row["what"].as_str().unwrap_or_default(),
            row["error"].as_str().unwrap_or_default()
        );
    }

    if dir.join("train.jsonl").exists() {
        text.push_str(
            "\n| training PPO on CartPole, environments | minibatch | hidden layers | device | env steps/s |\n|---|---|---|---|---|\n",
        );
        for row in lines("train.jsonl")? {
            let (envs, batch, hidden) = (&row["envs"], &row["batch"], &row["hidden"]);
            let (on, rate) = (row["device"].as_str().unwrap_or_default(), of(&row["done"], "env_steps_per_s"));
            let _ = writeln!(text, "| {envs} | {batch} | {hidden} | {on} | {rate:.3e} |");
        }
    }

    if dir.join("crossover.jsonl").exists() {
        text.push_str(
            "\n| training PPO on CartPole, hidden layers | environments | minibatch | CPU, env steps/s | GPU, env steps/s | ratio |\n\
             |---|---|---|---|---|---|\n",
        );
        for row in lines("crossover.jsonl")? {
            let (hidden, envs, minibatch) = (&row["hidden"], &row["envs"], &row["minibatch"]);
            let [cpu, gpu, ratio] = ["cpu_value", "value", "ratio"].map(|key| of(&row, key));
            let _ = writeln!(text, "| {hidden} | {envs} | {minibatch} | {cpu:.3e} | {gpu:.3e} | {ratio:.2} |");
        }
    }

    text.push_str(
        "\n| environment | registers | spilled bytes | largest block | best block by the driver |\n|---|---|---|---|---|\n",
    );
    for row in named("kernel") {
        let [registers, local, most, block] =
            ["registers", "local_bytes", "max_threads", "suggested_block"].map(|key| of(row, key));
        let _ = writeln!(text, "| {} | {registers} | {local} | {most} | {block} |", row["env"].as_str().unwrap_or_default());
    }
    text.push_str("\nMost environment steps a second, whatever number and block size:\n\n| environment |");
    MODES.iter().for_each(|(mode, _)| text.push_str(&format!(" {mode} |")));
    text.push_str("\n|---|---|---|---|\n");
    let mut fastest: BTreeMap<&str, [f64; 3]> = BTreeMap::new();
    for row in named("steps").filter(|row| row["repeat"] == 1) {
        let rates = fastest.entry(row["env"].as_str().unwrap_or_default()).or_default();
        let mode = MODES.iter().position(|(mode, _)| row["mode"] == *mode).unwrap_or(0);
        rates[mode] = rates[mode].max(of(row, "value"));
    }
    for (env, rates) in fastest {
        let _ = writeln!(text, "| {env} | {:.2e} | {:.2e} | {:.2e} |", rates[0], rates[1], rates[2]);
    }
    for (peer, _) in PEERS {
        let rate = best(&mut peers.iter().filter(|row| row["peer"] == peer && row["repeat"] == 1));
        if rate > 0.0 {
            let _ = writeln!(text, "| CartPole of {peer} | {rate:.2e} | | |");
        }
    }
    text.push_str("\n| memory | GB/s | of the copy |\n|---|---|---|\n");
    for row in ["copy", "gae", "gather"].into_iter().flat_map(named) {
        let share = row["share_of_copy"].as_f64().map_or_else(String::new, |share| format!("{:.0}%", 100.0 * share));
        let _ = writeln!(text, "| {} | {:.0} | {share} |", row["name"].as_str().unwrap_or_default(), of(row, "value") / 1e9);
    }
    const COPIES: [&str; 7] = [
        "to_device_pageable",
        "to_device_pinned",
        "to_device_combined",
        "from_device_pageable",
        "from_device_pinned",
        "both_in_turn",
        "both_overlapped",
    ];
    let _ = writeln!(
        text,
        "\nBetween host and device, GB/s:\n\n| bytes | {} |\n|---|{}",
        COPIES.join(" | "),
        "---|".repeat(COPIES.len())
    );
    for row in named("host_copies") {
        let rates: Vec<String> = COPIES.iter().map(|key| format!("{:.2}", of(row, key) / 1e9)).collect();
        let _ = writeln!(text, "| {} | {} |", of(row, "bytes"), rates.join(" | "));
    }
    let _ = writeln!(text, "\n![CartPole](gpu-{name}.svg)");

    // Seconds per step as a function of one field; the minimum where several rows share its value.
    let curve = |rows: &mut dyn Iterator<Item = &Value>, x: &str, seconds: &dyn Fn(&Value) -> f64| -> Vec<(f64, f64)> {
        let mut least: BTreeMap<u64, f64> = BTreeMap::new();
        for row in rows.filter(|row| of(row, "value") > 0.0) {
            let at = least.entry(of(row, x) as u64).or_insert(f64::INFINITY);
            *at = at.min(seconds(row));
        }
        least.into_iter().map(|(x, seconds)| (x as f64, seconds)).collect()
    };
    let all_envs = |row: &Value| of(row, "envs") / of(row, "value");
    let once = |row: &&Value| row["repeat"] == 1;
    let mut by_size: Vec<Curve> = Vec::new();
    let mut by_work: Vec<Curve> = Vec::new();
    for (mode, color) in MODES {
        by_size.push((mode, color, curve(&mut cartpole().filter(once).filter(|row| row["mode"] == mode), "envs", &all_envs)));
        let mut rows = cartpole().filter(|row| row["mode"] == mode && of(row, "envs") == WORK_ENVS);
        by_work.push((mode, color, curve(&mut rows, "repeat", &all_envs)));
    }
    for (peer, color) in PEERS {
        let of_peer = || peers.iter().filter(|row| row["peer"] == peer);
        by_size.push((peer, color, curve(&mut of_peer().filter(once), "envs", &all_envs)));
        by_work.push((peer, color, curve(&mut of_peer().filter(|row| of(row, "envs") == WORK_ENVS), "repeat", &all_envs)));
    }
    let by_block = BLOCKS.map(|(block, label, color)| {
        let mut rows = cartpole().filter(once).filter(|row| row["mode"] == "launches" && row["block"] == block);
        (label, color, curve(&mut rows, "envs", &all_envs))
    });
    let mut chart = Chart::new();
    for (what, to, curves) in [
        ("CartPoles", (1u64 << 22) as f64, &by_size[..]),
        ("CartPoles, one launch a step", (1u64 << 22) as f64, &by_block[..]),
        ("times the work is repeated, 65,536 CartPoles", 256.0, &by_work[..]),
    ] {
        let curves: Vec<Curve> = curves.iter().filter(|(.., points)| !points.is_empty()).cloned().collect();
        if !curves.is_empty() {
            panel(&mut chart, what, to, &curves);
        }
    }
    fs::create_dir_all(root.join("bench"))?;
    fs::write(root.join(format!("bench/gpu-{name}.md")), text)?;
    fs::write(root.join(format!("bench/gpu-{name}.svg")), chart.finish())?;
    let raw: String = rows.iter().chain(&peers).map(|row| format!("{row}\n")).collect();
    fs::write(root.join(format!("bench/gpu-{name}.jsonl")), raw)?;
    println!("written to bench/gpu-{name}.md, .svg and .jsonl; a step of one CartPole takes {}", duration(1.0 / ours));
    Ok(())
}

fn of(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}
