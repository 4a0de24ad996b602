//! Memory of a run, an evaluation or a bench, computed before anything is built.
//!
//! Every builder calls [`Budget::check`]. A budget is the sum of permanent memory (environments, networks, gradients and moments,
//! scratch, rollouts, the replay memory) and the largest part of temporary memory (initialization, the targets of an update, a
//! checkpoint, an evaluation). Sizes come from the crates that allocate; those that depend on the course of a run, such as the
//! number of episodes that end in a rollout, are estimated.

use rl_agents::slices::{MAX_SLICES, MIN_SLICE};
use rl_agents::{ActorCritic, LearnerKind, NetConfig, NetSize, QNetwork};
use rl_buffer::{PrioritizedReplayBuffer, ReplayBuffer, RolloutShape, TransitionShape, memory};
use rl_envs::catalog::Entry;
use rl_envs::{ActionSpace, Space, Spaces};

use crate::config::Drive;
use crate::config::algo::Traits;
use crate::report::resources::workers_rss;
use crate::run::evaluation::{MAX_BLOCKING, MAX_EVAL_SLICE};
use crate::{Config, Error};

/// Program, threads, file buffers.
const FIXED: u128 = 12 << 20;
/// Assumed rollout steps per ended episode, whose last observation is kept.
const STEPS_AN_EPISODE: u128 = 8;
/// Name of the memory of worker processes.
const WORKERS: &str = "worker processes";
/// Temporary 4-byte numbers per step while targets are computed.
const TARGETS: u128 = 6;

/// Networks and their learning.
#[derive(Clone, Debug)]
struct Nets {
    config: NetConfig,
    /// Dueling flag of a Q-network; `None` for an actor-critic.
    values: Option<bool>,
    /// Number of policies, including target networks and those of lagging rollouts.
    policies: u64,
    /// Number of parameter-sized vectors (gradient and moments); 0 without learning.
    vectors: u64,
    /// Number of parameter-sized vectors in a checkpoint.
    saved: u64,
    minibatch: u64,
    micro_batch: u64,
    /// Threads that learn.
    threads: u64,
    /// True if parameters are drawn, false if they are loaded.
    drawn: bool,
}

/// Memory of a run, an evaluation or a bench.
#[derive(Clone, Debug)]
pub struct Budget {
    obs: Space,
    actions: ActionSpace,
    bytes_per_env: u64,
    n_envs: u64,
    n_steps: u64,
    rollouts: u64,
    nets: Option<Nets>,
    replay: Option<(TransitionShape, u64, bool)>,
    /// True if the values of the acting policy decide first priorities.
    acted_priorities: bool,
    /// Number of replay memories: one for each device that learns.
    replays: u64,
    /// True if ranks or devices store a shard of the transitions each.
    shards: bool,
    /// Number of ranks or devices that share the training.
    n_ranks: u64,
    /// True if the rows of the replay memory are in a file.
    in_file: bool,
    /// Number of episodes of an evaluation, and of those that are played at once.
    episodes: u64,
    at_once: u64,
    /// Most processes that step environments, in training and in an evaluation.
    workers: [u64; 2],
    /// Estimated memory of such a process.
    bytes_per_worker: u64,
    /// Names of the settings for environments, hidden layers, and replay capacity.
    names: [&'static str; 3],
}

/// Bytes of an episode's result.
const RESULT: u128 = 32;

/// Number of episodes that an evaluation plays at once.
fn at_once(threads: usize, entry: &Entry) -> u64 {
    (if entry.make_blocking().is_some() { MAX_BLOCKING } else { threads.saturating_mul(MAX_EVAL_SLICE) }) as u64
}

/// Setting names of a run; the algorithm's name comes before the last.
const SETTINGS: [&str; 3] = ["n_envs", "hidden", "buffer_size"];
/// Argument names of a bench.
#[cfg(feature = "cli")]
const ARGUMENTS: [&str; 3] = ["--envs", "--hidden", "--capacity"];

fn product(factors: &[u128]) -> u128 {
    factors.iter().fold(1, |product, &factor| product.saturating_mul(factor))
}

fn sum(terms: impl IntoIterator<Item = u128>) -> u128 {
    terms.into_iter().fold(0, u128::saturating_add)
}

/// Formats bytes in kB, MB or GB.
pub(crate) fn in_words(bytes: u128) -> String {
    let bytes = bytes as f64;
    let (unit, name) = [(1e9, "GB"), (1e6, "MB")].into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1e3, "kB"));
    format!("{:.1} {name}", bytes / unit)
}

