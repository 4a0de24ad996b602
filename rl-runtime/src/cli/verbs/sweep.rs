//! `rl sweep`: trains with many settings, and ranks them.
//!
//! Trials are drawn at random, or from lists, and ranked by their mean over some seeds; each seed is a training in a process and
//! a run directory of its own. With successive halving (Jamieson and Talwalkar, 2016), all trials take a part of the steps, and
//! the best of them the rest. Everything that a sweep knows is in its directory, so one that was killed continues with the same
//! command, and ends with the same table.
//!
//! Drawing and halving are these few lines rather than a library: the ones that are kept well (of Bayesian optimisation) bring
//! linear algebra with them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, DirEntry, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use rl_envs::{Purpose, Rng};
use serde::Deserialize;
use serde_json::json;
use toml::{Table, Value};

use crate::cli::args::threads;
use crate::cli::envs::Envs;
use crate::cli::show::chart;
use crate::cli::show::recorded::{MAX_TABLE, Recorded};
use crate::cli::signals;
use crate::cli::trust::{Choice, hash};
use crate::cli::verbs::plot;
use crate::config::env::FROM_START;
use crate::config::{self, EnvConfig, Layers, layers};
use crate::file::{MAX_FILE, is_draft_of, own, own_dir, read_own, refused, write_own};
use crate::run::run_dir::lock;
use crate::{Algo, Error, interrupt, print, run::checkpoint};

/// Name of the copy of a sweep's file, which makes a directory a sweep's.
const COPY: &str = "sweep.toml";
/// Draws of one trial until its settings are allowed.
const DRAWS: u64 = 1000;
/// Setting with the arguments of an environment.
const KWARGS: &str = "env.kwargs";
/// Column of the env steps in metrics.csv.
const STEPS: &str = "time/total_timesteps";
/// Maximum wait for a process of a killed sweep.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Args)]
#[command(after_help = "\
Example, acrobot.toml:
  env = \"acrobot\"
  steps = 50_000

  [sweep]
  trials = 16                # the first has the settings above
  seeds = 4                  # optional: trainings of each trial, which is ranked by their mean
  halving = 2                # optional: one of two trials takes the next rung
  min_steps = 25_000         # of the first rung; the next has halving times as many

  [sweep.settings]
  \"ppo.learning_rate\" = { from = 1e-4, to = 1e-2, log = true }
  \"ppo.n_steps\" = [32, 64, 128]

  rl sweep acrobot.toml

The directory gets trials.csv, sweep.svg, best.toml (for `rl train --config`) and the runs. The same command continues a sweep that was
stopped or killed. With one seed, the first rank is often luck: try it on seeds that the sweep has not used. With halving, settings that fall with progress (lin_X) are computed from each rung's steps, so they jump back up.")]
pub(crate) struct SweepArgs {
    /// File with settings, and what varies
    file: PathBuf,
    /// Directory to write to [default: sweeps/NAME, by the file's name]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Trainings at the same time [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    parallel: Option<u32>,
}

/// The section `sweep` of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SweepSection {
    trials: usize,
    /// Seed of the draws; trainings have the seed of the settings, and those after it.
    #[serde(default)]
    seed: u64,
    /// Trainings of each trial.
    #[serde(default = "one")]
    seeds: u64,
    /// Number of trials for each that takes the next rung; none: all take all steps.
    halving: Option<u64>,
    min_steps: Option<u64>,
    settings: BTreeMap<String, Values>,
}

fn one() -> u64 {
    1
}

/// Values that a setting may have.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Values {
    Choice(Vec<Value>),
    Interval(Interval),
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Interval {
    from: Value,
    to: Value,
    /// Uniform in the logarithm.
    #[serde(default)]
    log: bool,
}

impl Values {
    /// Returns what is wrong with the values.
    fn problem(&self) -> Option<String> {
        match self {
            Self::Choice(values) if values.is_empty() => Some("a list of no values".into()),
            Self::Choice(_) => None,
            Self::Interval(Interval { from, to, log }) => match (number(from), number(to)) {
                (Some(from), Some(to)) if from < to && (!log || from > 0.0) => None,
                (Some(_), Some(_)) if *log => Some("a range with log goes up from a number above 0".into()),
                (Some(_), Some(_)) => Some("a range goes up".into()),
                _ => Some("a range goes from a number to a number".into()),
            },
        }
    }

