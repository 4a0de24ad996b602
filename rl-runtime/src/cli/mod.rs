//! The `rl` program: its command line, and what the verbs share. Each verb has its file.

mod animation;
mod bench;
mod check_env;
mod eval;
mod list;
mod report;
mod screen;
mod signals;
mod trace;
mod train;
mod watch;

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::checkpoint::{self, SavedPolicy};
use crate::{Error, print};

/// Reinforcement learning that keeps the hardware busy.
#[derive(Parser)]
#[command(
    version,
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
    /// One JSON object a line on stdout
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Environments, algorithms, presets and settings
    List,
    /// Train an agent
    Train(train::TrainArgs),
    /// Play episodes in fresh environments
    Eval(eval::EvalArgs),
    /// See a policy act
    Watch(watch::WatchArgs),
    /// Test an environment against the contract, PASS or FAIL a line
    #[command(after_help = "Example:\n  rl check-env snake")]
    CheckEnv {
        /// The environment
        env: String,
    },
    /// Step one environment from given states with given actions, to compare it with any reference
    Trace(trace::TraceArgs),
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: bench::Bench,
    },
}

/// Runs the program with the arguments of the process, and returns its exit code.
///
/// It sets an environment variable: to be called before other threads start.
#[must_use]
pub fn main() -> ExitCode {
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // An environment's panic becomes an error, which is printed once, with the environment.
        if !rl_agents::collect::catches_panics() {
            print_panic(panic);
        }
    }));
    let Cli { verb, json } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let result = match verb {
        Verb::List => list::run(json),
        Verb::Train(args) => train::run(args, json),
        Verb::Eval(args) => eval::run(&args, json),
        Verb::Watch(args) => watch::run(&args, json),
        Verb::CheckEnv { env } => check_env::run(&env, json),
        Verb::Trace(args) => trace::run(&args),
        Verb::Bench { what } => bench::run(what, json),
    };
    let code = result.unwrap_or_else(|error| {
        print::err(&format!("error: {error}"));
        ExitCode::from(error.exit_code())
    });
    if code == ExitCode::SUCCESS && print::lost() { ExitCode::FAILURE } else { code }
}

/// Prints help, the version, or what is wrong with the arguments.
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

/// The policy of the checkpoint that a path means.
fn saved_policy(path: &Path, best: bool, threads: usize) -> Result<SavedPolicy, Error> {
    set_matrix_threads(threads);
    let saved = checkpoint::policy(path, best)?;
    if saved.lacks_replay {
        print::err(&format!("note: {} lacks its replay memory: training cannot continue from it", saved.path.display()));
    }
    Ok(saved)
}

/// Sets the threads of candle's matrix products, which run on rayon's global pool, whatever the environment says: thousands of
/// threads there make the reference learner a hundred times slower.
///
/// Without this variable candle counts the processor's cores for each product, by reading /proc/cpuinfo: A2C on CartPole
/// went from 20 k to 83 k env steps/s with it.
#[allow(unsafe_code)]
fn set_matrix_threads(threads: usize) {
    const NAME: &str = "RAYON_NUM_THREADS";
    let threads = threads.to_string();
    if let Some(given) = std::env::var_os(NAME).filter(|given| *given != *threads) {
        print::err(&format!("warning: {NAME} is {}, but threads is {threads}, which counts", given.display()));
    }
    // SAFETY: the verbs call this before they start the first thread, so no other thread reads the environment.
    unsafe { std::env::set_var(NAME, threads) };
}

fn threads(given: Option<u32>) -> usize {
    given.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |n| n as usize)
}
