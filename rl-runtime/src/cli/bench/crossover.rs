//! `rl bench crossover`: training on the CPU and on a device, over a grid of sizes.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rl_envs::catalog::Entry;
use serde_json::json;
use toml::Value;

use super::measure::spread;
use crate::cli::args::{parse_kernels_device, parse_seconds, parse_units, set_matrix_threads, threads};
use crate::cli::envs::Envs;
use crate::cli::signals;
use crate::config::crossover::{Crossover, CrossoverPoint, PAYS};
use crate::config::{Layers, parse_device};
use crate::print::{grouped, quoted};
use crate::run::train::Training;
use crate::{Algo, Config, Error, interrupt, print};

/// Alternating measurements of the CPU and the device, of which the median counts.
const ROUNDS: u32 = 3;
/// Iterations that are not counted.
///
/// A device captures its graphs in the second.
const WARM_UP: u64 = 2;
/// Epochs of an update, unless they are set.
///
/// More make large sizes slow to measure on a CPU, and change little: every epoch is the same work.
const EPOCHS: i64 = 4;

/// Sizes of the hidden layers, as `64,64`.
#[derive(Clone)]
struct Hidden(Vec<usize>);

impl Hidden {
    fn parse(text: &str) -> Result<Self, String> {
        text.split(',').map(parse_units).collect::<Result<_, _>>().map(Self)
    }

