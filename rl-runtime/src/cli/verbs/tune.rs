//! `rl tune`: searches settings for the fastest training.
//!
//! The search climbs from the preset: it tries one change of the best settings so far after another, each by training for a
//! moment, and keeps what is faster. At the end, the result and the preset alternate; a result that is not faster then is
//! dropped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use rl_envs::catalog::Entry;
use serde_json::json;
use toml::{Table, Value};

use crate::cli::args::{ahead, parse_count, set_matrix_threads, threads};
use crate::cli::envs::Envs;
use crate::cli::signals;
use crate::config::budget::{Budget, in_words};
use crate::config::env::FROM_START;
use crate::config::{Layers, layers};
use crate::file::Draft;
use crate::print::grouped;
use crate::run::train::Training;
use crate::{Algo, Config, Error, Mode, interrupt, print};

/// Speed-up above which a change is kept.
const FASTER: f64 = 1.03;
/// Trials that the search has time for.
const TRIALS: f64 = 40.0;
/// Share of the time that the search may take.
///
/// The rest compares the result with the preset.
const SEARCH: f64 = 0.7;
/// Alternating measurements of the result and the preset, twice as long as trials.
const ROUNDS: usize = 3;
/// Fewest steps of a rollout that the search chooses.
const MIN_STEPS: usize = 4;

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl tune cartpole
  rl tune slow_cartpole --envs 32 --set env.latency_ms=50 --out mine.toml
  rl train --config mine.toml

It varies pipeline and max_lag, n_envs (n_steps changes with it, so that an update has as many samples), threads, and the workers of
environments in worker processes. What is given keeps its value. --updates also varies batch_size and n_epochs, which decide how much is
learnt from each sample: faster is then not better. Nothing but the file is written.")]
pub(crate) struct TuneArgs {
    /// The environment (see `rl list`)
    env: String,
    /// Name of an algorithm [default: the file's, else ppo]
    #[arg(long)]
    algo: Option<String>,
    /// Number of environments, if it is to stay
    #[arg(long, value_parser = parse_count)]
    envs: Option<i64>,
    /// Threads, if their number is to stay
    #[arg(long)]
    threads: Option<i64>,
    /// A setting that is to stay, such as ppo.n_steps=128
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Settings that are to stay, from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Vary batch_size and n_epochs, too
    #[arg(long)]
    updates: bool,
    /// Seconds of the whole search, longer if single rollouts are
    #[arg(long, default_value_t = 100.0, value_parser = parse_seconds)]
    seconds: f64,
    /// File to write or replace [default: tuned-ENV-ALGO.toml, if it is new]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "a number from 0.1 to 86400".into())
}

/// Settings that are changed together.
type Change = Vec<(String, Value)>;

/// A change that was kept.
struct Kept {
    change: Change,
    /// Speed after it, divided by the speed before it.
    gain: f64,
}

/// Search for the fastest settings.
struct Tuning<'a> {
    entry: &'a Entry,
    algo: Algo,
    given: Layers,
    least: Duration,
    json: bool,
    /// Settings that were tried, as TOML.
    tried: BTreeSet<String>,
}