impl Budget {
    /// Creates a budget of `n_envs` environments and `rollouts` rollouts of `n_steps`.
    fn new(Spaces { obs, actions }: Spaces, bytes_per_env: usize, n_envs: usize, n_steps: usize, rollouts: usize) -> Self {
        let (n_envs, n_steps, rollouts) = (n_envs as u64, n_steps as u64, rollouts as u64);
        let (bytes_per_env, names) = (bytes_per_env as u64, SETTINGS);
        Self {
            obs,
            actions,
            bytes_per_env,
            n_envs,
            n_steps,
            rollouts,
            nets: None,
            replay: None,
            acted_priorities: false,
            replays: 1,
            shards: false,
            n_ranks: 1,
            in_file: false,
            episodes: 0,
            at_once: 0,
            workers: [0; 2],
            bytes_per_worker: 0,
            names,
        }
    }

    /// Creates the budget of a run, including evaluations and checkpoints.
    #[must_use]
    pub fn training(config: &Config, entry: &Entry) -> Self {
        let entry = config.wrapped(entry);
        let (ahead, n_devices) = (config.mode().n_ahead(), config.n_devices());
        // Each of several devices has a thread with the whole rollout and the whole agent.
        let rollouts = ahead.max(1) * n_devices;
        let budget = Self::new(entry.spaces(), entry.bytes_per_env(), config.run.n_envs, config.n_steps(), rollouts);
        let Traits { moments, minibatch, micro_batch, targets, q_heads, replay, .. } = config.traits();
        let (moments, targets) = (moments as u64, targets as u64);
        let nets = Nets {
            config: config.net.clone(),
            values: q_heads,
            policies: n_devices as u64 * (1 + targets) + ahead as u64,
            vectors: (1 + moments) * n_devices as u64,
            saved: 1 + moments + targets + ahead.saturating_sub(1) as u64,
            minibatch: minibatch as u64,
            micro_batch: micro_batch as u64,
            threads: config.run.threads as u64,
            drawn: true,
        };
        let acted_priorities = replay.as_ref().is_some_and(|replay| replay.acted_priorities);
        let replay = replay.map(|replay| {
            let shape = TransitionShape { gamma: replay.gamma, ..budget.transitions(replay.n_step) };
            (shape, replay.capacity as u64, replay.prioritized)
        });
        let in_file = !config.run.replay_dir.is_empty();
        let (replays, shards) = (n_devices as u64, config.run.shard_replay && !config.run.mpi.has_actors());
        let episodes = config.run.eval_episodes as u64;
        let [envs, hidden, capacity] = SETTINGS;
        let names = [envs, hidden, config.algo.key(capacity).unwrap_or(capacity)];
        let at_once = at_once(config.run.threads, &entry);
        let budget =
            Self { nets: Some(nets), replay, acted_priorities, replays, shards, in_file, ..budget.with_workers(config, &entry) };
        Self { episodes, at_once, names, ..budget }.of_rank(n_devices)
    }

    /// Returns the budget of one of several ranks that share the training.
    #[must_use]
    pub fn of_rank(self, n_ranks: usize) -> Self {
        Self { n_ranks: self.n_ranks.max(n_ranks as u64), ..self }
    }

    /// Adds the worker processes of environments that are made outside of this program.
    ///
    /// With `drive = first_come`, each environment has one.
    fn with_workers(self, config: &Config, entry: &Entry) -> Self {
        let Some(batches) = entry.batches() else { return self };
        let training = if config.run.drive == Drive::Lockstep { config.workers() as u64 } else { u64::MAX };
        Self { workers: [training, config.run.threads as u64], bytes_per_worker: batches.bytes_per_worker(), ..self }
    }

