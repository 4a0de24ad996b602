//! `rl bench`.

mod crossover;
mod measure;
mod update;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use rl_agents::{Activation, LearnerKind, MemoryKind, NetConfig, PpoConfig};

use self::crossover::CrossoverArgs;
pub(super) use self::update::ceiling;
use self::update::{MeasuredNets, Noise, ObsSource};
use crate::Mode;
use crate::cli::args::{
    parse_conv, parse_minibatch, parse_ms, parse_name, parse_seconds, parse_share, parse_units, set_matrix_threads, threads,
};
use crate::cli::envs::Envs;
use crate::pipeline::first_come::FirstComeConfig;
use crate::sources::latency::Distribution;
use crate::sources::slow_cartpole::Latency;
use crate::{Error, print};

/// Device to measure on.
#[derive(Clone, Copy)]
pub(super) enum BenchDevice {
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

/// Networks to measure, and their observations.
#[derive(Args)]
pub(super) struct NetArgs {
    /// The environment
    #[arg(long, default_value = "cartpole")]
    env: String,
    /// Observations of random bytes instead: a length, or ROWSxCOLUMNSxCHANNELS
    #[arg(long, conflicts_with = "env", value_parser = Noise::parse)]
    obs: Option<Noise>,
    /// Convolutions, each CHANNELSxKERNELxSTRIDE
    #[arg(long, value_delimiter = ',', value_parser = parse_conv)]
    conv: Vec<[usize; 3]>,
    /// tanh, relu, elu, silu or gelu
    #[arg(long, default_value = "tanh", value_parser = parse_name::<Activation>)]
    activation: Activation,
    /// Policy and value function share the hidden layers
    #[arg(long)]
    shared_trunk: bool,
    /// Sizes of the hidden layers
    #[arg(long, default_value = "64,64", value_delimiter = ',', value_parser = parse_units)]
    hidden: Vec<usize>,
    /// Memory before them: none, gru or lstm
    #[arg(long, default_value = "none", value_parser = parse_name::<MemoryKind>)]
    memory: MemoryKind,
    /// Outputs of the memory
    #[arg(long, default_value = "64", value_parser = parse_units)]
    memory_size: usize,
    /// Threads [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

impl NetArgs {
    /// Returns the networks to measure.
    fn nets(self, known: &Envs, learner: LearnerKind) -> Result<MeasuredNets, Error> {
        let Self { env, obs, conv, activation, shared_trunk, hidden, memory, memory_size, threads: n } = self;
        let source = match obs {
            Some(noise) => ObsSource::Noise(noise),
            None => ObsSource::Entry(known.find(&env)?),
        };
        let threads = threads(n);
        set_matrix_threads(threads);
        let config = NetConfig { conv, hidden, activation, shared_trunk, memory, memory_size, learner, ..NetConfig::default() };
        Ok(MeasuredNets { source, config, threads })
    }
}

#[derive(Subcommand)]
pub(super) enum Bench {
    /// Environment steps per second with random actions
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
        /// Threads [default: one per core]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
        threads: Option<u32>,
        /// cpu, cuda or cuda:i
        #[arg(long, default_value = "cpu", value_parser = parse_bench_device)]
        device: BenchDevice,
        /// Measure all block sizes on 1 to 4,194,304 environments, and use the best (CUDA)
        #[arg(long)]
        sweep_block: bool,
        /// Do the work of each step this many times in place, counting it once
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
        repeat: u32,
        /// Seconds to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Samples per second of whole PPO updates
    #[command(after_help = "\
Examples:
  rl bench update --minibatch 512 --hidden 64,64 --threads 2
  rl bench update --env snake --conv 16x3x1,32x3x1 --hidden 128 --shared-trunk --activation relu --minibatch 256
  rl bench update --obs 84x84x4 --conv 32x8x4,64x4x2,64x3x1 --hidden 512 --shared-trunk --activation relu --minibatch 256")]
    Update {
        #[command(flatten)]
        nets: NetArgs,
        /// Samples of a minibatch
        #[arg(long, default_value_t = 512, value_parser = parse_minibatch)]
        minibatch: usize,
        /// fused or reference
        #[arg(long, default_value = "fused", value_parser = parse_name::<LearnerKind>)]
        learner: LearnerKind,
        /// Seconds to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Environment steps per second of a policy that acts
    #[command(after_help = "Example:\n  rl bench act --envs 8 --hidden 1024,1024,512,256")]
    Act {
        #[command(flatten)]
        nets: NetArgs,
        /// Number of environments
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
        envs: u32,
        /// Seconds to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
    /// Environment steps per second with blocking environments and slow updates
    #[command(after_help = "\
Examples:
  rl bench pipeline --envs 32 --latency exp --latency-ms 50 --update-ms 1600
  rl bench pipeline --preset half-busy
  rl bench pipeline --preset large-nets --profile

Presets (other arguments override them):
  half-busy   32 environments, exponential latency of 50 ms, updates about half of the time
  wide        half-busy with 256 environments
  balanced    half-busy with updates that take as long as collecting
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
        /// Mean sleep of a step, in ms
        #[arg(long, default_value_t = 50.0, value_parser = parse_ms)]
        latency_ms: f64,
        /// Computing time of a step, in ms
        #[arg(long, default_value_t = 0.0, value_parser = parse_ms)]
        work_ms: f64,
        /// Share of steps that fail
        #[arg(long, default_value_t = 0.0, value_parser = parse_share)]
        fail: f32,
        /// Computing time of an update on one thread, in ms [default: PPO's work]
        #[arg(long, value_parser = parse_ms)]
        update_ms: Option<f64>,
        /// Steps of a rollout [default: 64]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
        n_steps: Option<u32>,
        /// Samples of a PPO minibatch
        #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
        batch: u32,
        /// PPO epochs
        #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
        epochs: u32,
        /// Sizes of the hidden layers [default: 256,256]
        #[arg(long, value_delimiter = ',', value_parser = parse_units)]
        hidden: Vec<usize>,
        /// Threads of PPO's updates
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
        threads: u32,
        /// Collect and learn alternately
        #[arg(long)]
        sync: bool,
        /// Policy lag: how many updates old the acting policy may be
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1000), conflicts_with = "sync")]
        max_lag: u32,
        /// Environments to wait for before the policy acts
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
        min_ready: u32,
        /// Maximum wait for those environments, in ms
        #[arg(long, default_value_t = 1.0, value_parser = parse_ms)]
        deadline_ms: f64,
        /// Seconds to measure after the first rollout; short runs miss unfinished stretches
        #[arg(long, default_value_t = 60.0, value_parser = parse_seconds)]
        seconds: f64,
        /// Print each thread's time by phase
        #[arg(long)]
        profile: bool,
        /// Write a timeline of all threads, for Perfetto or Chrome's about:tracing
        #[arg(long, value_name = "FILE")]
        timeline: Option<PathBuf>,
    },
    /// Sizes of training at which a GPU is faster than the CPU, for `device = auto`
    #[command(after_help = "\
Examples:
  rl bench crossover --device cuda
  rl bench crossover --device cuda --hidden 256,256 --envs 256,1024,4096 --seconds 20

Trains PPO for a moment at each size, on the CPU and on the device in turn, and keeps the medians in XDG_CACHE_HOME/rl or ~/.cache/rl.
Training with device = auto then takes the GPU where it was at least 1.1 times as fast at the nearest measured size below the run's.")]
    Crossover(CrossoverArgs),
    /// Transitions per second added to a replay buffer and drawn from it
    #[command(after_help = "Example:\n  rl bench replay --capacity 1000000 --batch 256 --prioritized")]
    Replay {
        /// Capacity in transitions
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
        capacity: u32,
        /// Transitions of a batch
        #[arg(long, default_value_t = 256, value_parser = parse_minibatch)]
        batch: usize,
        /// Hold the transitions in a file in this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<String>,
        /// Draw by priorities, and update them
        #[arg(long)]
        prioritized: bool,
        /// Seconds to measure
        #[arg(long, default_value_t = 5.0, value_parser = parse_seconds)]
        seconds: f64,
    },
}

