//! The `rl` program.

#![warn(clippy::print_stdout, clippy::print_stderr)]

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use rl_agents::settings::{MAX_CONV, MAX_UNITS};
use rl_agents::{Activation, Episode, EvalConfig, Isa, Learner, PpoConfig};
use rl_envs::check::Outcome;
use rl_envs::{Canvas, Pool, catalog};
use rl_runtime::animation::Animation;
use rl_runtime::budget::Budget;
use rl_runtime::checkpoint::{self, SavedPolicy};
use rl_runtime::config::{self, Layers, PRESETS, RESUMABLE};
use rl_runtime::file::Draft;
use rl_runtime::latency::{Distribution, Latency};
use rl_runtime::pipeline::Mode;
use rl_runtime::profile::Profile;
use rl_runtime::ready::ReadyConfig;
use rl_runtime::report::{Report, evaluation_json, grouped, in_words};
use rl_runtime::resume::{Resumed, Source};
use rl_runtime::run_dir::RunDir;
use rl_runtime::train::{self, End, Evaluation, Training};
use rl_runtime::watch::{self, Screen, Show};
use rl_runtime::{Algo, Config, Error, bench, interrupt, print};
use serde_json::{Value, json};

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
    Train(TrainArgs),
    /// Play episodes in fresh environments
    Eval(EvalArgs),
    /// See a policy act
    Watch(WatchArgs),
    /// Test an environment against the contract, PASS or FAIL a line
    #[command(after_help = "Example:\n  rl check-env snake")]
    CheckEnv {
        /// The environment
        env: String,
    },
    /// Step one environment from given states with given actions, to compare it with any reference
    Trace(TraceArgs),
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: Bench,
    },
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl train cartpole
  rl train cartpole --algo a2c --seed 3 --set hidden=[32,32] --set a2c.learning_rate=1e-3
  rl train --resume runs/cartpole-ppo-seed0-1

Settings come in layers: defaults, preset, --config, command line. `rl list` shows them all.
--resume RUN goes on with the settings that the run has, except those given now (steps, threads, ...), which it keeps from then on.
With more --steps, what falls with progress (lin_X, exploration) jumps back up. --resume RUN/checkpoints/ckpt-N goes on from that
checkpoint, in a new run if later ones exist.
Ctrl-C, or one of the signals TERM, HUP and USR1, finishes the update, saves and says how to continue; a second one ends the run at once.")]
struct TrainArgs {
    /// The environment (see `rl list`)
    env: Option<String>,
    /// ppo, a2c or dqn [default: ppo]
    #[arg(long)]
    algo: Option<String>,
    /// Environment steps to train for, such as 200000, 200_000 or 2e5
    #[arg(long, value_parser = parse_count)]
    steps: Option<i64>,
    /// Number of environments
    #[arg(long, value_parser = parse_count)]
    envs: Option<i64>,
    /// Decides all randomness [default: 0]
    #[arg(long)]
    seed: Option<i64>,
    /// auto, cpu, cuda or cuda:i [default: auto]
    #[arg(long)]
    device: Option<String>,
    /// Threads; results do not depend on them [default: one a core]
    #[arg(long)]
    threads: Option<i64>,
    /// A setting, such as ppo.n_steps=128
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Settings from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to write [default: the first free runs/ENV-ALGO-seedS-NUMBER]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Continue the run in this directory from its last checkpoint, or, in a new run, from one of its checkpoints
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Evaluate every so many environment steps
    #[arg(long, value_name = "N", value_parser = parse_count)]
    eval_every: Option<i64>,
    /// Stop when an evaluation's mean return reaches this
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    target_return: Option<f64>,
    /// Say at the end what each thread did for how long
    #[arg(long)]
    profile: bool,
    /// Write what each thread did when, to be opened in Perfetto or Chrome's about:tracing
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl eval runs/cartpole-ppo-seed0-1 --episodes 100
  rl eval runs/cartpole-ppo-seed0-1 --stochastic

The episodes are never those that training was judged by, whatever the seeds.")]
struct EvalArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// How many episodes, each in an environment of its own
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    episodes: u32,
    /// Decides how the environments start
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Sample actions as in training instead of taking the most likely ones
    #[arg(long)]
    stochastic: bool,
    /// Threads [default: one a core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl watch runs/cartpole-ppo-seed0-1
  rl watch runs/cartpole-ppo-seed0-1 --gif cartpole.gif --episodes 3

The episodes are those that `rl eval` plays with the same seed. Every state that the policy acted on is
shown: an episode's start, but not the state that it ends in. A GIF holds the first 1000 steps. Without --gif the terminal shows
the episodes (it needs 24-bit colours); where stdout is no terminal, there is a line for each.")]
struct WatchArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// Write an animated GIF, replacing what is there
    #[arg(long, value_name = "FILE")]
    gif: Option<PathBuf>,
    /// How many episodes
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    episodes: u32,
    /// Decides how the environments start
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Pixels of the picture's longer side [default: 400, or what the terminal has room for]
    #[arg(long, value_name = "PX", value_parser = clap::value_parser!(u32).range(1..=4096))]
    size: Option<u32>,
    /// Steps shown a second
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=50))]
    fps: u32,
}

