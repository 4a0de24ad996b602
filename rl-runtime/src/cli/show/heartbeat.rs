//! Lines of a training between its rows.
//!
//! The lines report slow rollouts, slow updates and requests to stop.
//! A thread of its own reads counts that the training keeps anyway, so the training reads no clock for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rl_agents::counts::{ENV_STEPS, OPTIMIZER_STEPS};
use serde_json::json;

use crate::print::{self, grouped};
use crate::report::profile::{Phase, Profile, nanos};
use crate::thread::{self, Thread};
use crate::{Config, interrupt};

/// Longest time without a line.
const EVERY: Duration = Duration::from_secs(10);
/// Interval at which the thread looks for requests to stop.
const LOOK: Duration = Duration::from_millis(100);
/// Length of a rollout above which a run is warned of it.
const SLOW: Duration = Duration::from_secs(60);

/// Form of the lines.
#[derive(Clone, Debug)]
pub(crate) enum Form {
    Text,
    Json,
    /// The board shows the text; only warnings and requests to stop are printed.
    Board(Status),
}

/// Text that a board shows in place of its numbers.
pub(crate) type Status = Arc<Mutex<String>>;

/// Moments and counts that the training's thread passes on.
#[derive(Debug, Default)]
struct Shared {
    /// Time of the last line, and of the last row.
    line: AtomicU64,
    row: AtomicU64,
    /// Counts at the last row.
    env_steps: AtomicU64,
    optimizer_steps: AtomicU64,
    ended: Mutex<bool>,
    changed: Condvar,
}

/// A thread that prints a line whenever the training has printed none for a while.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
}

impl Heartbeat {
    /// Begins to watch a training.
    ///
    /// Each of `n_ranks` ranks takes its share of the env steps.
    pub(crate) fn start(config: &Config, n_ranks: usize, profile: &Profile, form: Form) -> Self {
        let shared = Arc::new(Shared::default());
        let mut watch = Watch::new(config, n_ranks, profile.clone(), form, shared.clone());
        // Without it, only these lines are missing.
        let thread = thread::spawn("heartbeat", move || watch.run()).ok();
        let heartbeat = Self { shared, thread };
        heartbeat.row();
        heartbeat
    }

    /// Notes that a line has been printed.
    pub(crate) fn line(&self) {
        self.shared.line.store(nanos(), Ordering::Relaxed);
    }

    /// Counts from a row of metrics on, which is as good as a line.
    pub(crate) fn row(&self) {
        self.line();
        let Shared { row, env_steps, optimizer_steps, .. } = &*self.shared;
        row.store(nanos(), Ordering::Relaxed);
        env_steps.store(ENV_STEPS.load(Ordering::Relaxed), Ordering::Relaxed);
        optimizer_steps.store(OPTIMIZER_STEPS.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.changed.notify_all();
        if let Some(Err(error)) = self.thread.take().map(Thread::join) {
            print::err(&format!("warning: {error}"));
        }
    }
}

/// State of the thread.
struct Watch {
    shared: Arc<Shared>,
    profile: Profile,
    form: Form,
    algo: &'static str,
    /// Env steps of a rollout; 0 if slow rollouts are no reason for advice.
    rollout: u64,
    /// Env steps and optimizer steps between two rows; 0 if they are not known.
    per_row: [u64; 2],
    acknowledged: bool,
    warned: bool,
}

impl Watch {
    fn new(config: &Config, n_ranks: usize, profile: Profile, form: Form, shared: Arc<Shared>) -> Self {
        let (n_envs, log_interval) = (config.run.n_envs, config.run.log_interval);
        let samples = config.n_steps().saturating_mul(n_envs);
        let own = samples.div_ceil(n_ranks);
        let traits = config.traits();
        let steps = traits.steps.unwrap_or(0);
        Self {
            shared,
            profile,
            form,
            algo: config.algo.name(),
            rollout: if traits.replay.is_some() { 0 } else { own as u64 },
            per_row: [own, steps].map(|n| (n as u64).saturating_mul(log_interval)),
            // mpirun sends TERM to all ranks when one has failed: that is no request.
            acknowledged: n_ranks > 1,
            warned: false,
        }
    }

    fn run(&mut self) {
        loop {
            let shared = self.shared.clone();
            let ended = shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let (ended, _) =
                shared.changed.wait_timeout_while(ended, LOOK, |ended| !*ended).unwrap_or_else(PoisonError::into_inner);
            let ended = *ended;
            if interrupt::requested() && !std::mem::replace(&mut self.acknowledged, true) {
                print::err("asked to stop: finishing the update, then saving; a second signal ends the run at once");
            }
            if ended {
                return;
            }
            let now = nanos();
            if now.saturating_sub(self.shared.line.load(Ordering::Relaxed)) >= EVERY.as_nanos() as u64 {
                self.shared.line.store(now, Ordering::Relaxed);
                self.beat(Duration::from_nanos(now.saturating_sub(self.shared.row.load(Ordering::Relaxed))));
            }
        }
    }

