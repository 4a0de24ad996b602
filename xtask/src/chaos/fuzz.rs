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
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::chaos::corpus::{Corpus, FileList, Input, MARKER, OUTSIDE, at_home, collect};
use crate::chaos::foreign::KINDS;
use crate::chaos::mutate::Random;
use crate::process::{Process, RlProgram, left, mark, scratch};

/// Documented exit codes.
const CODES: [i32; 8] = [0, 1, 2, 3, 4, 5, 130, 131];
/// Time limit of a process before SIGTERM, and again before a second SIGTERM.
const LIMIT: Duration = Duration::from_secs(10);
/// Address space limit of a process, in KiB.
const MEMORY_KIB: u64 = 4 << 20;
/// Time in which the processes that a process has started must have ended after it.
const LEFT: Duration = Duration::from_secs(5);
/// Exit codes and failures so far.
#[derive(Default)]
struct Tally {
    codes: BTreeMap<(String, String), u64>,
    failures: Vec<String>,
    inputs: u64,
}

#[derive(clap::Args)]
pub(crate) struct FuzzArgs {
    #[arg(long, value_name = "N", required_unless_present = "replay")]
    minutes: Option<f64>,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Take the inputs whose kind, in the table at the end, begins so
    #[arg(long, default_value = "", hide_default_value = true)]
    kind: String,
    /// Run a failed input again
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    program: RlProgram,
}

/// Fuzzes, or replays one input.
pub(crate) fn run(root: &Path, args: &FuzzArgs) -> Result<()> {
    let program = args.program.get(root, &[])?;
    let home = root.join("target/fuzz");
    let work = scratch(root, "fuzz")?;
    let result = match &args.replay {
        Some(file) => replay(&program, &work, file),
        None => {
            let time = Duration::from_secs_f64(60.0 * args.minutes.unwrap_or_default().clamp(0.0, 1e6));
            fuzz(root, &program, (&home, &work), time, args.seed, &args.kind)
        }
    };
    let _ = fs::remove_dir_all(&work);
    result
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
            let input = random_input(&corpus, &mut Random::new(seed, index));
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
    ensure!(tally.inputs > 0, "no input was tried: is there such a kind?");
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
        crate::bench::peers::run(Command::new("mkfifo").arg(path))?;
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
        let (mut before, mut after) = (FileList::new(), FileList::new());
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

/// Builds an input of a random kind.
fn random_input(corpus: &Corpus, random: &mut Random) -> Input {
    match random.below(100) {
        0..10 => corpus.toml(random),
        10..18 => corpus.set(random),
        18..24 => corpus.run_config(random),
        24..40 => corpus.checkpoint(random),
        40..45 => corpus.trace(random),
        45..55 => corpus.line(random),
        55..70 => corpus.worker(random),
        70..80 => corpus.recording(random),
        80..90 => corpus.command(random),
        _ => corpus.irregular(random),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::corpus::{CorpusRun, SWEEP, TOMLS};

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
        let text = |index| random_input(&corpus, &mut Random::new(5, index)).to_json(5, index, "", "").to_string();
        let mut kinds = std::collections::BTreeSet::new();
        for index in 0..2000 {
            assert_eq!(text(index), text(index));
            let (input, json) =
                (random_input(&corpus, &mut Random::new(5, index)), serde_json::from_str(&text(index)).expect("is JSON"));
            let again = Input::from_json(&json).expect("reads back");
            assert_eq!((again.args, again.files), (input.args, input.files));
            assert_eq!((again.links, again.fifos, again.signals), (input.links, input.fifos, input.signals));
            kinds.insert(input.kind);
        }
        assert_eq!(kinds.len(), 9 + KINDS.len());
        assert_ne!(text(1), text(2));
    }
}