pub(crate) fn run(args: &TuneArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let mut given = Layers::default();
    if let Some(path) = &args.config {
        given.add_file(path)?;
    }
    args.settings.iter().for_each(|assignment| given.add_assignment(assignment));
    let in_file = given.text("algo")?;
    let algo = args.algo.as_ref().or(in_file.as_ref()).map_or(Ok(Algo::default()), |name| Algo::find(name))?;
    given.add("env", args.env.as_str(), "the command line".into());
    for (key, value) in [("n_envs", args.envs), ("threads", args.threads)] {
        value.into_iter().for_each(|value| given.add(key, value, "the command line".into()));
    }
    envs.start_within(given.number("start_timeout_s"));
    let entry = &envs.open_chosen(&given, ahead(&given))?.ok_or_else(|| Error::config("no environment given"))?;
    let preset = given.clone().resolve(entry, algo)?;
    let file = args.out.clone().unwrap_or_else(|| {
        let name: String =
            entry.name.chars().map(|c| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '-' }).collect();
        format!("tuned-{name}-{}.toml", algo.name()).into()
    });
    if args.out.is_none() && file.exists() {
        return Err(Error::config(format!("{} exists; --out {0} replaces it, or name another file", file.display())));
    }
    let draft = Draft::create(&file)?;
    if !preset.run.offline.is_empty() {
        return Err(Error::config("offline learns without environments, whose speed rl tune measures; leave it out"));
    }
    if let Some(why) = preset.unshared(entry, 1) {
        return Err(Error::config(why));
    }
    Budget::training(&preset, entry).check()?;
    set_matrix_threads(preset.run.threads);
    let begin = Instant::now();
    let least = Duration::from_secs_f64(args.seconds / TRIALS);
    let mut tuning = Tuning { entry, algo, given, least, json, tried: BTreeSet::new() };
    let goes_on = || begin.elapsed().as_secs_f64() < SEARCH * args.seconds && !interrupt::requested();
    let first = tuning.trial(&Vec::new(), 1.0, 1.0)?;
    let (mut kept, mut best, mut improved) = (Vec::new(), first, true);
    while improved && goes_on() {
        improved = false;
        for kind in [pipeline, envs_at_once, threads_of, workers, updates] {
            let mut changes = tuning.changes(&kept, kind, args.updates)?;
            changes.reverse();
            while let (Some(change), true) = (changes.pop(), goes_on()) {
                let whole = with(&kept, &change);
                let rate = tuning.trial(&whole, first, best)?;
                if rate > FASTER * best {
                    kept.push(Kept { change, gain: rate / best });
                    (best, improved) = (rate, true);
                    changes = tuning.changes(&kept, kind, args.updates)?;
                    changes.reverse();
                }
            }
        }
    }
    let (best, first) = tuning.compare(&mut kept, args.seconds - begin.elapsed().as_secs_f64())?;
    if interrupt::requested() {
        print::err("interrupted: nothing is written");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    let tuned = tuning.config(&with(&kept, &Vec::new()))?;
    draft.publish(tuning.toml(&tuned, &kept, best, first)?.as_bytes())?;
    let file = file.display().to_string();
    print::out(&if json {
        json!({
            "event": "tuned", "file": file, "env_steps_per_s": best, "preset_env_steps_per_s": first, "seconds": begin.elapsed().as_secs_f64(),
        })
        .to_string()
    } else {
        format!(
            "{} env steps/s, the preset {}: {:.2} times, medians of alternating measurements\n{file}: `rl train --config {}`",
            grouped(best as u64),
            grouped(first as u64),
            best / first,
            print::quoted(file.as_ref())
        )
    });
    Ok(ExitCode::SUCCESS)
}

/// Returns what was kept, with one more change.
///
/// The latest value of each setting counts.
fn with(kept: &[Kept], change: &Change) -> Change {
    let all = kept.iter().flat_map(|kept| &kept.change).chain(change);
    let mut whole = Change::new();
    for (key, value) in all {
        whole.retain(|(other, _)| other != key);
        whole.push((key.clone(), value.clone()));
    }
    whole
}

fn count(n: usize) -> Value {
    Value::Integer(n as i64)
}

/// Collecting beside learning, and how far ahead.
fn pipeline(config: &Config, _: &Entry) -> Vec<Change> {
    let overlapped = |lag: usize| vec![("pipeline".into(), "overlapped".into()), ("max_lag".into(), count(lag))];
    match config.mode() {
        Mode::Sync => vec![overlapped(1)],
        Mode::Overlapped { max_lag } => {
            vec![vec![("pipeline".into(), "sync".into()), ("max_lag".into(), count(1))], overlapped(max_lag.max(1) * 2)]
        }
    }
}

/// More or fewer environments, with as many samples an update.
fn envs_at_once(config: &Config, _: &Entry) -> Vec<Change> {
    let (n, steps, replays) = (config.run.n_envs, config.n_steps(), config.traits().replay.is_some());
    let rollout = |n: usize, steps: usize| -> Change {
        let steps = (!replays).then(|| (format!("{}.n_steps", config.algo.name()), count(steps)));
        [("n_envs".into(), count(n))].into_iter().chain(steps).collect()
    };
    let more = (replays || steps.is_multiple_of(2) && steps / 2 >= MIN_STEPS).then(|| rollout(2 * n, steps / 2));
    let fewer = n.is_multiple_of(2).then(|| rollout(n / 2, 2 * steps));
    more.into_iter().chain(fewer).collect()
}

