//! Progress of a run: a board at a terminal, lines elsewhere, JSON for programs.

use std::io::IsTerminal as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rl_agents::{MemoryKind, NetConfig};
use rl_envs::catalog::Entry;
use serde_json::{Value, json};

use crate::Config;
use crate::Mode;
use crate::Progress;
use crate::cli::show::full_screen::FullScreen;
use crate::cli::show::heartbeat::{Form, Heartbeat};
use crate::cli::show::live::Live;
use crate::config::auto;
use crate::config::budget;
use crate::config::{Drive, RunConfig};
use crate::print::{self, grouped};
use crate::report::advice::Circumstances;
use crate::report::metrics::Row;
use crate::report::profile::Profile;
use crate::run::evaluation::Evaluation;
use crate::run::event::Event;
use crate::run::train::{End, Outcome};

/// Interval between plain lines.
const LINE_EVERY: Duration = Duration::from_secs(2);

/// Output of a run's progress.
#[derive(Debug)]
pub(crate) struct Report {
    kind: Kind,
    /// Number of ranks that share the training.
    n_ranks: usize,
    /// The last row.
    last: Option<Row>,
    /// `None` before the start and after the end.
    heartbeat: Option<Heartbeat>,
}

#[derive(Debug)]
enum Kind {
    /// `None` before the start and after the end.
    Board(Option<Live>),
    Lines {
        last: Option<Instant>,
        steps: u64,
    },
    Json,
}

impl Report {
    /// Chooses JSON, or the kind that fits stdout, which is lines if `plain`.
    #[must_use]
    pub(crate) fn new(json: bool, plain: bool, n_ranks: usize) -> Self {
        let kind = if json {
            Kind::Json
        } else if !plain && FullScreen::is_possible() && std::io::stderr().is_terminal() {
            Kind::Board(None)
        } else {
            Kind::Lines { last: None, steps: 0 }
        };
        Self { kind, n_ranks, last: None, heartbeat: None }
    }

    /// Shows the settings of the run.
    ///
    /// From now on, a line follows whenever there was none for a while.
    pub(crate) fn start(&mut self, config: &Config, entry: &Entry, device: &str, dir: &Path, from: u64, profile: &Profile) {
        self.settings(config, entry, device, dir, from);
        let form = match &self.kind {
            Kind::Board(live) => Form::Board(live.as_ref().map(Live::status).unwrap_or_default()),
            Kind::Lines { .. } => Form::Text,
            Kind::Json => Form::Json,
        };
        self.heartbeat = Some(Heartbeat::start(config, self.n_ranks, profile, form));
    }

    fn settings(&mut self, config: &Config, entry: &Entry, device: &str, dir: &Path, from: u64) {
        let (env, algo) = (&config.env.name, config.algo.name());
        let RunConfig { n_envs, threads, seed, steps, .. } = &config.run;
        let place = place(config, entry);
        if let Kind::Json = self.kind {
            let config = serde_json::to_value(config).unwrap_or_default();
            return print::out(
                &json!({
                    "event": "start", "config": config, "device": device, "environments": place,
                    "run_dir": dir.display().to_string(), "from_env_steps": from,
                })
                .to_string(),
            );
        }
        let (n, to) = (grouped(*n_envs as u64), grouped(*steps));
        let order = match config.mode() {
            Mode::Sync => "in turn".into(),
            Mode::Overlapped { max_lag } => format!("overlapped (max_lag {max_lag})"),
        };
        let minibatch = grouped(config.traits().minibatch as u64);
        print::out(&format!(
            "{env}, {algo}: {to} env steps, {n} environments {place}, {threads} threads, {device}, seed {seed}, collecting and \
             learning {order}, minibatches of {minibatch}, {}",
            networks(&config.net)
        ));
        print::out(&format!("run directory: {}", dir.display()));
        match &mut self.kind {
            Kind::Board(live) => match Live::open(config, dir) {
                Ok(opened) => *live = Some(opened),
                Err(error) => print::err(&format!("warning: no board is shown: {error}")),
            },
            Kind::Lines { steps: of, .. } => *of = *steps,
            Kind::Json => {}
        }
    }