    /// Creates the budget of a loaded policy that plays episodes on some threads.
    #[must_use]
    pub fn playing(config: &Config, entry: &Entry, episodes: usize, threads: usize) -> Self {
        let entry = config.wrapped(entry);
        let nets = Nets {
            config: config.net.clone(),
            values: config.traits().q_heads,
            policies: 1,
            vectors: 0,
            saved: 1,
            minibatch: 0,
            micro_batch: 0,
            threads: 1,
            drawn: false,
        };
        let budget = Self::new(entry.spaces(), entry.bytes_per_env(), 0, 0, 0).with_workers(config, &entry);
        let (episodes, at_once) = (episodes as u64, at_once(threads, &entry));
        Self { nets: Some(nets), episodes, at_once, names: ["--episodes", "hidden", ""], ..budget }
    }

    /// Creates the budget of a bench that fills rollouts, with PPO if it learns.
    #[cfg(feature = "cli")]
    pub(crate) fn bench(
        spaces: Spaces,
        bytes_per_env: usize,
        n_envs: usize,
        n_steps: usize,
        rollouts: usize,
        learning: Option<(&NetConfig, usize)>,
    ) -> Self {
        let nets = learning.map(|(config, minibatch)| Nets {
            config: config.clone(),
            values: None,
            policies: 1 + rollouts as u64,
            vectors: 3,
            saved: 0,
            minibatch: minibatch as u64,
            micro_batch: 0,
            threads: 1,
            drawn: true,
        });
        Self { nets, names: ARGUMENTS, ..Self::new(spaces, bytes_per_env, n_envs, n_steps, rollouts) }
    }

    /// Creates the budget of a replay memory's bench.
    #[cfg(feature = "cli")]
    pub(crate) fn replay(shape: TransitionShape, capacity: usize, prioritized: bool, in_file: bool) -> Self {
        let spaces = Spaces { obs: Space::vector(&[0.0], &[0.0]), actions: ActionSpace::Discrete { n: 1, masked: false } };
        Self { replay: Some((shape, capacity as u64, prioritized)), in_file, names: ARGUMENTS, ..Self::new(spaces, 0, 0, 0, 0) }
    }

    fn transitions(&self, n_step: usize) -> TransitionShape {
        TransitionShape::new(self.n_envs as usize, &self.obs, &self.actions, n_step, 0.0)
    }

    /// Bytes by purpose, all in use at the same time.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub(crate) fn parts(&self) -> Result<Vec<(&'static str, u128)>, Error> {
        let size = match &self.nets {
            Some(Nets { config, values: Some(dueling), .. }) => QNetwork::size(&self.obs, &self.actions, config, *dueling)?,
            Some(Nets { config, values: None, .. }) => ActorCritic::size(&self.obs, &self.actions, config)?,
            None => NetSize::default(),
        };
        let (n, t) = (u128::from(self.n_envs), u128::from(self.n_steps));
        let a = self.actions.len() as u128;
        let obs = self.obs.len() as u128 * self.obs.dtype().size() as u128;
        let mask = if self.actions.masked() { a } else { 0 };
        let per_env = u128::from(self.bytes_per_env);
        let acting = |n: u128| n.div_ceil(MIN_SLICE as u128).min(MAX_SLICES as u128) * u128::from(size.acting);
        let state = u128::from(size.state);
        let envs = product(&[n, per_env + 2 * (obs + mask + state) + 4 * a + 24]) + acting(n);

        let actions = self.actions.kind();
        let (obs_len, kind) = (self.obs.len(), self.obs.dtype());
        let (n_steps, n_envs) = (self.n_steps as usize, self.n_envs as usize);
        let shape = RolloutShape { n_steps, n_envs, obs_len, obs: kind, actions, state_len: size.state as usize / 4 };
        let final_obs = product(&[n, t, obs + mask + state + 48]) / STEPS_AN_EPISODE;
        let rollouts = match self.rollouts {
            0 => 0,
            k => sum([product(&[k.into(), sum([shape.bytes(), final_obs])]), final_obs]),
        };
        let replay = match &self.replay {
            Some((shape, capacity, true)) => PrioritizedReplayBuffer::bytes(shape, *capacity as usize),
            Some((shape, capacity, false)) => ReplayBuffer::bytes(shape, *capacity as usize),
            None => 0,
        };
        let replay = match &self.replay {
            Some((shape, capacity, _)) if self.shards && !self.in_file => {
                let sharded = ReplayBuffer::sharded_bytes(shape, *capacity as usize);
                replay - sharded + sharded.div_ceil(self.n_ranks.into())
            }
            Some((shape, capacity, _)) if self.in_file => replay - ReplayBuffer::block_bytes(shape, *capacity as usize),
            _ => replay,
        };
        let acted = self.replay.as_ref().filter(|_| self.acted_priorities);
        let replay = sum([replay, acted.map_or(0, |(shape, ..)| PrioritizedReplayBuffer::acted_bytes(shape))]);
        // Both sides hold replies, with a final observation for each environment.
        let workers = |n: u64, most: u64| {
            let replies = if most == 0 { 0 } else { product(&[n.into(), 4 * (obs + mask)]) };
            sum([product(&[n.min(most).into(), self.bytes_per_worker.into()]), replies])
        };
        let mut parts = vec![
            ("environments", envs),
            (WORKERS, workers(self.n_envs, self.workers[0])),
            ("rollouts", rollouts),
            ("replay memory", product(&[self.replays.into(), replay])),
            ("program", FIXED),
        ];

