//! `rl eval`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use rl_agents::EvalConfig;
use rl_envs::Pool;

use crate::cli::args::threads;
use crate::cli::envs::{Envs, saved_policy};
use crate::cli::show::report::{evaluation_json, in_words};
use crate::cli::signals;
use crate::config::RunConfig;
use crate::config::budget::Budget;
use crate::run::checkpoint::SavedPolicy;
use crate::run::evaluation::{evaluate, evaluation_seed};
use crate::{Error, interrupt, print};

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl eval runs/cartpole-ppo-seed0-1 --episodes 100
  rl eval runs/cartpole-ppo-seed0-1 --stochastic

Its episodes always differ from those of evaluations during training, whatever the seeds.")]
pub(crate) struct EvalArgs {
    /// The directory of a run, or of one of its checkpoints
    path: PathBuf,
    /// Take the checkpoint with the best evaluation instead of the newest
    #[arg(long)]
    best: bool,
    /// Number of episodes, each in its own environment
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    episodes: u32,
    /// Seed of the environments
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Sample actions as in training instead of taking the most likely ones
    #[arg(long)]
    stochastic: bool,
    /// Threads [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

pub(crate) fn run(args: &EvalArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let threads = threads(args.threads);
    let SavedPolicy { path, config, entry, policy, .. } = saved_policy(&args.path, args.best, threads, envs, false)?;
    Budget::playing(&config, &entry, args.episodes as usize, threads).check()?;
    let RunConfig { eval_max_steps, on_nonfinite, .. } = config.run;
    let (seed, stochastic) = (evaluation_seed(args.seed), args.stochastic);
    let faults = config.faults_of(&entry);
    let config = EvalConfig { seed, stochastic, max_steps: eval_max_steps, on_nonfinite };
    let pool = Pool::new(threads)?;
    let Some(result) = evaluate(&*policy, &entry, args.episodes as usize, &config, faults, &pool)? else {
        print::err("interrupted: the evaluation is not complete");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    };
    if json {
        let mut object = evaluation_json(&result);
        object["event"] = "eval".into();
        object["env"] = entry.name.into();
        object["seed"] = args.seed.into();
        object["stochastic"] = stochastic.into();
        object["checkpoint"] = path.display().to_string().into();
        print::out(&object.to_string());
    } else {
        print::out(&format!("{}, {}: {}", entry.name, path.display(), in_words(&result, stochastic)));
    }
    Ok(ExitCode::SUCCESS)
}