    /// Shows the bytes that a run would take on the host and on its device.
    pub(crate) fn memory(&self, device: &str, host: &[(&'static str, u128)], there: &[(&'static str, usize)]) {
        let there: Vec<_> = there.iter().map(|&(name, bytes)| (name, bytes as u128)).collect();
        if let Kind::Json = self.kind {
            let object = |parts: &[(&'static str, u128)]| -> Value {
                parts
                    .iter()
                    .map(|&(name, bytes)| (name.to_owned(), json!(bytes as u64)))
                    .collect::<serde_json::Map<_, _>>()
                    .into()
            };
            return print::out(
                &json!({"event": "dry_run", "device": device, "host_bytes": object(host), "device_bytes": object(&there)})
                    .to_string(),
            );
        }
        for (place, parts) in [("memory of the host, at most", host), (&format!("memory of {device}"), &there)] {
            if parts.is_empty() {
                continue;
            }
            print::out(&format!("{place}:"));
            let total = ("total", parts.iter().map(|(_, bytes)| bytes).sum());
            for (name, bytes) in parts.iter().filter(|(_, bytes)| *bytes > 0).chain([&total]) {
                print::out(&format!("  {name:<34}{:>10}", budget::in_words(*bytes)));
            }
        }
    }

    /// Shows an event of the training.
    pub(crate) fn event(&mut self, event: &Event<'_>) {
        let told = if let Event::Row { .. } = event { Heartbeat::row } else { Heartbeat::line };
        self.heartbeat.iter().for_each(told);
        match *event {
            Event::Row { row, progress } => {
                self.row(row, progress);
                let last = self.last.get_or_insert_with(|| Row { values: Vec::new() });
                last.values.clone_from(&row.values);
            }
            Event::Evaluation { env_steps, result } => self.evaluation(env_steps, result),
            Event::Warning(text) => self.warn(text),
        }
    }

    /// Shows the current progress.
    fn row(&mut self, row: &Row, progress: &Progress) {
        match &mut self.kind {
            Kind::Board(live) => live.iter().for_each(|live| live.row(row)),
            Kind::Lines { last, steps } if last.is_none_or(|last| last.elapsed() >= LINE_EVERY) => {
                *last = Some(Instant::now());
                let episodes = match progress.return_mean() {
                    mean if mean.is_nan() => "no episode has ended".into(),
                    mean => format!("return {mean:.1}, length {:.1}", progress.length_mean()),
                };
                let message = format!("{episodes}, {} env steps/s", grouped(row.value("time/fps") as u64));
                print::out(&format!("{}/{} env steps, {message}", grouped(progress.env_steps), grouped(*steps)));
            }
            Kind::Lines { .. } => {}
            Kind::Json => {
                let mut object = json!({"event": "progress"});
                for (name, value) in &row.values {
                    object[*name] = Value::from(*value);
                }
                print::out(&object.to_string());
            }
        }
    }

    /// Shows the result of an evaluation.
    fn evaluation(&mut self, env_steps: u64, result: &Evaluation) {
        match &self.kind {
            Kind::Json => {
                let mut object = evaluation_json(result);
                object["event"] = "evaluation".into();
                object["env_steps"] = env_steps.into();
                print::out(&object.to_string());
            }
            _ => print::out(&format!("evaluation after {} env steps: {}", grouped(env_steps), in_words(result, false))),
        }
    }

    /// Shows a message.
    pub(crate) fn note(&mut self, text: &str) {
        match &self.kind {
            Kind::Json => print::out(&json!({"event": "note", "text": text}).to_string()),
            _ => print::out(text),
        }
    }

    /// Shows a problem that does not end the run.
    pub(crate) fn warn(&mut self, text: &str) {
        match &self.kind {
            Kind::Json => {
                print::out(&json!({"event": "warning", "text": text}).to_string());
                print::err(&format!("warning: {text}"));
            }
            Kind::Board(_) | Kind::Lines { .. } => print::err(&format!("warning: {text}")),
        }
    }

    /// Shows the time of each phase, by thread if `in_full`, and advice.
    pub(crate) fn profile(&mut self, profile: &Profile, config: &Config, in_full: bool) {
        let last = |name: &str| self.last.as_ref().map_or(f64::NAN, |row| row.value(name));
        let advice = Circumstances::new(config, last).advice(profile);
        let advice = auto::advice(config, self.n_ranks).map_or(advice.clone(), |gpu| format!("{advice}; {gpu}"));
        if let Kind::Json = self.kind {
            let mut object = profile.json();
            object["event"] = "profile".into();
            object["advice"] = advice.into();
            return print::out(&object.to_string());
        }
        if in_full {
            profile.lines().iter().for_each(|line| print::out(line));
        }
        print::out(&advice);
    }

    /// Shows the result of the run.
    pub(crate) fn done(&mut self, outcome: &Outcome, dir: &Path) {
        let Outcome { end, progress, env_steps, wall_s, evaluation } = outcome;
        let rate = *env_steps as f64 / wall_s;
        self.heartbeat = None;
        match &mut self.kind {
            Kind::Json => {
                let mut object = json!({
                    "event": "done",
                    "end": format!("{end:?}").to_lowercase(),
                    "env_steps": progress.env_steps,
                    "wall_s": wall_s,
                    "env_steps_per_s": rate,
                    "episode_return_mean": progress.return_mean(),
                    "run_dir": dir.display().to_string(),
                });
                if let Some(result) = evaluation {
                    object["eval"] = evaluation_json(result);
                }
                return print::out(&object.to_string());
            }
            Kind::Board(live) => *live = None,
            Kind::Lines { .. } => {}
        }
        let dir = print::quoted(dir);
        print::out(&format!("{} env steps in {wall_s:.2} s: {} env steps/s", grouped(*env_steps), grouped(rate as u64)));
        match (end, evaluation) {
            (End::Interrupted, _) => {
                print::out(&format!("interrupted and saved; continue with: {} train --resume {dir}", print::program()))
            }
            (_, Some(result)) => {
                let (mean, program) = (result.return_mean, print::program());
                print::out(&format!("mean return {mean:.1}; evaluate it again with: {program} eval {dir}"))
            }
            (_, None) => {}
        }
    }
}

/// Describes where the environments of a run step.
fn place(config: &Config, entry: &Entry) -> String {
    if !config.run.offline.is_empty() {
        return "played back from a recording".into();
    }
    match (entry.batches().is_some(), config.run.drive) {
        (true, Drive::Lockstep) => match config.workers() {
            1 => "in 1 worker process".into(),
            n => format!("in {n} worker processes"),
        },
        (true, Drive::FirstCome) => "in a worker process each".into(),
        (true, Drive::Auto) => "in worker processes".into(),
        _ if entry.make_blocking().is_some() => "on a thread each".into(),
        _ => "in this program".into(),
    }
}

/// Describes the layers of the networks.
fn networks(net: &NetConfig) -> String {
    let layers = |hidden: &[usize]| {
        let conv = net.conv.iter().map(|layer| layer.map(|size| size.to_string()).join("x"));
        let layers: Vec<String> = conv.chain(hidden.iter().map(ToString::to_string)).collect();
        if layers.is_empty() { "no hidden layer".into() } else { layers.join("-") }
    };
    let shared = if net.shared_trunk { " with a shared trunk" } else { "" };
    let normed = if net.layer_norm { " with layer normalization" } else { "" };
    let critic = net.critic_hidden.as_ref().map_or_else(String::new, |critic| format!(", critic of {}", layers(critic)));
    let memory = match net.memory {
        MemoryKind::None => String::new(),
        MemoryKind::Gru => format!(", after a GRU of {}", net.memory_size),
        MemoryKind::Lstm => format!(", after an LSTM of {}", net.memory_size),
    };
    format!("networks of {}{normed}{shared}{critic}{memory}", layers(&net.hidden))
}

/// Formats an evaluation as JSON.
#[must_use]
pub(crate) fn evaluation_json(result: &Evaluation) -> Value {
    json!({
        "episodes": result.episodes,
        "cut": result.cut,
        "return_mean": result.return_mean,
        "return_std": result.return_std,
        "length_mean": result.length_mean,
    })
}

/// Formats an evaluation as text.
#[must_use]
pub(crate) fn in_words(result: &Evaluation, stochastic: bool) -> String {
    let Evaluation { episodes, cut, return_mean, return_std, length_mean } = result;
    let kind = if stochastic { "stochastic" } else { "greedy" };
    let cut = if *cut == 0 { String::new() } else { format!(", {cut} of them cut by eval_max_steps") };
    format!(
        "{episodes} {kind} episodes in fresh environments{cut}, return {return_mean:.1} +- {return_std:.1}, length {length_mean:.1}"
    )
}