    fn text(&self) -> String {
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}

#[derive(Args)]
pub(crate) struct CrossoverArgs {
    /// cuda, cuda:i or emulated
    #[arg(long, default_value = "cuda", value_parser = |text: &str| parse_kernels_device(text).map(|_| text.to_owned()))]
    device: String,
    /// The environment, one that steps on the device
    #[arg(long, default_value = "cartpole")]
    env: String,
    /// Sizes of hidden layers, repeatable [default: 64,64 256,256 1024,1024]
    #[arg(long, value_parser = Hidden::parse)]
    hidden: Vec<Hidden>,
    /// Numbers of environments; the minibatch grows with them
    #[arg(long, value_name = "N", default_value = "8,256,4096", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    envs: Vec<u32>,
    /// A setting of all sizes, such as ppo.n_steps=128
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Threads of the CPU [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
    /// Seconds to measure each size, longer if single iterations are
    #[arg(long, default_value_t = 6.0, value_parser = parse_seconds)]
    seconds: f64,
}

/// Size to measure, with the settings of both sides.
struct Case {
    hidden: String,
    cpu: Config,
    device: Config,
}

impl CrossoverArgs {
    /// Returns the sizes to measure, smaller ones first.
    fn cases(&self, entry: &Entry) -> Result<Vec<Case>, Error> {
        let defaults = || ["64,64", "256,256", "1024,1024"].map(|text| Hidden::parse(text).expect("numbers")).into();
        let grid: Vec<Hidden> = if self.hidden.is_empty() { defaults() } else { self.hidden.clone() };
        let mut given = Layers::default();
        self.settings.iter().for_each(|assignment| given.add_assignment(assignment));
        let own = |key: &str| Error::config(format!("--set {key} is varied by rl bench crossover; leave it out"));
        if let Some(key) = ["hidden", "n_envs", "device", "threads", "pipeline"].into_iter().find(|key| given.has(key)) {
            return Err(own(key));
        }
        if !given.has("ppo.n_epochs") {
            given.add("ppo.n_epochs", EPOCHS, "rl bench crossover".into());
        }
        let base = given.clone().resolve(entry, Algo::PPO)?;
        // As many minibatches in a rollout as the settings have.
        let minibatch = base.traits().minibatch;
        let n_minibatches = (base.run.n_envs * base.n_steps()).div_ceil(minibatch);
        let mut cases = Vec::new();
        for hidden in &grid {
            for &n_envs in &self.envs {
                let of = |device: &str| {
                    let mut layers = given.clone();
                    let batch_size = n_envs as usize * base.n_steps() / n_minibatches;
                    let sizes = hidden.0.iter().map(|&size| Value::Integer(size as i64)).collect::<Vec<_>>();
                    for (key, value) in [
                        ("hidden", Value::Array(sizes)),
                        ("n_envs", i64::from(n_envs).into()),
                        ("ppo.batch_size", (batch_size as i64).into()),
                        ("device", device.into()),
                        ("threads", (threads(self.threads) as i64).into()),
                    ] {
                        layers.add(key, value, "rl bench crossover".into());
                    }
                    layers.resolve(entry, Algo::PPO)
                };
                cases.push(Case { hidden: hidden.text(), cpu: of("cpu")?, device: of(&self.device)? });
            }
        }
        Ok(cases)
    }
}

/// Measures env steps per second on both sides; `None` at an interrupt.
fn rates(case: &Case, entry: &Entry, seconds: f64) -> Result<Option<[f64; 2]>, Error> {
    let make = |config| Training::builder(config, entry).build();
    let mut sides = [(make(&case.cpu)?, Vec::new()), (make(&case.device)?, Vec::new())];
    let least = Duration::from_secs_f64(seconds) / (2 * ROUNDS);
    for round in 0..ROUNDS {
        for (training, rates) in &mut sides {
            rates.push(training.rate(if round == 0 { WARM_UP } else { 0 }, least)?);
            if interrupt::requested() {
                return Ok(None);
            }
        }
    }
    Ok(Some(sides.map(|(_, rates)| spread(rates).0)))
}

pub(super) fn run(args: &CrossoverArgs, known: &Envs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let entry = &known.find(&args.env)?;
    let cases = args.cases(entry)?;
    if cases.iter().any(|case| case.device.env_on_device(entry).is_ok_and(|env| env.is_none())) {
        return Err(Error::config(format!("the environments of {} do not step on a device; try --env cartpole", args.env)));
    }
    let opened = parse_device(&args.device).map(|device| device.open()).transpose()?.flatten();
    let Some(device) = opened else { return Err(Error::config("--device names no device")) };
    if device.is_stand_in() {
        print::out(&if json {
            json!({"event": "bench", "name": "crossover", "value": null, "stand_in": true}).to_string()
        } else {
            "no measurement: the stand-in driver checks the kernels and runs them on the host".into()
        });
        return Ok(ExitCode::SUCCESS);
    }
    set_matrix_threads(threads(args.threads));
    if !json {
        print::out(&format!("{}, ppo, env steps/s: {} threads of the CPU, and {device}", args.env, threads(args.threads)));
        print::out(&row(["hidden", "parameters", "envs", "minibatch", "cpu", "device", "ratio"].map(String::from), "pays"));
    }
    let mut points = Vec::new();
    for case in &cases {
        let (n_params, n_envs) = (case.cpu.layout(entry)?.len(), case.cpu.run.n_envs);
        let batch_size = case.cpu.traits().minibatch;
        let [cpu, on_device] = match rates(case, entry, args.seconds) {
            Ok(Some(rates)) => rates,
            Ok(None) => {
                print::err("interrupted: nothing is written");
                return Ok(ExitCode::from(interrupt::EXIT_CODE));
            }
            Err(error @ (Error::Config { .. } | Error::DeviceMemory { .. })) => {
                print::err(&format!("{} with {n_envs} environments is left out: {error}", case.hidden));
                continue;
            }
            Err(error) => return Err(error),
        };
        let point = CrossoverPoint { size: [n_params, n_envs, batch_size], cpu, device: on_device };
        let (ratio, pays) = (point.ratio(), point.ratio() >= PAYS);
        print::out(&if json {
            json!({
                "event": "bench", "name": "crossover", "env": args.env, "hidden": case.hidden, "parameters": n_params,
                "envs": n_envs, "n_steps": case.cpu.n_steps(), "minibatch": batch_size, "threads": threads(args.threads),
                "device": device.to_string(), "unit": "env_steps/s", "cpu_value": cpu, "value": on_device, "ratio": ratio,
                "pays": if pays { "device" } else { "cpu" }, "seconds": args.seconds,
            })
            .to_string()
        } else {
            let counts = [n_params as u64, n_envs as u64, batch_size as u64, cpu as u64, on_device as u64].map(grouped);
            let [n_params, n_envs, batch_size, cpu, on_device] = counts;
            let columns = [case.hidden.clone(), n_params, n_envs, batch_size, cpu, on_device, format!("{ratio:.2}")];
            row(columns, if pays { "device" } else { "cpu" })
        });
        points.push(point);
    }
    if points.is_empty() {
        return Err(Error::config("no size fits into memory; name smaller ones with --hidden and --envs"));
    }
    let n = points.len();
    let path = Crossover::new(device.name(), threads(args.threads), points).save()?;
    print::out(&if json {
        json!({"event": "crossover", "file": path.display().to_string(), "points": n}).to_string()
    } else {
        format!("{}: `rl train` with device = auto reads it", quoted(&path))
    });
    Ok(ExitCode::SUCCESS)
}

/// Formats a row of the table.
fn row([hidden, rest @ ..]: [String; 7], last: &str) -> String {
    let mut line = format!("{hidden:<20}");
    rest.iter().for_each(|cell| line.push_str(&format!("{cell:>13}")));
    format!("{line}  {last}")
}
