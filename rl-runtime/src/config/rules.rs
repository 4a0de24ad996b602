//! Combinations that are refused: one rule each, in one table.
//!
//! A rule names the settings that break it together, and says why and what to choose instead. Rules of one algorithm stand in its
//! file: `Algorithm::check` and `Algorithm::fits`.

use rl_agents::{LearnerKind, MemoryKind, NetConfig};
use rl_envs::Dtype;
use rl_envs::catalog::Entry;
use rl_envs::wrappers::{Hidden, Wrappers};

use crate::Mode;
use crate::config::algo::{Algo, AlgoConfig, Concern, ReplayTraits, Traits};
use crate::config::{Config, Drive, Mpi};
use crate::sources::{catalog, worker};

/// A combination that is refused.
struct Rule {
    /// Settings that break it together; empty if it is none, or not always the same.
    keys: &'static [&'static str],
    broken: Broken,
}

/// Finds the reason for which a rule is broken.
enum Broken {
    /// By settings alone.
    Settings(fn(&Config) -> Option<String>),
    /// By settings in an environment.
    Env(fn(&Config, &Entry) -> Option<String>),
    /// By settings in an environment that this many ranks, or several devices, share.
    Shared(fn(&Config, &Entry, usize) -> Option<String>),
}

use Broken::{Env, Settings, Shared};