pub(super) fn run(what: Bench, known: &Envs, json: bool) -> Result<ExitCode, Error> {
    let results = match what {
        Bench::Env { env, envs, threads: n, device, sweep_block, repeat, seconds } => match device {
            BenchDevice::Cpu if sweep_block => {
                let problems = vec!["--sweep-block: a CPU has no blocks; use --device cuda".into()];
                return Err(Error::Config { problems });
            }
            BenchDevice::Cpu => vec![measure::env(&known.find(&env)?, envs as usize, threads(n), repeat as usize, seconds)?],
            BenchDevice::Cuda(ordinal) => {
                measure::env_on_device(&known.find(&env)?, envs as usize, ordinal, sweep_block, repeat, seconds)?
            }
        },
        Bench::Update { nets, minibatch, learner, seconds } => {
            vec![update::update(&nets.nets(known, learner)?, minibatch, seconds)?]
        }
        Bench::Act { nets, envs, seconds } => vec![update::act(&nets.nets(known, LearnerKind::Fused)?, envs as usize, seconds)?],
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
            let bench = measure::PipelineBench {
                envs,
                latency: Latency { distribution: latency, mean: ms(latency_ms), work: ms(work_ms), fail },
                n_steps,
                mode: if sync { Mode::Sync } else { Mode::Overlapped { max_lag: max_lag as usize } },
                ready: FirstComeConfig { min_ready: min_ready as usize, deadline: ms(deadline_ms), ..FirstComeConfig::default() },
                update: update_ms.map(ms),
                ppo: PpoConfig { batch_size: batch as usize, n_epochs: epochs as usize, ..PpoConfig::default() },
                hidden: if hidden.is_empty() { nets.into() } else { hidden },
                threads: threads as usize,
                seconds,
                timeline,
            };
            let mut result = measure::pipeline(&bench)?;
            if !profile && let Some(result) = result.as_object_mut() {
                result.remove("profile");
            }
            vec![result]
        }
        Bench::Crossover(args) => return crossover::run(&args, known, json),
        Bench::Replay { capacity, batch, dir, prioritized, seconds } => {
            measure::replay(capacity as usize, &dir.unwrap_or_default(), batch, prioritized, seconds)?.into()
        }
    };
    for result in &results {
        if json { print::out(&result.to_string()) } else { print_bench(result) }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the scale in which a rate is printed, and its prefix.
fn scale(rate: f64) -> (f64, &'static str) {
    let scales = [(1e6, "M "), (1e3, "k ")];
    scales.into_iter().find(|(scale, _)| rate >= *scale).unwrap_or((1.0, ""))
}

fn print_bench(result: &serde_json::Value) {
    if result["name"] == "env_block" {
        let rate = |rate| {
            let (scale, prefix) = scale(rate);
            format!("{:.2} {prefix}env_steps/s", rate / scale)
        };
        let rate = result["value"].as_f64().map_or("cannot be launched".into(), rate);
        return print::out(&format!("{} environments, {} threads a block: {rate}", result["envs"], result["block"]));
    }
    let of = |key: &str| result[key].as_f64().unwrap_or_default();
    let unit = result["unit"].as_str().unwrap_or_default();
    if result["name"] == "pipeline" {
        print::out(&format!(
            "{:.0} {unit}, {:.1}% of the rate of the environments alone",
            of("value"),
            100.0 * of("share_of_ideal")
        ));
    } else if result["stand_in"] == true {
        print::out("no rate: the stand-in driver checks the kernels and runs them on the host");
    } else {
        let (scale, prefix) = scale(of("value"));
        let [value, min, max] = ["value", "min", "max"].map(|key| of(key) / scale);
        print::out(&format!("{value:.2} {prefix}{unit} ({min:.2} to {max:.2})"));
    }
    for (key, value) in result.as_object().into_iter().flatten() {
        if !["event", "value", "unit", "min", "max"].contains(&key.as_str()) {
            print::out(&format!("  {key}: {value}"));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_rate_is_printed_in_the_unit_of_its_size() {
        let printed = |rate: f64| {
            let (scale, prefix) = super::scale(rate);
            format!("{:.2} {prefix}env_steps/s", rate / scale)
        };
        assert_eq!(printed(269.63), "269.63 env_steps/s");
        assert_eq!(printed(4321.0), "4.32 k env_steps/s");
        assert_eq!(printed(2.5e8), "250.00 M env_steps/s");
    }
}