        let at_once = self.episodes.min(self.at_once);
        let eval = product(&[at_once.into(), per_env + 2 * (obs + mask + state) + 8 * a + 48]) + acting(at_once.into());
        let eval = sum([eval, workers(at_once, self.workers[1]), product(&[self.episodes.into(), RESULT])]);
        let mut passing = vec![("evaluation", eval)];
        if let Some(nets) = &self.nets {
            let params = u128::from(size.params);
            let micro_batch = if nets.micro_batch == 0 { nets.minibatch } else { nets.micro_batch.min(nets.minibatch) };
            let of_critics = self.replay.is_some() && matches!(self.actions, ActionSpace::Continuous { .. });
            // Critics read rows of f32.
            let row = if of_critics { 4 * (self.obs.len() as u128 + a) } else { 0 };
            let batch = if self.replay.is_some() { 2 * obs + mask + 8 * a + 64 + row } else { 8 };
            // Sent, received, and in the order of the batch.
            let messages = if self.shards && self.n_ranks > 1 { product(&[nets.minibatch.into(), 3 * batch]) } else { 0 };
            let learning = sum([
                messages,
                product(&[nets.vectors.into(), params]),
                u128::from(size.minibatch(nets.minibatch)),
                u128::from(size.sequences(nets.minibatch, self.n_steps, nets.threads)),
                product(&[nets.minibatch.into(), batch]),
            ]);
            let policies = product(&[nets.policies.into(), size.policy.into()]);
            parts.extend([
                ("networks", policies),
                ("gradients, moments and scratch", if nets.vectors > 0 { learning } else { 0 }),
            ]);

            let computed = match nets.config.learner {
                LearnerKind::Fused => 0,
                LearnerKind::Reference => sum([size.tensors.into(), product(&[micro_batch.into(), size.sample.into()])]),
            };
            let targets = if self.replay.is_some() { 0 } else { product(&[n, t, 4 * TARGETS]) };
            // Of a policy; of critics' values and their gradients.
            let sets: u128 = if of_critics { 3 } else { 1 };
            let scratches = sets * MAX_SLICES as u128 * u128::from(size.acting);
            passing.push(("an update", sum([computed, targets, scratches])));
            let states = product(&[n, 3 * (per_env + state) + obs + mask + 16]);
            let vectors = product(&[nets.saved.into(), params]);
            passing.push(("a checkpoint", sum([states, vectors, size.policy.into()])));
            // Rollouts, moments and the replay memory are allocated after the parameters have been drawn.
            let drawing = sum([envs, FIXED, size.policy.into(), size.init.into()]);
            let most = passing.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            if nets.drawn && drawing > sum(parts.iter().map(|(_, bytes)| *bytes)).saturating_add(most) {
                let policy = ("networks", size.policy.into());
                return Ok(vec![("environments", envs), policy, ("initialisation", size.init.into()), ("program", FIXED)]);
            }
        }
        parts.extend(passing.into_iter().max_by_key(|(_, bytes)| *bytes));
        Ok(parts)
    }

    /// Total bytes, rounded up.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub fn bytes(&self) -> Result<u128, Error> {
        Ok(sum(self.parts()?.into_iter().map(|(_, bytes)| bytes)))
    }

    /// Rejects a budget above the memory that is available now.
    ///
    /// # Errors
    /// [`Error::Config`] with the figures and the settings that would fit; errors of [`NetConfig::check`].
    pub fn check(&self) -> Result<(), Error> {
        let bytes = |bytes: Option<u64>| bytes.map_or(isize::MAX as u128, u128::from);
        let workers = sum(self.parts()?.into_iter().filter(|(name, _)| *name == WORKERS).map(|(_, bytes)| bytes));
        // Workers are not in this process's address space, and some of them already have their memory.
        let own = bytes(memory::available()).saturating_add(workers);
        self.check_against(own.min(bytes(memory::available_to_all()).saturating_add(workers_rss().into())))
    }

    fn check_against(&self, available: u128) -> Result<(), Error> {
        let mut parts = self.parts()?;
        let needed = sum(parts.iter().map(|(_, bytes)| *bytes));
        if needed <= available {
            return Ok(());
        }
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let parts: Vec<String> =
            parts.iter().take(3).filter(|part| part.1 > 0).map(|(name, bytes)| format!("{name} {}", in_words(*bytes))).collect();
        let advice = match self.that_fit(available) {
            fit if fit.is_empty() => "no single setting makes it fit".into(),
            fit => format!("it would fit with {}", fit.join(", or with ")),
        };
        Err(Error::config(format!(
            "about {} of memory are needed, {} are available; the largest parts: {}; {advice}",
            in_words(needed),
            in_words(available),
            parts.join(", "),
        )))
    }

    /// Returns single changes of settings that would fit, the most effective first.
    fn that_fit(&self, available: u128) -> Vec<String> {
        type Set = fn(&mut Budget, u64);
        let [envs, hidden, capacity] = self.names;
        let widest = self
            .nets
            .as_ref()
            .and_then(|nets| nets.config.hidden.iter().chain(nets.config.hidden_of_critic()).max())
            .map_or(0, |&n| n as u64);
        let replay = self.replay.as_ref().map_or(0, |(_, capacity, _)| *capacity);
        let settings: [(&str, u64, Set); 4] = [
            (envs, self.n_envs, |budget, n| budget.n_envs = n),
            (if self.n_envs == 0 { envs } else { "eval_episodes" }, self.episodes, |budget, n| budget.episodes = n),
            (hidden, widest, |budget, n| {
                if let Some(nets) = &mut budget.nets {
                    let NetConfig { hidden, critic_hidden, .. } = &mut nets.config;
                    let all = hidden.iter_mut().chain(critic_hidden.iter_mut().flatten());
                    all.for_each(|units| *units = (*units).min(n as usize));
                }
            }),
            (capacity, replay, |budget, n| {
                if let Some((_, capacity, _)) = &mut budget.replay {
                    *capacity = n;
                }
            }),
        ];
        let mut fit = Vec::new();
        for (name, value, set) in settings {
            let bytes = |n: u64| {
                let mut budget = self.clone();
                set(&mut budget, n);
                budget.bytes().unwrap_or(u128::MAX)
            };
            let least = if value > 1 { bytes(1) } else { u128::MAX };
            if least > available {
                continue;
            }
            let (mut fits, mut fails) = (1, value);
            while fails - fits > 1 {
                let middle = fits + (fails - fits) / 2;
                if bytes(middle) <= available { fits = middle } else { fails = middle }
            }
            let text = match name {
                _ if name == hidden => format!("{name} layers of at most {fits} units"),
                _ if name == envs && self.n_envs > 0 => format!("{name} = {}", self.dividing(fits)),
                _ => format!("{name} = {fits}"),
            };
            fit.push((least, text));
        }
        fit.sort_by_key(|(least, _)| *least);
        fit.into_iter().map(|(_, text)| text).collect()
    }

    /// Largest number of environments up to `n` whose rollout has whole minibatches.
    fn dividing(&self, n: u64) -> u64 {
        let minibatch = self.nets.as_ref().filter(|_| self.replay.is_none()).map_or(1, |nets| nets.minibatch.max(1));
        (1..=n).rev().take(1 << 20).find(|n| n.saturating_mul(self.n_steps).is_multiple_of(minibatch)).unwrap_or(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rl_envs::catalog;

    use crate::Algo;
    use crate::config::Layers;

    fn budget(env: &str, algo: Algo, assignments: &[&str]) -> Budget {
        let mut layers = Layers::default();
        assignments.iter().for_each(|assignment| layers.add_assignment(assignment));
        let entry = catalog::find(env).unwrap();
        Budget::training(&layers.resolve(entry, algo).unwrap(), entry)
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_setting_that_would() {
        for (env, algo, setting, value) in [
            ("snake", Algo::PPO, "n_envs", "16777216"),
            ("cartpole", Algo::PPO, "n_envs", "16777216"),
            ("cartpole", Algo::A2C, "hidden", "[65536, 65536]"),
            ("cartpole", Algo::DQN, "dqn.buffer_size", "4294967296"),
            ("snake", Algo::DQN, "dqn.buffer_size", "100000000"),
            ("pendulum", Algo::SAC, "sac.buffer_size", "4294967296"),
            ("cartpole", Algo::PPO, "eval_episodes", "1000000"),
        ] {
            let assignment = format!("{setting}={value}");
            let available = if setting == "eval_episodes" { 40 << 20 } else { 8 << 30 };
            let error = budget(env, algo, &[&assignment]).check_against(available).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains("of memory are needed") && text.contains("the largest parts: "), "{text}");
            // The suggested setting fits, and a slightly larger one does not.
            let (_, fit) = text.split_once("it would fit with ").unwrap_or_else(|| panic!("{text}"));
            let fit = fit.split(", or with").next().unwrap();
            assert!(fit.starts_with(setting), "{setting}: {text}");
            let n: u64 = fit.split(|c: char| !c.is_ascii_digit()).find_map(|digits| digits.parse().ok()).unwrap();
            let with = |n: u64| if setting == "hidden" { format!("hidden=[{n}, {n}]") } else { format!("{setting}={n}") };
            budget(env, algo, &[&with(n)]).check_against(available).unwrap();
            // A minibatch of the presets divides at least every second number of environments.
            assert!(budget(env, algo, &[&with(n + 1024)]).check_against(available).is_err(), "{}", with(n + 1024));
        }
    }

    #[test]
    fn figures_that_no_machine_has_are_counted_without_overflow() {
        let most = ["n_envs=16777216", "ppo.n_steps=128", "ppo.batch_size=2147483648", "pipeline=overlapped", "max_lag=1000"];
        let hidden = format!("hidden={:?}", [65_536; 64]);
        let error = budget("snake", Algo::PPO, &[&most[..], &[&hidden, "conv=[]"]].concat()).check().unwrap_err();
        assert!(error.to_string().contains("no single setting makes it fit"), "{error}");
        let spaces = catalog::find("cartpole").unwrap().spaces();
        assert!(Budget::bench(spaces, usize::MAX, usize::MAX, usize::MAX, 1000, None).check().is_err());
    }

    #[test]
    fn a_policy_that_plays_takes_less_than_a_run() {
        let mut layers = Layers::default();
        layers.add_assignment("hidden=[1024, 1024]");
        let entry = catalog::find("cartpole").unwrap();
        let config = layers.resolve(entry, Algo::PPO).unwrap();
        let (playing, training) = (Budget::playing(&config, entry, 100, 2), Budget::training(&config, entry));
        assert!(playing.bytes().unwrap() < training.bytes().unwrap());
    }

    #[test]
    fn ranks_that_store_a_shard_of_the_replay_memory_take_less_each() {
        let of_rank = |settings: &[&str], n_ranks| {
            let settings = [&["dqn.buffer_size=1000000"], settings].concat();
            budget("cartpole", Algo::DQN, &settings).of_rank(n_ranks).bytes().unwrap()
        };
        let (whole, shard) = (of_rank(&[], 4), of_rank(&["shard_replay=true"], 4));
        // But for the messages of a minibatch.
        assert!((32_900_000..33_000_000).contains(&(whole - shard)), "{whole} {shard}");
        assert_eq!(of_rank(&["shard_replay=true"], 1), whole);
        let learner = ["shard_replay=true", "mpi=actors", "pipeline=overlapped"];
        assert_eq!(of_rank(&learner, 3), of_rank(&learner, 1), "a learner has all of it");
    }
}
