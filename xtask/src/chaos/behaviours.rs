//! Random behaviours of workers, with signals to the program.
//!
//! `cargo xtask behaviours --runs N` trains in worker processes that misbehave: late, short, long and wrong bytes, hangs,
//! crashes, closed sockets, slow ends, ignored signals, processes of their own. Trainings are in lock-step or first come, and get
//! no signal, INT, TERM or KILL at a random moment, once or twice. Afterwards no process may be left; the program must have ended
//! in time, with a documented exit code, and must have counted each fault. With `--python FILE`, every fourth run has
//! environments of Gymnasium.
//!
//! A behaviour is a function of the seed and its index: `--index I` runs one again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::chaos::mutate::Random;
use crate::chaos::worker::{FAULTS, FORKS, HARMLESS};
use crate::process::{Process, RlProgram, left, mark, scratch, signal};

/// Time in which all processes must have ended after the program.
const LEFT: Duration = Duration::from_secs(5);
/// Longest training without a signal, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest time from a signal to the end.
///
/// A second to obey, [`CLOSE_S`] to close, and what a busy machine needs.
const OBEYED: Duration = Duration::from_secs(10);
/// Seconds of `timeout_s`, of the limit of a start, and of closing.
const TIMEOUT_S: u32 = 2;
const START_S: u32 = 10;
const CLOSE_S: u32 = 4;
/// Time of the workers' bytes that are late, but within the limits.
const LATE_MS: usize = 300;

/// Faults that the program notices by a time limit; a crash may be a stop.
const WAITS: [&str; 7] = ["trickle", "short", "hang", "deaf", "crash", "shut", "shut-reading"];

/// Settings of every training; two environments.
const COMMON: &str = "--envs 2 --threads 2 --set hidden=[4] --set ppo.n_steps=16 --set ppo.batch_size=32 --set \
                      ppo.n_epochs=1 --set eval_episodes=1 --set checkpoint_every=64";

/// Signals to the program: a name, the time before, the time until a second one.
struct Signals {
    name: &'static str,
    after: Duration,
    again: Option<Duration>,
}

/// Misbehaviour, training and signals.
struct Behaviour {
    plan: Value,
    /// Phase, act and process started, for tables.
    act: String,
    fork: &'static str,
    drive: &'static str,
    in_python: bool,
    /// True if the worker ignores INT, TERM and HUP.
    ignores: bool,
    workers: u32,
    max_restarts: u32,
    signals: Option<Signals>,
}

/// Settings that a program may have: limits of starts and of closing.
struct Limits(Vec<String>);

/// Outcome of a run: signals and exit in words, and everything that is wrong.
struct Outcome {
    signal: String,
    exit: String,
    problems: Vec<String>,
    details: String,
}

/// Counts so far.
#[derive(Default)]
struct Counts {
    exits: BTreeMap<(String, String), u64>,
    problems: BTreeMap<(String, String), u64>,
    failed: u64,
    runs: u64,
    slowest: Duration,
}

#[derive(clap::Args)]
pub(crate) struct BehavioursArgs {
    #[arg(long, value_name = "N", required_unless_present = "index")]
    runs: Option<u64>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Run this one of them again
    #[arg(long, value_name = "I", conflicts_with = "runs")]
    index: Option<u64>,
    /// Python in which some are environments of Gymnasium
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    #[command(flatten)]
    program: RlProgram,
}