    /// Prints what the training does, `since` its last row.
    fn beat(&mut self, since: Duration) {
        let done = |now: &AtomicU64, then: &AtomicU64| now.load(Ordering::Relaxed).saturating_sub(then.load(Ordering::Relaxed));
        let Shared { env_steps, optimizer_steps, .. } = &*self.shared;
        let done = [done(&ENV_STEPS, env_steps), done(&OPTIMIZER_STEPS, optimizer_steps)];
        let phase = self.profile.current();
        let text = self.text(phase, done, since);
        match &self.form {
            Form::Text => print::out(&text),
            Form::Json => print::out(&json!({"event": "working", "seconds": since.as_secs_f64(), "text": text}).to_string()),
            Form::Board(status) => *status.lock().unwrap_or_else(PoisonError::into_inner) = text,
        }
        let warning = if self.warned { None } else { self.warning(phase, done, since) };
        if let Some(warning) = warning {
            self.warned = true;
            if let Form::Json = self.form {
                print::out(&json!({"event": "warning", "text": warning}).to_string());
            }
            print::err(&format!("warning: {warning}"));
        }
    }

    /// Describes what the training does.
    ///
    /// `done` are env steps and optimizer steps since the last row.
    fn text(&self, phase: Option<Phase>, done: [u64; 2], since: Duration) -> String {
        let of = |i: usize, what: &str| match self.per_row[i] {
            0 => format!("{} {what}", grouped(done[i])),
            most => format!("{} of {} {what}", grouped(done[i].min(most)), grouped(most)),
        };
        let what = match phase {
            Some(Phase::Evaluation) => "evaluating".into(),
            Some(Phase::Checkpoint) => "saving a checkpoint".into(),
            Some(Phase::Targets | Phase::Update) if done[1] == 0 => "updating".into(),
            Some(Phase::Targets | Phase::Update) => format!("updating: {}", of(1, "minibatches")),
            // Devices and other processes do not count their env steps here.
            _ if done[0] == 0 => "collecting".into(),
            _ => format!("collecting: {}", of(0, "env steps")),
        };
        format!("{what} ({:.0} s since the last row)", since.as_secs_f64())
    }

    /// Returns a warning of rollouts that take long.
    ///
    /// `done` are env steps and optimizer steps since the last row; with updates, the time is not that of rollouts alone.
    fn warning(&self, phase: Option<Phase>, [env_steps, updates]: [u64; 2], since: Duration) -> Option<String> {
        let elsewhere = matches!(phase, Some(Phase::Evaluation | Phase::Checkpoint | Phase::Targets | Phase::Update));
        let collects = !elsewhere && updates == 0;
        let rate = env_steps as f64 / since.as_secs_f64();
        let seconds = self.rollout as f64 / rate;
        (collects && self.rollout > 0 && env_steps > 0 && seconds > SLOW.as_secs_f64()).then(|| {
            format!(
                "a rollout of {} env steps takes about {seconds:.0} s at {rate:.1} env steps/s, and the agent learns only after each: \
                 a smaller {}.n_steps makes rollouts shorter, more environments or workers may make them faster",
                grouped(self.rollout),
                self.algo
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algo;
    use crate::config::Layers;

    fn watch(algo: Algo) -> Watch {
        let mut layers = Layers::default();
        ["n_envs=8", "log_interval=1"].into_iter().for_each(|setting| layers.add_assignment(setting));
        if algo == Algo::PPO {
            ["ppo.n_steps=256", "ppo.batch_size=64", "ppo.n_epochs=10"].iter().for_each(|setting| layers.add_assignment(setting));
        }
        let config = layers.resolve(rl_envs::catalog::find("cartpole").unwrap(), algo).unwrap();
        Watch::new(&config, 1, Profile::new(false), Form::Text, Arc::default())
    }

    #[test]
    fn a_line_says_how_far_a_rollout_or_an_update_is() {
        let (ppo, ten) = (watch(Algo::PPO), Duration::from_secs(10));
        for (phase, done, expected) in [
            (None, [0, 0], "collecting (10 s since the last row)"),
            (None, [1280, 0], "collecting: 1,280 of 2,048 env steps (10 s since the last row)"),
            (Some(Phase::Envs), [4096, 0], "collecting: 2,048 of 2,048 env steps (10 s since the last row)"),
            (Some(Phase::Update), [2048, 0], "updating (10 s since the last row)"),
            (Some(Phase::Update), [2048, 120], "updating: 120 of 320 minibatches (10 s since the last row)"),
            (Some(Phase::Evaluation), [0, 0], "evaluating (10 s since the last row)"),
            (Some(Phase::Checkpoint), [0, 0], "saving a checkpoint (10 s since the last row)"),
        ] {
            assert_eq!(ppo.text(phase, done, ten), expected);
        }
        assert_eq!(
            watch(Algo::DQN).text(Some(Phase::Update), [8, 70], ten),
            "updating: 70 minibatches (10 s since the last row)"
        );
    }

    #[test]
    fn a_rollout_that_will_take_more_than_a_minute_is_warned_of_with_its_setting() {
        let (ppo, ten) = (watch(Algo::PPO), Duration::from_secs(10));
        let warning = ppo.warning(None, [200, 0], ten).unwrap();
        assert!(warning.starts_with("a rollout of 2,048 env steps takes about 102 s at 20.0 env steps/s"), "{warning}");
        assert!(warning.contains("ppo.n_steps"), "{warning}");
        for (watch, phase, done) in [
            (&ppo, None, [400, 0]),
            (&ppo, None, [0, 0]),
            (&ppo, None, [200, 1]),
            (&ppo, Some(Phase::Update), [200, 0]),
            (&watch(Algo::DQN), None, [1, 0]),
        ] {
            assert_eq!(watch.warning(phase, done, ten), None);
        }
    }
}