/// Other numbers of threads.
fn threads_of(config: &Config, _: &Entry) -> Vec<Change> {
    let cores = threads(None);
    let numbers = (0..).map(|i| 1 << i).take_while(|n| *n < cores).chain([cores]);
    let mut changes: Vec<Change> = numbers.map(|n| vec![("threads".into(), count(n))]).collect();
    let all = config.run.threads;
    if config.mode() != Mode::Sync && all >= 4 {
        changes.extend([all / 4, 3 * all / 4].map(|n| vec![("collect_threads".into(), count(n))]));
    }
    changes
}

/// Processes of environments in worker processes, and their order.
fn workers(config: &Config, entry: &Entry) -> Vec<Change> {
    if entry.batches().is_none() {
        return Vec::new();
    }
    let n = config.workers();
    let numbers = [2 * n, n / 2].into_iter().filter(|n| (1..=config.run.n_envs).contains(n));
    let orders = ["lockstep", "first_come"].map(|order| vec![("drive".into(), order.into())]);
    numbers.map(|n| vec![("workers".into(), count(n))]).chain(orders).collect()
}

/// Larger minibatches, fewer epochs.
fn updates(config: &Config, _: &Entry) -> Vec<Change> {
    let settings = config.settings();
    let changed = |name: &str, f: fn(i64) -> i64| {
        let key = format!("{}.{name}", config.algo.name());
        let value = f(settings.get(&key)?.as_integer()?);
        (value > 0).then(|| vec![(key, Value::Integer(value))])
    };
    [changed("batch_size", |n| 2 * n), changed("n_epochs", |n| n / 2)].into_iter().flatten().collect()
}

/// Says what a setting changes besides speed.
fn cost(key: &str) -> &'static str {
    match key.rsplit('.').next().unwrap_or(key) {
        "pipeline" | "max_lag" => "the policy that collects is up to max_lag updates old",
        "n_envs" | "n_steps" => "as many samples an update, from shorter stretches of more environments or longer ones of fewer",
        "drive" => "first_come: rows in the order of answers, which no seed repeats",
        "batch_size" | "n_epochs" => "changes what is learnt",
        _ => "the same bits",
    }
}