/// Runs the behaviours, and prints the tables.
pub(crate) fn run(root: &Path, args: &BehavioursArgs) -> Result<()> {
    let &BehavioursArgs { index, seed, ref python, .. } = args;
    let runs = args.runs.unwrap_or(1);
    let program = args.program.get(root, &[])?;
    let limits = Limits::of(&program)?;
    let home = scratch(root, "behaviours")?;
    let (next, counts) = (AtomicU64::new(index.unwrap_or(0)), Mutex::new(Counts::default()));
    let end = index.unwrap_or(0) + runs;
    let job = |_: usize| -> Result<()> {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= end {
                return Ok(());
            }
            let behaviour = Behaviour::new(&mut Random::new(seed, index), python.is_some());
            let dir = home.join(index.to_string());
            let begin = Instant::now();
            let Outcome { signal, exit, problems, details } =
                behaviour.run(&program, &limits, python.as_deref(), &dir, &mark(index))?;
            let _ = fs::remove_dir_all(&dir);
            let mut counts = counts.lock().expect("no job panics with the counts");
            counts.runs += 1;
            counts.slowest = counts.slowest.max(begin.elapsed());
            *counts.exits.entry((signal.clone(), exit)).or_default() += 1;
            counts.failed += u64::from(!problems.is_empty());
            for problem in &problems {
                let (kind, _) = problem.split_once(':').unwrap_or((problem, ""));
                *counts.problems.entry((kind.into(), format!("{}, {signal}", behaviour.group()))).or_default() += 1;
                println!("FAILED seed {seed}, index {index} ({}): {problem}", behaviour.shown());
            }
            if counts.runs.is_multiple_of(50) {
                println!("{} of {runs} behaviours, {} failed", counts.runs, counts.failed);
            }
            if runs == 1 {
                println!("{}\n{details}", behaviour.shown());
            }
        }
    };
    let jobs = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        let job = &job;
        let jobs: Vec<_> = (0..jobs).map(|i| scope.spawn(move || job(i))).collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("a job returns"))
    })?;
    let _ = fs::remove_dir_all(&home);
    let counts = counts.into_inner().expect("no job panics with the counts");
    println!("\n| signal | exit | runs |\n|---|---|---|");
    counts.exits.iter().for_each(|((signal, exit), n)| println!("| {signal} | {exit} | {n} |"));
    let (runs, slowest) = (counts.runs, counts.slowest.as_secs_f64());
    if counts.failed == 0 {
        println!(
            "\nseed {seed}: {runs} behaviours; none left a process or hung, each fault was counted; the longest took {slowest:.1} s"
        );
        return Ok(());
    }
    println!("\n| problem | worker | runs |\n|---|---|---|");
    counts.problems.iter().for_each(|((problem, group), n)| println!("| {problem} | {group} | {n} |"));
    let mut kinds = BTreeMap::<&str, u64>::new();
    counts.problems.iter().for_each(|((kind, _), n)| *kinds.entry(kind).or_default() += n);
    let kinds: Vec<_> = kinds.iter().map(|(kind, n)| format!("{n} times: {kind}")).collect();
    bail!("seed {seed}: {} of {runs} behaviours failed; the longest took {slowest:.1} s\n{}", counts.failed, kinds.join("\n"))
}

impl Signals {
    /// Sends the signals; returns their number, and the exit status.
    ///
    /// `None` if the process does not end in time.
    fn send(&self, process: &mut Process) -> Result<(usize, Option<ExitStatus>)> {
        let waits = [Some(self.after), self.again];
        for (sent, wait) in waits.into_iter().flatten().enumerate() {
            if let Some(status) = process.ended_within(wait)? {
                return Ok((sent, Some(status)));
            }
            // A process that ends at this moment takes no signal.
            let _ = signal(process.id(), self.name);
        }
        Ok((waits.into_iter().flatten().count(), process.ended_within(OBEYED)?))
    }
}

impl Limits {
    /// Reads which limits the program lets a user set.
    fn of(program: &Path) -> Result<Self> {
        let list = crate::bench::peers::run(Command::new(program).args(["list", "--json"]))?;
        let names: Vec<String> = list
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|line| line["event"] == "setting")
            .filter_map(|line| line["name"].as_str().map(String::from))
            .collect();
        let timeouts = names.iter().filter(|name| name.contains("timeout"));
        Ok(Self(
            timeouts
                .filter_map(|name| match name.as_str() {
                    name if name.contains("start") => Some(format!("{name}={START_S}")),
                    name if name.contains("close") => Some(format!("{name}={CLOSE_S}")),
                    _ => None,
                })
                .collect(),
        ))
    }

    fn has_start(&self) -> bool {
        self.0.iter().any(|setting| setting.contains("start"))
    }
}