#[derive(Args)]
#[command(after_help = "\
Example:
  echo '{\"x\": 0, \"x_dot\": 0, \"theta\": 0.05, \"theta_dot\": 0, \"elapsed\": 0}' > init.json
  echo '[0, 1, 1]' > actions.json
  rl trace cartpole --init init.json --actions actions.json

From one initial state the trace ends with its episode: the actions after a step that terminates or truncates are left out.")]
struct TraceArgs {
    /// The environment
    env: String,
    /// JSON: the state by field name, or an array of states, one for each action
    #[arg(long, value_name = "FILE")]
    init: PathBuf,
    /// JSON: an array of actions
    #[arg(long, value_name = "FILE")]
    actions: PathBuf,
}

/// Where environments are measured.
#[derive(Clone, Copy)]
enum BenchDevice {
    Cpu,
    Cuda(usize),
}

fn parse_bench_device(text: &str) -> Result<BenchDevice, String> {
    match text {
        "cpu" => Ok(BenchDevice::Cpu),
        "cuda" => Ok(BenchDevice::Cuda(0)),
        _ => text.strip_prefix("cuda:").and_then(|i| i.parse().ok()).map(BenchDevice::Cuda).ok_or("cpu, cuda or cuda:i".into()),
    }
}

#[derive(Subcommand)]
enum Bench {
    /// Environment steps a second with random actions
    #[command(after_help = "\
Examples:
  rl bench env cartpole --envs 4096 --threads 2
  rl bench env cartpole --envs 1048576 --device cuda --sweep-block")]
    Env {
        /// The environment
        env: String,
        /// Number of environments
        #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
        envs: u32,
        /// Threads [default: one a core]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        threads: Option<u32>,
        /// cpu, cuda or cuda:i
        #[arg(long, default_value = "cpu", value_parser = parse_bench_device)]
        device: BenchDevice,
        /// On a CUDA device: measure every block size with 1 to 4,194,304 environments, and take the best
        #[arg(long)]
        sweep_block: bool,
        /// Do the work of each step so often, in place, and count it once
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
        repeat: u32,
        /// How long to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Samples a second of whole PPO updates
    #[command(after_help = "\
Examples:
  rl bench update --minibatch 512 --hidden 64,64 --threads 2
  rl bench update --env snake --conv 16x3x1,32x3x1 --hidden 128 --shared-trunk --activation relu --minibatch 256")]
    Update {
        /// The environment
        #[arg(long, default_value = "cartpole")]
        env: String,
        /// Convolutions, each CHANNELSxKERNELxSTRIDE
        #[arg(long, value_delimiter = ',', value_parser = parse_conv)]
        conv: Vec<[usize; 3]>,
        /// tanh or relu
        #[arg(long, default_value = "tanh", value_parser = parse_name::<Activation>)]
        activation: Activation,
        /// Policy and value function share the hidden layers
        #[arg(long)]
        shared_trunk: bool,
        /// Samples of a minibatch
        #[arg(long, default_value_t = 512, value_parser = parse_minibatch)]
        minibatch: usize,
        /// Sizes of the hidden layers
        #[arg(long, default_value = "64,64", value_delimiter = ',', value_parser = parse_units)]
        hidden: Vec<usize>,
        /// Threads [default: one a core]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        threads: Option<u32>,
        /// fused or reference
        #[arg(long, default_value = "fused", value_parser = parse_name::<Learner>)]
        learner: Learner,
        /// avx512, avx2 or plain [default: the best that the machine has]
        #[arg(long, value_parser = parse_name::<Isa>)]
        isa: Option<Isa>,
        /// How long to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Environment steps a second where environments block and updates take time
    #[command(after_help = "\
Examples:
  rl bench pipeline --envs 32 --latency exp --latency-ms 50 --update-ms 1600
  rl bench pipeline --preset half-busy
  rl bench pipeline --preset large-nets --profile

Presets (what is given besides goes before them):
  half-busy   32 environments, exponential latency of 50 ms, updates about half of the time
  wide        the same with 256 environments
  balanced    the same with 32 environments and updates that take as long as collecting
  large-nets  32 environments, rollouts of 8192 steps, PPO with batch 512, 30 epochs, nets of 1024-1024-512-256")]
    Pipeline {
        /// half-busy, wide, balanced or large-nets
        #[arg(long, value_parser = ["half-busy", "wide", "balanced", "large-nets"])]
        preset: Option<String>,
        /// Number of environments [default: 32]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65536))]
        envs: Option<u32>,
        /// fixed, exp or pareto
        #[arg(long, default_value = "exp", value_parser = parse_name::<Distribution>)]
        latency: Distribution,
        /// Mean time that a step sleeps
        #[arg(long, default_value_t = 50.0, value_parser = parse_ms)]
        latency_ms: f64,
        /// Time that a step computes
        #[arg(long, default_value_t = 0.0, value_parser = parse_ms)]
        work_ms: f64,
        /// The share of steps that fail
        #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
        fail: f32,
        /// Time that an update computes, on one thread [default: PPO's work]
        #[arg(long, value_parser = parse_ms)]
        update_ms: Option<f64>,
        /// Steps of a rollout [default: 64]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
        n_steps: Option<u32>,
        /// Samples of a minibatch of PPO
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
        batch: u32,
        /// Epochs of PPO
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
        epochs: u32,
        /// Sizes of the hidden layers [default: 256,256]
        #[arg(long, value_delimiter = ',', value_parser = parse_units)]
        hidden: Vec<usize>,
        /// Threads of PPO's updates
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
        threads: u32,
        /// Collect and learn in turn
        #[arg(long)]
        sync: bool,
        /// Rollouts are acted in by the policy of so many updates before
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000), conflicts_with = "sync")]
        max_lag: u32,
        /// Environments that are waited for before the policy acts
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        min_ready: u32,
        /// How long they are waited for
        #[arg(long, default_value_t = 1.0, value_parser = parse_ms)]
        deadline_ms: f64,
        /// How long to measure, from the end of the first rollout on: a short time counts too little, for stretches that have been begun
        #[arg(long, default_value_t = 60.0, value_parser = parse_seconds)]
        seconds: f64,
        /// Say what each thread did for how long
        #[arg(long)]
        profile: bool,
        /// Write what each thread did when, to be opened in Perfetto or Chrome's about:tracing
        #[arg(long, value_name = "FILE")]
        timeline: Option<PathBuf>,
    },
    /// Transitions a second that a replay buffer takes and gives back
    #[command(after_help = "Example:\n  rl bench replay --capacity 1000000 --batch 256 --prioritized")]
    Replay {
        /// Transitions that fit
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
        capacity: u32,
        /// Transitions of a batch
        #[arg(long, default_value_t = 256, value_parser = parse_minibatch)]
        batch: usize,
        /// Draw by priorities, and update them
        #[arg(long)]
        prioritized: bool,
        /// How long to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
}