const RULES: &[Rule] = &[
    Rule {
        keys: &["device", "learner"],
        broken: Settings(|config| {
            let text = "but learner = \"reference\" learns on one device only; use one of them";
            let broken = config.n_devices() > 1 && config.net.learner == LearnerKind::Reference;
            broken.then(|| format!("device is {}, {text}", config.run.device))
        }),
    },
    Rule {
        keys: &["device", "memory", "algo"],
        broken: Settings(|config| {
            let NetConfig { memory, learner, .. } = config.net;
            let learns = memory != MemoryKind::None && learner == LearnerKind::Fused && config.learns_on_device();
            let key = config.algo.key("micro_batch")?;
            let broken = learns && config.traits().micro_batch > 0;
            broken.then(|| format!("{key} is set, but with memory a device holds whole minibatches; set it to 0"))
        }),
    },
    Rule {
        keys: &["collect_threads", "threads"],
        broken: Settings(|config| {
            let (threads, text) = (config.run.collect_threads, "more than there are threads; raise threads or leave it at 0");
            (threads > config.run.threads).then(|| format!("collect_threads is {threads}, {text}"))
        }),
    },
    Rule {
        keys: &["env_device", "algo"],
        broken: Settings(|config| {
            let text = "remembers the steps of environments on the CPU; use env_device = cpu";
            let broken = env_on_learner(config) && config.replays();
            broken.then(|| format!("env_device is learner, but {} {text}", config.algo.name()))
        }),
    },
    Rule {
        keys: &["device", "pipeline"],
        broken: Settings(|config| {
            let text = "but several devices learn from rollouts of the latest policy only so far; use pipeline = sync";
            let broken = config.mode() != Mode::Sync && config.n_devices() > 1;
            broken.then(|| format!("device is {} and pipeline is overlapped, {text}", config.run.device))
        }),
    },
    Rule {
        keys: &["env_device", "pipeline"],
        broken: Settings(|config| {
            let text = "but environments on the learner's device take turns with it; use env_device = cpu";
            let overlapped = config.mode() != Mode::Sync && config.n_devices() == 1;
            let broken = overlapped && env_on_learner(config) && !config.replays();
            broken.then(|| format!("env_device is learner and pipeline is overlapped, {text}"))
        }),
    },
    Rule {
        keys: &[],
        broken: Env(|config, entry| {
            let known = catalog::keys_of(entry.name);
            let foreign = |name: &&String| known.iter().all(|key| key.field() != name.as_str());
            let name = config.env.settings.keys().find(foreign)?;
            Some(format!("env.{name} has no effect: {} has no such setting", entry.name))
        }),
    },
    Rule {
        keys: &["env.kwargs"],
        broken: Env(|config, entry| {
            let broken = entry.batches().is_none() && !config.env.kwargs.is_empty();
            broken.then(|| format!("env.kwargs has no effect: {} takes no arguments", entry.name))
        }),
    },
    Rule {
        keys: &["env.path"],
        broken: Env(|config, entry| {
            let of_module = entry.name.strip_prefix(worker::GYM).is_some_and(|id| id.contains(':'));
            let broken = !config.env.path.is_empty() && !of_module;
            broken.then(|| format!("env.path has no effect: {} names no module of Python", entry.name))
        }),
    },
    Rule {
        keys: &[],
        broken: Env(|config, entry| {
            let of_workers = Wrappers { frame_stack: 1, reward_clip: 0.0, ..config.env.wrappers };
            let broken = entry.batches().is_some_and(|batches| batches.wrappers() != of_workers);
            let is_gym = entry.name.starts_with(worker::GYM);
            let others = Wrappers { time_limit: 0, action_repeat: 1, ..of_workers };
            let text = match (is_gym, others == Wrappers::default()) {
                (true, true) => {
                    "was opened with another env.time_limit or env.action_repeat: give them to WorkerOptions::wrappers"
                }
                (true, false) => {
                    "runs in worker processes, where of the wrappers env.* only env.frame_stack, env.reward_clip, env.time_limit and \
                     env.action_repeat apply"
                }
                _ => "runs in worker processes, where of the wrappers env.* only env.frame_stack and env.reward_clip apply",
            };
            broken.then(|| format!("{} {text}", entry.name))
        }),
    },
    Rule {
        keys: &["env.pixels"],
        broken: Env(|config, entry| {
            let pictures = config.env.wrappers.pixels > 0 && !config.blocks(entry);
            let broken = pictures && entry.draws().is_ok_and(|draws| !draws);
            broken.then(|| format!("env.pixels observes what an environment draws, and {} draws nothing", entry.name))
        }),
    },
    Rule {
        keys: &["env.hide"],
        broken: Env(|config, entry| {
            let hides = config.env.wrappers.hide == Hidden::Velocities && !may_block(config, entry) && entry.batches().is_none();
            let broken = hides && entry.spaces().obs.velocities().is_empty();
            broken.then(|| format!("env.hide hides the velocities that an environment names, and {} names none", entry.name))
        }),
    },
    Rule {
        keys: &["env.hide", "env.pixels"],
        broken: Env(|config, _| {
            let Wrappers { hide, pixels, .. } = config.env.wrappers;
            let broken = hide == Hidden::Velocities && pixels > 0;
            broken.then(|| "env.hide has no effect on pictures; leave out env.hide or env.pixels".into())
        }),
    },
    Rule {
        keys: &["replay_dir"],
        broken: Env(|config, _| {
            let broken = !config.run.replay_dir.is_empty() && !config.replays();
            broken.then(|| format!("replay_dir has no effect: {} has no replay memory", config.algo.name()))
        }),
    },
    Rule {
        keys: &["shard_replay"],
        broken: Settings(|config| {
            if !config.run.shard_replay {
                return None;
            }
            let of_all = match config.traits().replay {
                None => return Some(format!("shard_replay has no effect: {} has no replay memory", config.algo.name())),
                Some(ReplayTraits { is_saved: true, .. }) => "save_replay",
                Some(ReplayTraits { on_device: true, .. }) => "replay_on_device",
                Some(_) => return None,
            };
            let name = config.algo.key(of_all).unwrap_or(of_all);
            Some(format!("shard_replay is true, but {name} needs all transitions in one place; set one of them to false"))
        }),
    },
    Rule {
        keys: &["offline", "algo"],
        broken: Env(|config, _| {
            let broken = !config.run.offline.is_empty() && !config.replays();
            broken.then(|| {
                let (replaying, algo) = (names_of(|traits| traits.replay.is_some()), config.algo.name());
                format!("offline is for {replaying}: {algo} learns from the steps of its own policy only")
            })
        }),
    },
    Rule {
        keys: &["offline"],
        broken: Settings(|config| {
            let acted = config.traits().replay.is_some_and(|replay| replay.acted_priorities);
            let broken = !config.run.offline.is_empty() && acted;
            broken.then(|| {
                let name = config.algo.key("acted_priorities").unwrap_or("acted_priorities");
                format!("{name} is true, but a recording has no values of the policy that acted; set it to false")
            })
        }),
    },
    Rule {
        keys: &["drive"],
        broken: Env(|config, entry| {
            let broken = entry.batches().is_none() && config.run.drive != Drive::Lockstep;
            broken.then(|| format!("drive has no effect: {} does not run in worker processes", entry.name))
        }),
    },
    Rule {
        keys: &[],
        broken: Env(|config, entry| {
            let text = "blocks, and env.* puts wrappers only around environments that do not; leave them out";
            let broken = may_block(config, entry) && config.env.wrappers != Wrappers::default();
            broken.then(|| format!("{} {text}", entry.name))
        }),
    },
    Rule {
        keys: &["env.episodic_life", "drive"],
        broken: Env(|config, entry| {
            let lives = config.env.settings.get("episodic_life").and_then(toml::Value::as_bool) == Some(true);
            let text = "env.episodic_life is true, but only environments in step count whole games; use drive = lockstep";
            (lives && may_block(config, entry)).then(|| text.into())
        }),
    },
    Rule {
        keys: &[],
        broken: Env(|config, entry| {
            let broken = may_block(config, entry) && remembers_stacks(config, entry);
            broken.then(|| {
                let (algo, others) = (config.algo.name(), names_of(|traits| traits.replay.is_none()));
                let text = "keeps for environments in step only; choose";
                format!("{} blocks and stacks frames, which the replay memory of {algo} {text} {others}", entry.name)
            })
        }),
    },
    Rule {
        keys: &["offline"],
        broken: Shared(|config, _, n_ranks| {
            let text = "offline is for one process: a recording has no environments to share; use mpi = off";
            (n_ranks > 1 && !config.run.offline.is_empty()).then(|| text.into())
        }),
    },
    Rule {
        keys: &["device", "mpi"],
        broken: Shared(|config, _, n_ranks| {
            let text = "but only one process can have several devices; use mpi = off";
            let broken = config.n_devices() > 1 && (n_ranks > 1 || config.run.mpi.has_actors());
            broken.then(|| format!("device is {}, {text}", config.run.device))
        }),
    },
    Rule {
        keys: &["mpi"],
        broken: Shared(|config, _, n_ranks| {
            let mpi = if config.run.mpi == Mpi::Central { "central" } else { "actors" };
            let text = "which needs mpirun with 2 processes or more: a learner and an actor";
            (config.run.mpi.has_actors() && n_ranks == 1).then(|| format!("mpi is {mpi}, {text}"))
        }),
    },
    Rule {
        keys: &["mpi"],
        broken: Shared(|config, entry, _| {
            let text = "mpi is central, which answers environments one by one, and";
            let broken = config.run.mpi == Mpi::Central && !config.blocks(entry);
            broken.then(|| format!("{text} {} does not block; use mpi = actors", entry.name))
        }),
    },
    Rule {
        keys: &["mpi", "n_envs"],
        broken: Shared(|config, _, n_ranks| {
            let (text, n_envs) = ("mpi is central, which answers environments one by one, and", config.run.n_envs);
            let broken = config.run.mpi == Mpi::Central && n_envs < n_ranks - 1;
            broken.then(|| format!("{text} {} actors have {n_envs} environments to share", n_ranks - 1))
        }),
    },
    Rule {
        keys: &["mpi", "pipeline", "max_lag"],
        broken: Shared(|config, _, n_ranks| {
            let (n_actors, in_flight) = (n_ranks - 1, config.run.max_lag + 1);
            let in_turn = config.mode() != Mode::Sync && in_flight.is_multiple_of(n_actors.max(1));
            let text = "which take turns: each needs as many of the max_lag + 1 rollouts in flight";
            (config.run.mpi == Mpi::Actors && !in_turn).then(|| {
                let so = format!("--set pipeline=overlapped --set max_lag={}", 2 * n_actors - 1);
                format!("mpi is actors with {n_actors} of them, {text}; use {so}")
            })
        }),
    },
    Rule {
        keys: &["mpi", "env_device"],
        broken: Shared(|config, entry, _| {
            let on_device = config.learns_on_device() && config.env_on_device(entry).is_ok_and(|env| env.is_some());
            let text = "mpi is actors, and the environments are on the learner's device; use env_device = cpu";
            (config.run.mpi == Mpi::Actors && on_device).then(|| text.into())
        }),
    },
    Rule {
        keys: &["mpi"],
        broken: Shared(|config, entry, _| {
            let (broken, algo) = (config.run.mpi == Mpi::Actors && remembers_stacks(config, entry), config.algo.name());
            broken.then(|| format!("mpi is actors, and {algo} remembers stacked frames of environments in step only"))
        }),
    },
    Rule {
        keys: &["pipeline"],
        broken: Shared(|config, _, n_ranks| {
            let (cannot, _) = cannot_share(config, n_ranks)?;
            (config.mode() != Mode::Sync).then(|| format!("pipeline is overlapped, {cannot}; use pipeline = sync"))
        }),
    },
    Rule {
        keys: &["learner"],
        broken: Shared(|config, _, n_ranks| {
            let (cannot, _) = cannot_share(config, n_ranks)?;
            let broken = n_ranks > 1 && config.net.learner == LearnerKind::Reference;
            broken.then(|| format!("learner is reference, whose sums have no stated order, {cannot}; use learner = fused"))
        }),
    },
    Rule {
        keys: &["device"],
        broken: Shared(|config, _, n_ranks| {
            let (cannot, _) = cannot_share(config, n_ranks)?;
            let broken = n_ranks > 1 && config.learns_on_device();
            broken.then(|| format!("device is {}, {cannot}; use --device cpu", config.run.device))
        }),
    },
    Rule {
        keys: &["drive"],
        broken: Shared(|config, entry, n_ranks| {
            let (cannot, instead) = cannot_share(config, n_ranks)?;
            let text = "fills rollouts in the order of its answers";
            may_block(config, entry).then(|| format!("{} {text}, {cannot}; use drive = lockstep or {instead}", entry.name))
        }),
    },
];

