//! `rl train`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use rl_agents::ranks::gather;
use rl_envs::catalog::Entry;

use crate::Mode;
#[cfg(feature = "mpi")]
use crate::cli::args::threads;
use crate::cli::args::{ahead, parse_count, set_matrix_threads};
use crate::cli::envs::Envs;
use crate::cli::show::report::Report;
use crate::cli::signals;
#[cfg(feature = "mpi")]
use crate::cli::trust::Choice;
use crate::config::budget::Budget;
use crate::config::{Layers, resumable};
use crate::file::{Draft, MAX_FILE, read_small};
use crate::report::profile::{MAX_SPANS, Profile};
use crate::run::assemble::fit_batch;
use crate::run::resume::{Resumed, Source};
use crate::run::run_dir::RunDir;
use crate::run::train::{End, Peers, Training, describe_device};
use crate::sources::recording::Playback;
use crate::{Algo, Config, Error, config::auto, interrupt, print};

#[derive(Args)]
#[command(after_help = "\
Examples:
  rl train cartpole
  rl train cartpole --algo a2c --seed 3 --set 'hidden=[32,32]' --set a2c.learning_rate=1e-3
  rl train --resume runs/cartpole-ppo-seed0-1
  rl train cartpole --algo dqn --offline cartpole.steps

Settings come in layers: defaults, the environment's preset, --preset, --config, command line. `rl list` shows them all.
--resume RUN continues with the run's settings; settings given now (steps, threads, ...) replace them for good.
With more --steps, schedules that fall with progress (lin_X, exploration) jump back up.
--resume RUN/checkpoints/ckpt-N continues from that checkpoint, in a new run if later ones exist.
Built with the feature mpi, `mpirun -n 4 rl train ..` is one training by 4 processes, with the bits of one.
Ctrl-C or a signal (TERM, HUP, USR1) finishes the update, saves, and prints how to continue; a second one ends the run at once.")]
pub(crate) struct TrainArgs {
    /// The environment (see `rl list`)
    env: Option<String>,
    /// ppo, a2c, dqn, sac, td3, or one of the program's own [default: ppo]
    #[arg(long)]
    algo: Option<String>,
    /// Environment steps to train for, such as 200000, 200_000 or 2e5
    #[arg(long, value_parser = parse_count)]
    steps: Option<i64>,
    /// Number of environments
    #[arg(long, value_parser = parse_count)]
    envs: Option<i64>,
    /// Seed of all random numbers [default: 0]
    #[arg(long)]
    seed: Option<i64>,
    /// auto, cpu, cuda, cuda:i, GPUs such as cuda:0,1, or emulated [default: auto]
    #[arg(long)]
    device: Option<String>,
    /// Threads; results do not depend on them [default: one per core]
    #[arg(long)]
    threads: Option<i64>,
    /// A setting, such as ppo.n_steps=128
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Settings of a workload: http-small, http-large or many-envs
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Settings from a TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory to write to [default: the first free runs/ENV-ALGO-seedS-NUMBER]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Continue this run, or start a new run from one of its checkpoints
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Environment steps between evaluations
    #[arg(long, value_name = "N", value_parser = parse_count)]
    eval_every: Option<i64>,
    /// Stop when an evaluation's mean return reaches this
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    target_return: Option<f64>,
    /// Learn (dqn, sac, td3) from a file of `rl record`, or from a replay.bin
    #[arg(long, value_name = "FILE")]
    offline: Option<PathBuf>,
    /// Print the memory that the run would take, and write nothing
    #[arg(long, conflicts_with = "resume")]
    dry_run: bool,
    /// Print lines at a terminal, too, instead of the board
    #[arg(long)]
    plain: bool,
    /// Print time by phase at the end: each thread's, updates by part, the device's
    #[arg(long)]
    profile: bool,
    /// Process that has started this one, and takes it along when it dies
    #[arg(long, value_name = "PID", hide = true)]
    parent: Option<i32>,
    /// Write a timeline for Perfetto or Chrome's about:tracing
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

/// Collects the settings of the command line over those of --config.
fn layers(args: &TrainArgs) -> Result<Layers, Error> {
    let mut layers = Layers::default();
    if let Some(name) = &args.preset {
        layers.add_workload(name)?;
    }
    if let Some(path) = &args.config {
        layers.add_file(path)?;
    }
    if let Some(path) = &args.offline {
        layers.add("offline", path.display().to_string(), "--offline".into());
        layers.add("n_envs", Playback::n_envs(path)? as i64, path.display().to_string());
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

pub(crate) fn run(args: TrainArgs, envs: &Envs, json: bool) -> Result<ExitCode, Error> {
    if args.parent.is_some_and(|parent| !lives_with(parent)) {
        return Ok(ExitCode::FAILURE);
    }
    let layers = layers(&args);
    let given = layers.as_ref().ok().and_then(|layers| layers.text("mpi").ok().flatten());
    // A run and a checkpoint have the same file.
    let saved = || {
        let text = read_small(&args.resume.as_ref()?.join("config.toml"), MAX_FILE).ok()?;
        text.parse::<toml::Table>().ok()?.get("mpi")?.as_str().map(String::from)
    };
    let off = || given.or_else(saved).is_some_and(|mpi| mpi == "off");
    if let Some(rank) = launched().filter(|_| !off()) {
        signals::listen();
        return shared(rank, |ranks| train(args, layers?, envs, json, Some(ranks)), envs);
    }
    train(args, layers?, envs, json, None)
}

/// Makes this process die with its parent; false if that has died already.
#[cfg(target_os = "linux")]
fn lives_with(parent: i32) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL)).is_ok()
        && getppid().is_some_and(|pid| pid.as_raw_nonzero().get() == parent)
}

