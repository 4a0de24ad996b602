//! Long runs side by side, watched for growth.
//!
//! Memory, threads, child processes and file descriptors are sampled.
//!
//! `cargo xtask soak --hours N` writes `bench/soak.md` and `bench/soak.svg`; with `--crawl` it crawls websites with faults
//! and writes `bench/soak-crawl.md` and `.svg`. It fails on growth after the warm-up, on a run that ends early, and on a run that
//! cannot be resumed afterwards.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::plot::{Axis, Chart};
use crate::process::{Process, RlProgram, machine, newest_checkpoint, status};

/// Maximum interval between samples.
const INTERVAL: Duration = Duration::from_secs(10);
/// Warm-up, in which buffers fill and allocators settle; a quarter of a short soak.
const WARM_UP: Duration = Duration::from_secs(300);
/// Maximum memory growth that counts as flat, in MiB per hour.
const FLAT: f64 = 1.0;
/// Memory growth over a whole short soak that counts as noise, in MiB.
const NOISE: f64 = 0.5;
/// Time that a niced process may take to finish an update and save.
const END: Duration = Duration::from_secs(300);

/// Configuration of one process.
struct Workload {
    name: &'static str,
    color: &'static str,
    /// Arguments of `rl`. Training and `site` end by SIGTERM, `bench` by itself.
    args: &'static str,
}

const TRAINING: [Workload; 6] = [
    Workload {
        name: "PPO, overlapped",
        color: "#1b9e77",
        args: "train cartpole --set pipeline=overlapped --set checkpoint_every=1000000 --set log_interval=1000 --set eval_episodes=5 \
               --eval-every 5000000",
    },
    Workload {
        name: "DQN, replay saved",
        color: "#d95f02",
        args: "train cartpole --algo dqn --set dqn.buffer_size=20000 --set dqn.save_replay=true --set dqn.prioritized=true \
               --set dqn.gradient_steps=4 --set checkpoint_every=50000 --set log_interval=1000 --set eval_episodes=5 \
               --eval-every 200000",
    },
    Workload {
        name: "A2C",
        color: "#7570b3",
        args: "train acrobot --algo a2c --set checkpoint_every=200000 --set log_interval=10000 --set eval_episodes=5 \
               --eval-every 1000000",
    },
    Workload {
        name: "PPO, convolutions",
        color: "#e7298a",
        args: "train snake --envs 16 --set conv=[[8,3,1]] --set hidden=[32] --set ppo.batch_size=256 --set checkpoint_every=200000 \
               --set log_interval=100 --set eval_episodes=5 --eval-every 500000",
    },
    Workload {
        name: "PPO, saved and evaluated often",
        color: "#66a61e",
        args: "train mountain_car_continuous --set checkpoint_every=4096 --set log_interval=1000 --set eval_episodes=2 \
               --eval-every 4096",
    },
    Workload {
        name: "environments that fail",
        color: "#a6761d",
        args: "bench pipeline --envs 16 --latency-ms 5 --update-ms 100 --n-steps 32 --fail 0.001",
    },
];

/// Websites with faults, and crawlers that learn on them.
const CRAWL: [Workload; 3] = [
    Workload {
        name: "websites",
        color: "#a6761d",
        args: "site --port 8017 --latency exp --latency-ms 200 --errors 0.01 --hangs 0.005 --redirects 0.01 --malformed 0.01 \
               --endless 0.005",
    },
    Workload {
        name: "crawl, PPO",
        color: "#1b9e77",
        args: "train crawl --set checkpoint_every=20000 --set eval_episodes=2 --set max_restarts=1000000",
    },
    Workload {
        name: "crawl, DQN",
        color: "#d95f02",
        args: "train crawl --algo dqn --set dqn.buffer_size=5000 --set checkpoint_every=20000 --set eval_episodes=2 \
               --set max_restarts=1000000",
    },
];

/// Measurement of a process at one time.
#[derive(Clone, Copy)]
struct Sample {
    hours: f64,
    mib: f64,
    threads: u32,
    children: u32,
    descriptors: u32,
}

/// Number in a sample that must not grow.
type Count = (&'static str, fn(&Sample) -> u32);

const COUNTS: [Count; 3] = [("threads", |s| s.threads), ("child processes", |s| s.children), ("descriptors", |s| s.descriptors)];

#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    #[arg(long, value_name = "N")]
    hours: f64,
    /// Run crawlers on websites with faults
    #[arg(long)]
    crawl: bool,
    #[command(flatten)]
    program: RlProgram,
}

