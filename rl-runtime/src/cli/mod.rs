//! The `rl` program: its command line, and code shared by the verbs.
//!
//! Each verb has its own file.

mod animation;
mod bench;
mod board;
mod chart;
mod check_env;
mod devices;
mod eval;
mod full_screen;
mod heartbeat;
mod list;
mod live;
mod monitor;
mod plot;
mod record;
mod recorded;
mod report;
mod screen;
mod signals;
mod site;
mod sweep;
mod trace;
mod train;
mod trust;
mod tune;
mod version;
mod watch;

use std::cell::{Cell, RefCell};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rl_envs::catalog::{ENVS, Entry, find_among};

use crate::assemble::limit_faults;
use crate::checkpoint::{self, SavedPolicy};
use crate::config::{Config, EnvConfig, Layers};
use crate::print::did_you_mean;
use crate::worker::{self, WorkerOptions};
use crate::{Error, catalog, print};

use self::trust::{Choice, Trust};

/// Reinforcement learning that keeps the hardware busy.
#[derive(Parser)]
#[command(
    name = "rl",
    version = version::SHORT.as_str(),
    long_version = version::LONG.as_str(),
    after_help = "\
Examples:
  rl train cartpole
  rl eval runs/cartpole-ppo-seed0-1 --episodes 100
  rl watch runs/cartpole-ppo-seed0-1

Exit codes: 0 done, 1 failed at run time, 2 bad usage or configuration, 3 checkpoint unusable, 4 diverged,
5 environment failed, 130 interrupted after saving, 131 interrupted twice: nothing saved since the last checkpoint."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print one JSON object per line on stdout
    #[arg(long, global = true)]
    json: bool,
    /// Python of gym: environments [default: RL_PYTHON, the active venv, python3]
    #[arg(long, global = true, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Execute the environment that a run, a checkpoint or a file names, unasked
    #[arg(long, global = true)]
    trust: bool,
    /// Hash of what the process that has started this one was allowed to execute
    #[arg(long, global = true, value_name = "HASH", hide = true)]
    trusted: Vec<String>,
}

#[derive(Subcommand)]
enum Verb {
    /// List environments, algorithms, presets and settings
    #[command(after_help = "Example:\n  rl list")]
    List,
    /// Show the processor, the memory and the GPUs, with measured speeds
    #[command(after_help = "Example:\n  rl devices")]
    Devices,
    /// Train an agent
    Train(train::TrainArgs),
    /// Search settings for the fastest training
    Tune(tune::TuneArgs),
    /// Train with many settings, and rank them
    Sweep(sweep::SweepArgs),
    /// Play episodes in fresh environments
    Eval(eval::EvalArgs),
    /// Record the steps of a policy, to learn from without an environment
    Record(record::RecordArgs),
    /// Watch a policy act
    Watch(watch::WatchArgs),
    /// Follow a run from another terminal
    Monitor(monitor::MonitorArgs),
    /// Draw learning curves of runs as SVG
    Plot(plot::PlotArgs),
    /// Check an environment against the contract: PASS or FAIL for each clause
    #[command(after_help = "Example:\n  rl check-env snake")]
    CheckEnv {
        /// The environment
        env: String,
    },
    /// Step one environment with given actions, to compare it with a reference
    Trace(trace::TraceArgs),
    /// Serve websites to crawl
    Site(site::SiteArgs),
    /// Print the completions of a shell
    #[command(after_help = "Example:\n  rl completions bash > rl.bash && source rl.bash")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages
    #[cfg(feature = "man")]
    #[command(hide = true)]
    Man {
        /// Directory of the pages
        dir: PathBuf,
    },
    /// Collect for an actor of mpirun, which starts this
    #[cfg(feature = "mpi")]
    #[command(name = crate::mpi::VERB, hide = true)]
    ActorProcess {
        /// Process that has started this one, and takes it along when it dies
        #[arg(long, value_name = "PID")]
        parent: i32,
    },
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

/// Runs the `rl` program with the process's arguments and returns its exit code.
///
/// Every verb finds the environments `own` by name, in addition to the built-in ones.
///
/// Sets an environment variable, so it must be called before other threads start.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use rl_envs::catalog::Entry;
/// use rl_envs::cartpole::CartPole;
///
/// fn main() -> ExitCode {
///     rl_runtime::cli::main(&[Entry::of::<CartPole>("my_cartpole", "an environment of my own")])
/// }
/// ```
#[must_use]
pub fn main(own: &[Entry]) -> ExitCode {
    share_heap();
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A panic of an environment becomes an error, which is printed once and names the environment.
        if !rl_agents::catches_panics() {
            print_panic(panic);
        }
    }));
    let Cli { verb, json, python, trust, trusted } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Err(error) = signals::start(full_screen::restore) {
        print::err(&format!("warning: signals end the program at once: {error}"));
    }
    let result = Envs::new(own, python, Trust::new(trust, trusted)).and_then(|envs| match verb {
        Verb::List => list::run(&envs, json),
        Verb::Devices => devices::run(json),
        Verb::Train(args) => train::run(args, &envs, json),
        Verb::Tune(args) => tune::run(&args, &envs, json),
        Verb::Sweep(args) => sweep::run(&args, &envs, json),
        Verb::Eval(args) => eval::run(&args, &envs, json),
        Verb::Record(args) => record::run(&args, &envs, json),
        Verb::Watch(args) => watch::run(&args, &envs, json),
        Verb::Monitor(args) => monitor::run(&args, json),
        Verb::Plot(args) => plot::run(&args, json),
        Verb::CheckEnv { env } => check_env::run(&envs.find(&env)?, json),
        Verb::Trace(args) => trace::run(&args, &envs),
        Verb::Site(args) => site::run(&args, json),
        Verb::Completions { shell } => {
            version::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        #[cfg(feature = "man")]
        Verb::Man { dir } => version::man(&dir).map(|()| ExitCode::SUCCESS),
        #[cfg(feature = "mpi")]
        Verb::ActorProcess { parent } => train::collect(parent, &envs),
        Verb::Bench { what } => bench::run(what, &envs, json),
    });
    let code = result.unwrap_or_else(|error| {
        print::err(&if error.is_stop() { "interrupted: nothing is kept".into() } else { format!("error: {error}") });
        ExitCode::from(error.exit_code())
    });
    if code == ExitCode::SUCCESS && print::lost() { ExitCode::FAILURE } else { code }
}