/// Only Linux tells a process that its parent dies.
#[cfg(not(target_os = "linux"))]
fn lives_with(_parent: i32) -> bool {
    true
}

/// Returns the rank of this process, if a launcher of MPI has started several.
fn launched() -> Option<usize> {
    let number = |name| std::env::var(name).ok()?.parse::<usize>().ok();
    // Of Open MPI; of MPICH and its relatives; of Slurm's PMIx.
    let names =
        [("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "SLURM_STEP_NUM_TASKS")];
    let found = names.into_iter().find_map(|(rank, size)| Some((number(rank)?, number(size)?)));
    found.filter(|(_, size)| *size > 1).map(|(rank, _)| rank)
}

/// Trains as one of several ranks.
///
/// Rank 0 calls `train`; the others train along with it.
#[cfg(feature = "mpi")]
fn shared(rank: usize, train: impl FnOnce(&Arc<dyn Peers>) -> Result<ExitCode, Error>, envs: &Envs) -> Result<ExitCode, Error> {
    let job = crate::ranks::mpi::Job::join()?;
    let result = job.check_alike().and_then(|()| if rank == 0 { train(job.ranks()) } else { follow(&job, envs) });
    Ok(job.end(result))
}

/// Refuses to train as one of several ranks.
#[cfg(not(feature = "mpi"))]
fn shared(rank: usize, _train: impl FnOnce(&Arc<dyn Peers>) -> Result<ExitCode, Error>, _envs: &Envs) -> Result<ExitCode, Error> {
    let build = "cargo build --release -p rl-runtime --features mpi";
    let text = format!(
        "this rl was built without the feature mpi, and mpirun has started several of it; build it: {build}; or use --set mpi=off \
         for a run each"
    );
    // Once is enough.
    if rank == 0 { Err(Error::config(text)) } else { Ok(ExitCode::from(2)) }
}

/// Trains along with rank 0, or collects for it, with its settings.
#[cfg(feature = "mpi")]
fn follow(job: &crate::ranks::mpi::Job, envs: &Envs) -> Result<ExitCode, Error> {
    let ranks = job.ranks();
    if let Some(settings) = gather(&**ranks, Ok(None::<String>))?.swap_remove(0) {
        let config = Config::from_toml(&settings, "rank 0")?;
        if config.run.mpi.has_actors() {
            return job.supervise(&config, envs.python.as_deref()).map(|()| ExitCode::SUCCESS);
        }
        envs.start_within(Some(config.run.start_timeout_s));
        let entry = envs.open(&config.env, Choice::Given, false, threads(None))?;
        Training::builder(&config, &entry).peers(Some(ranks)).build()?.follow()?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Collects for an actor's rank.
#[cfg(feature = "mpi")]
pub(crate) fn collect(parent: i32, envs: &Envs) -> Result<ExitCode, Error> {
    if !lives_with(parent) {
        return Ok(ExitCode::FAILURE);
    }
    crate::ranks::mpi::work(|config| {
        envs.start_within(Some(config.run.start_timeout_s));
        envs.open(&config.env, Choice::Given, false, threads(None))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Sets what comes before a training: threads of candle, settings of other ranks.
fn begin(config: &Config, ranks: Option<&Arc<dyn Peers>>) -> Result<(), Error> {
    // MPI has threads of its own, which may read the environment.
    if ranks.is_none() {
        set_matrix_threads(config.run.threads);
    }
    send(ranks, Some(config))
}

/// Sends the settings of the run to the other ranks; `None` if nothing is trained.
fn send(ranks: Option<&Arc<dyn Peers>>, config: Option<&Config>) -> Result<(), Error> {
    let Some(ranks) = ranks else { return Ok(()) };
    let sent = config.map(|config| {
        let mut sent = config.clone();
        sent.run.workers = config.workers(); // not by the cores of each machine
        sent.to_toml()
    });
    gather(&**ranks, Ok(sent))?;
    Ok(())
}

/// Trains; with other ranks, as rank 0.
fn train(args: TrainArgs, layers: Layers, envs: &Envs, json: bool, ranks: Option<&Arc<dyn Peers>>) -> Result<ExitCode, Error> {
    let n_ranks = ranks.map_or(1, |ranks| ranks.n_ranks());
    let mut report = Report::new(json, args.plain, n_ranks);
    let profile = Profile::new(args.timeline.is_some());
    let profile = if args.profile || args.timeline.is_some() { profile.with_details() } else { profile };
    // A timeline inside the run directory is checked once the directory exists.
    let run_dir = args.run_dir.as_ref().or(args.resume.as_ref());
    let inside = |path: &Path| run_dir.is_some_and(|dir| absolute(path).starts_with(absolute(dir)));
    args.timeline.as_deref().filter(|path| !inside(path)).map(Draft::create).transpose()?;
    let (config, dir, mut training, notes, timeline) = match &args.resume {
        None => {
            let none =
                || Error::Config { problems: vec!["no environment given; `rl list` shows them, try `rl train cartpole`".into()] };
            let algo = layers.text("algo")?.map_or(Ok(Algo::default()), |name| Algo::find(&name))?;
            envs.start_within(layers.number("start_timeout_s"));
            let entry = &envs.open_chosen(&layers, ahead(&layers))?.ok_or_else(none)?;
            let (auto_batch, has_steps) = (layers.auto_batch(), layers.has("steps"));
            let whole = with_absolute(layers.resolve(entry, algo)?);
            if !whole.run.offline.is_empty() {
                Playback::open(&whole, &whole.wrapped(entry).spaces())?;
            }
            let config = if auto_batch { fit_batch(&whole, entry, n_ranks)? } else { whole.clone() };
            let replays = config.traits().replay.is_some();
            if auto_batch && (config != whole || replays) {
                let minibatch = print::grouped(config.traits().minibatch as u64);
                let why = match (config != whole, replays) {
                    (true, false) => "the largest part of a rollout that fits",
                    (true, true) => "the largest part that fits of 8 for each env step",
                    (false, _) => "8 for each env step between updates, at least 32",
                };
                report.note(&format!("a minibatch has {minibatch} samples, {why}"));
            }
            let device = describe_device(&config, entry, ranks)?;
            let budget = Budget::training(&config, entry).of_rank(n_ranks);
            budget.check()?;
            if args.dry_run {
                // Parameters that are not drawn take the same memory. A rank, which has no device, is not built alone.
                let on_device = match ranks {
                    Some(_) => Vec::new(),
                    None => Training::builder(&config, entry).profile(profile).unset().build()?.device_memory(),
                };
                let device = if config.n_devices() > 1 { format!("each of {device}") } else { device };
                warnings(&config, entry).iter().for_each(|warning| report.warn(warning));
                report.memory(&device, &budget.parts()?, &on_device);
                send(ranks, None)?;
                return Ok(ExitCode::SUCCESS);
            }
            let dir = RunDir::create(args.run_dir.as_deref(), &config, &device)?;
            if ranks.is_none() {
                signals::end_at_once(dir.undo());
            }
            let (dir, timeline) = with_timeline(args.timeline.as_deref(), dir, true)?;
            // Before wide networks take seconds to initialize.
            report.start(&config, entry, &device, dir.path(), 0, &profile);
            warnings(&config, entry).iter().for_each(|warning| report.warn(warning));
            rounded(&config).filter(|_| has_steps).iter().for_each(|note| report.note(note));
            begin(&config, ranks)?;
            match Training::builder(&config, entry).profile(profile.clone()).peers(ranks).build() {
                Ok(training) => (config, dir, training, Vec::new(), timeline),
                Err(error) => {
                    dir.discard();
                    return Err(error);
                }
            }
        }
        Some(path) => {
            let (source, has_steps) = (Source::open(path, args.run_dir.is_some())?, layers.has("steps"));
            let (config, entry) = resumed_config(&args, layers, path, source.config(), envs)?;
            if let Some(done) = source.env_steps().filter(|done| *done >= config.run.steps) {
                let [done, steps] = [done, config.run.steps].map(print::grouped);
                report.note(&format!(
                    "the run has taken {done} env steps, and steps is {steps}: nothing is left to train; --steps continues it"
                ));
            }
            let device = describe_device(&config, &entry, ranks)?;
            begin(&config, ranks)?;
            let forks = source.forks();
            let Resumed { dir, training, mut notes } =
                source.begin(&config, &entry, args.run_dir.as_deref(), &device, profile.clone(), ranks)?;
            let (dir, timeline) = with_timeline(args.timeline.as_deref(), dir, forks)?;
            if let Err(error) = dir.replace_config(&config) {
                notes.push(format!("{error}; a later --resume needs the settings given now again"));
            }
            report.start(&config, &entry, &device, dir.path(), training.progress().env_steps, &profile);
            warnings(&config, &entry).iter().for_each(|warning| report.warn(warning));
            let has_more = training.progress().env_steps < config.run.steps;
            rounded(&config).filter(|_| has_steps && has_more).iter().for_each(|note| report.note(note));
            (config, dir, training, notes, timeline)
        }
    };
    signals::listen();
    notes.iter().for_each(|note| report.note(note));
    let outcome = training.run(&dir, &mut |event| report.event(&event));
    if let Some(Err(error)) = timeline.map(|draft| draft.publish(profile.timeline().as_bytes())) {
        report.warn(&format!("no timeline is written: {error}"));
    }
    if args.timeline.is_some() && profile.is_cut() {
        report
            .warn(&format!("the timeline ends early: it holds the first {} spans of a thread", print::grouped(MAX_SPANS as u64)));
    }
    let outcome = outcome?;
    if args.profile || config.mode() != Mode::Sync && outcome.env_steps > 0 {
        report.profile(&profile, &config, args.profile);
    }
    report.done(&outcome, dir.path());
    Ok(if outcome.end == End::Interrupted { ExitCode::from(interrupt::EXIT_CODE) } else { ExitCode::SUCCESS })
}

/// Returns warnings of settings that are allowed and may surprise.
fn warnings(config: &Config, entry: &Entry) -> Vec<String> {
    [config.warnings(entry), auto::warnings(config, entry)].concat()
}

/// Describes the env steps of a run whose last rollout goes beyond `steps`.
fn rounded(config: &Config) -> Option<String> {
    let (steps, rollout) = (config.run.steps, (config.n_steps() * config.run.n_envs) as u64);
    let taken = steps.div_ceil(rollout).saturating_mul(rollout);
    let [all, of, n] = [taken, rollout, steps].map(print::grouped);
    (taken > steps).then(|| format!("the run takes {all} env steps, whole rollouts of {of}: steps is {n}"))
}

/// Adds the draft of the timeline to a run's directory.
///
/// If the path is rejected (the run's own file, for example), a `new` directory is removed.
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

/// Makes paths independent of the directory of later commands.
fn with_absolute(mut config: Config) -> Config {
    for path in [&mut config.run.offline, &mut config.run.replay_dir].into_iter().filter(|path| !path.is_empty()) {
        *path = absolute(path.as_ref()).display().to_string();
    }
    config
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.into())
}

/// Returns the settings to resume with, and the environment.
///
/// The run or checkpoint gives the settings; the command line replaces those that may change.
fn resumed_config(args: &TrainArgs, layers: Layers, path: &Path, saved: &Config, envs: &Envs) -> Result<(Config, Entry), Error> {
    let foreign = |what: &str, given: &Option<String>, saved: &str| match given {
        Some(given) if given != saved => {
            Err(Error::Config { problems: vec![format!("the run in {} has {what} {saved}, not {given}", path.display())] })
        }
        _ => Ok(()),
    };
    foreign("environment", &args.env, &saved.env.name)?;
    foreign("algorithm", &args.algo, saved.algo.name())?;
    envs.start_within(layers.number("start_timeout_s").or(Some(saved.run.start_timeout_s)));
    let entry = envs.open_saved(&saved.env, path, false, saved.workers())?;
    let config = with_absolute(layers.over(saved, &entry)?);
    let differences = config.differences(saved);
    if !differences.is_empty() {
        let may = resumable().collect::<Vec<_>>().join(", ");
        let problem = format!("a resumed run keeps its settings ({may} may change), but (given here, saved there):{differences}");
        return Err(Error::Config { problems: vec![problem] });
    }
    Ok((config, entry))
}