/// Runs the workloads of a set and writes its record.
pub(crate) fn measure(root: &Path, args: &SoakArgs) -> Result<()> {
    let &SoakArgs { hours, crawl, .. } = args;
    let workloads: &[Workload] = if crawl { &CRAWL } else { &TRAINING };
    if !(0.002..=1000.0).contains(&hours) {
        bail!("--hours {hours}: not a number from 0.002 to 1000");
    }
    let time = Duration::from_secs_f64(hours * 3600.0);
    let dir = root.join("target/soak");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir)?;
    // Run a copy, so that a build in the meantime does not change the program.
    let machine = machine(root); // now: hours later there may be another commit
    let program = dir.join("rl");
    fs::copy(args.program.get(root, if crawl { &["--features", "crawl"] } else { &[] })?, &program)?;
    let mut processes =
        workloads.iter().enumerate().map(|(i, arm)| start(&program, &dir, i, arm, time)).collect::<Result<Vec<_>>>()?;
    let samples = watch(workloads, &mut processes, time)?;
    let mut log = String::from("arm,hours,mib,threads,children,descriptors\n");
    for (arm, samples) in workloads.iter().zip(&samples) {
        for Sample { hours, mib, threads, children, descriptors } in samples {
            let _ = writeln!(log, "\"{}\",{hours},{mib},{threads},{children},{descriptors}", arm.name);
        }
    }
    fs::write(dir.join("samples.csv"), log)?;
    let mut problems = Vec::new();
    // In reverse: websites are first in their set and end last.
    for (i, (process, arm)) in processes.iter_mut().zip(workloads).enumerate().rev() {
        if !arm.ends_by_itself() {
            process.terminate().context(arm.name)?;
        }
        let code = if arm.trains() { 130 } else { 0 };
        match process.wait(END) {
            Ok(status) if status.code() == Some(code) => {
                let resumed = if arm.trains() { resume(&program, &dir, i) } else { Ok(()) };
                problems.extend(resumed.err().map(|error| format!("{}: {error:#}", arm.name)));
            }
            Ok(status) => problems.push(format!("{}: {status} instead of {code}\n{}", arm.name, process.complaint())),
            Err(error) => problems.push(format!("{}: {error}", arm.name)),
        }
    }
    let warm_up = WARM_UP.min(time / 4).as_secs_f64() / 3600.0;
    let name = if crawl { "soak-crawl" } else { "soak" };
    write(root, (name, workloads), &machine, &samples, (hours, warm_up), &mut problems)?;
    if !problems.is_empty() {
        bail!("{}\nruns and samples are in {}", problems.join("\n"), dir.display());
    }
    fs::remove_dir_all(&dir)?;
    println!("flat");
    Ok(())
}

impl Workload {
    fn trains(&self) -> bool {
        self.args.starts_with("train")
    }

    fn ends_by_itself(&self) -> bool {
        self.args.starts_with("bench")
    }
}

fn start(program: &Path, dir: &Path, i: usize, arm: &Workload, time: Duration) -> Result<Process> {
    let mut command = Command::new("nice");
    command.args(["-n", "19"]).arg(program).args(arm.args.split_whitespace());
    if arm.trains() {
        command
            .args("--threads 1 --steps 1000000000000 --set keep_checkpoints=2 --run-dir".split(' '))
            .arg(dir.join(format!("{i}")));
    } else if arm.ends_by_itself() {
        command.args(["--seconds", &time.as_secs().to_string()]);
    }
    Process::start(&mut command, &dir.join(format!("{i}.err")))
}

/// Samples every process until `time` is over.
fn watch(workloads: &[Workload], processes: &mut [Process], time: Duration) -> Result<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::new(); processes.len()];
    let interval = INTERVAL.min(time / 60);
    let (begin, mut told) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < time {
        std::thread::sleep(interval.min(time.saturating_sub(begin.elapsed())));
        let hours = begin.elapsed().as_secs_f64() / 3600.0;
        for ((process, arm), samples) in processes.iter_mut().zip(workloads).zip(&mut samples) {
            match (process.ended()?, sample(process.id(), hours)) {
                (None, Ok(sample)) => samples.push(sample),
                // The bench starts its clock with its first rollout, and may end with the last sample.
                _ if arm.ends_by_itself() && begin.elapsed() + interval > time => {}
                (Some(status), _) => {
                    bail!("{}: ended after {hours:.3} hours, {status}\n{}", arm.name, process.complaint());
                }
                (None, Err(error)) => return Err(error.context(arm.name)),
            }
        }
        if begin.elapsed() >= told {
            told += time / 24;
            let last =
                workloads.iter().zip(&samples).map(|(arm, s)| format!("{} {:.1}", arm.name, s.last().map_or(0.0, |s| s.mib)));
            println!("{hours:.3} h, MiB: {}", last.collect::<Vec<_>>().join("; "));
        }
    }
    Ok(samples)
}

fn sample(id: u32, hours: f64) -> Result<Sample> {
    let descriptors = fs::read_dir(format!("/proc/{id}/fd"))?.count() as u32;
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?.split_whitespace().count() as u32;
    let (mib, threads) = (f64::from(status(id, "VmRSS:")?) / 1024.0, status(id, "Threads:")?);
    Ok(Sample { hours, mib, threads, children, descriptors })
}