    /// Draws a value; `uniform` is from 0 to 1.
    fn draw(&self, uniform: f64) -> Value {
        match self {
            Self::Choice(values) => values[((uniform * values.len() as f64) as usize).min(values.len() - 1)].clone(),
            Self::Interval(Interval { from, to, log }) => {
                let (low, high) = (number(from).unwrap_or(0.0), number(to).unwrap_or(0.0));
                let x = if *log { low * (high / low).powf(uniform) } else { low + (high - low) * uniform };
                match (from, to) {
                    (Value::Integer(_), Value::Integer(_)) => Value::Integer(x.round() as i64),
                    // Three digits are as good as sixteen, and can be read.
                    _ => Value::Float(format!("{x:.2e}").parse::<f64>().unwrap_or(x).clamp(low, high)),
                }
            }
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

/// Settings, to be trained with each seed.
struct Trial {
    /// Settings that were drawn.
    drawn: Vec<(String, Value)>,
    seeds: Range<u64>,
    file: PathBuf,
    /// Outcomes by rung and seed.
    results: BTreeMap<(usize, u64), Scored>,
}

/// Outcome of a training on one rung.
#[derive(Clone, Copy)]
struct Scored {
    /// Mean return of the evaluation; NaN if the training failed.
    score: f64,
    seconds: f64,
}

/// A sweep, with all that its directory knows.
struct Sweep {
    dir: PathBuf,
    /// Program and first arguments of a trial's process.
    command: Vec<OsString>,
    /// Environment of the file.
    env: EnvConfig,
    /// Python of environments in worker processes, if one was named.
    python: Option<PathBuf>,
    trials: Vec<Trial>,
    /// Env steps of each rung.
    rungs: Vec<u64>,
    halving: u64,
    /// Threads of a training; `None` if the file has their number.
    threads: Option<usize>,
    parallel: usize,
    json: bool,
    /// Lock of the directory.
    lock: Option<File>,
}

pub(crate) fn run(args: &SweepArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let sweep = &mut open(args, envs, json)?;
    for rung in 0..sweep.rungs.len() {
        if !sweep.climb(rung)? {
            let (program, file) = (print::program(), print::quoted(&args.file));
            let dir = args.dir.as_ref().map_or_else(String::new, |dir| format!(" --dir {}", print::quoted(dir)));
            print::err(&format!("interrupted: the trainings are saved; continue with: {program} sweep {file}{dir}"));
            return Ok(ExitCode::from(interrupt::EXIT_CODE));
        }
    }
    sweep.report()?;
    Ok(ExitCode::SUCCESS)
}

/// Checks the file and every trial, and creates or continues the directory.
fn open(args: &SweepArgs, envs: &Envs, json: bool) -> Result<Sweep, Error> {
    let name = args.file.display().to_string();
    let text = config::read_small(&args.file, MAX_FILE)?;
    let bad = |what: String| Error::config(format!("{name}: {what}"));
    let mut base: Table = toml::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let plan = base.remove("sweep").ok_or_else(|| bad("has no section [sweep]; see `rl sweep --help`".into()))?;
    let plan: SweepSection = plan.try_into().map_err(|error| bad(format!("[sweep]: {error}")))?;
    if let Some((key, problem)) = plan.settings.iter().find_map(|(key, values)| Some((key, values.problem()?))) {
        return Err(bad(format!("sweep.settings.{key}: {problem}")));
    }
    for (key, instead) in [("steps", "sweep.halving varies them"), ("threads", "all trainings have as many")] {
        if plan.settings.contains_key(key) {
            return Err(bad(format!("sweep.settings.{key}: cannot vary; {instead}")));
        }
    }
    if !(1..=10_000).contains(&plan.trials) || plan.halving.is_some_and(|n| !(2..=100).contains(&n)) {
        return Err(bad("sweep.trials is from 1 to 10000, sweep.halving from 2 to 100".into()));
    }
    if !(1..=1000).contains(&plan.seeds) {
        return Err(bad("sweep.seeds is from 1 to 1000".into()));
    }
    let with = |drawn: &[(String, Value)]| -> Result<Layers, Error> {
        let mut layers = Layers::default();
        layers.add_toml(&text, &name)?;
        layers.forget_section("sweep");
        drawn.iter().for_each(|(key, value)| layers.add(key, value.clone(), "sweep.settings".into()));
        Ok(layers)
    };
    let given = with(&[])?;
    let env = given.env()?.ok_or_else(|| bad("names no environment: env = \"cartpole\"".into()))?;
    let mut chosen = vec![env.clone()];
    if let Some(Values::Choice(kwargs)) = plan.settings.get(KWARGS) {
        chosen.extend(kwargs.iter().filter_map(Value::as_str).map(|kwargs| EnvConfig { kwargs: kwargs.into(), ..env.clone() }));
    }
    envs.trust.check(&chosen, Choice::Found(&name))?;
    let algo = given.text("algo")?.map_or(Ok(Algo::default()), |name| Algo::find(&name))?;
    envs.start_within(given.number("start_timeout_s"));
    let entry = &envs.open(&env, Choice::Found(&name), false, 0)?;
    if let Some(key) = FROM_START.into_iter().find(|key| plan.settings.contains_key(*key))
        && entry.batches().is_some()
    {
        return Err(bad(format!("sweep.settings.{key}: cannot vary; worker processes have it from their start")));
    }
    let has_threads = given.has("threads");
    let first = given.resolve(entry, algo)?;
    let rungs = rungs(first.run.steps, plan.halving, plan.min_steps).map_err(bad)?;
    let stem = args.file.file_stem().map_or_else(|| "sweep".into(), |stem| stem.to_string_lossy().into_owned());
    let dir = args.dir.clone().unwrap_or_else(|| Path::new("sweeps").join(stem));
    // The first rung must be long enough to learn.
    let allowed = |drawn: &[(String, Value)]| {
        let mut layers = with(drawn)?;
        layers.add("steps", rungs[0] as i64, "sweep.min_steps".into());
        layers.resolve(entry, algo)
    };
    let mut trials = Vec::new();
    for i in 0..plan.trials {
        let drawn = if i == 0 { Vec::new() } else { draw(&plan, i, |drawn| allowed(drawn).map(drop)).map_err(bad)? };
        let seed = allowed(&drawn)?.run.seed;
        let seeds = seed..seed + plan.seeds;
        if seeds.end > i64::MAX as u64 {
            return Err(bad(format!("seed {seed} leaves no room for {} seeds", plan.seeds)));
        }
        trials.push(Trial { drawn, seeds, file: dir.join(format!("trial-{i:03}.toml")), results: BTreeMap::new() });
    }
    let trainings = plan.trials * plan.seeds as usize;
    let parallel = args.parallel.map_or_else(|| threads(None), |n| n as usize).min(trainings);
    let threads = (!has_threads).then(|| (threads(None) / parallel).max(1));
    let halving = plan.halving.unwrap_or(1);
    let command = envs.command.clone();
    let python = envs.python.clone();
    let mut sweep = Sweep { dir, command, env, python, trials, rungs, halving, threads, parallel, json, lock: None };
    sweep.begin(&text, &base)?;
    Ok(sweep)
}

/// Returns the env steps of each rung.
fn rungs(steps: u64, halving: Option<u64>, min_steps: Option<u64>) -> Result<Vec<u64>, String> {
    let (factor, least) = match (halving, min_steps) {
        (None, None) => return Ok(vec![steps]),
        (Some(factor), Some(least)) if (1..=steps).contains(&least) => (factor, least),
        (Some(_), Some(_)) => return Err(format!("sweep.min_steps is from 1 to steps, which are {steps}")),
        _ => return Err("sweep.halving and sweep.min_steps belong together".into()),
    };
    let mut rungs = vec![steps];
    while let Some(fewer) = rungs.last().map(|last| last / factor).filter(|fewer| *fewer >= least) {
        rungs.push(fewer);
    }
    rungs.reverse();
    Ok(rungs)
}

/// Draws the settings of a trial until they are allowed.
fn draw(
    plan: &SweepSection,
    trial: usize,
    mut allowed: impl FnMut(&[(String, Value)]) -> Result<(), Error>,
) -> Result<Vec<(String, Value)>, String> {
    let mut problem = String::new();
    for attempt in 0..DRAWS {
        let rng = &mut Rng::new(plan.seed, trial as u32, attempt, Purpose::Init);
        let drawn: Vec<_> = plan.settings.iter().map(|(key, values)| (key.clone(), values.draw(rng.uniform().into()))).collect();
        match allowed(&drawn) {
            Ok(()) => return Ok(drawn),
            Err(error) => problem = error.to_string(),
        }
    }
    Err(format!("none of {DRAWS} draws of sweep.settings is allowed, the last because: {problem}"))
}

impl Trial {
    fn name(&self) -> String {
        self.file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn settings(&self) -> String {
        if self.drawn.is_empty() { "the settings of the file".into() } else { layers::in_words(&self.drawn) }
    }

    /// Returns the run directory of a seed.
    fn run(&self, seed: u64) -> PathBuf {
        self.file.with_file_name(format!("{}-seed-{seed}", self.name()))
    }

    fn log(&self, seed: u64) -> PathBuf {
        self.run(seed).with_extension("log")
    }

    /// Returns mean and standard error over the seeds.
    ///
    /// The mean is NaN if a seed failed, or if none has ended.
    fn score(&self, rung: usize) -> (f64, f64) {
        let scores: Vec<f64> = self.seeds.clone().filter_map(|seed| Some(self.results.get(&(rung, seed))?.score)).collect();
        let n = scores.len() as f64;
        let mean = scores.iter().sum::<f64>() / n;
        let squares = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>();
        (mean, if n > 1.0 { (squares / (n - 1.0) / n).sqrt() } else { 0.0 })
    }

    /// Returns the last rung with a score; `None` if a training failed on each.
    fn rung(&self) -> Option<usize> {
        self.results.keys().map(|(rung, _)| *rung).rfind(|&rung| !self.score(rung).0.is_nan())
    }
}

/// Waits until no process uses a directory, for a while.
///
/// A training whose sweep was killed takes a moment to end.
///
/// # Errors
/// [`Error::RunDir`] if it is still in use.
fn wait_for_lock(dir: &Path) -> Result<(), Error> {
    let begin = Instant::now();
    while dir.exists() {
        match lock(dir) {
            Err(Error::RunDir { .. }) if begin.elapsed() < PATIENCE => std::thread::sleep(LOOK),
            locked => return locked.map(drop),
        }
    }
    Ok(())
}

impl Sweep {
    /// Creates the directory or continues it, and reads what it knows.
    fn begin(&mut self, text: &str, base: &Table) -> Result<(), Error> {
        let copy = self.dir.join(COPY);
        let is_new = copy.symlink_metadata().is_err();
        if is_new {
            fs::create_dir_all(&self.dir).map_err(Error::io(&self.dir))?;
            self.check_empty()?;
        }
        self.lock = Some(lock(&self.dir)?);
        if is_new {
            // Another process may have started and finished a sweep in between.
            self.check_empty()?;
            // First: it makes the directory a sweep's, and whatever is missing is written by the command that continues it.
            write_own(&copy, text.as_bytes())?;
        } else if read_own(&copy, MAX_FILE)? != text {
            let why = format!("is a sweep of other settings ({}); name another --dir", copy.display());
            return Err(Error::RunDir { path: self.dir.clone(), why });
        }
        for entry in self.entries()?.filter(is_remnant) {
            let _ = fs::remove_file(entry.path());
        }
        for trial in &self.trials {
            let mut table = base.clone();
            trial.drawn.iter().for_each(|(key, value)| layers::insert(&mut table, key, value.clone()));
            let text = table.to_string();
            if !read_own(&trial.file, MAX_FILE).is_ok_and(|old| old == text) {
                write_own(&trial.file, text.as_bytes())?;
            }
        }
        self.read()
    }

    fn entries(&self) -> Result<impl Iterator<Item = DirEntry>, Error> {
        Ok(fs::read_dir(&self.dir).map_err(Error::io(&self.dir))?.flatten())
    }

    /// Checks that the directory is empty, apart from remnants of killed processes.
    fn check_empty(&self) -> Result<(), Error> {
        let is_lock =
            |entry: &DirEntry| entry.file_name() == "lock" && entry.metadata().is_ok_and(|of| of.is_file() && of.len() == 0);
        if self.entries()?.all(|entry| is_lock(&entry) || is_remnant(&entry)) {
            return Ok(());
        }
        let why = "is not empty, and not a sweep; name another --dir".into();
        Err(Error::RunDir { path: self.dir.clone(), why })
    }

    /// Reads the outcomes of an earlier part.
    fn read(&mut self) -> Result<(), Error> {
        let path = self.dir.join("trials.csv");
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        for line in read_own(&path, MAX_TABLE)?.lines().skip(1) {
            let mut cells = line.split(',');
            let mut next = || cells.next().unwrap_or_default();
            let (trial, rung, seed) = (next().parse::<usize>(), next().parse::<usize>(), next().parse::<u64>());
            let (steps, score, seconds) = (next().parse::<u64>(), next(), next());
            let damaged = || Error::config(format!("{}: \"{line}\" is no row of this sweep", path.display()));
            let (Ok(trial), Ok(rung), Ok(seed), Ok(steps)) = (trial, rung, seed, steps) else { return Err(damaged()) };
            let trial = self.trials.get_mut(trial).filter(|trial| trial.seeds.contains(&seed)).ok_or_else(damaged)?;
            let scored = Scored { score: score.parse().unwrap_or(f64::NAN), seconds: seconds.parse().unwrap_or(f64::NAN) };
            if self.rungs.get(rung) != Some(&steps) || trial.results.insert((rung, seed), scored).is_some() {
                return Err(damaged());
            }
        }
        Ok(())
    }

    /// Writes all outcomes, rung by rung.
    fn write(&self) -> Result<(), Error> {
        let keys: Vec<&str> = self
            .trials
            .iter()
            .max_by_key(|trial| trial.drawn.len())
            .map_or(Vec::new(), |trial| trial.drawn.iter().map(|(key, _)| key.as_str()).collect());
        let mut text = format!("trial,rung,seed,env_steps,return_mean,seconds,{}\n", keys.join(","));
        for (rung, steps) in self.rungs.iter().enumerate() {
            for (i, trial) in self.trials.iter().enumerate() {
                for (&(_, seed), Scored { score, seconds }) in trial.results.range((rung, 0)..(rung + 1, 0)) {
                    let _ = write!(text, "{i},{rung},{seed},{steps},{score},{seconds:.1}");
                    for key in &keys {
                        let value = trial.drawn.iter().find(|(of, _)| of == key).map(|(_, value)| cell(value));
                        let _ = write!(text, ",{}", value.unwrap_or_default());
                    }
                    text.push('\n');
                }
            }
        }
        write_own(&self.dir.join("trials.csv"), text.as_bytes())
    }

    /// Returns the trials that take part in a rung, the best of the one before first.
    fn members(&self, rung: usize) -> Vec<usize> {
        let mut members: Vec<usize> = (0..self.trials.len()).collect();
        for below in 0..rung {
            let by_score = |&a: &usize, &b: &usize| worst_last(self.trials[a].score(below).0, self.trials[b].score(below).0);
            members.sort_by(by_score);
            members.truncate(members.len().div_ceil(self.halving as usize));
        }
        members
    }

    /// Trains the members of a rung; false if some are left to train.
    fn climb(&mut self, rung: usize) -> Result<bool, Error> {
        let mut running = Vec::new();
        let trained = self.train(rung, &mut running);
        if trained.is_err() {
            // They save what they have learnt.
            running.iter().for_each(|(_, _, child, _)| stop(child));
            running.iter_mut().for_each(|(_, _, child, _)| _ = child.wait());
        }
        trained
    }

    fn train(&mut self, rung: usize, running: &mut Vec<(usize, u64, Child, Instant)>) -> Result<bool, Error> {
        let seeds = |i: usize| self.trials[i].seeds.clone().map(move |seed| (i, seed));
        let mut waiting: Vec<(usize, u64)> = self.members(rung).into_iter().flat_map(seeds).collect();
        waiting.retain(|&(i, seed)| !self.trials[i].results.contains_key(&(rung, seed)));
        waiting.reverse();
        let (mut asked, mut left) = (false, false);
        while !waiting.is_empty() && !asked || !running.is_empty() {
            while running.len() < self.parallel
                && !interrupt::requested()
                && let Some((i, seed)) = waiting.pop()
            {
                running.push((i, seed, self.start(&self.trials[i], seed, self.rungs[rung])?, Instant::now()));
            }
            if interrupt::requested() && !asked {
                running.iter().for_each(|(_, _, child, _)| stop(child));
                asked = true;
            }
            std::thread::sleep(LOOK);
            for at in (0..running.len()).rev() {
                let (i, seed, child, begin) = &mut running[at];
                let Some(status) = child.try_wait().map_err(Error::io("rl train"))? else { continue };
                let (i, seed, seconds) = (*i, *seed, begin.elapsed().as_secs_f64());
                running.swap_remove(at);
                // The kernel kills a process when memory is short, and a user any: that says nothing of the settings.
                let was_killed = status.code().is_none() || status.code() == Some(i32::from(signals::EXIT_CODE_AT_ONCE));
                let is_stopped = was_killed || status.code() == Some(i32::from(interrupt::EXIT_CODE));
                left |= is_stopped;
                if was_killed && !asked {
                    let trial = self.trials[i].name();
                    print::err(&format!("warning: {trial}, seed {seed}: {status}; the same command trains it again"));
                }
                if !is_stopped {
                    let evaluations = Recorded::open(&self.trials[i].run(seed)).map(|run| run.curve(STEPS, "eval/mean_reward"));
                    let last = evaluations.ok().and_then(|curve| curve.last().map(|(_, score)| *score));
                    let score = last.filter(|_| status.success()).unwrap_or(f64::NAN);
                    self.trials[i].results.insert((rung, seed), Scored { score, seconds });
                    self.write()?;
                    self.tell(i, rung, seed);
                }
            }
        }
        Ok(!asked && !left)
    }

    /// Starts the training of a trial's seed up to `steps`.
    fn start(&self, trial: &Trial, seed: u64, steps: u64) -> Result<Child, Error> {
        let dir = &trial.run(seed);
        own_dir(dir).map_err(refused(dir, "; remove it"))?;
        wait_for_lock(dir)?;
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]);
        let has_saved = !checkpoint::list(&dir.join("checkpoints"))?.is_empty();
        if has_saved {
            command.args(["train", "--resume"]).arg(dir);
        } else {
            if dir.exists() {
                fs::remove_dir_all(dir).map_err(Error::io(dir))?;
            }
            command.args(["train", "--config"]).arg(&trial.file).arg("--run-dir").arg(dir);
            command.args(["--seed", &seed.to_string()]);
        }
        command.args(["--steps", &steps.to_string(), "--plain"]);
        self.threads.into_iter().for_each(|threads| _ = command.args(["--threads", &threads.to_string()]));
        command.args(["--parent", &std::process::id().to_string()]);
        self.python.iter().for_each(|python| _ = command.arg("--python").arg(python));
        // What was accepted is this environment, not what the directory's files may name by now.
        let drawn = trial.drawn.iter().find(|(key, _)| key == KWARGS).and_then(|(_, kwargs)| kwargs.as_str());
        let kwargs = drawn.map_or_else(|| self.env.kwargs.clone(), String::from);
        if let Some(hash) = hash(&EnvConfig { kwargs, ..self.env.clone() }) {
            command.args(["--trusted", &hash]);
        }
        let path = trial.log(seed);
        let log = own(&path, |options| options.write(true).create(true).truncate(true)).map_err(refused(&path, "; remove it"))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(Error::io("rl train"))
    }

    fn tell(&self, i: usize, rung: usize, seed: u64) {
        let (trial, steps) = (&self.trials[i], self.rungs[rung]);
        let Scored { score, seconds } = trial.results[&(rung, seed)];
        print::out(&if self.json {
            json!({
                "event": "trial", "trial": i, "seed": seed, "env_steps": steps, "return_mean": finite(score),
                "seconds": seconds, "settings": trial.settings(),
            })
            .to_string()
        } else if score.is_nan() {
            format!("{}, seed {seed}: failed, see {}", trial.name(), trial.log(seed).display())
        } else {
            format!("{}, seed {seed}, {} env steps: {score:.1} ({})", trial.name(), print::grouped(steps), trial.settings())
        });
    }

    /// Prints the table, draws the picture, writes the best settings.
    fn report(&self) -> Result<(), Error> {
        let mut order: Vec<usize> = (0..self.trials.len()).collect();
        let key = |&i: &usize| {
            let rung = self.trials[i].rung();
            (rung, rung.map_or(f64::NAN, |rung| self.trials[i].score(rung).0))
        };
        order.sort_by(|a, b| key(b).0.cmp(&key(a).0).then(worst_last(key(a).1, key(b).1)));
        let best = &self.trials[order[0]];
        let (Some(highest), score) = key(&order[0]) else {
            let why = format!("a training of every trial failed; see {}", best.log(best.seeds.start).display());
            return Err(Error::Io { path: self.dir.clone(), error: std::io::Error::other(why) });
        };
        if highest + 1 < self.rungs.len() {
            let steps = print::grouped(self.rungs[highest]);
            print::err(&format!("warning: no training beyond {steps} env steps succeeded; trials are ranked by those"));
        }
        write_own(&self.dir.join("best.toml"), read_own(&best.file, MAX_FILE)?.as_bytes())?;
        let (mut curves, mut names) = (Vec::new(), Vec::new());
        for &i in &order {
            let trial = &self.trials[i];
            let mut runs: Vec<_> = trial.seeds.clone().filter_map(|seed| Recorded::open(&trial.run(seed)).ok()).collect();
            runs.retain(|run| !run.curve(STEPS, plot::RETURN).is_empty());
            if !runs.is_empty() {
                curves.push(plot::curve(&runs, STEPS));
                names.push(format!("{}: {}", trial.name(), trial.settings()));
            }
        }
        let picture = self.dir.join("sweep.svg");
        write_own(&picture, chart::svg("mean return", &["env steps"], &[curves], &names).as_bytes())?;
        if self.json {
            let dir = self.dir.display().to_string();
            let settings = best.settings();
            print::out(
                &json!({"event": "swept", "dir": dir, "best": best.name(), "return_mean": score, "settings": settings})
                    .to_string(),
            );
            return Ok(());
        }
        print::out(&format!("{:>11}  {:>16}  settings", "env steps", "return"));
        for &i in &order {
            let trial = &self.trials[i];
            let rung = trial.rung().unwrap_or(0);
            let (steps, (score, error)) = (print::grouped(self.rungs[rung]), trial.score(rung));
            let score = if score.is_nan() {
                "failed".into()
            } else if error > 0.0 {
                format!("{score:.1} +- {error:.1}")
            } else {
                format!("{score:.1}")
            };
            print::out(&format!("{steps:>11}  {score:>16}  {}", trial.settings()));
        }
        if best.seeds.clone().count() > 1 {
            print::out("return: mean over the seeds, with its standard error");
        }
        print::out(&format!(
            "{}: train with the best settings by {} train --config {}",
            picture.display(),
            print::program(),
            print::quoted(&self.dir.join("best.toml"))
        ));
        Ok(())
    }
}

/// True for a draft left by a killed process.
fn is_remnant(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let target = name.to_str().and_then(|name| Some((name, name.strip_prefix('.')?.strip_suffix(".tmp")?.rsplit_once('.')?.0)));
    target.is_some_and(|(name, target)| {
        let is_own = [COPY, "trials.csv", "best.toml", "sweep.svg"].contains(&target) || target.starts_with("trial-");
        is_own && is_draft_of(name, target)
    })
}

/// Formats a value as a cell of a table, in which each row is one line.
fn cell(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), String::from);
    let mut line = String::new();
    for c in text.chars() {
        match c {
            c if c.is_control() || c == '\\' => line.extend(c.escape_default()),
            c => line.push(c),
        }
    }
    if line.contains([',', '"']) { format!("\"{}\"", line.replace('"', "\"\"")) } else { line }
}

/// Orders scores from the best on; NaN is the worst.
fn worst_last(a: f64, b: f64) -> std::cmp::Ordering {
    a.is_nan().cmp(&b.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
}

fn finite(score: f64) -> Option<f64> {
    score.is_finite().then_some(score)
}

/// Asks a training to save and stop.
fn stop(child: &Child) {
    #[cfg(unix)]
    if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_line_that_readers_of_csv_take_for_one_value() {
        for (value, text) in [
            (Value::from("relu"), "relu"),
            (Value::from(0.001), "0.001"),
            (Value::from(vec![64, 64]), "\"[64, 64]\""),
            (Value::from("{\"a\": 1,\n\"b\": 2}"), "\"{\"\"a\"\": 1,\\n\"\"b\"\": 2}\""),
            (Value::from("a\r\u{1b}[2J\\n"), "a\\r\\u{1b}[2J\\\\n"),
        ] {
            assert_eq!(cell(&value), text);
        }
    }
}