/// Lets all threads allocate from one heap where the address space is limited.
///
/// glibc reserves 64 MB of addresses for the heap of each thread, which a budget cannot count: 17 of 72 trainings that it had
/// accepted, under limits of 120 to 260 MB, were aborted.
#[allow(unsafe_code)]
fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn mallopt(param: std::ffi::c_int, value: std::ffi::c_int) -> std::ffi::c_int;
        }
        const M_ARENA_MAX: std::ffi::c_int = -8;
        if rustix::process::getrlimit(rustix::process::Resource::As).current.is_some() {
            // SAFETY: glibc's function takes two numbers, refuses those that it does not know, and takes a lock.
            unsafe { mallopt(M_ARENA_MAX, 1) };
        }
    }
}

/// Environments of the program: built-in, the user's, in worker processes.
struct Envs {
    all: Vec<Entry>,
    python: Option<PathBuf>,
    trust: Trust,
    /// Longest start of a worker process.
    start_timeout: Cell<Option<Duration>>,
    /// Environments in worker processes that were found.
    opened: RefCell<Vec<Entry>>,
}

impl Envs {
    /// Adds `own` to the built-in environments.
    ///
    /// Rejects a name that is taken or cannot be part of a path.
    fn new(own: &[Entry], python: Option<PathBuf>, trust: Trust) -> Result<Self, Error> {
        let mut all: Vec<Entry> = ENVS.iter().copied().chain(catalog::entries()).collect();
        let built_in = all.len();
        for entry in own {
            let name = entry.name;
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(Error::config(format!("the environment \"{name}\" needs a name of letters, digits and _")));
            }
            if let Some(i) = all.iter().position(|other| other.name == name) {
                let kind = if i < built_in { "a built-in environment" } else { "another environment" };
                return Err(Error::config(format!("{kind} is called \"{name}\", too; give yours another name")));
            }
            all.push(*entry);
        }
        Ok(Self { all, python, trust, start_timeout: Cell::default(), opened: RefCell::default() })
    }

    /// Limits the start of workers opened from now on, in seconds.
    fn start_within(&self, timeout_s: Option<f64>) {
        self.start_timeout.set(timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()));
    }

    /// Returns the environment that the command line calls `name`.
    fn find(&self, name: &str) -> Result<Entry, Error> {
        self.open(&EnvConfig::new(name), Choice::Given, false, 0)
    }

    /// Returns the environment of settings, if they choose one; see [`Envs::open`].
    fn open_chosen(&self, layers: &Layers, ahead: usize) -> Result<Option<Entry>, Error> {
        let choice = layers.env_in_file().map_or(Choice::Given, Choice::Found);
        layers.env()?.map(|env| self.open(&env, choice, false, ahead)).transpose()
    }

    /// Returns the environment of a saved run in `path`; see [`Envs::open`].
    fn open_saved(&self, env: &EnvConfig, path: &Path, render: bool, ahead: usize) -> Result<Entry, Error> {
        self.open(env, Choice::Found(&path.display().to_string()), render, ahead)
    }

    /// Returns an environment with its settings.
    ///
    /// The one door to environments that execute code: it asks for what `choice` has found. `render` and `ahead` are for worker
    /// processes.
    fn open(&self, env: &EnvConfig, choice: Choice<'_>, render: bool, ahead: usize) -> Result<Entry, Error> {
        self.trust.check(std::slice::from_ref(env), choice)?;
        self.start(env, render, ahead).map_err(|error| match (error, choice) {
            (Error::Config { problems }, Choice::Found(place)) => Error::config(format!("{place}: {}", problems.join("\n"))),
            (failed, _) => failed,
        })
    }

    /// Starts an environment that [`Envs::open`] has accepted.
    fn start(&self, env: &EnvConfig, render: bool, ahead: usize) -> Result<Entry, Error> {
        let EnvConfig { name, kwargs, path, settings, .. } = env;
        if let Some(entry) = catalog::open(name, settings) {
            return entry.map_err(|error| Error::config(error.to_string()));
        }
        if cfg!(not(feature = "crawl")) && name == "crawl" {
            let build = "cargo run --release -p rl-runtime --features crawl -- train crawl";
            return Err(Error::config(format!("this rl was built without the feature crawl, an HTTP client; build it: {build}")));
        }
        let options = &WorkerOptions {
            kwargs: kwargs.clone(),
            path: path.clone(),
            render,
            python: self.python.clone(),
            ahead,
            start_timeout: self.start_timeout.get(),
        };
        let gym = name.strip_prefix(worker::GYM).map(|id| worker::gym(id, options));
        let exec = || name.strip_prefix(worker::EXEC).map(|command| worker::exec(command, options));
        if let Some(entry) = gym.or_else(exec) {
            let entry = entry?;
            self.opened.borrow_mut().push(entry);
            return Ok(entry);
        }
        let found = find_among(&self.all, name).copied();
        found.map_err(|error| Error::config(format!("{error}{}", did_you_mean(name, self.all.iter().map(|entry| entry.name)))))
    }
}