impl Behaviour {
    fn new(random: &mut Random, may_be_python: bool) -> Self {
        let in_python = may_be_python && random.percent(25);
        let workers = 1 + random.below(2) as u32;
        let drive = *random.pick(&["lockstep", "first_come"]);
        let (harmless, faults): (&[&str], &[&str]) = if in_python {
            (&["none", "late", "stderr"], &["hang", "deaf", "exit", "crash", "shut", "raise"])
        } else {
            (&HARMLESS, &FAULTS)
        };
        let (phase, nth) = match random.below(10) {
            0 => ("hello", 1),
            1 => ("close", 1),
            2 | 3 => ("begin", 1),
            _ => ("step", 1 + random.below(20)),
        };
        let acts = if random.percent(35) { harmless } else { faults };
        let act = *random.pick(acts);
        // `closed` and `close_ms` are about workers that are asked to close.
        let act = if phase == "close" && act != "none" { "hang" } else { act };
        let ms = match act {
            "late" => random.below(LATE_MS),
            "drip" => 10,
            "trickle" => 300,
            _ => 1,
        };
        let mut faults = vec![json!({"phase": phase, "nth": nth, "act": act, "ms": ms, "seed": random.next() >> 1})];
        let fork = if random.percent(40) { *random.pick(&FORKS) } else { "no process" };
        if fork != "no process" {
            let (phase, nth) = *random.pick(&[("hello", 1), ("begin", 1), ("step", 3), ("close", 1)]);
            let phase = if in_python && phase == "close" { "step" } else { phase };
            faults.push(json!({"phase": phase, "nth": nth, "act": fork, "holds": random.percent(50)}));
        }
        let processes = match random.below(10) {
            0..5 => (0, Some(1)),
            5..7 if workers == 2 || drive == "first_come" => (1, Some(2)),
            5..7 => (0, Some(1)),
            _ => (0, None),
        };
        let longest = *random.pick(&[300, 800, 3000]);
        let after = Duration::from_millis(random.below(longest) as u64);
        // Wrappers repeat a signal at once, people after a moment.
        let moment = if random.percent(50) { random.below(60) } else { 1100 + random.below(500) };
        let again = random.percent(30).then_some(Duration::from_millis(moment as u64));
        let name = *random.pick(&["INT", "TERM", "KILL"]);
        let signals = random.percent(70).then_some(Signals { name, after, again });
        // Those of one environment are large enough for memory.
        let len = if random.percent(25) { 8000 } else { 1 };
        let plan = json!({
            "greeting": {
                "protocol": 1, "worker": "a walk", "action": {"kind": "discrete", "n": 2}, "memory": random.percent(70),
                "observation": {"dtype": "f32", "shape": [len], "low": vec![-5; len], "high": vec![5; len]},
            },
            "faults": faults, "processes": processes,
            "close_ms": if random.percent(20) { 1200 + random.below(1000) } else { 0 },
            "stubborn": random.percent(20), "ignores": random.percent(25),
        });
        Self {
            act: format!("{phase} {act}"),
            fork,
            drive,
            in_python,
            ignores: plan["ignores"] == true,
            workers,
            max_restarts: if processes.1.is_none() { random.below(2) as u32 } else { 3 },
            signals,
            plan,
        }
    }

    /// Kind of behaviour in tables.
    fn group(&self) -> String {
        let python = if self.in_python { ", Python" } else { "" };
        format!("{}, {}, {}{python}", self.drive, self.act, self.fork)
    }

    fn shown(&self) -> String {
        let at = self.signals.as_ref().map_or(String::new(), |signals| {
            let again = signals.again.map_or(String::new(), |again| format!(", again after {} ms", again.as_millis()));
            format!(", {} at {} ms{again}", signals.name, signals.after.as_millis())
        });
        let (group, plan) = (self.group(), &self.plan);
        format!(
            "{group}{at}, processes {}, restarts {}, workers {}, close {} ms, stubborn {}, ignores {}",
            plan["processes"], self.max_restarts, self.workers, plan["close_ms"], plan["stubborn"], plan["ignores"]
        )
    }

    /// True if a limit of starts, which may have no setting, ends the wait.
    fn starts_late(&self) -> bool {
        let is_start = self.act.starts_with("hello") || self.act.starts_with("begin");
        is_start && WAITS.iter().any(|act| self.act.ends_with(act))
    }