/// Trains a little further from the last checkpoint.
fn resume(program: &Path, dir: &Path, i: usize) -> Result<()> {
    let run = dir.join(format!("{i}"));
    let (_, steps) = newest_checkpoint(&run).context("the run left no checkpoint")?;
    let mut command = Command::new(program);
    command.args(["train", "--steps", &(steps + 1).to_string(), "--resume"]).arg(&run);
    let mut process = Process::start(&mut command, &dir.join(format!("{i}.resume.err")))?;
    let status = process.wait(END)?;
    if !status.success() {
        bail!("the resumed run ended with {status}\n{}", process.complaint());
    }
    Ok(())
}

/// Fits a line through the samples by least squares; returns MiB per hour.
fn slope(samples: &[Sample]) -> f64 {
    let n = samples.len() as f64;
    let (x, y) = samples.iter().fold((0.0, 0.0), |(x, y), s| (x + s.hours / n, y + s.mib / n));
    let (xy, xx) =
        samples.iter().map(|s| (s.hours - x, s.mib - y)).fold((0.0, 0.0), |(xy, xx), (dx, dy)| (xy + dx * dy, xx + dx * dx));
    xy / xx
}

/// Returns the median of samples.
///
/// Connections come and go: a descriptor that is open for some samples does not count as growth.
fn median(samples: &[Sample], of: impl Fn(&Sample) -> u32) -> u32 {
    let mut values: Vec<u32> = samples.iter().map(of).collect();
    values.sort_unstable();
    values[values.len() / 2]
}

/// Writes the table and the picture, and adds growth to `problems`.
fn write(
    root: &Path,
    (name, workloads): (&str, &[Workload]),
    machine: &str,
    samples: &[Vec<Sample>],
    (hours, warm_up): (f64, f64),
    problems: &mut Vec<String>,
) -> Result<()> {
    let mut text = format!(
        "# Soak\n\nWritten by `cargo xtask soak{} --hours {hours}`: {} processes side by side, niced, on {}. Samples every {:.0} s, without a \
         warm-up of\n{:.1} minutes. The slope is a least-squares fit; counts are\nmedians of the first and of the last quarter. At the end the runs were interrupted (SIGTERM), had to exit with 130, \
         and were resumed.\n\n\
         | what | MiB after the warm-up | MiB at the end | slope, MiB/h | threads | child processes | descriptors \
         |\n|---|---|---|---|---|---|---|\n",
        if name == "soak" { "" } else { " --crawl" },
        workloads.len(),
        machine,
        INTERVAL.as_secs_f64().min(60.0 * hours),
        60.0 * warm_up,
    );
    let most = samples.iter().flatten().map(|s| s.mib).fold(1.0, f64::max);
    let mut chart = Chart::new();
    let mut panel =
        chart.panel(Axis::linear("hours", hours), Axis::linear("resident memory, MiB", (1.6 * most / 4.0).ceil() * 4.0));
    let mut arguments = String::new();
    for (arm, samples) in workloads.iter().zip(samples) {
        panel.line(samples.iter().map(|s| (s.hours, s.mib)), arm.color);
        panel.label(arm.name, arm.color);
        let warm: Vec<Sample> = samples.iter().copied().filter(|s| s.hours >= warm_up).collect();
        let quarter = warm.len().div_ceil(4);
        let (Some(first), Some(last)) = (warm.first(), warm.last()) else {
            bail!("{}: no samples after the warm-up", arm.name);
        };
        let slope = slope(&warm);
        if slope > FLAT && slope * (last.hours - first.hours) > NOISE {
            problems.push(format!("{}: memory grows by {slope:.2} MiB/h", arm.name));
        }
        let mut ends = Vec::new();
        for (what, of) in COUNTS {
            let (first, last) = (median(&warm[..quarter], of), median(&warm[warm.len() - quarter..], of));
            if last > first {
                problems.push(format!("{}: {last} {what} at the end, {first} at first", arm.name));
            }
            ends.push(format!("{first}, {last}"));
        }
        let _ = writeln!(text, "| {} | {:.2} | {:.2} | {slope:+.3} | {} |", arm.name, first.mib, last.mib, ends.join(" | "));
        let args = arm.args.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(arguments, "- {}: `rl {args}`", arm.name);
    }
    let _ = write!(text, "\n![Memory]({name}.svg)\n\nOne thread each, two checkpoints kept, unlimited steps:\n\n{arguments}");
    println!("{text}");
    // A record is of a soak that passed.
    if problems.is_empty() {
        fs::write(root.join(format!("bench/{name}.md")), &text)?;
        fs::write(root.join(format!("bench/{name}.svg")), chart.finish())?;
    }
    Ok(())
}