impl Drop for Envs {
    /// Ends the worker processes, whose environments are closed.
    fn drop(&mut self) {
        self.opened.borrow().iter().filter_map(Entry::batches).for_each(|batches| batches.close());
    }
}

/// Prints the help, the version, or the problem with the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if !error.use_stderr() {
        printed.unwrap_or_else(|error| print::failed(&error));
    }
    if print::lost() { ExitCode::FAILURE } else { ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)) }
}

fn parse_count(text: &str) -> Result<i64, String> {
    let plain = text.replace('_', "");
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 1e15).then_some(x as i64);
    plain.parse().ok().or_else(|| plain.parse().ok().and_then(whole)).ok_or_else(|| "not a whole number".into())
}

/// Loads the policy of the checkpoint selected by a path.
fn saved_policy(path: &Path, best: bool, threads: usize, envs: &Envs, render: bool) -> Result<SavedPolicy, Error> {
    set_matrix_threads(threads);
    let Config { env, run, .. } = checkpoint::config(path, best)?;
    envs.start_within(Some(run.start_timeout_s));
    let entry = envs.open_saved(&env, path, render, 0)?;
    let saved = checkpoint::policy(path, best, &entry)?;
    limit_faults(&saved.config, &entry);
    if saved.lacks_replay {
        print::err(&format!("note: {} lacks its replay memory: training cannot continue from it", saved.path.display()));
    }
    Ok(saved)
}

/// Sets the number of threads of candle's products, overriding the environment.
///
/// The products run on rayon's global pool, where thousands of threads make the reference learner a hundred times slower.
///
/// Without this variable, candle counts the processor's cores for each product by reading /proc/cpuinfo: A2C on CartPole went
/// from 20 k to 83 k env steps/s with it.
#[allow(unsafe_code)]
fn set_matrix_threads(threads: usize) {
    const NAME: &str = "RAYON_NUM_THREADS";
    let threads = threads.to_string();
    if let Some(given) = std::env::var_os(NAME).filter(|given| *given != *threads) {
        print::err(&format!("warning: {NAME} is {}; threads = {threads} overrides it", given.display()));
    }
    // SAFETY: of other threads, the verbs have started at most those of worker processes, which read the environment through
    // std, under its lock.
    unsafe { std::env::set_var(NAME, threads) };
}

fn threads(given: Option<u32>) -> usize {
    given.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |n| n as usize)
}

#[cfg(test)]
mod tests {
    use rl_envs::cartpole::CartPole;

    use super::*;

    #[test]
    fn an_own_environment_is_found_and_a_name_that_is_taken_or_no_name_is_refused() {
        let envs = |own: &[Entry]| Envs::new(own, None, Trust::new(false, Vec::new()));
        let of = |name| Entry::of::<CartPole>(name, "mine");
        assert_eq!(envs(&[of("mine")]).unwrap().find("mine").unwrap().about, "mine");
        for (own, why) in [
            (vec![of("cartpole")], "a built-in environment is called \"cartpole\", too"),
            (vec![of("mine"), of("mine")], "another environment is called \"mine\", too"),
            (vec![of("a/b")], "the environment \"a/b\" needs a name of letters, digits and _"),
            (vec![of("")], "needs a name"),
        ] {
            let error = envs(&own).err().unwrap();
            assert!(error.to_string().contains(why) && error.exit_code() == 2, "{error}");
        }
    }
}