    fn run(&self, program: &Path, limits: &Limits, python: Option<&Path>, dir: &Path, mark: &str) -> Result<Outcome> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir)?;
        fs::write(dir.join("plan.json"), self.plan.to_string())?;
        fs::write(dir.join("behaviour.py"), include_str!("../../fuzz/behaviour.py"))?;
        let env = match (self.in_python, self.ignores) {
            (true, _) => "gym:behaviour:Walk",
            (_, false) => "exec:\"$RL_XTASK\" worker plan.json",
            (_, true) => "exec:sh -c 'trap \"\" HUP INT TERM; exec \"$RL_XTASK\" worker plan.json'",
        };
        let mut command = Command::new(program);
        // A training does not end before its signal, nor, first come, before the slower environment's fault.
        let steps = match (&self.signals, self.drive) {
            (Some(_), _) => "100_000_000",
            (None, "lockstep") => "256",
            (None, _) => "8192",
        };
        command.args(["train", env, "--run-dir", "run", "--steps", steps]).args(COMMON.split(' '));
        command.args(["--set".into(), format!("drive={}", self.drive)]).args(["--set".into(), format!("timeout_s={TIMEOUT_S}")]);
        command.args(["--set".into(), format!("max_restarts={}", self.max_restarts)]);
        if self.drive == "lockstep" {
            command.args(["--set".into(), format!("workers={}", self.workers)]);
        }
        command.args(limits.0.iter().flat_map(|limit| ["--set", limit]));
        if let Some(python) = python {
            command.arg("--python").arg(python);
        }
        command.current_dir(dir).env("RL_XTASK", std::env::current_exe()?).env("RL_MARK", &mark["RL_MARK=".len()..]);
        let mut process = Process::start(&mut command, &dir.join("stderr"))?;
        let mut problems = Vec::new();
        let (sent, status) = match &self.signals {
            Some(signals) => signals.send(&mut process)?,
            None => {
                // Without a setting, each start may take two minutes.
                let starts = if self.starts_late() && !limits.has_start() { 2 * (1 + self.max_restarts) } else { 0 };
                (0, process.ended_within(LIMIT + starts * 2 * LIMIT)?)
            }
        };
        if status.is_none() {
            problems.push(if sent > 0 { "a signal is not obeyed" } else { "it hangs" }.into());
        }
        process.kill();
        let orphans = left(mark, LEFT);
        if !orphans.is_empty() && problems.is_empty() {
            problems.push(format!("processes are left: {}", orphans.join("; ")));
        }
        if let Some(status) = status {
            self.check(dir, status, &process.stderr(), sent, &mut problems);
        }
        let exit = status.map_or("none".into(), in_words);
        let name = self.signals.as_ref().map_or("none", |signals| signals.name);
        let signal = [String::from("none"), name.into(), format!("{name}, twice")][sent].clone();
        Ok(Outcome { signal, details: format!("{}\nexit: {exit}", process.complaint()), exit, problems })
    }

    /// Adds what is wrong with the exit code, the counts and the output.
    fn check(&self, dir: &Path, status: ExitStatus, stderr: &str, sent: usize, problems: &mut Vec<String>) {
        // An answer before a hang is no fault of its phase.
        let committed = fs::read_to_string(dir.join("committed")).unwrap_or_default().replace("begin deaf", "step deaf");
        let n = |phase: &str| committed.lines().filter(|line| line.starts_with(phase)).count();
        let (at_start, begun) = (n("hello"), n("begin") + n("step"));
        let always = self.plan["processes"][1].is_null();
        // Each process that replaces another one may do without its later fault.
        let at_once = self.plan["faults"][0]["nth"] == 1;
        // The first environment of Gymnasium is made to greet.
        let opens = self.in_python && self.act.starts_with("begin");
        let mut codes = match (at_start, begun) {
            (0, 0) => vec![0],
            // A start that is slow may be within its limit.
            (0, _) if opens || self.starts_late() => vec![0, 5],
            (0, _) if always && at_once => vec![5],
            (0, _) if always => vec![0, 5],
            (0, _) => vec![0],
            // The first worker is refused, another is replaced.
            _ => vec![0, 2, 5],
        };
        let last = stderr.lines().last().unwrap_or_default();
        if let Some(Signals { name, .. }) = self.signals.as_ref().filter(|_| sent > 0) {
            match *name {
                "KILL" => codes.push(-9),
                // Before it listens, a program ends by the signal.
                "INT" => codes.extend([130, -2]),
                _ => codes.extend([130, -15]),
            }
            codes.extend((sent > 1).then_some(131));
            codes.extend([0].into_iter().chain(always.then_some(5)));
        }
        let code = status.code().unwrap_or_else(|| -status.signal().unwrap_or(0));
        if !codes.contains(&code) {
            problems.push(format!("wrong exit code: {}, expected {codes:?}; {last}", in_words(status)));
        }
        if let Some(panic) = stderr.lines().find(|line| line.contains("panicked at")) {
            problems.push(format!("it panics: {panic}"));
        }
        if stderr.contains('\u{1b}') {
            problems.push("escape sequences of a worker are sent: to the terminal".into());
        }
        if code != 0 || sent > 0 {
            return;
        }
        if let Some(wrong) = self.miscounted(dir, stderr, at_start, n("begin"), n("step")) {
            problems.push(format!("wrong count: {wrong}"));
        }
        // A stubborn worker has closed, but does not end.
        if self.act != "close hang" && !dir.join("closed").exists() {
            problems.push("a worker that closes in time is cut off".into());
        }
    }

    /// Compares the faults that a finished training tells with those that happened.
    fn miscounted(&self, dir: &Path, stderr: &str, at_start: usize, begin: usize, step: usize) -> Option<String> {
        if self.drive == "lockstep" {
            let said = stderr.lines().find_map(|line| line.split_once(" episodes were truncated because a worker failed"));
            let said: usize = said.and_then(|(n, _)| n.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
            let expected = step * 2 / self.workers as usize;
            let is_told = stderr.lines().any(|line| line.starts_with("warning: environment") && line.contains(", fault 1"));
            // The process that fails may be the evaluation's, which cuts no episode of the training.
            if said != expected && !(said == 0 && is_told) {
                return Some(format!("{expected} episodes were cut, {said} are told"));
            }
            return (begin > 0 && !is_told && !self.starts_late()).then(|| "a fault at the start of episodes is not told".into());
        }
        let text = fs::read_to_string(dir.join("run/metrics.csv")).unwrap_or_default();
        let header: Vec<&str> = text.lines().next()?.split(',').collect();
        let last: Vec<&str> = text.lines().last()?.split(',').collect();
        let of = |name: &str| {
            let column = header.iter().position(|column| *column == name)?;
            last.get(column)?.parse::<f64>().ok()
        };
        let counted = of("faults/timeouts").unwrap_or(0.0) + of("faults/failures").unwrap_or(0.0);
        // The training may end before the time limit of one that hangs.
        let at_once = !WAITS.iter().any(|act| self.act.ends_with(act));
        // Faults of both environments may come after the last row.
        let least = if at_once { (begin + step).saturating_sub(if begin + step > 1 { 2 } else { 0 }) } else { 0 };
        let (least, most) = (least as f64, (at_start + begin + step) as f64);
        (counted < least || counted > most).then(|| format!("{most} faults happened, metrics.csv has {counted}"))
    }
}

/// Describes an exit status in short.
fn in_words(status: ExitStatus) -> String {
    status.code().map_or_else(|| format!("signal {}", status.signal().unwrap_or(0)), |code| code.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_and_the_index_decide_a_behaviour() {
        let shown = |index| Behaviour::new(&mut Random::new(3, index), true).shown();
        let mut forks = std::collections::BTreeSet::new();
        for index in 0..300 {
            assert_eq!(shown(index), shown(index));
            forks.insert(Behaviour::new(&mut Random::new(3, index), false).fork);
        }
        assert_eq!(forks.len(), FORKS.len() + 1);
        assert_ne!(shown(0), shown(1));
    }
}
