//! Hostile input for the `rl` program.
//!
//! `cargo xtask fuzz --minutes N` mutates configurations, run directories, checkpoints with valid hashes, traces, command lines,
//! and what comes from others: messages of workers, recordings, runs and sweeps that name commands or hold links and FIFOs. Each
//! input runs in its own process with limits on time and memory. Failures are a panic, an undocumented exit code, a process that
//! does not end by its deadline or leaves others, a process that a file has started, a file outside that is changed. Each is
//! written to a file that `--replay FILE` runs again.
//!
//! An input is a function of the seed, its index and the corpus. The corpus is the files in `xtask/fuzz` and runs that the
//! program itself makes.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::foreign::{KINDS, MARKER, OUTSIDE, WORKER};
use crate::process::{Options, Process, left, mark, newest_checkpoint, scratch};

/// Documented exit codes.
const CODES: [i32; 8] = [0, 1, 2, 3, 4, 5, 130, 131];
/// Time limit of a process before SIGTERM, and again before a second SIGTERM.
const LIMIT: Duration = Duration::from_secs(10);
/// Address space limit of a process, in KiB.
const MEMORY_KIB: u64 = 4 << 20;
/// Time in which the processes that a process has started must have ended after it.
const LEFT: Duration = Duration::from_secs(5);
/// Configurations of the corpus; two at a time are spliced and altered by line.
const TOMLS: [&str; 4] = ["ppo.toml", "a2c.toml", "dqn.toml", "snake.toml"];

/// Runs of the corpus: name and arguments.
const RUNS: [(&str, &str); 6] = [
    (
        "ppo",
        "cartpole --set n_envs=4 --set ppo.n_steps=8 --set ppo.batch_size=16 --set normalize_obs=true --set ppo.normalize_reward=true",
    ),
    ("a2c", "pendulum --algo a2c --set n_envs=2 --set a2c.n_steps=8"),
    ("overlapped", "cartpole --algo a2c --set n_envs=2 --set a2c.n_steps=8 --set pipeline=overlapped --set max_lag=2"),
    (
        "dqn",
        "mountain_car --algo dqn --set n_envs=2 --set dqn.buffer_size=60 --set dqn.learning_starts=16 --set dqn.train_freq=4 --set \
         dqn.gradient_steps=1 --set dqn.batch_size=8 --set dqn.prioritized=true --set dqn.save_replay=true",
    ),
    (
        "frames",
        "breakout --algo dqn --set n_envs=2 --set dqn.buffer_size=60 --set dqn.learning_starts=16 --set dqn.train_freq=4 --set \
         dqn.gradient_steps=1 --set dqn.batch_size=8 --set dqn.save_replay=true --set dqn.n_steps=3",
    ),
    ("snake", "snake --set n_envs=2 --set conv=[[2,3,1]] --set ppo.n_steps=16 --set ppo.batch_size=16"),
];

/// Environments of recordings.
const RECORDED: [&str; 4] = ["cartpole", "mountain_car", "snake", "breakout"];

/// Sweep of the corpus.
const SWEEP: &str = "env = \"cartpole\"\nsteps = 64\nn_envs = 2\nhidden = [4]\neval_episodes = 1\nthreads = 1\nppo.n_steps = 8\n\
                     ppo.batch_size = 16\n\n[sweep]\ntrials = 2\n\n[sweep.settings]\n\"ppo.learning_rate\" = [1e-3, 1e-4]\n";

/// Greeting of the run whose environment is a worker, without faults.
pub(crate) const PLAN: &str = r#"{"greeting": {"protocol": 1, "worker": "a walk", "action": {"kind": "discrete", "n": 2},
    "observation": {"dtype": "f32", "shape": [1], "low": [-5], "high": [5]}}, "faults": [], "processes": [0, 0]}"#;

/// Numbers that tend to break programs, as text.
const NUMBERS: [&str; 26] = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "64",
    "65",
    "100",
    "1000",
    "65536",
    "16777217",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "1e9",
    "1e999",
    "-0.0",
    "0.5",
    "1e-45",
    "nan",
    "inf",
    "1e18",
];

/// Other values, in the syntax of TOML or of the command line.
const VALUES: [&str; 30] = [
    "true",
    "false",
    "\"\"",
    "\"x\"",
    "[]",
    "[4]",
    "[4, 4]",
    "[0]",
    "[[2, 3, 1]]",
    "[[0, 0, 0]]",
    "[[1, 99, 1]]",
    "{}",
    "\"lin_0.1\"",
    "\"lin_nan\"",
    "\"lin_\"",
    "tanh",
    "relu",
    "overlapped",
    "sync",
    "fused",
    "reference",
    "auto",
    "cpu",
    "cuda",
    "cuda:7",
    "dqn",
    "ppo",
    "1979-05-27",
    "'''",
    "\"\\u0000\"",
];