/// A value of an enum by its name in settings.
fn parse_name<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

fn parse_conv(text: &str) -> Result<[usize; 3], String> {
    let size = |size: &str| size.parse().ok().filter(|size| (1..=MAX_CONV as usize).contains(size));
    let sizes: Option<Vec<usize>> = text.split('x').map(size).collect();
    let sizes = sizes.and_then(|sizes| sizes.try_into().ok());
    sizes.ok_or_else(|| format!("not CHANNELSxKERNELxSTRIDE, such as 16x3x1, with numbers from 1 to {MAX_CONV}"))
}

fn parse_units(text: &str) -> Result<usize, String> {
    let units = text.parse().ok().filter(|units| (1..=MAX_UNITS as usize).contains(units));
    units.ok_or_else(|| format!("not a whole number from 1 to {MAX_UNITS}"))
}

fn parse_minibatch(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| (2..=1 << 20).contains(n)).ok_or_else(|| "not a whole number from 2 to 1048576".into())
}

fn parse_count(text: &str) -> Result<i64, String> {
    let plain = text.replace('_', "");
    let whole = |x: f64| (x.fract() == 0.0 && x.abs() < 1e15).then_some(x as i64);
    plain.parse().ok().or_else(|| plain.parse().ok().and_then(whole)).ok_or_else(|| "not a whole number".into())
}

