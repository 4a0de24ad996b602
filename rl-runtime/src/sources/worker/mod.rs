//! Environments in other processes: workers behind a Unix socket.
//!
//! A worker steps k environments on request. The one here is a Python script that steps environments of Gymnasium; the protocol
//! is described in `docs/worker-protocol.md`. [`exec`] runs any other program that speaks it. Both make an [`Entry`], which
//! trains, evaluates and is watched like those of the catalog. Each thread of a collector drives a worker of its own, so a worker
//! waits for no other.
//!
//! A worker that dies, hangs, raises or sends garbage is replaced. The episodes of its environments are truncated at the step
//! before.

mod blocking;
mod memory;
mod messages;
mod process;
mod vec_env;
mod workers;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rl_agents::settings::Kind;
use rl_envs::catalog::{Batches, Entry, Limits};
use rl_envs::wrappers::Wrappers;
use rl_envs::{BoxedEnv, Dtype, MakeBlocking, RandomActions, Spaces, Steps, VecEnv};
use serde_json::{Map, Value, json};

use self::blocking::WorkerEnv;
use self::memory::Memory;
use self::messages::{Hello, PROTOCOL};
use self::process::{Failure, Launch, Limit, Process, Raised};
use self::vec_env::WorkerVecEnv;
use self::workers::{Workers, spawn};
use crate::pipeline::faults::{FaultConfig, START_TIMEOUT};
use crate::thread::locked;
use crate::{Error, interrupt, print};

pub use self::vec_env::env_seed;

/// Prefix of the names of Gymnasium's environments.
pub const GYM: &str = "gym:";
/// Prefix of the names of environments of any program that speaks the protocol.
pub(crate) const EXEC: &str = "exec:";

/// True for the name of environments in worker processes.
#[cfg(feature = "cli")]
pub(crate) fn is_one(name: &str) -> bool {
    name.starts_with(GYM) || name.starts_with(EXEC)
}

/// Time for which an environment is measured.
const MEASURED: Duration = Duration::from_secs(1);
/// Time after which a wait for closing environments is reported.
const REPORTED: Duration = Duration::from_secs(1);

rl_agents::settings! {
    /// Settings of environments of Gymnasium.
    pub struct WorkerConfig, "env." {
        /// gym: parts of a Dict to observe, with commas between; empty: all.
        keys: String = String::new(), Kind::Text(|_| true, "names with commas between them");
        /// gym: prepares ALE's games by Gymnasium's AtariPreprocessing.
        ///
        /// Up to 30 no-ops at the start, every fourth frame as the maximum of two, grey, 84 x 84.
        atari_preprocessing: bool = true, Kind::Bool;
        /// gym: takes three dimensions of floats from 0 to 1 as a picture.
        float_images: bool = true, Kind::Bool;
        /// gym: divides the bytes of pictures by 255.
        normalize_images: bool = true, Kind::Bool;
        /// gym: makes grey pictures of coloured ones.
        grayscale: bool = false, Kind::Bool;
        /// gym: width and height of resized pictures; 0: as they are.
        ///
        /// By the mean of the area, which needs OpenCV.
        resize: usize = 0, Kind::Int(0, 1 << 12);
        /// gym: ends an episode of ALE's games for learning with each life.
        ///
        /// Returns and evaluations are those of whole games.
        episodic_life: bool = false, Kind::Bool;
    }
}

/// Choices for environments in worker processes.
#[derive(Clone, Debug, Default)]
pub struct WorkerOptions {
    /// Arguments of the environment's constructor, a JSON object; empty for none.
    pub kwargs: String,
    /// Directory of the module of the environment; empty for the current directory.
    pub path: String,
    /// Settings of environments of Gymnasium.
    pub settings: WorkerConfig,
    /// Wrappers; the processes limit episodes and repeat actions.
    pub wrappers: Wrappers,
    /// True if the environments draw themselves.
    pub render: bool,
    /// Python to run; `None` to search for one: see [`gym`].
    pub python: Option<PathBuf>,
    /// Processes to start at once, before it is known whether they are needed.
    pub ahead: usize,
    /// Longest start of the first process; `None`: two minutes.
    pub start_timeout: Option<Duration>,
}

/// Opens an environment of Gymnasium.
///
/// `id` is a registered name, or `MODULE:CALLABLE`, whose callable makes the environment.
/// A first worker tells its spaces. Its Python is that of the options, else of the variable `RL_PYTHON`, the active virtual
/// environment, or `python3`. The entry is never freed.
///
/// # Errors
/// [`Error::Config`] if there is no Python, no Gymnasium, no such environment, or its spaces are not supported;
/// [`Error::Env`] if the environment fails.
pub fn gym(id: &str, options: &WorkerOptions) -> Result<Entry, Error> {
    let python = options.python.clone().unwrap_or_else(python);
    open(&format!("{GYM}{id}"), id, Launch::Python(python), options)
}