/// Counter-based random generator.
pub(crate) struct Random {
    key: u64,
    n: u64,
}

impl Random {
    pub(crate) fn new(seed: u64, index: u64) -> Self {
        Self { key: mix(mix(seed) ^ index), n: 0 }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.n += 1;
        mix(self.key.wrapping_add(self.n.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub(crate) fn percent(&mut self, p: usize) -> bool {
        self.below(100) < p
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Draws a range within `len`; short ranges are more likely than long ones.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len + 1);
        let most = (len - start).min(1 << self.below(12));
        start..start + self.below(most + 1)
    }

    fn value(&mut self) -> &'static str {
        let from: &[&str] = if self.percent(60) { &NUMBERS } else { &VALUES };
        from[self.below(from.len())]
    }
}

/// Draws a value that matches the description of a setting's range.
///
/// The value may still conflict with other settings.
fn plausible(allowed: &str, random: &mut Random) -> String {
    if let Some((low, _)) = allowed.strip_prefix("a whole number from ").and_then(|range| range.split_once(' ')) {
        return (low.parse().unwrap_or(0) + random.below(40)).to_string();
    }
    if allowed.contains("number") {
        let lists = ["[4]", "[8, 4]", "[[2, 3, 1]]", "[[2, 2, 2], [2, 2, 1]]", "[]"];
        return (*random.pick(if allowed.contains("list") { &lists } else { &["0.5", "1", "0.01", "0", "\"lin_0.1\""] })).into();
    }
    let choices: Vec<&str> = allowed.split([',', ' ']).filter(|word| !["", "or"].contains(word)).collect();
    (*random.pick(&choices)).into()
}

/// Mixes with SplitMix64's finalizer.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

type Files = Vec<(String, Vec<u8>)>;

/// Run of the corpus: the files under `run`, and the path of the newest checkpoint.
pub(crate) struct CorpusRun {
    pub(crate) files: Files,
    pub(crate) checkpoint: String,
}

/// Material for inputs.
pub(crate) struct Corpus {
    pub(crate) tomls: Vec<String>,
    lines: Vec<Vec<String>>,
    traces: Vec<(String, Value)>,
    /// Settings: name, and description of the allowed values.
    keys: Vec<(String, String)>,
    pub(crate) runs: Vec<CorpusRun>,
    /// Run whose environment is a worker.
    pub(crate) exec: CorpusRun,
    /// Environments and recordings of them.
    pub(crate) recordings: Vec<(String, Vec<u8>)>,
    /// `sweep.toml` and the files under `sw`.
    pub(crate) sweep: Files,
    /// True if the program has `--trust`.
    pub(crate) trusts: bool,
    /// Arguments that limit the start and the end of workers.
    pub(crate) limits: String,
}

/// Command line and the files of its working directory.
pub(crate) struct Input {
    pub(crate) kind: &'static str,
    pub(crate) args: Vec<OsString>,
    pub(crate) files: Files,
    /// Symbolic links: name and target.
    pub(crate) links: Vec<(String, String)>,
    pub(crate) fifos: Vec<String>,
    /// SIGTERM signals that the process may wait for.
    pub(crate) signals: usize,
}

/// Exit codes and failures so far.
#[derive(Default)]
struct Tally {
    codes: BTreeMap<(String, String), u64>,
    failures: Vec<String>,
    inputs: u64,
}

/// Fuzzes, or replays one input.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<()> {
    let options = Options::parse(args, &["--minutes", "--seed", "--kind", "--program", "--replay"])?;
    let program = options.program(root, &[])?;
    let home = root.join("target/fuzz");
    let work = scratch(root, "fuzz")?;
    let result = match options.get::<PathBuf>("--replay")? {
        Some(file) => replay(&program, &work, &file),
        None => {
            let minutes: f64 = options.get("--minutes")?.context("--minutes: how long?")?;
            let seed = options.get("--seed")?.unwrap_or(0);
            let kind: String = options.get("--kind")?.unwrap_or_default();
            let time = Duration::from_secs_f64(60.0 * minutes.clamp(0.0, 1e6));
            fuzz(root, &program, (&home, &work), time, seed, &kind)
        }
    };
    let _ = fs::remove_dir_all(&work);
    result
}

/// Command of a program with a home of its own.
fn at_home(program: impl AsRef<OsStr>, home: &Path) -> Result<Command> {
    let mut command = Command::new(program);
    command.env("HOME", home).env("RL_XTASK", std::env::current_exe()?);
    for name in ["XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"] {
        command.env_remove(name);
    }
    Ok(command)
}