impl Tuning<'_> {
    /// Returns the changes of one kind that are allowed and not given.
    fn changes(&self, kept: &[Kept], kind: fn(&Config, &Entry) -> Vec<Change>, vary_updates: bool) -> Result<Vec<Change>, Error> {
        let config = self.config(&with(kept, &Vec::new()))?;
        let mut changes = kind(&config, self.entry);
        changes.retain(|change| {
            let free = |key: &str| {
                !self.given.has(key) && (vary_updates || !["batch_size", "n_epochs"].iter().any(|name| key.ends_with(name)))
            };
            let config = change.iter().all(|(key, _)| free(key)).then(|| self.config(&with(kept, change)));
            let allowed = |config: Config| config.unshared(self.entry, 1).is_none() && !self.tried.contains(&config.to_toml());
            config.is_some_and(|config| config.is_ok_and(allowed))
        });
        Ok(changes)
    }

    fn config(&self, change: &Change) -> Result<Config, Error> {
        let mut layers = self.given.clone();
        change.iter().for_each(|(key, value)| layers.add(key, value.clone(), "rl tune".into()));
        layers.resolve(self.entry, self.algo)
    }

    /// Measures settings, and prints them beside the preset.
    ///
    /// Returns 0 for settings that do not fit into memory.
    fn trial(&mut self, change: &Change, preset: f64, best: f64) -> Result<f64, Error> {
        let config = self.config(change)?;
        self.tried.insert(config.to_toml());
        let name = if change.is_empty() { "the preset".into() } else { layers::in_words(change) };
        let bytes: u128 = Budget::training(&config, self.entry).parts()?.iter().map(|(_, bytes)| bytes).sum();
        let rate = match self.rate(&config) {
            // The preset must run; a change of it may ask for more threads or files than there are.
            Err(error) if !change.is_empty() && !error.is_stop() => {
                print::err(&format!("{name}: {error}"));
                return Ok(0.0);
            }
            rate => rate?,
        };
        if interrupt::requested() {
            return Ok(rate);
        }
        print::out(&if self.json {
            let change: serde_json::Map<_, _> = change.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            json!({"event": "trial", "settings": change, "env_steps_per_s": rate, "bytes": bytes as u64}).to_string()
        } else if rate == 0.0 {
            format!("{name}: does not fit, about {} of memory", in_words(bytes))
        } else {
            let beside = if change.is_empty() {
                String::new()
            } else {
                let found = if rate > FASTER * best { ", kept" } else { "" };
                format!(", {:.2} times the preset{found}", rate / preset)
            };
            format!("{name}: {} env steps/s, {} of memory{beside}", grouped(rate as u64), in_words(bytes))
        });
        Ok(rate)
    }

    /// Trains for a moment; returns 0 for settings that do not fit.
    fn rate(&self, config: &Config) -> Result<f64, Error> {
        let mut config = config.clone();
        // As in the longest part of a training.
        config.algo.settings_mut().settle();
        match Training::builder(&config, self.entry).build() {
            Err(Error::Config { .. } | Error::DeviceMemory { .. }) => Ok(0.0),
            // Once the pipeline is full.
            training => training?.rate(1 + config.mode().n_ahead() as u64, self.least),
        }
    }

    /// Measures the result and the preset in turn.
    ///
    /// Once at least, and again within `seconds`. Returns their medians. What was kept is dropped if it is hardly faster.
    fn compare(&mut self, kept: &mut Vec<Kept>, seconds: f64) -> Result<(f64, f64), Error> {
        let (tuned, preset) = (self.config(&with(kept, &Vec::new()))?, self.config(&Vec::new())?);
        let (mut rates, begin) = ([Vec::new(), Vec::new()], Instant::now());
        self.least *= 2;
        for round in 0..ROUNDS {
            if round > 0 && (begin.elapsed().as_secs_f64() > seconds || interrupt::requested()) {
                break;
            }
            for (rates, config) in rates.iter_mut().zip([&tuned, &preset]) {
                rates.push(self.rate(config)?);
            }
        }
        let [best, first] = rates.map(|mut rates| {
            rates.sort_unstable_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        if best > FASTER * first {
            return Ok((best, first));
        }
        kept.clear();
        Ok((first, first))
    }

    /// Writes what differs from the preset's, with what each brings and costs.
    fn toml(&self, tuned: &Config, kept: &[Kept], best: f64, first: f64) -> Result<String, Error> {
        let algo = self.algo.name();
        let mut text = format!(
            "# Written by `rl tune` on {} cores: {} env steps/s, {} before.\n",
            threads(None),
            grouped(best as u64),
            grouped(first as u64)
        );
        for Kept { change, gain } in kept {
            let cost = change.first().map_or("", |(key, _)| cost(key));
            let _ = writeln!(text, "# {}: {gain:.2} times as fast; {cost}", layers::in_words(change));
        }
        let mut defaults = Layers::default();
        for key in FROM_START {
            self.given.number(key).into_iter().for_each(|n| defaults.add(key, n as i64, "the command line".into()));
        }
        let defaults = defaults.resolve(self.entry, self.algo)?.settings();
        let mut table = Table::new();
        table.insert("algo".into(), algo.into());
        for (key, value) in tuned.settings() {
            // Both have what the environment was opened with.
            let is_path = key == "env.path" && value.as_str() != Some("");
            let is_given = is_path || FROM_START.contains(&&*key) && self.given.has(&key);
            if defaults.get(&key) == Some(&value) && key != "env.name" && !is_given {
                continue;
            }
            layers::insert(&mut table, &key, value);
        }
        text.push_str(&table.to_string());
        Ok(text)
    }
}