fn parse_ms(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|ms| (0.0..=3.6e6).contains(ms)).ok_or_else(|| "not a number from 0 to 3600000".into())
}

fn parse_share(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|share| (0.0..1.0).contains(share)).ok_or_else(|| "not a number from 0 to below 1".into())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|s| (0.01..=86_400.0).contains(s)).ok_or_else(|| "not a number from 0.01 to 86400".into())
}

fn main() -> ExitCode {
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
        Verb::List => list(json),
        Verb::Train(args) => train(args, json),
        Verb::Eval(args) => eval(&args, json),
        Verb::Watch(args) => watch(&args, json),
        Verb::CheckEnv { env } => check_env(&env, json),
        Verb::Trace(args) => trace(&args),
        Verb::Bench { what } => run_bench(what, json),
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

fn list(json: bool) -> Result<ExitCode, Error> {
    if json {
        for entry in catalog::ENVS {
            print::out(&json!({"event": "environment", "name": entry.name, "about": entry.about}).to_string());
        }
        for (algo, about) in Algo::ALL {
            print::out(&json!({"event": "algorithm", "name": algo.name(), "about": about}).to_string());
        }
        for (env, algo, _) in PRESETS {
            print::out(&json!({"event": "preset", "env": env, "algo": algo.name()}).to_string());
        }
        for key in config::keys() {
            print::out(
                &json!({"event": "setting", "name": key.name, "allowed": key.kind.allowed(), "about": key.about}).to_string(),
            );
        }
        print::out(&json!({"event": "list"}).to_string());
        return Ok(ExitCode::SUCCESS);
    }
    print::out("environments");
    for entry in catalog::ENVS {
        print::out(&format!("  {:<12} {}", entry.name, entry.about));
    }
    print::out("\nalgorithms");
    for (algo, about) in Algo::ALL {
        print::out(&format!("  {:<12} {about}", algo.name()));
    }
    print::out("\npresets (environment and algorithm; others train with the defaults)");
    for (env, algo, _) in PRESETS {
        print::out(&format!("  {env} {}", algo.name()));
    }
    print::out("\nsettings (--set KEY=VALUE, or in a TOML file)");
    for key in config::keys() {
        print::out(&format!("  {:<24} {}; {}", key.name, key.about, key.kind.allowed()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The settings of the command line over those of --config, and the algorithm and environment that they name.
fn layers(args: &TrainArgs) -> Result<Layers, Error> {
    let mut layers = Layers::default();
    if let Some(path) = &args.config {
        layers.add_file(path)?;
    }
    args.settings.iter().for_each(|assignment| layers.add_assignment(assignment));
    for (key, value) in [("env", &args.env), ("algo", &args.algo), ("device", &args.device)] {
        if let Some(value) = value {
            layers.add(key, value.as_str(), if key == "env" { "the command line".into() } else { format!("--{key}") });
        }
    }
    for (key, flag, value) in [
        ("steps", "--steps", args.steps),
        ("n_envs", "--envs", args.envs),
        ("seed", "--seed", args.seed),
        ("threads", "--threads", args.threads),
        ("eval_every", "--eval-every", args.eval_every),
    ] {
        if let Some(value) = value {
            layers.add(key, value, flag.into());
        }
    }
    if let Some(target) = args.target_return {
        layers.add("target_return", target, "--target-return".into());
    }
    Ok(layers)
}

fn train(args: TrainArgs, json: bool) -> Result<ExitCode, Error> {
    if let Err(error) = interrupt::listen(None) {
        print::err(&format!("warning: Ctrl-C will not save: {error}"));
    }
    let layers = layers(&args)?;
    let mut report = Report::new(json);
    let profile = Profile::new(args.timeline.is_some());
    // A timeline in the run directory is checked when that is there.
    let run_dir = args.run_dir.as_ref().or(args.resume.as_ref());
    let inside = |path: &Path| run_dir.is_some_and(|dir| absolute(path).starts_with(absolute(dir)));
    args.timeline.as_deref().filter(|path| !inside(path)).map(Draft::create).transpose()?;
    let (config, dir, mut training, notes, timeline) = match &args.resume {
        None => {
            let none =
                || Error::Config { problems: vec!["which environment? `rl list` shows them; try `rl train cartpole`".into()] };
            let env = layers.text("env")?.ok_or_else(none)?;
            let algo = Algo::find(&layers.text("algo")?.unwrap_or_else(|| "ppo".into()))?;
            let config = layers.resolve(&env, algo)?;
            let device = train::device(&config)?;
            Budget::training(&config)?.check()?;
            let dir = RunDir::create(args.run_dir.as_deref(), &config, &device)?;
            let (dir, timeline) = with_timeline(args.timeline.as_deref(), dir, true)?;
            // Before wide networks take seconds to initialise.
            report.start(&config, &device, dir.path(), 0);
            set_matrix_threads(config.threads);
            match Training::new(&config, profile.clone()) {
                Ok(training) => (config, dir, training, Vec::new(), timeline),
                Err(error) => {
                    dir.discard();
                    return Err(error);
                }
            }
        }
        Some(path) => {
            let source = Source::open(path, args.run_dir.is_some())?;
            let config = resumed_config(&args, layers, path, source.config())?;
            let device = train::device(&config)?;
            set_matrix_threads(config.threads);
            let forks = source.forks();
            let Resumed { dir, training, mut notes } =
                source.begin(&config, args.run_dir.as_deref(), &device, profile.clone())?;
            let (dir, timeline) = with_timeline(args.timeline.as_deref(), dir, forks)?;
            if let Err(error) = dir.replace_config(&config) {
                notes.push(format!("{error}; a later --resume needs the settings given now once more"));
            }
            report.start(&config, &device, dir.path(), training.progress().env_steps);
            (config, dir, training, notes, timeline)
        }
    };
    config.warnings().iter().for_each(|warning| report.warn(warning));
    notes.iter().for_each(|note| report.note(note));
    let outcome = training.run(&dir, &mut report);
    if let Some(Err(error)) = timeline.map(|draft| draft.publish(profile.timeline().as_bytes())) {
        report.warn(&format!("no timeline is written: {error}"));
    }
    let outcome = outcome?;
    if args.profile || config.mode() != Mode::Sync {
        report.profile(&profile, &config, args.profile);
    }
    report.done(&outcome, dir.path());
    Ok(if outcome.end == End::Interrupted { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// Adds the draft of the timeline to a run's directory. A path that is refused, such as one of the run's own files, leaves nothing of a
/// directory that is `new`.
fn with_timeline(path: Option<&Path>, dir: RunDir, new: bool) -> Result<(RunDir, Option<Draft>), Error> {
    let draft = |path: &Path| {
        dir.check_foreign(path)?;
        let draft = Draft::create(path)?;
        dir.check_foreign(draft.target())?;
        Ok(draft)
    };
    match path.map(draft).transpose() {
        Ok(draft) => Ok((dir, draft)),
        Err(error) => {
            if new {
                dir.discard();
            }
            Err(error)
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// The settings to resume with: those of the run or checkpoint, and those given that may change.
fn resumed_config(args: &TrainArgs, layers: Layers, path: &Path, saved: &Config) -> Result<Config, Error> {
    let foreign = |what: &str, given: &Option<String>, saved: &str| match given {
        Some(given) if given != saved => {
            Err(Error::Config { problems: vec![format!("the run in {} is of {what} {saved}, not {given}", path.display())] })
        }
        _ => Ok(()),
    };
    foreign("environment", &args.env, &saved.env)?;
    foreign("algorithm", &args.algo, saved.algo.name())?;
    let config = layers.over(saved)?;
    let differences = config.differences(saved);
    if !differences.is_empty() {
        let may = RESUMABLE.join(", ");
        let problem = format!("a resumed run keeps its settings ({may} may change), but (given here, saved there):{differences}");
        return Err(Error::Config { problems: vec![problem] });
    }
    Ok(config)
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

fn eval(args: &EvalArgs, json: bool) -> Result<ExitCode, Error> {
    if let Err(error) = interrupt::listen(None) {
        print::err(&format!("warning: Ctrl-C will end this at once: {error}"));
    }
    let threads = threads(args.threads);
    let SavedPolicy { path, config, policy, .. } = saved_policy(&args.path, args.best, threads)?;
    Budget::playing(&config, args.episodes as usize)?.check()?;
    let Config { env, eval_max_steps, on_nonfinite, .. } = config;
    let (seed, stochastic) = (train::evaluation_seed(args.seed), args.stochastic);
    let config = EvalConfig { seed, stochastic, max_steps: eval_max_steps, on_nonfinite };
    let pool = Pool::new(threads)?;
    let Some(result) = train::evaluate_policy(&*policy, &env, args.episodes as usize, &config, &pool)? else {
        print::err("interrupted: the evaluation is not complete");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    };
    if json {
        let mut object = evaluation_json(&result);
        object["event"] = "eval".into();
        object["env"] = env.as_str().into();
        object["seed"] = args.seed.into();
        object["stochastic"] = stochastic.into();
        object["checkpoint"] = path.display().to_string().into();
        print::out(&object.to_string());
    } else {
        print::out(&format!("{env}, {}: {}", path.display(), in_words(&result, stochastic)));
    }
    Ok(ExitCode::SUCCESS)
}

fn watch(args: &WatchArgs, json: bool) -> Result<ExitCode, Error> {
    let WatchArgs { gif, fps, seed, .. } = args;
    let SavedPolicy { path, config: Config { env, .. }, policy, .. } = saved_policy(&args.path, args.best, 1)?;
    let seen = watch::can_be_seen(&*policy, &env)?;
    let at_terminal = std::io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    if let Err(error) = interrupt::listen(Some(Screen::restore)) {
        print::err(&format!("warning: Ctrl-C will end this at once: {error}"));
    }
    let mut show = match gif {
        Some(_) if !seen => {
            return Err(Error::Config { problems: vec![format!("{env} does not draw itself; leave out --gif")] });
        }
        Some(gif) => {
            let size = args.size.unwrap_or(400) as usize;
            Show::Animation(Animation::create(gif, *fps)?, Canvas::new(size, size))
        }
        None if at_terminal && seen && !json => Show::Screen(Screen::open(args.size.unwrap_or(4096) as usize, *fps)),
        None => Show::Nowhere,
    };
    let mut lines = Vec::new();
    let shows_now = !json && !matches!(show, Show::Screen(_));
    let played = watch::play(&*policy, &env, args.episodes as usize, *seed, &mut show, &mut |episode| {
        let Episode { episode_return, length } = episode;
        lines.push(format!("episode {}: return {episode_return:.1}, length {length}", lines.len() + 1));
        if shows_now {
            print::out(&lines[lines.len() - 1]);
        }
    });
    let animation = match show {
        Show::Animation(animation, _) => Some(animation),
        // A screen ends here, so that words stay readable.
        Show::Screen(_) | Show::Nowhere => None,
    };
    let played = played?;
    if !json && !shows_now {
        lines.iter().for_each(|line| print::out(line));
    }
    if interrupt::requested() {
        if animation.is_some() {
            print::err("interrupted: no GIF is written");
        }
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    let frames = animation.as_ref().map_or(0, Animation::frames);
    let (width, height) = animation.as_ref().map_or((0, 0), Animation::size);
    let bytes = animation.map(Animation::finish).transpose()?;
    if json {
        let mut object = evaluation_json(&Evaluation::new(&played, 0));
        object["event"] = "watch".into();
        object["env"] = env.into();
        object["seed"] = (*seed).into();
        object["checkpoint"] = path.display().to_string().into();
        object["returns"] = played.iter().map(|episode| episode.episode_return).collect();
        object["lengths"] = played.iter().map(|episode| episode.length).collect();
        object["frames"] = frames.into();
        object["gif"] = gif.as_ref().map(|gif| gif.display().to_string()).into();
        print::out(&object.to_string());
    } else if let (Some(gif), Some(bytes)) = (gif, bytes) {
        let bytes = grouped(bytes as u64);
        print::out(&format!("{}: {frames} frames of {width} x {height} pixels, {bytes} bytes", gif.display()));
        let steps: u64 = played.iter().map(|episode| u64::from(episode.length)).sum();
        if steps > frames as u64 {
            print::out(&format!("it holds the first {} of {} steps", grouped(frames as u64), grouped(steps)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn check_env(env: &str, json: bool) -> Result<ExitCode, Error> {
    let checks = catalog::find(env)?.check();
    let n_failed = checks.iter().filter(|check| check.failed()).count();
    for check in &checks {
        let (outcome, what) = match &check.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Skipped(why) => ("skipped", Some(why)),
            Outcome::Failed(what) => ("failed", Some(what)),
        };
        print::out(&if json {
            json!({"event": "check", "name": check.name, "about": check.about, "outcome": outcome, "what": what}).to_string()
        } else {
            check.to_string()
        });
    }
    if json {
        print::out(&json!({"event": "check-env", "env": env, "checks": checks.len(), "failed": n_failed}).to_string());
    }
    if n_failed > 0 {
        Err(Error::CheckFailed { env: env.into(), n_failed, n_checks: checks.len() })
    } else {
        Ok(ExitCode::SUCCESS)
    }
}

/// Largest file of states or actions.
const MAX_TRACE: u64 = 256 << 20;

fn trace(args: &TraceArgs) -> Result<ExitCode, Error> {
    let read = |path: &Path| -> Result<Value, Error> {
        let text = config::read_small(path, MAX_TRACE)?;
        serde_json::from_str(&text).map_err(|e| Error::Config { problems: vec![format!("{}: {e}", path.display())] })
    };
    let entry = catalog::find(&args.env)?;
    let actions = read(&args.actions)?;
    let steps = entry.trace(&read(&args.init)?, &actions).map_err(|error| match error {
        rl_envs::Error::BadState(why) => Error::Config { problems: vec![format!("the initial state: {why}")] },
        other => other.into(),
    })?;
    for step in &steps {
        print::out(&serde_json::to_string(step).unwrap_or_default());
    }
    let (taken, given) = (steps.len(), actions.as_array().map_or(0, Vec::len));
    if taken < given {
        print::err(&format!("note: step {taken} ends the episode; the {} actions after it are left out", given - taken));
    }
    Ok(ExitCode::SUCCESS)
}

fn run_bench(what: Bench, json: bool) -> Result<ExitCode, Error> {
    let results = match what {
        Bench::Env { env, envs, threads: n, device, sweep_block, repeat, seconds } => match device {
            BenchDevice::Cpu if sweep_block => {
                let problems = vec!["--sweep-block: a CPU has no blocks; use --device cuda".into()];
                return Err(Error::Config { problems });
            }
            BenchDevice::Cpu => vec![bench::env(&env, envs as usize, threads(n), repeat as usize, seconds)?],
            BenchDevice::Cuda(ordinal) => bench::env_on_device(&env, envs as usize, ordinal, sweep_block, repeat, seconds)?,
        },
        Bench::Update { env, conv, activation, shared_trunk, minibatch, hidden, threads: n, learner, isa, seconds } => {
            let (threads, isa) = (threads(n), isa.unwrap_or_else(Isa::best));
            set_matrix_threads(threads);
            let update = bench::Update { env, conv, activation, shared_trunk, minibatch, hidden, threads, learner, isa, seconds };
            vec![bench::update(&update)?]
        }
        Bench::Pipeline {
            preset,
            envs,
            latency,
            latency_ms,
            work_ms,
            fail,
            update_ms,
            n_steps,
            batch,
            epochs,
            hidden,
            threads,
            sync,
            max_lag,
            min_ready,
            deadline_ms,
            seconds,
            profile,
            timeline,
        } => {
            set_matrix_threads(threads as usize);
            let preset = preset.as_deref().unwrap_or_default();
            let nets: &[usize] = if preset == "large-nets" { &[1024, 1024, 512, 256] } else { &[256, 256] };
            let steps = match preset {
                "large-nets" => 256,
                "wide" => 32,
                _ => 64,
            };
            let n_steps = n_steps.map_or(steps, |n| n as usize);
            let update_ms = update_ms.or_else(|| {
                let collecting = n_steps as f64 * (latency_ms + work_ms);
                match preset {
                    "half-busy" | "wide" => Some(0.5 * collecting),
                    "balanced" => Some(collecting),
                    _ => None,
                }
            });
            let ms = |ms: f64| Duration::from_secs_f64(1e-3 * ms);
            let envs = envs.map_or(if preset == "wide" { 256 } else { 32 }, |n| n as usize);
            let mut problems = Vec::new();
            if latency_ms + work_ms == 0.0 {
                problems.push(
                    "--latency-ms and --work-ms are both 0: there is nothing to wait for; `rl bench env` measures that".into(),
                );
            }
            if min_ready as usize > envs {
                problems.push(format!("--min-ready {min_ready}: there are {envs} environments"));
            }
            if !problems.is_empty() {
                return Err(Error::Config { problems });
            }
            let bench = bench::PipelineBench {
                envs,
                latency: Latency { distribution: latency, mean: ms(latency_ms), work: ms(work_ms), fail },
                n_steps,
                mode: if sync { Mode::Sync } else { Mode::Overlapped { max_lag: max_lag as usize } },
                ready: ReadyConfig { min_ready: min_ready as usize, deadline: ms(deadline_ms), ..ReadyConfig::default() },
                update: update_ms.map(ms),
                ppo: PpoConfig { batch_size: batch as usize, n_epochs: epochs as usize, ..PpoConfig::default() },
                hidden: if hidden.is_empty() { nets.into() } else { hidden },
                threads: threads as usize,
                seconds,
                timeline,
            };
            let mut result = bench::pipeline(&bench)?;
            if !profile && let Some(result) = result.as_object_mut() {
                result.remove("profile");
            }
            vec![result]
        }
        Bench::Replay { capacity, batch, prioritized, seconds } => {
            bench::replay(capacity as usize, batch, prioritized, seconds)?.into()
        }
    };
    for result in &results {
        if json { print::out(&result.to_string()) } else { print_bench(result) }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_bench(result: &serde_json::Value) {
    if result["name"] == "env_block" {
        let rate =
            result["value"].as_f64().map_or("cannot be launched".into(), |rate| format!("{:.2} M env_steps/s", rate / 1e6));
        return print::out(&format!("{} environments, {} threads a block: {rate}", result["envs"], result["block"]));
    }
    let of = |key: &str| result[key].as_f64().unwrap_or_default();
    let unit = result["unit"].as_str().unwrap_or_default();
    if result["name"] == "pipeline" {
        print::out(&format!(
            "{:.0} {unit}, {:.1}% of what the environments alone could do",
            of("value"),
            100.0 * of("share_of_ideal")
        ));
    } else {
        let (value, min, max) = (of("value") / 1e6, of("min") / 1e6, of("max") / 1e6);
        print::out(&format!("{value:.2} M {unit} ({min:.2} to {max:.2})"));
    }
    for (key, value) in result.as_object().into_iter().flatten() {
        if !["event", "value", "unit", "min", "max"].contains(&key.as_str()) {
            print::out(&format!("  {key}: {value}"));
        }
    }
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