/// Fuzzes with inputs whose kind begins with `kind`.
fn fuzz(root: &Path, program: &Path, (home, work): (&Path, &Path), time: Duration, seed: u64, kind: &str) -> Result<()> {
    let failures = home.join("failures");
    let _ = fs::remove_dir_all(&failures);
    fs::create_dir_all(&failures)?;
    let corpus = Corpus::new(root, program, work)?;
    let (next, tally, begin) = (AtomicU64::new(0), Mutex::new(Tally::default()), Instant::now());
    let lock = || tally.lock().expect("no worker panics with the tally");
    let worker = |i: usize| -> Result<()> {
        while begin.elapsed() < time {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let input = corpus.input(&mut Random::new(seed, index));
            if !input.kind.starts_with(kind) {
                continue;
            }
            let (code, failure, stderr) = execute(program, &input, &work.join(i.to_string()), index)?;
            let mut tally = lock();
            tally.inputs += 1;
            *tally.codes.entry((input.shown_kind(), code)).or_default() += 1;
            if let Some(failure) = failure {
                let file = failures.join(format!("{seed}-{index}.json"));
                fs::write(&file, input.to_json(seed, index, &failure, &stderr).to_string())?;
                println!(
                    "FAILED seed {seed}, input {index} ({}): {failure}\n  cargo xtask fuzz --replay {}",
                    input.kind,
                    file.display()
                );
                tally.failures.push(failure);
            }
        }
        Ok(())
    };
    let n_workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..n_workers).map(|i| scope.spawn(move || worker(i))).collect();
        let mut told = Instant::now();
        while !workers.iter().all(|worker| worker.is_finished()) {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                let tally = lock();
                let (inputs, failed) = (tally.inputs, tally.failures.len());
                println!("{:.0} s: {inputs} inputs, {failed} failures", begin.elapsed().as_secs_f64());
            }
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker returns"))
    })?;
    let tally = tally.into_inner().expect("no worker panics with the tally");
    println!("\n| input | exit | count |\n|---|---|---|");
    for ((kind, code), n) in &tally.codes {
        println!("| {kind} | {code} | {n} |");
    }
    println!("\nseed {seed}: {} inputs in {:.1} minutes", tally.inputs, begin.elapsed().as_secs_f64() / 60.0);
    if tally.failures.is_empty() {
        return Ok(());
    }
    let mut kinds = BTreeMap::<&str, u64>::new();
    tally.failures.iter().for_each(|failure| *kinds.entry(failure).or_default() += 1);
    let list = kinds.iter().map(|(failure, n)| format!("{n} times: {failure}")).collect::<Vec<_>>().join("\n");
    bail!("{} inputs failed; they are in {}\n{list}", tally.failures.len(), failures.display());
}

fn replay(program: &Path, work: &Path, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let input = Input::from_json(&serde_json::from_str(&text)?).with_context(|| format!("{}: not an input", file.display()))?;
    println!("rl {}", input.args.iter().map(|arg| format!("{arg:?}")).collect::<Vec<_>>().join(" "));
    let (code, failure, stderr) = execute(program, &input, &work.join("replay"), 0)?;
    println!("{stderr}\nexit: {code}");
    failure.map_or(Ok(()), |failure| bail!("{failure}"))
}

/// Runs an input in an empty directory.
///
/// Returns the exit code in words, the failure if any, and the end of stderr.
fn execute(program: &Path, input: &Input, dir: &Path, number: u64) -> Result<(String, Option<String>, String)> {
    let _ = fs::remove_dir_all(dir);
    let cwd = dir.join("cwd");
    fs::create_dir_all(&cwd)?;
    for (name, bytes) in &input.files {
        let path = cwd.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&cwd))?;
        fs::write(path, bytes)?;
    }
    for (name, target) in &input.links {
        let path = cwd.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&cwd))?;
        std::os::unix::fs::symlink(target, path)?;
    }
    for name in &input.fifos {
        let path = cwd.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&cwd))?;
        crate::bench::run(Command::new("mkfifo").arg(path))?;
    }
    let mark = mark(number);
    let mut command = at_home("sh", dir)?;
    command.env("RL_MARK", &mark["RL_MARK=".len()..]);
    command.args(["-c", &format!("ulimit -c 0; ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\"")]).arg(program).args(&input.args);
    let mut process = Process::start(command.current_dir(&cwd), &dir.join("stderr"))?;
    let stops = ["", " after SIGTERM", " after two SIGTERM"];
    let mut signals = 0;
    let mut status = process.ended_within(LIMIT)?;
    while status.is_none() && signals < 2 {
        signals += 1;
        process.terminate()?;
        status = process.ended_within(LIMIT)?;
    }
    let stopped = stops[signals];
    process.kill();
    let orphans = left(&mark, LEFT);
    let stderr = process.stderr();
    let verb = input.args.first().and_then(|arg| arg.to_str()).unwrap_or_default();
    let (code, failure) = match status {
        None => ("hangs".into(), Some("it hangs".into())),
        // Verbs that keep nothing end by a signal, as any program does.
        Some(status) if !stopped.is_empty() && status.signal() == Some(15) && !["train", "eval", "watch"].contains(&verb) => {
            ("SIGTERM".to_string(), None)
        }
        Some(status) => match status.code() {
            Some(code) if CODES.contains(&code) => {
                let late = signals > input.signals;
                (format!("{code}{stopped}"), late.then(|| format!("it passes its deadline and ends{stopped}")))
            }
            _ => (format!("{status}{stopped}"), Some(format!("it ends with {status}{stopped}"))),
        },
    };
    let panic = stderr.lines().find(|line| line.contains("panicked at")).map(String::from);
    let failure = panic.or(failure).or_else(|| input.broken(&cwd, &orphans, &stderr));
    let complaint = process.complaint();
    let _ = fs::remove_dir_all(dir);
    Ok((code, failure, complaint))
}

