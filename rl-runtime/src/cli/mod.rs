//! The `rl` program: its command line, and code shared by the verbs.
//!
//! Each verb has its own file.

mod args;
mod bench;
mod envs;
mod show;
mod signals;
mod trust;
mod verbs;
mod version;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use rl_envs::catalog::Entry;

use crate::config::Device;
use crate::{Algo, print};

use self::envs::Envs;
use self::show::full_screen;
use self::trust::Trust;
use self::verbs::policy::{eval, export, record, watch};
use self::verbs::{check_env, devices, list, monitor, plot, site, sweep, trace, train, tune};

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
5 environment failed, 130 interrupted after saving, 131 interrupted twice: nothing saved since the last checkpoint.

RL_ISA=avx2 (or plain) limits environments and networks, to measure as on a machine without AVX-512."
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
    /// Export a policy as ONNX, as C, or for Rust without a standard library
    Export(export::ExportArgs),
    /// Record the steps of a policy, to learn from without an environment
    Record(record::RecordArgs),
    /// Watch a policy act
    Watch(watch::WatchArgs),
    /// Follow a run from another terminal
    Monitor(monitor::MonitorArgs),
    /// Draw learning curves of runs as SVG
    Plot(plot::PlotArgs),
    /// Check an environment against the contract: PASS or FAIL for each clause
    #[command(after_help = "Examples:\n  rl check-env snake\n  rl check-env snake --device emulated\n  rl check-env \
                      gym:MiniGrid-Empty-5x5-v0 --set env.keys=image,direction")]
    CheckEnv {
        /// The environment
        env: String,
        /// Set one of its settings; repeatable
        #[arg(long = "set", value_name = "env.KEY=VALUE")]
        settings: Vec<String>,
        /// Also compare its kernels with its Rust code on cuda, cuda:i or emulated
        #[arg(long, value_parser = args::parse_kernels_device)]
        device: Option<Device>,
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
    #[command(name = crate::ranks::mpi::VERB, hide = true)]
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
/// Every verb finds the environments `own` and the `algorithms` by name, in addition to the built-in ones.
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
///     rl_runtime::cli::main(&[Entry::of::<CartPole>("my_cartpole", "an environment of my own")], &[])
/// }
/// ```
#[must_use]
pub fn main(own: &[Entry], algorithms: &[Algo]) -> ExitCode {
    let mut args = std::env::args_os();
    let named = args.next().unwrap_or_else(|| "rl".into());
    // Without /proc, Linux does not tell the program's file.
    let program = std::env::current_exe().unwrap_or_else(|_| named.into());
    print::set_program(&program.file_stem().unwrap_or_default().to_string_lossy());
    run(vec![program.into()], args.collect(), own, algorithms)
}

/// Runs the `rl` program with arguments of the caller's; see [`main`].
///
/// `command` starts a process of the same program, for the trials of a sweep.
#[must_use]
pub fn run(command: Vec<OsString>, args: Vec<OsString>, own: &[Entry], algorithms: &[Algo]) -> ExitCode {
    share_heap();
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // A panic of an environment becomes an error, which is printed once and names the environment.
        if !rl_agents::catches_panics() {
            print_panic(panic);
        }
    }));
    if let Err(error) = args::limit_isa() {
        print::err(&format!("error: {error}"));
        return ExitCode::from(error.exit_code());
    }
    let Cli { verb, json, python, trust, trusted } = match Cli::try_parse_from([OsString::from("rl")].into_iter().chain(args)) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if let Err(error) = signals::start(full_screen::suspend, full_screen::reopen) {
        print::err(&format!("warning: signals end the program at once: {error}"));
    }
    let result =
        Algo::register(algorithms).and_then(|()| Envs::new(own, command, python, Trust::new(trust, trusted))).and_then(|envs| {
            match verb {
                Verb::List => list::run(&envs, json),
                Verb::Devices => devices::run(json),
                Verb::Train(args) => train::run(args, &envs, json),
                Verb::Tune(args) => tune::run(&args, &envs, json),
                Verb::Sweep(args) => sweep::run(&args, &envs, json),
                Verb::Eval(args) => eval::run(&args, &envs, json),
                Verb::Export(args) => export::run(&args, &envs, json),
                Verb::Record(args) => record::run(&args, &envs, json),
                Verb::Watch(args) => watch::run(&args, &envs, json),
                Verb::Monitor(args) => monitor::run(&args, json),
                Verb::Plot(args) => plot::run(&args, json),
                Verb::CheckEnv { env, settings, device } => check_env::run(&env, &settings, device, &envs, json),
                Verb::Trace(args) => trace::run(&args, &envs),
                Verb::Site(args) => site::run(&args, json),
                Verb::Completions { shell } => {
                    version::completions(shell, Cli::command());
                    Ok(ExitCode::SUCCESS)
                }
                #[cfg(feature = "man")]
                Verb::Man { dir } => version::man(&dir, Cli::command()).map(|()| ExitCode::SUCCESS),
                #[cfg(feature = "mpi")]
                Verb::ActorProcess { parent } => train::collect(parent, &envs),
                Verb::Bench { what } => bench::run(what, &envs, json),
            }
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

/// Prints the help, the version, or the problem with the arguments.
fn usage(error: &clap::Error) -> ExitCode {
    let printed = error.print().and_then(|()| std::io::stdout().flush());
    if !error.use_stderr() {
        printed.unwrap_or_else(|error| print::failed(&error));
    }
    if print::lost() { ExitCode::FAILURE } else { ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)) }
}
