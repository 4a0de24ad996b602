//! The training loop.

use std::time::Instant;

use rl_agents::{A2c, ActorCritic, Agent, Collector, Episode, Ppo, evaluate};
use rl_envs::{Pool, catalog};

use crate::checkpoint::{self, Checkpoint, Progress};
use crate::config::{Device, parse_device};
use crate::metrics::{Log, Row, WINDOW};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::{Algo, Config, Error, interrupt};

/// Saves that may fail running before training is given up.
const MAX_FAILED_SAVES: u32 = 3;

/// Why training ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All steps were taken.
    Steps,
    /// An evaluation reached the target.
    Target,
    /// The user asked for it.
    Interrupted,
}

/// How training ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why.
    pub end: End,
    /// How far it came, earlier parts of the run included.
    pub progress: Progress,
    /// Environment steps of this part of the run.
    pub env_steps: u64,
    /// Seconds of this part of the run, evaluations and checkpoints on the way included, the last evaluation not.
    pub wall_s: f64,
    /// The last evaluation, unless interrupted.
    pub evaluation: Option<Evaluation>,
}

/// Episodes played greedily.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// How many.
    pub episodes: usize,
    /// Mean of their returns.
    pub return_mean: f64,
    /// Standard deviation of their returns.
    pub return_std: f64,
    /// Mean of their lengths.
    pub length_mean: f64,
}

impl Evaluation {
    fn new(episodes: &[Episode]) -> Self {
        let n = episodes.len() as f64;
        let mean = |of: &dyn Fn(&Episode) -> f64| episodes.iter().map(of).sum::<f64>() / n;
        let return_mean = mean(&|e| e.episode_return);
        Self {
            episodes: episodes.len(),
            return_mean,
            return_std: mean(&|e| (e.episode_return - return_mean).powi(2)).sqrt(),
            length_mean: mean(&|e| f64::from(e.length)),
        }
    }
}

/// The device to train on, in words.
///
/// # Errors
/// [`Error::Device`] if it is not there, [`Error::DeviceUnsupported`] if this version cannot train on it.
pub fn device(config: &Config) -> Result<String, Error> {
    match parse_device(&config.device) {
        Some(Device::Cuda(ordinal)) => Err(Error::DeviceUnsupported(rl_cuda::Device::open(ordinal)?.to_string())),
        _ => Ok("cpu".into()),
    }
}

/// Sets the threads of candle's matrix products. Only the first call of a process counts.
pub fn set_matrix_threads(threads: usize) {
    // An error means that they are set already.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global();
}

/// A policy with fresh parameters for the environment and the networks of `config`.
///
/// # Errors
/// Those of [`catalog::find`] and [`ActorCritic::new`].
pub fn policy(config: &Config) -> Result<ActorCritic, Error> {
    let (observation_space, action_space) = catalog::find(&config.env)?.spaces();
    Ok(ActorCritic::new(&observation_space, &action_space, &config.net(), config.seed)?)
}

fn agent(config: &Config) -> Result<Box<dyn Agent>, Error> {
    let policy = policy(config)?;
    let (n_envs, seed) = (config.n_envs, config.seed);
    Ok(match config.algo {
        Algo::Ppo => Box::new(Ppo::new(policy, config.ppo.clone().unwrap_or_default(), n_envs, seed)?),
        Algo::A2c => Box::new(A2c::new(policy, config.a2c.clone().unwrap_or_default(), n_envs, seed)?),
    })
}

/// Plays `episodes` episodes greedily, each in an environment of its own. Their seed never meets that of training.
///
/// # Errors
/// Those of the environments and of candle.
pub fn evaluate_policy(policy: &ActorCritic, env: &str, episodes: usize, seed: u64, pool: &Pool) -> Result<Evaluation, Error> {
    let mut envs = catalog::find(env)?.pooled(episodes, pool)?;
    let seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    Ok(Evaluation::new(&evaluate(policy, &mut *envs, seed)?))
}