impl Input {
    /// Input of regular files, whose process may take two signals.
    pub(crate) fn new(kind: &'static str, args: Vec<OsString>, files: Files) -> Self {
        Self { kind, args, files, links: Vec::new(), fifos: Vec::new(), signals: 2 }
    }

    /// Kind in tables: with the verb, unless that is mutated.
    fn shown_kind(&self) -> String {
        let verb = self.args.first().filter(|_| self.kind != "command line");
        format!("{} {}", self.kind, verb.map_or("".into(), |verb| verb.to_string_lossy())).trim_end().into()
    }

    /// Finds what a process must not do, whatever its exit code.
    fn broken(&self, cwd: &Path, orphans: &[String], stderr: &str) -> Option<String> {
        if cwd.join(MARKER).exists() {
            return Some("a file has started a process".into());
        }
        let (mut before, mut after) = (Files::new(), Files::new());
        before.extend(self.files.iter().filter(|(name, _)| name.starts_with(OUTSIDE)).cloned());
        let outside = OUTSIDE.trim_end_matches('/');
        if !before.is_empty() && (collect(&cwd.join(outside), outside, &mut after).is_err() || before != after) {
            return Some("a file outside is changed".into());
        }
        if !orphans.is_empty() {
            return Some("processes are left".into());
        }
        // Only a worker has escape sequences to send.
        (self.kind.starts_with("worker") && stderr.contains('\u{1b}'))
            .then(|| "escape sequences of a worker reach the terminal".into())
    }

    fn to_json(&self, seed: u64, index: u64, failure: &str, stderr: &str) -> Value {
        let args: Vec<String> = self.args.iter().map(|arg| hex(arg.as_bytes())).collect();
        let files: Vec<Value> = self.files.iter().map(|(name, bytes)| json!([name, hex(bytes)])).collect();
        let shown: Vec<_> = self.args.iter().map(|arg| arg.to_string_lossy()).collect();
        json!({"seed": seed, "index": index, "failure": failure, "stderr": stderr, "shown": shown, "args": args, "files": files,
            "kind": self.kind, "links": self.links, "fifos": self.fifos, "signals": self.signals})
    }