fn env_on_learner(config: &Config) -> bool {
    config.learns_on_device() && config.run.env_device == "learner"
}

/// True if environments answer on their own, or might after a measurement.
fn may_block(config: &Config, entry: &Entry) -> bool {
    config.blocks(entry) || config.run.drive == Drive::Auto
}

fn remembers_stacks(config: &Config, entry: &Entry) -> bool {
    let obs = config.wrapped(entry).spaces().obs;
    config.replays() && obs.dtype() == Dtype::U8 && obs.stack() > 1
}

/// Says why those that share a training cannot do something, and what can.
///
/// `None` if one process with one device trains, or a learner with actors.
fn cannot_share(config: &Config, n_ranks: usize) -> Option<(&'static str, &'static str)> {
    match (config.run.mpi.has_actors(), n_ranks, config.n_devices()) {
        (true, ..) | (_, 1, 1) => None,
        (_, 1, _) => Some(("which several devices cannot share so far", "one device")),
        _ => Some(("which ranks of MPI cannot share so far", "mpi = off")),
    }
}

/// Names of the algorithms with a property by default, in words.
fn names_of(property: fn(&Traits) -> bool) -> String {
    let all = Algo::all().into_iter().filter(|algo| property(&AlgoConfig::new(*algo).settings().traits(1)));
    all.map(Algo::name).collect::<Vec<_>>().join(" or ")
}