/// Trains from the beginning or from a checkpoint, writes metrics and checkpoints into `dir`, and evaluates what was learnt.
///
/// # Errors
/// Those of the agent, the environments and the files. The last good checkpoint stays.
pub fn train(config: &Config, dir: &RunDir, start: Option<Checkpoint>, report: &mut Report) -> Result<Outcome, Error> {
    set_matrix_threads(config.threads);
    let pool = Pool::new(config.threads)?;
    let mut collector = Collector::new(catalog::find(&config.env)?.pooled(config.n_envs, &pool)?, config.seed)?;
    let mut agent = agent(config)?;
    let mut rollout = collector.rollout(config.n_steps())?;
    let samples = (config.n_steps() * config.n_envs) as u64;
    let mut progress = Progress::default();
    if let Some(checkpoint) = start {
        if !checkpoint.collector.has_envs() {
            report.note("these environments cannot be saved: new episodes begin");
        }
        agent.load(&checkpoint.agent)?;
        collector.load(checkpoint.collector)?;
        progress = checkpoint.progress;
    }
    checkpoint::clean(&dir.checkpoints())?;
    let mut log = Log::open(&dir.metrics(), progress.iterations)?;
    let mut failed_saves = 0;
    let (begin, begin_steps, begin_s) = (Instant::now(), progress.env_steps, progress.elapsed_s);
    let mut evaluation = None;
    let mut end = End::Steps;

    while progress.env_steps < config.steps {
        let remaining = 1.0 - progress.env_steps as f64 / config.steps as f64;
        let episodes = collector.collect(agent.policy(), &mut rollout)?;
        let update = agent.update(&rollout, remaining as f32)?;

        let before = progress.env_steps;
        progress.env_steps += samples;
        progress.iterations += 1;
        progress.episodes += episodes.len() as u64;
        progress.recent.extend(episodes);
        progress.recent.drain(..progress.recent.len().saturating_sub(WINDOW));
        let passed = |every: u64| every > 0 && before / every < progress.env_steps / every;

        evaluation = None;
        if passed(config.eval_every) {
            let result = evaluate_policy(agent.policy(), &config.env, config.eval_episodes, config.seed, &pool)?;
            report.evaluation(progress.env_steps, &result);
            evaluation = Some(result);
        }
        let wall_s = begin.elapsed().as_secs_f64();
        progress.elapsed_s = begin_s + wall_s;
        if progress.iterations.is_multiple_of(config.log_interval) {
            let fps = (progress.env_steps - begin_steps) as f64 / wall_s;
            let row = Row::new(&progress, evaluation.map(|e| e.return_mean), &update, fps);
            if let Err(error) = log.write(&row) {
                report.warn(&format!("{}: {error}; training goes on without metrics", dir.metrics().display()));
            }
            report.row(&row, &progress);
        }

        if evaluation.is_some_and(|e| config.target_return.is_some_and(|target| e.return_mean >= target)) {
            end = End::Target;
        } else if interrupt::requested() && progress.env_steps < config.steps {
            end = End::Interrupted;
        }
        let last = end != End::Steps || progress.env_steps >= config.steps;
        if last || passed(config.checkpoint_every) {
            let state = Checkpoint {
                config: config.clone(),
                progress: progress.clone(),
                agent: agent.save(),
                collector: collector.save()?,
            };
            let layout = agent.policy().layout();
            match checkpoint::save(&dir.checkpoints(), &state, layout, config.keep_checkpoints, &mut |_| Ok(())) {
                Ok(_) => failed_saves = 0,
                Err(error) => {
                    failed_saves += 1;
                    if last || failed_saves == MAX_FAILED_SAVES {
                        return Err(error);
                    }
                    report.warn(&format!("checkpoint not saved, training goes on: {error}"));
                }
            }
        }
        if end != End::Steps {
            break;
        }
    }

    let wall_s = begin.elapsed().as_secs_f64();
    if end == End::Interrupted {
        evaluation = None;
    } else if evaluation.is_none() {
        let result = evaluate_policy(agent.policy(), &config.env, config.eval_episodes, config.seed, &pool)?;
        report.evaluation(progress.env_steps, &result);
        evaluation = Some(result);
    }
    Ok(Outcome { end, env_steps: progress.env_steps - begin_steps, progress, wall_s, evaluation })
}