/// Opens environments of a program that speaks the protocol.
///
/// `command` is a line for the shell. The entry is never freed.
///
/// # Errors
/// [`Error::Config`] if the program reports that there is no such environment or its spaces are not supported; [`Error::Env`] if
/// it fails.
pub fn exec(command: &str, options: &WorkerOptions) -> Result<Entry, Error> {
    open(&format!("{EXEC}{command}"), command, Launch::Shell(command.into()), options)
}

/// Finds a Python.
fn python() -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let active = || ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().find_map(var).map(|dir| dir.join("bin/python"));
    var("RL_PYTHON").or_else(active).unwrap_or_else(|| "python3".into())
}

fn open(name: &str, id: &str, launch: Launch, options: &WorkerOptions) -> Result<Entry, Error> {
    let kwargs = if options.kwargs.is_empty() { "{}" } else { &options.kwargs };
    let bad = |error| Error::config(format!("env.kwargs is {kwargs}; it must be a JSON object: {error}"));
    let kwargs: Map<String, Value> = serde_json::from_str(kwargs).map_err(bad)?;
    let WorkerConfig { keys, atari_preprocessing, float_images, normalize_images, grayscale, resize, episodic_life } =
        &options.settings;
    let Wrappers { time_limit, action_repeat, .. } = options.wrappers;
    let keys: Vec<_> = keys.split(',').map(str::trim).filter(|key| !key.is_empty()).collect();
    let ask = json!({
        "protocol": PROTOCOL, "id": id, "kwargs": kwargs, "path": options.path, "render": options.render,
        "keys": keys, "normalize_images": normalize_images,
        "atari_preprocessing": atari_preprocessing, "float_images": float_images, "grayscale": grayscale, "resize": resize,
        "time_limit": time_limit, "action_repeat": action_repeat, "episodic_life": episodic_life,
    });
    let Value::Object(ask) = ask else { unreachable!("an object") };
    let start_timeout = options.start_timeout.unwrap_or(START_TIMEOUT);
    let config = FaultConfig { start_timeout, ..FaultConfig::default() };
    let spawn = || spawn(&launch, &ask).map_err(|error| Error::config(format!("cannot run a shell: {error}")));
    let mut first = spawn()?;
    let more: Vec<Process> = (1..options.ahead).map_while(|_| spawn().ok()).collect();
    let hello = first.greet(Limit::of_start(&config)).map_err(|failure| not_opened(name, &launch, &failure, &first))?;
    let hello: Hello = hello.expect("the first greeting");
    let spaces = hello.spaces().map_err(|what| Error::config(format!("{name}: {what}")))?;
    let rss = first.rss();
    // Another program finds its environments by its own rules.
    let path = if matches!(launch, Launch::Python(_)) { hello.path } else { String::new() };
    if std::env::current_dir().is_ok_and(|current| !path.is_empty() && current != Path::new(&path)) {
        print::err(&format!("note: the module of {name} is that in {path}, the env.path of the run"));
    }
    // Another program may not know them.
    let is_ours = matches!(launch, Launch::Python(_));
    let wrappers = if is_ours { Wrappers { time_limit, action_repeat, ..Wrappers::default() } } else { Wrappers::default() };
    let workers = Workers {
        launch,
        wrappers,
        ask,
        spaces,
        lives: *episodic_life,
        // Only Linux has such memory, and a sandbox may refuse it.
        has_memory: hello.memory && Memory::new(1).is_ok(),
        path,
        rss,
        config: Mutex::new(config),
        idle: Mutex::new(more.into_iter().chain([first]).collect()),
        closing: Mutex::default(),
        batches: AtomicUsize::new(0),
        alone: AtomicUsize::new(0),
        failures: AtomicU64::new(0),
    };
    let about = format!("environments in worker processes ({})", hello.worker);
    Ok(Entry::outside(String::leak(name.into()), String::leak(about), Box::leak(Box::new(workers))))
}