impl Config {
    /// Finds problems of several settings together.
    pub(crate) fn impossible(&self) -> Vec<Concern> {
        let broken = |rule: &Rule| match rule.broken {
            Settings(broken) => broken(self).map(|text| (rule.keys.to_vec(), text)),
            Env(_) | Shared(_) => None,
        };
        RULES.iter().filter_map(broken).chain(self.algo.settings().check(self.run.n_envs)).collect()
    }

    /// Finds a problem of the settings with the environment.
    pub(crate) fn unfit(&self, entry: &Entry) -> Option<Concern> {
        let broken = |rule: &Rule| match rule.broken {
            Env(broken) => broken(self, entry).map(|text| (rule.keys.to_vec(), text)),
            Settings(_) | Shared(_) => None,
        };
        let fits = || self.algo.settings().fits(entry.name, &self.wrapped(entry).spaces(), &self.net);
        RULES.iter().find_map(broken).or_else(fits)
    }

    /// Finds a problem of the settings with `n_ranks` ranks, or with several devices.
    pub(crate) fn unshared(&self, entry: &Entry, n_ranks: usize) -> Option<String> {
        RULES.iter().find_map(|rule| match rule.broken {
            Shared(broken) => broken(self, entry, n_ranks),
            Settings(_) | Env(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use rl_envs::catalog::Batches;
    use rl_envs::{Action, ActionSpace, Rng, Space, Spaces, Step, VecEnv};
    use toml::{Table, Value};

    use super::*;
    use crate::config::keys;

    /// Environments in worker processes, which are never started.
    #[derive(Debug)]
    struct Workers {
        stack: usize,
    }

    impl Batches for Workers {
        fn spaces(&self) -> Spaces {
            let obs = if self.stack > 1 {
                Space::bytes(&[2], 255, 1.0).stacked(self.stack)
            } else {
                Space::vector(&[0.0; 2], &[1.0; 2])
            };
            Spaces { obs, actions: ActionSpace::Discrete { n: 2, masked: false } }
        }

        fn slice(&'static self, _: Range<usize>) -> Result<Box<dyn VecEnv>, rl_envs::Error> {
            Err(rl_envs::Error::Outside("never started".into()))
        }
    }

    /// Environment that does not draw itself.
    #[derive(Clone, Default)]
    struct Blind;

    impl rl_envs::Env for Blind {
        type Obs = f32;
        type State = ();

        fn observation_space(&self) -> Space {
            Space::vector(&[0.0], &[1.0])
        }

        fn action_space(&self) -> ActionSpace {
            ActionSpace::Discrete { n: 2, masked: false }
        }

        fn reset(&mut self, _: &mut Rng, _: &mut [f32]) {}

        fn step(&mut self, _: Action<'_>, _: &mut Rng, _: &mut [f32]) -> Step {
            Step { reward: 0.0, terminated: true, truncated: false }
        }

        fn state(&self) -> Option<()> {
            None
        }

        fn set_state(&mut self, (): ()) -> Result<(), rl_envs::Error> {
            Ok(())
        }
    }

    fn entry(name: &str) -> Entry {
        static WORKERS: Workers = Workers { stack: 1 };
        static STACKING: Workers = Workers { stack: 4 };
        match name {
            "gym:Some-v1" => Entry::outside("gym:Some-v1", "", &WORKERS),
            "gym:Stacks-v1" => Entry::outside("gym:Stacks-v1", "", &STACKING),
            "blind" => Entry::of::<Blind>("blind", ""),
            name => *rl_envs::catalog::find(name).unwrap(),
        }
    }

    /// An example that breaks each rule, in the order of the rules.
    ///
    /// Environment, algorithm, settings, ranks, end of the reason.
    const EXAMPLES: &[(&str, &str, &str, usize, &str)] = &[
        ("cartpole", "ppo", "device='cuda:0,1' learner='reference'", 1, "learns on one device only; use one of them"),
        ("cartpole", "ppo", "device='cuda' memory='gru' ppo.micro_batch=128", 1, "a device holds whole minibatches; set it to 0"),
        ("cartpole", "ppo", "collect_threads=3 threads=2", 1, "raise threads or leave it at 0"),
        (
            "cartpole",
            "dqn",
            "device='cuda' env_device='learner'",
            1,
            "but dqn remembers the steps of environments on the CPU; use env_device = cpu",
        ),
        ("cartpole", "ppo", "device='cuda:0,1' pipeline='overlapped'", 1, "use pipeline = sync"),
        (
            "cartpole",
            "ppo",
            "device='cuda' env_device='learner' pipeline='overlapped'",
            1,
            "take turns with it; use env_device = cpu",
        ),
        ("cartpole", "ppo", "env.episodes=3", 1, "env.episodes has no effect: cartpole has no such setting"),
        ("cartpole", "ppo", "env.kwargs='{}'", 1, "cartpole takes no arguments"),
        ("gym:Some-v1", "ppo", "env.path='/tmp'", 1, "gym:Some-v1 names no module of Python"),
        ("gym:Some-v1", "ppo", "env.hide='velocities'", 1, "env.reward_clip, env.time_limit and env.action_repeat apply"),
        ("blind", "ppo", "env.pixels=84", 1, "blind draws nothing"),
        ("snake", "ppo", "env.hide='velocities'", 1, "hides the velocities that an environment names, and snake names none"),
        ("cartpole", "ppo", "env.hide='velocities' env.pixels=8", 1, "leave out env.hide or env.pixels"),
        ("cartpole", "ppo", "replay_dir='/tmp'", 1, "ppo has no replay memory"),
        ("cartpole", "dqn", "shard_replay=true dqn.save_replay=true", 1, "in one place; set one of them to false"),
        ("cartpole", "a2c", "offline='some.steps'", 1, "a2c learns from the steps of its own policy only"),
        (
            "cartpole",
            "dqn",
            "offline='some.steps' dqn.prioritized=true dqn.acted_priorities=true",
            1,
            "no values of the policy that acted; set it to false",
        ),
        ("cartpole", "ppo", "drive='first_come'", 1, "cartpole does not run in worker processes"),
        ("gym:Some-v1", "ppo", "drive='auto' env.reward_clip=1.0", 1, "leave them out"),
        ("gym:Some-v1", "ppo", "drive='auto' env.episodic_life=true", 1, "count whole games; use drive = lockstep"),
        ("gym:Stacks-v1", "dqn", "drive='first_come'", 1, "of dqn keeps for environments in step only; choose ppo or a2c"),
        ("cartpole", "dqn", "offline='some.steps'", 2, "no environments to share; use mpi = off"),
        ("cartpole", "ppo", "device='cuda:0,1' mpi='actors'", 2, "only one process can have several devices; use mpi = off"),
        ("cartpole", "ppo", "mpi='actors'", 1, "2 processes or more: a learner and an actor"),
        ("cartpole", "ppo", "mpi='central'", 2, "cartpole does not block; use mpi = actors"),
        ("gym:Some-v1", "ppo", "mpi='central' drive='first_come' n_envs=2", 4, "3 actors have 2 environments to share"),
        ("cartpole", "ppo", "mpi='actors' pipeline='overlapped' max_lag=3", 4, "--set pipeline=overlapped --set max_lag=5"),
        ("cartpole", "ppo", "mpi='actors' pipeline='overlapped' device='cuda' env_device='learner'", 2, "use env_device = cpu"),
        (
            "snake",
            "dqn",
            "mpi='actors' pipeline='overlapped' env.frame_stack=4",
            2,
            "stacked frames of environments in step only",
        ),
        ("cartpole", "ppo", "pipeline='overlapped'", 2, "which ranks of MPI cannot share so far; use pipeline = sync"),
        ("cartpole", "ppo", "learner='reference'", 2, "which ranks of MPI cannot share so far; use learner = fused"),
        ("cartpole", "ppo", "device='cuda'", 2, "which ranks of MPI cannot share so far; use --device cpu"),
        (
            "gym:Some-v1",
            "ppo",
            "drive='auto' device='cuda:0,1'",
            1,
            "which several devices cannot share so far; use drive = lockstep or one device",
        ),
    ];

    /// Writes settings over defaults, without a check.
    fn config(env: &str, algo: &str, settings: &str) -> Config {
        let algo = Algo::find(algo).unwrap();
        let mut table = Config::new(env, algo).table().unwrap();
        for setting in settings.split_whitespace() {
            let read: Table = toml::from_str(setting).unwrap();
            for (key, value) in read {
                match (table.get_mut(&key), value) {
                    (Some(Value::Table(section)), Value::Table(more)) => section.extend(more),
                    (_, value) => drop(table.insert(key, value)),
                }
            }
        }
        Config::from_table(algo, table).unwrap()
    }

    #[test]
    fn each_rule_is_the_first_that_its_example_breaks() {
        assert_eq!(RULES.len(), EXAMPLES.len(), "an example for each rule");
        for (rule, &(env, algo, settings, n_ranks, end)) in RULES.iter().zip(EXAMPLES) {
            let (config, entry) = (config(env, algo, settings), entry(env));
            let (found, names) = match rule.broken {
                Settings(_) => {
                    let found = config.impossible();
                    assert_eq!(found.len(), 1, "{found:?}");
                    (found[0].1.clone(), found[0].0.clone())
                }
                Env(_) => config.unfit(&entry).map(|(keys, text)| (text, keys)).unwrap_or_default(),
                Shared(_) => (config.unshared(&entry, n_ranks).unwrap_or_default(), rule.keys.to_vec()),
            };
            assert!(found.ends_with(end), "{env} {algo} {settings}: {found}");
            assert_eq!(names, rule.keys, "{found}");
            for key in names {
                assert!(key == "algo" || keys().any(|known| known.name == key), "{key} is a setting");
            }
        }
    }

    #[test]
    fn what_suits_every_rule_is_not_refused() {
        for env in ["cartpole", "gym:Some-v1", "gym:Stacks-v1", "blind"] {
            for algo in ["ppo", "a2c", "dqn"] {
                let config = config(env, algo, "");
                assert!(config.impossible().is_empty(), "{env} {algo}");
                assert_eq!(config.unfit(&entry(env)), None);
                assert_eq!([1, 2].map(|n_ranks| config.unshared(&entry(env), n_ranks)), [None, None]);
            }
        }
    }

    #[test]
    fn threads_that_wait_for_workers_leave_the_others_to_the_learner() {
        let learn = |env: &str, settings: &str| config(env, "ppo", &format!("threads=4 {settings}")).learner_threads(&entry(env));
        for (settings, computing, waiting) in
            [("", 4, 4), ("pipeline='overlapped'", 2, 4), ("pipeline='overlapped' collect_threads=1", 3, 4)]
        {
            assert_eq!([learn("cartpole", settings), learn("gym:Some-v1", settings)], [computing, waiting], "{settings}");
        }
    }
}