    fn from_json(json: &Value) -> Option<Self> {
        let args = json["args"].as_array()?.iter().map(|arg| Some(OsString::from_vec(from_hex(arg.as_str()?)?)));
        let files = json["files"].as_array()?.iter().map(|file| Some((file[0].as_str()?.into(), from_hex(file[1].as_str()?)?)));
        let text = |value: &Value| value.as_str().map(String::from);
        let links = json["links"].as_array()?.iter().map(|link| Some((text(&link[0])?, text(&link[1])?)));
        Some(Self {
            kind: KINDS.into_iter().find(|kind| json["kind"] == *kind).unwrap_or("replay"),
            args: args.collect::<Option<_>>()?,
            files: files.collect::<Option<_>>()?,
            links: links.collect::<Option<_>>()?,
            fifos: json["fifos"].as_array()?.iter().map(text).collect::<Option<_>>()?,
            signals: json["signals"].as_u64()? as usize,
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

pub(crate) fn words(text: &str) -> impl Iterator<Item = OsString> {
    text.split_whitespace().map(OsString::from)
}

impl CorpusRun {
    /// Trains in `work`, and reads the run.
    fn new(program: &Path, work: &Path, name: &str, args: impl Iterator<Item = OsString>) -> Result<Self> {
        let dir = work.join(name);
        let mut command = at_home(program, work)?;
        crate::bench::run(command.arg("train").args(args).arg("--run-dir").arg(&dir).current_dir(work))?;
        let (checkpoint, _) = newest_checkpoint(&dir).context("a run without a checkpoint")?;
        let checkpoint = format!("run/{}", checkpoint.strip_prefix(&dir)?.display());
        let mut files = Vec::new();
        collect(&dir, "run", &mut files)?;
        Ok(Self { files, checkpoint })
    }
}

/// Replay memory of a run.
fn replay_memory(runs: &[CorpusRun]) -> Option<Vec<u8>> {
    let mut files = runs.iter().flat_map(|run| &run.files);
    files.find(|(name, _)| name.ends_with("/replay.bin")).map(|(_, bytes)| bytes.clone())
}

impl Corpus {
    fn new(root: &Path, program: &Path, work: &Path) -> Result<Self> {
        let read = |name: &str| fs::read_to_string(root.join("xtask/fuzz").join(name)).with_context(|| name.to_string());
        let list = crate::bench::run(Command::new(program).args(["list", "--json"]))?;
        let keys =
            list.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|line| line["event"] == "setting");
        let traces: BTreeMap<String, Value> = serde_json::from_str(&read("traces.json")?)?;
        let runs = RUNS.iter().map(|(name, args)| {
            let more = "--set hidden=[4] --set steps=64 --set checkpoint_every=32 --set eval_episodes=1 --set threads=1";
            CorpusRun::new(program, work, name, words(args).chain(words(more)))
        });
        let runs: Vec<_> = runs.collect::<Result<_>>()?;
        fs::write(work.join("plan.json"), PLAN)?;
        let small =
            "--set hidden=[4] --set steps=64 --set checkpoint_every=32 --set eval_episodes=1 --set threads=1 --set n_envs=2";
        let exec = CorpusRun::new(program, work, "exec", std::iter::once(WORKER.into()).chain(words(small)))?;
        let record = |env: &&str| {
            let mut command = at_home(program, work)?;
            command.args(["record", env, "--out", "file.steps", "--steps", "64", "--envs", "2"]);
            crate::bench::run(command.current_dir(work))?;
            Ok(((*env).to_string(), fs::read(work.join("file.steps"))?))
        };
        let mut recordings = RECORDED.iter().map(record).collect::<Result<Vec<_>>>()?;
        let replay = replay_memory(&runs).context("a run with its replay memory")?;
        recordings.push(("mountain_car".into(), replay));
        let mut sweep = vec![("sweep.toml".into(), SWEEP.into())];
        fs::write(work.join("sweep.toml"), SWEEP)?;
        crate::bench::run(at_home(program, work)?.args(["sweep", "sweep.toml", "--dir", "sw"]).current_dir(work))?;
        collect(&work.join("sw"), "sw", &mut sweep)?;
        let help = crate::bench::run(Command::new(program).args(["eval", "--help"]))?;
        let keys: Vec<(String, String)> =
            keys.filter_map(|line| Some((line["name"].as_str()?.into(), line["allowed"].as_str()?.into()))).collect();
        let limits = keys.iter().filter(|(name, _)| ["start_timeout_s", "close_timeout_s"].contains(&&**name));
        Ok(Self {
            tomls: TOMLS.iter().map(|name| read(name)).collect::<Result<_>>()?,
            lines: read("lines.txt")?.lines().map(|line| line.split_whitespace().map(String::from).collect()).collect(),
            traces: traces.into_iter().collect(),
            limits: limits.map(|(name, _)| format!(" --set {name}=2")).collect(),
            keys,
            runs,
            exec,
            recordings,
            sweep,
            trusts: help.contains("--trust"),
        })
    }

    fn input(&self, random: &mut Random) -> Input {
        match random.below(100) {
            0..10 => self.toml(random),
            10..18 => self.set(random),
            18..24 => self.run_config(random),
            24..40 => self.checkpoint(random),
            40..45 => self.trace(random),
            45..55 => self.line(random),
            55..70 => self.worker(random),
            70..80 => self.recording(random),
            80..90 => self.command(random),
            _ => self.irregular(random),
        }
    }

    /// Builds a mutated configuration.
    fn toml(&self, random: &mut Random) -> Input {
        let text = random.pick(&self.tomls).clone();
        let files = vec![("c.toml".into(), self.mutate_toml(text, random))];
        let small = "train --config c.toml --run-dir new --steps 64 --set eval_episodes=1";
        let more = if random.percent(70) { " --threads 1 --envs 2 --set hidden=[4]" } else { "" };
        Input::new("configuration", words(small).chain(words(more)).collect(), files)
    }

    /// Builds settings on the command line.
    fn set(&self, random: &mut Random) -> Input {
        let bases = [
            "cartpole --set ppo.n_steps=8 --set ppo.batch_size=16",
            "snake --set ppo.n_steps=8 --set ppo.batch_size=16 --set ppo.n_epochs=1",
            "pendulum --algo a2c",
            "mountain_car --algo dqn --set dqn.buffer_size=100 --set dqn.learning_starts=8 --set dqn.batch_size=8",
        ];
        let mut args: Vec<OsString> =
            words("train --run-dir new --steps 64 --set eval_episodes=1 --set hidden=[4] --set n_envs=2").collect();
        args.extend(words(bases[random.below(bases.len())]));
        for _ in 0..1 + random.below(3) {
            args.extend(["--set".into(), self.assignment(random, "=").into()]);
        }
        Input::new("settings", args, Vec::new())
    }

    /// Builds a run with a mutated configuration, to be resumed.
    fn run_config(&self, random: &mut Random) -> Input {
        let run = random.pick(&self.runs);
        let without = random.percent(30);
        let mut files: Files =
            run.files.iter().filter(|(name, _)| !without || !name.starts_with("run/checkpoints/")).cloned().collect();
        if let Some((_, bytes)) = files.iter_mut().find(|(name, _)| name == "run/config.toml") {
            *bytes = self.mutate_toml(String::from_utf8_lossy(bytes).into_owned(), random);
        }
        let args = if random.percent(80) { "train --resume run --steps 128" } else { "eval run --episodes 2" };
        Input::new("run configuration", words(args).collect(), files)
    }

    /// Builds a damaged checkpoint whose hashes match.
    fn checkpoint(&self, random: &mut Random) -> Input {
        let run = random.pick(&self.runs);
        let mut files = run.files.clone();
        let manifest = format!("{}/manifest.json", run.checkpoint);
        let ours: Vec<usize> = (0..files.len()).filter(|&i| files[i].0.starts_with(&run.checkpoint)).collect();
        let i = *random.pick(&ours);
        let name = files[i].0.rsplit('/').next().unwrap_or_default().to_string();
        let bytes = &mut files[i].1;
        match name.as_str() {
            "config.toml" => *bytes = self.mutate_toml(String::from_utf8_lossy(bytes).into_owned(), random),
            "manifest.json" => *bytes = mutate_json_text(bytes, random),
            _ if name.ends_with(".safetensors") && random.percent(60) => mutate_safetensors(bytes, random),
            _ => mutate_numbers(bytes, random),
        }
        if name != "manifest.json" {
            let info = json!({"bytes": files[i].1.len(), "blake3": blake3::hash(&files[i].1).to_string()});
            if let Some((_, bytes)) = files.iter_mut().find(|(name, _)| *name == manifest)
                && let Ok(mut json) = serde_json::from_slice::<Value>(bytes)
            {
                json["files"][&name] = info;
                *bytes = json.to_string().into_bytes();
            }
        }
        let path = if random.percent(25) { &run.checkpoint } else { "run" };
        let args = match random.below(10) {
            0..5 => format!("train --resume {path} --steps 128 --threads 1"),
            5..9 => format!("eval {path} --episodes 2 --threads 1"),
            _ => format!("watch {path} --gif out.gif --size 16"),
        };
        Input::new("checkpoint", words(&args).collect(), files)
    }

    /// Builds mutated states and actions.
    fn trace(&self, random: &mut Random) -> Input {
        let (env, trace) = random.pick(&self.traces);
        let (mut init, mut actions) = (trace["init"].clone(), trace["actions"].clone());
        if random.percent(30) {
            init = vec![init; actions.as_array().map_or(1, Vec::len)].into();
        } else if random.percent(60)
            && let Some(list) = actions.as_array_mut()
        {
            (0..random.below(200)).for_each(|_| list.push(random.pick(list).clone()));
        }
        (0..random.below(4)).for_each(|_| mutate_json(&mut init, random));
        (0..random.below(2)).for_each(|_| mutate_json(&mut actions, random));
        let mut files: Files = [("init.json", init), ("actions.json", actions)]
            .map(|(name, json)| (name.into(), json.to_string().into_bytes()))
            .into();
        if random.percent(10) {
            mutate_bytes(&mut files[random.below(2)].1, random);
        }
        let env = if random.percent(95) { env.as_str() } else { "snake" };
        let args = format!("trace {env} --init init.json --actions actions.json");
        Input::new("trace", words(&args).collect(), files)
    }

    /// Builds a mutated command line, and the files that it may name.
    fn line(&self, random: &mut Random) -> Input {
        let mut line = random.pick(&self.lines).clone();
        for _ in 0..1 + random.below(3) {
            let i = random.below(line.len());
            match random.below(7) {
                _ if line.is_empty() => {}
                0 => line[i] = random.value().into(),
                1 => drop(line.remove(i)),
                2 => line.insert(i, line[random.below(line.len())].clone()),
                3 => {
                    let other = random.pick(&self.lines);
                    line.insert(i, other[random.below(other.len())].clone());
                }
                4 => line.extend(["--set".into(), self.assignment(random, "=")]),
                5 => {
                    let other = random.pick(&self.lines);
                    line.truncate(i);
                    line.extend_from_slice(&other[random.below(other.len())..]);
                }
                _ => {
                    let numbers: Vec<usize> = (0..line.len()).filter(|&i| line[i].parse::<f64>().is_ok()).collect();
                    if let Some(&i) = numbers.get(random.below(numbers.len())) {
                        line[i] = (*random.pick(&NUMBERS)).to_string();
                    }
                }
            }
        }
        let mut args: Vec<OsString> = line.into_iter().map(OsString::from).collect();
        if random.percent(15) && !args.is_empty() {
            let i = random.below(args.len());
            let mut bytes = std::mem::take(&mut args[i]).into_vec();
            mutate_bytes(&mut bytes, random);
            args[i] = OsString::from_vec(bytes);
        }
        let run = random.pick(&self.runs);
        let mut files = run.files.clone();
        files.push(("ppo.toml".into(), self.tomls[0].clone().into_bytes()));
        let trace = &self.traces.iter().find(|(name, _)| name == "cartpole").map_or(&Value::Null, |(_, trace)| trace);
        files.push(("init.json".into(), trace["init"].to_string().into_bytes()));
        files.push(("actions.json".into(), trace["actions"].to_string().into_bytes()));
        Input::new("command line", args.iter().map(|arg| stay_here(arg)).collect(), files)
    }

    /// Draws a setting and a value, more often a valid one than not.
    fn assignment(&self, random: &mut Random, equals: &str) -> String {
        let (name, allowed) = random.pick(&self.keys);
        let value = if random.percent(70) { plausible(allowed, random) } else { random.value().into() };
        format!("{name}{equals}{value}")
    }

    fn mutate_toml(&self, text: String, random: &mut Random) -> Vec<u8> {
        let mut lines: Vec<String> = text.lines().map(String::from).collect();
        for _ in 0..1 + random.below(4) {
            let (i, n) = (random.below(lines.len()), lines.len());
            match random.below(8) {
                _ if n == 0 => {}
                0 => drop(lines.remove(i)),
                1 => lines.insert(i, lines[random.below(n)].clone()),
                2 => lines.swap(i, random.below(n)),
                3 => {
                    let line = self.assignment(random, " = ");
                    let short = random.percent(50);
                    lines.insert(
                        i,
                        line.split_once('.').map_or(line.clone(), |(_, name)| if short { name.into() } else { line.clone() }),
                    );
                }
                4 => {
                    let other: Vec<&str> = random.pick(&self.tomls).lines().collect();
                    lines.insert(i, other[random.below(other.len())].into());
                }
                _ => {
                    if let Some((key, _)) = lines[i].split_once('=') {
                        let name = key.trim();
                        let setting = self.keys.iter().find(|(full, _)| full.rsplit('.').next() == Some(name));
                        let value = match setting {
                            Some((_, allowed)) if random.percent(60) => plausible(allowed, random),
                            _ => random.value().into(),
                        };
                        lines[i] = format!("{key}= {value}");
                    }
                }
            }
        }
        let mut bytes = lines.join("\n").into_bytes();
        if random.percent(15) {
            mutate_bytes(&mut bytes, random);
        }
        bytes
    }
}

/// Collects all files under `dir`, with paths under `name`.
fn collect(dir: &Path, name: &str, files: &mut Files) -> Result<()> {
    let mut entries = fs::read_dir(dir)?.collect::<std::io::Result<Vec<_>>>()?;
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{name}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &name, files)?;
        } else {
            files.push((name, fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// Sanitizes an argument so that it names nothing outside the working directory.
fn stay_here(arg: &OsStr) -> OsString {
    let mut bytes: Vec<u8> = arg.as_bytes().iter().copied().filter(|byte| *byte != 0).collect();
    bytes.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
    while let Some(at) = bytes.windows(2).position(|pair| pair == b"..") {
        bytes[at] = b'_';
    }
    OsString::from_vec(bytes)
}

pub(crate) fn mutate_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let (at, range) = (random.below(bytes.len()), random.range(bytes.len()));
        match random.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.next() as u8,
            2 => drop(bytes.drain(range)),
            3 => {
                let copy = bytes[range].to_vec();
                bytes.splice(at..at, copy);
            }
            4 => bytes.truncate(at),
            _ => {
                let new: Vec<u8> = (0..random.below(9)).map(|_| random.next() as u8).collect();
                bytes.splice(at..at, new);
            }
        }
    }
}

/// Mutates numbers in a fixed layout.
pub(crate) fn mutate_numbers(bytes: &mut Vec<u8>, random: &mut Random) {
    if random.percent(15) || bytes.len() < 8 {
        return mutate_bytes(bytes, random);
    }
    for _ in 0..1 + random.below(3) {
        let integers = [0, 1, 2, 99, 1 << 31, u64::from(u32::MAX), 1 << 40, 1 << 62, 1 << 63, u64::MAX];
        let floats = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, 1e-45, 1e6];
        let new: Vec<u8> = match random.below(5) {
            0 | 1 => random.pick(&integers).to_le_bytes().into(),
            2 => random.pick(&floats).to_le_bytes().into(),
            3 => f64::from(*random.pick(&floats)).to_le_bytes().into(),
            _ => (random.next() as u32 >> random.below(32)).to_le_bytes().into(),
        };
        let at = random.below(bytes.len() - new.len() + 1);
        let at = if random.percent(70) { at & !3 } else { at };
        bytes[at..at + new.len()].copy_from_slice(&new);
    }
}

/// Mutates the header of a safetensors file, or the numbers after it.
fn mutate_safetensors(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length) as usize);
    let Some(header) = bytes.get(8..8 + length) else { return mutate_bytes(bytes, random) };
    let header = mutate_json_text(header, random);
    let length = if random.percent(90) { header.len() as u64 } else { random.next() >> random.below(64) };
    let data = bytes.split_off(8 + u64::from_le_bytes(*bytes.first_chunk().unwrap_or(&[0; 8])) as usize);
    *bytes = [&length.to_le_bytes()[..], &header, &data].concat();
}