/// Explains why the first worker did not greet.
fn not_opened(name: &str, launch: &Launch, failure: &Failure, first: &Process) -> Error {
    if interrupt::requested() {
        return rl_envs::Error::Stopped.into();
    }
    let log = first.log();
    // The exit codes of a shell that finds no program, or none that runs.
    if let (Failure::Gone(_), Some(126 | 127)) = (failure, first.status().and_then(|status| status.code())) {
        return Error::config(match launch {
            Launch::Python(python) => {
                let advice = "name one with --python or the variable RL_PYTHON, or activate a virtual environment";
                format!("cannot run the Python {}: {log}; {advice}", python.display())
            }
            Launch::Shell(_) => format!("the shell cannot run the command of {name}: {log}"),
        });
    }
    match failure {
        Failure::Raised(raised) => {
            let Raised { at, kind, message, traceback, .. } = &**raised;
            match (at.as_str(), launch) {
                ("import", Launch::Python(python)) if kind == "ModuleNotFoundError" => {
                    let python = python.display();
                    let pip = format!("{python} -m pip install gymnasium");
                    Error::config(format!(
                        "{name} needs Gymnasium, which {python} lacks ({message}): `{pip}`, or choose a --python"
                    ))
                }
                ("import" | "find" | "spaces" | "protocol", _) => Error::config(format!("{name}: {}", message.trim_end())),
                _ => rl_envs::Error::Outside(format!("{name}: {}\n{}", failure, traceback.trim_end())).into(),
            }
        }
        _ => rl_envs::Error::Outside(format!("the worker of {name} fails: {failure}\n{log}").trim_end().into()).into(),
    }
}

impl Batches for Workers {
    fn spaces(&self) -> Spaces {
        self.spaces.clone()
    }

    fn bytes_per_worker(&self) -> u64 {
        self.rss
    }

    fn wrappers(&self) -> Wrappers {
        self.wrappers
    }

    fn slice(&'static self, range: Range<usize>) -> Result<Box<dyn VecEnv>, rl_envs::Error> {
        Ok(Box::new(WorkerVecEnv::new(self, range)?))
    }

    fn blocking(&'static self) -> Option<MakeBlocking> {
        Some(match self.spaces.obs.dtype() {
            Dtype::F32 => MakeBlocking::F32(Box::leak(Box::new(move || Box::new(WorkerEnv::new(self)) as BoxedEnv<f32>))),
            Dtype::U8 => MakeBlocking::U8(Box::leak(Box::new(move || Box::new(WorkerEnv::new(self)) as BoxedEnv<u8>))),
        })
    }

    fn busy(&'static self, seed: u64) -> Result<Option<f64>, rl_envs::Error> {
        let mut envs = WorkerVecEnv::new(self, 0..1)?;
        let (mut steps, mut random) = (Steps::new(&envs), RandomActions::new(seed, 1, &self.spaces.actions));
        envs.reset(seed, &mut steps)?;
        let (begin, before) = (Instant::now(), envs.cpu_times());
        while begin.elapsed() < MEASURED {
            random.fill_legal(&mut steps);
            envs.step(&mut steps)?;
            if !envs.faults().is_empty() {
                envs.reset(seed, &mut steps)?;
            }
        }
        // On a busy machine, an environment that computes waits for a processor.
        let share = |([ran, queued], [ran_before, queued_before]): ([Duration; 2], [Duration; 2])| {
            let (ran, queued) = (ran.saturating_sub(ran_before), queued.saturating_sub(queued_before));
            ran.as_secs_f64() / begin.elapsed().saturating_sub(queued).max(ran).as_secs_f64()
        };
        Ok(envs.cpu_times().zip(before).map(share))
    }

    fn path(&self) -> &str {
        &self.path
    }

    fn limit(&self, limits: &Limits) {
        let config = &mut *locked(&self.config);
        let &Limits { start, call, close, max_restarts } = limits;
        (config.start_timeout, config.timeout, config.close_timeout, config.max_restarts) = (start, call, close, max_restarts);
    }

    fn close(&self) {
        let (begin, limit, was_asked) = (Instant::now(), self.faults().close_timeout, interrupt::requested());
        let (mut closing, mut is_reported) = (Vec::new(), false);
        loop {
            closing.append(&mut locked(&self.closing));
            closing.extend(locked(&self.idle).drain(..).filter(Process::ask_to_close));
            closing.retain(|process| !process.has_closed());
            let n = closing.len() + self.alone.load(Ordering::Acquire);
            if n == 0 {
                return;
            }
            let (of, their, are) =
                if n == 1 { ("a worker process".into(), "its", "is") } else { (format!("{n} worker processes"), "their", "are") };
            let (waited, limit_s) = (begin.elapsed(), limit.as_secs_f64());
            if waited >= limit || interrupt::requested() && !was_asked {
                print::err(&format!(
                    "warning: {of} took longer than {:.1} s to close {their} environments and {are} killed: files that were being \
                     written may be cut off (close_timeout_s is {limit_s})",
                    waited.as_secs_f64()
                ));
                closing.iter().for_each(Process::kill);
                return;
            }
            if waited >= REPORTED && !std::mem::replace(&mut is_reported, true) {
                print::err(&format!("waiting for {of} to close {their} environments, for at most {limit_s} s (close_timeout_s)"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
