//! `rl record`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use rl_agents::{ActorCritic, NetConfig, Policy};
use rl_envs::{Pool, Spaces};

use crate::cli::args::{parse_count, threads};
use crate::cli::envs::{Envs, saved_policy};
use crate::cli::signals;
use crate::config::Config;
use crate::file::Draft;
use crate::print::grouped;
use crate::report::profile::Profile;
use crate::run::assemble::collector;
use crate::run::checkpoint::SavedPolicy;
use crate::sources::recorder::Recorder;
use crate::{Algo, Error, interrupt, print};

/// Seconds between lines of progress.
const EVERY_S: f64 = 5.0;

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl record cartpole --out random.steps --steps 100_000            # uniformly random actions
  rl record runs/cartpole-ppo-seed0-1 --out trained.steps          # a policy's, sampled as in training
  rl train cartpole --algo dqn --offline trained.steps")]
pub(crate) struct RecordArgs {
    /// An environment, or the directory of a run or of one of its checkpoints
    of: String,
    /// File to write or replace; an unfinished recording changes nothing
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Environment steps, rounded up to whole blocks
    #[arg(long, default_value = "100_000", value_parser = parse_count)]
    steps: i64,
    /// Number of environments
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65536))]
    envs: u32,
    /// Seed of the environments and of the actions
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads [default: one per core]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,
}

pub(crate) fn run(args: &RecordArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    signals::listen();
    let env_steps = u64::try_from(args.steps).ok().filter(|steps| *steps > 0);
    let env_steps = env_steps.ok_or_else(|| Error::config(format!("--steps is {}; it must be 1 or more", args.steps)))?;
    let draft = Draft::create(&args.out)?;
    let threads = threads(args.threads);
    let (mut config, entry, policy): (_, _, Box<dyn Policy>) = if Path::new(&args.of).join("config.toml").is_file() {
        let SavedPolicy { config, entry, policy, .. } = saved_policy(args.of.as_ref(), false, threads, envs, false)?;
        (config, entry, policy)
    } else {
        let entry = envs.find(&args.of)?;
        let Spaces { obs, actions } = entry.spaces();
        // All weights are zero: discrete actions are uniform over the legal ones, continuous ones are drawn from a Gaussian of
        // mean 0.
        let policy = ActorCritic::unset(&obs, &actions, &NetConfig::default())?;
        (Config::new(&args.of, Algo::default()), entry, Box::new(policy))
    };
    (config.run.n_envs, config.run.seed, config.run.threads) = (args.envs as usize, args.seed, threads);
    config.run.offline.clear();
    if config.blocks(&entry) {
        let why = "blocks, and its steps come in the order of its answers; record environments that step together";
        return Err(Error::config(format!("{} {why}", entry.name)));
    }
    let mut collector = collector(&config, &entry, &Pool::new(threads)?, None)?;
    collector.remember(policy.state_len())?;
    let profile = Profile::new(false);
    let recorder = Recorder { env: config.env.to_json(), collector, policy: &*policy, env_steps };
    let (begin, mut told, mut episodes, mut sum, mut steps) = (Instant::now(), 0.0, 0u64, 0.0, 0);
    let mut complete = false;
    // An error leaves no file.
    let written = draft.publish_with(|file| {
        complete = recorder.write(draft.target(), file, &profile.track("collector"), &mut |so_far, ended| {
            steps = so_far;
            episodes += ended.len() as u64;
            sum += ended.iter().map(|episode| episode.episode_return).sum::<f64>();
            let seconds = begin.elapsed().as_secs_f64();
            if seconds - told > EVERY_S {
                told = seconds;
                print::err(&format!("{}/{} env steps", grouped(steps), grouped(env_steps)));
            }
            !interrupt::requested()
        })?;
        if complete { Ok(()) } else { Err(Error::config("interrupted")) }
    });
    if !complete && interrupt::requested() {
        print::err("interrupted: nothing was written");
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    written?;
    let (mean, rate) = (sum / episodes as f64, steps as f64 / begin.elapsed().as_secs_f64());
    if json {
        let object = serde_json::json!({
            "event": "record", "env": entry.name, "file": draft.target().display().to_string(), "env_steps": steps, "episodes": episodes,
            "return_mean": if episodes > 0 { Some(mean) } else { None }, "env_steps_per_s": rate,
        });
        print::out(&object.to_string());
    } else {
        let of = if episodes > 0 {
            format!("{} episodes, mean return {mean:.1}", grouped(episodes))
        } else {
            "no whole episode".into()
        };
        let path = draft.target().display();
        print::out(&format!(
            "{}: {} env steps of {}, {of}, {} env steps/s",
            path,
            grouped(steps),
            entry.name,
            grouped(rate as u64)
        ));
    }
    Ok(ExitCode::SUCCESS)
}