pub(crate) fn mutate_json_text(text: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = match serde_json::from_slice::<Value>(text) {
        Ok(mut json) => {
            (0..1 + random.below(3)).for_each(|_| mutate_json(&mut json, random));
            json.to_string().into_bytes()
        }
        Err(_) => text.into(),
    };
    if random.percent(15) {
        mutate_bytes(&mut bytes, random);
    }
    bytes
}

/// Replaces, removes or duplicates a value at a random depth.
fn mutate_json(json: &mut Value, random: &mut Random) {
    let deeper = random.percent(80);
    match json {
        Value::Array(items) if deeper && !items.is_empty() => {
            let i = random.below(items.len());
            match random.below(8) {
                0 => drop(items.remove(i)),
                1 => items.insert(i, items[i].clone()),
                _ => mutate_json(&mut items[i], random),
            }
        }
        Value::Object(fields) if deeper && !fields.is_empty() => {
            let key = fields.keys().nth(random.below(fields.len())).cloned().unwrap_or_default();
            match random.below(8) {
                0 => drop(fields.remove(&key)),
                1 => {
                    let value = fields[&key].clone();
                    fields.insert(format!("{key}{}", random.value()), value);
                }
                _ => {
                    if let Some(value) = fields.get_mut(&key) {
                        mutate_json(value, random);
                    }
                }
            }
        }
        _ => {
            let number = random.pick(&NUMBERS).parse::<f64>().unwrap_or(0.0);
            *json = match random.below(10) {
                0..4 => json!(random.pick(&[0u64, 1, 2, 3, 9, 10, 255, 256, 65_536, 1 << 32, 1 << 63, u64::MAX])),
                4 => json!(-1 - (random.next() >> random.below(64)) as i64 / 2),
                5..7 => json!(number),
                7 => json!(random.value()),
                8 => Value::Null,
                _ => (0..random.below(200)).fold(json!([]), |inner, _| json!([inner])),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_and_the_index_decide_an_input_and_what_is_saved_is_read_back() {
        let root = crate::root();
        let read = |name: &str| fs::read_to_string(root.join("xtask/fuzz").join(name)).expect("the corpus");
        let manifest = json!({"files": {"state.bin": {}}}).to_string().into_bytes();
        let files = ["config.toml", "params.safetensors", "state.bin"].map(|name| (format!("run/c/{name}"), vec![7; 100]));
        let files = files.into_iter().chain([("run/c/manifest.json".into(), manifest)]).collect();
        let corpus = Corpus {
            tomls: TOMLS.map(read).into(),
            lines: vec![vec!["list".into(), "--json".into()]],
            traces: vec![("cartpole".into(), json!({"init": {"x": 0.5}, "actions": [0, 1]}))],
            keys: vec![("ppo.gamma".into(), "a number from 0 to 1".into())],
            runs: vec![CorpusRun { files, checkpoint: "run/c".into() }],
            exec: CorpusRun { files: Vec::new(), checkpoint: "run/c".into() },
            recordings: vec![("cartpole".into(), [b"rlrecord", &8u64.to_le_bytes()[..], &[1; 100]].concat())],
            sweep: vec![("sweep.toml".into(), SWEEP.into()), ("sw/lock".into(), Vec::new())],
            trusts: true,
            limits: String::new(),
        };
        let text = |index| corpus.input(&mut Random::new(5, index)).to_json(5, index, "", "").to_string();
        let mut kinds = std::collections::BTreeSet::new();
        for index in 0..2000 {
            assert_eq!(text(index), text(index));
            let (input, json) = (corpus.input(&mut Random::new(5, index)), serde_json::from_str(&text(index)).expect("is JSON"));
            let again = Input::from_json(&json).expect("reads back");
            assert_eq!((again.args, again.files), (input.args, input.files));
            assert_eq!((again.links, again.fifos, again.signals), (input.links, input.fifos, input.signals));
            kinds.insert(input.kind);
        }
        assert_eq!(kinds.len(), 9 + KINDS.len());
        assert_ne!(text(1), text(2));
    }

    #[test]
    fn no_argument_leaves_the_working_directory() {
        for (arg, safe) in [("/dev/null", "_dev_null"), ("a/../..", "a__.__."), ("--x=/etc", "--x=_etc"), ("....", "___.")] {
            assert_eq!(stay_here(OsStr::new(arg)).to_string_lossy(), safe);
        }
    }
}
