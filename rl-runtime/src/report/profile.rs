//! Time spent by each thread of a pipeline, by phase.
//!
//! A thread records phases with its [`Track`] ([`Track::time`]). Sums are always kept. Single spans are kept on request and up to
//! a maximum, for a timeline that Chrome's `about:tracing` and Perfetto read. Parts of an update are measured on request.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rl_agents::{DevicePhase, DeviceSpan, DeviceWatch, Metrics, Probe, Stage, UpdateEvent, Watch};
use serde_json::{Value, json};

/// Name of a producer's thread, or its beginning.
pub(crate) const PRODUCER: &str = "collect";

/// Phase of a thread's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Environments step; blocking ones include the wait until one is ready.
    Envs,
    /// Pictures and stacks are observed; statistics that normalize are updated.
    Preprocessing,
    /// The policy chooses actions.
    Policy,
    /// The agent computes advantages, returns and values of next states.
    Targets,
    /// The agent learns.
    Update,
    /// Greedy evaluation episodes run.
    Evaluation,
    /// A checkpoint is written.
    Checkpoint,
    /// The learner waits for a rollout.
    WaitProducers,
    /// A producer waits for a policy or a free buffer.
    WaitLearner,
    /// A device acts and steps environments, in one piece of work.
    Acting,
    /// A device copies from the host or to it.
    Copies,
    /// Part of an update: observations are copied to inputs, and normalized.
    Inputs,
    /// Part of an update: from inputs to outputs.
    Forward,
    /// Part of an update: the loss, and the gradients of layers and weights.
    Backward,
    /// Part of an update: steps of the parameters and of the target network.
    Optimizer,
    /// Part of an update: transitions are added to a replay memory.
    Adding,
    /// Part of an update: minibatches are drawn, and priorities updated.
    Drawing,
    /// Part of an update: the thread waits for others, or for a device.
    Waiting,
}

impl Phase {
    /// All phases with their names.
    pub const ALL: [(Self, &'static str); 18] = [
        (Self::Envs, "envs"),
        (Self::Preprocessing, "preprocessing"),
        (Self::Policy, "policy"),
        (Self::Targets, "targets"),
        (Self::Update, "update"),
        (Self::Evaluation, "evaluation"),
        (Self::Checkpoint, "checkpoint"),
        (Self::WaitProducers, "wait for producers"),
        (Self::WaitLearner, "wait for the learner"),
        (Self::Acting, "acting and environments"),
        (Self::Copies, "copies"),
        (Self::Inputs, "inputs"),
        (Self::Forward, "forward"),
        (Self::Backward, "backward"),
        (Self::Optimizer, "optimizer"),
        (Self::Adding, "adding"),
        (Self::Drawing, "drawing"),
        (Self::Waiting, "waiting"),
    ];

    /// Phases whose time is a part of [`Phase::Update`].
    const PARTS: [Self; 7] =
        [Self::Inputs, Self::Forward, Self::Backward, Self::Optimizer, Self::Adding, Self::Drawing, Self::Waiting];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns the part of an update that a stage belongs to.
    fn of(stage: Stage) -> Option<Self> {
        Some(match stage {
            Stage::Targets | Stage::Shuffle => return None,
            Stage::Inputs => Self::Inputs,
            Stage::Forward => Self::Forward,
            Stage::Loss | Stage::Backward | Stage::Sum => Self::Backward,
            Stage::Optimizer | Stage::Packing => Self::Optimizer,
            Stage::Adding => Self::Adding,
            Stage::Drawing => Self::Drawing,
            Stage::Waiting => Self::Waiting,
        })
    }
}

thread_local! {
    /// Time at which this thread's last stage ended; 0 outside of updates.
    static LAST_STAGE: Cell<u64> = const { Cell::new(0) };
}

/// Maximum spans per thread in a timeline, about 100 MB of JSON.
///
/// Later spans are left out.
pub(crate) const MAX_SPANS: usize = 1_000_000;

/// Index of no phase.
const NONE: usize = Phase::ALL.len();

#[derive(Debug)]
struct Span {
    phase: Phase,
    begin: Duration,
    length: Duration,
}

#[derive(Debug)]
struct ThreadTimes {
    name: String,
    /// True for a device, whose work threads wait for.
    is_device: bool,
    nanos: [AtomicU64; Phase::ALL.len()],
    /// Index of the phase that the thread is in; more than all, if none.
    current: AtomicUsize,
    spans: Mutex<Vec<Span>>,
}

/// Tracks of all threads; clones share them.
#[derive(Clone, Debug)]
pub struct Profile {
    begin: Instant,
    timeline: bool,
    /// True if phases of devices and parts of updates are measured, too.
    details: bool,
    threads: Arc<Mutex<Vec<Arc<ThreadTimes>>>>,
}

/// Time record of one thread.
#[derive(Clone, Debug)]
pub struct Track {
    begin: Instant,
    timeline: bool,
    thread: Arc<ThreadTimes>,
    /// Nanoseconds of the current update by phase.
    current: Arc<[AtomicU64; Phase::ALL.len()]>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Profile {
    /// Starts the clock; `timeline` keeps single spans too.
    #[must_use]
    pub fn new(timeline: bool) -> Self {
        Self { begin: Instant::now(), timeline, details: false, threads: Arc::default() }
    }

    /// Measures parts of updates, and phases of a device on a track of its own.
    #[cfg(feature = "cli")]
    pub(crate) fn with_details(self) -> Self {
        Self { details: true, ..self }
    }

    /// Returns a probe for the agent whose updates `track` times.
    ///
    /// `None` if parts of updates are not measured.
    pub(crate) fn probe(&self, track: &Track) -> Option<Probe> {
        let current = track.current.clone();
        let probe = move |stage| {
            let last = LAST_STAGE.get();
            if last == 0 {
                return;
            }
            let now = nanos();
            LAST_STAGE.set(now);
            if let Some(part) = Phase::of(stage) {
                current[part as usize].fetch_add(now - last, Ordering::Relaxed);
            }
        };
        self.details.then(|| Arc::new(probe) as Probe)
    }

    /// Returns a watch for an agent's device; `None` if devices are not measured.
    ///
    /// The times of [`DeviceSpan`]s are counted from this call.
    pub(crate) fn device_watch(&self) -> Option<DeviceWatch> {
        let (profile, begin, mut track) = (self.clone(), Instant::now(), None);
        let watch = move |span: DeviceSpan| {
            let phase = match span.phase {
                DevicePhase::Acting => Phase::Acting,
                DevicePhase::Copies => Phase::Copies,
                DevicePhase::Targets => Phase::Targets,
                DevicePhase::Learning => Phase::Update,
            };
            let [since, length] = [span.begin, span.seconds].map(|seconds| Duration::from_secs_f64(seconds.max(0.0)));
            track.get_or_insert_with(|| profile.new_track("device", true)).add(phase, begin + since, length);
        };
        self.details.then(|| Box::new(watch) as DeviceWatch)
    }

    /// Returns the track of the thread `name`, creating it at first use.
    #[must_use]
    pub fn track(&self, name: &str) -> Track {
        self.new_track(name, false)
    }

    fn new_track(&self, name: &str, is_device: bool) -> Track {
        let mut threads = locked(&self.threads);
        let known = threads.iter().find(|thread| thread.name == name).cloned();
        let thread = known.unwrap_or_else(|| {
            let current = AtomicUsize::new(NONE);
            let thread = Arc::new(ThreadTimes {
                name: name.into(),
                is_device,
                nanos: Default::default(),
                current,
                spans: Mutex::default(),
            });
            threads.push(thread.clone());
            thread
        });
        Track { begin: self.begin, timeline: self.timeline, thread, current: Arc::default() }
    }

    /// Returns the phase that the learner's thread is in.
    ///
    /// `None` where a phase is only recorded once it has ended.
    #[cfg(feature = "cli")]
    pub(crate) fn current(&self) -> Option<Phase> {
        let threads = locked(&self.threads);
        let learner = threads.iter().find(|thread| thread.name == "learner")?;
        Phase::ALL.get(learner.current.load(Ordering::Relaxed)).map(|(phase, _)| *phase)
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }

    /// Returns the seconds spent in a phase, summed over threads.
    ///
    /// Those of devices do not count: a thread waits meanwhile. Waits for the learner are the mean of the producers.
    #[must_use]
    pub fn seconds(&self, phase: Phase) -> f64 {
        let threads = locked(&self.threads);
        let sum: f64 = threads.iter().filter(|thread| !thread.is_device).map(|thread| seconds(thread, phase)).sum();
        let n_producers = threads.iter().filter(|thread| thread.name.starts_with(PRODUCER)).count();
        if phase == Phase::WaitLearner { sum / n_producers.max(1) as f64 } else { sum }
    }

    /// Returns a line per thread with the share of time in each phase.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let whole = self.elapsed_s();
        let mut lines = Vec::new();
        for thread in &*locked(&self.threads) {
            let mut line = format!("{:<10}", thread.name);
            let mut rest = 100.0;
            let share = |phase| 100.0 * seconds(thread, phase) / whole;
            for (phase, name) in Phase::ALL.into_iter().filter(|(phase, _)| !Phase::PARTS.contains(phase) && share(*phase) > 0.0)
            {
                rest -= share(phase);
                let _ = write!(line, " {name} {:.1}%", share(phase));
                let parts = Phase::PARTS.into_iter().filter(|part| phase == Phase::Update && share(*part) > 0.0);
                let parts: Vec<_> = parts.map(|part| format!("{} {:.1}%", part.name(), share(part))).collect();
                line.push_str(&if parts.is_empty() { ",".into() } else { format!(" ({}),", parts.join(", ")) });
            }
            let _ = write!(line, " else {:.1}%", f64::max(rest, 0.0));
            lines.push(line);
        }
        lines
    }

    /// Returns the seconds by thread and phase as JSON; `update` includes its parts.
    #[must_use]
    pub fn json(&self) -> Value {
        let threads = locked(&self.threads);
        let of = |thread: &ThreadTimes| -> Value {
            Phase::ALL.iter().map(|&(phase, name)| (String::from(name), Value::from(seconds(thread, phase)))).collect()
        };
        let threads: serde_json::Map<String, Value> = threads.iter().map(|t| (t.name.clone(), of(t))).collect();
        json!({"elapsed_s": self.elapsed_s(), "threads": threads})
    }

    /// True if a thread had more spans than a timeline holds.
    #[cfg(feature = "cli")]
    pub(crate) fn is_cut(&self) -> bool {
        locked(&self.threads).iter().any(|thread| locked(&thread.spans).len() == MAX_SPANS)
    }

    /// Returns the spans as a trace in the format of Chrome and Perfetto.
    #[must_use]
    pub fn timeline(&self) -> String {
        let mut text = String::from("{\"traceEvents\":[\n");
        for (tid, thread) in locked(&self.threads).iter().enumerate() {
            let name = json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": thread.name}});
            let _ = writeln!(text, "{}{name}", if tid > 0 { "," } else { "" });
            for Span { phase, begin, length } in &*locked(&thread.spans) {
                let (ts, dur) = (begin.as_secs_f64() * 1e6, length.as_secs_f64() * 1e6);
                let span = json!({"name": phase.name(), "ph": "X", "pid": 0, "tid": tid, "ts": ts, "dur": dur});
                let _ = writeln!(text, ",{span}");
            }
        }
        text.push_str("]}\n");
        text
    }
}

fn seconds(thread: &ThreadTimes, phase: Phase) -> f64 {
    Duration::from_nanos(thread.nanos[phase as usize].load(Ordering::Relaxed)).as_secs_f64()
}

impl Track {
    /// Runs `work` and records its time as `phase`.
    pub fn time<R>(&self, phase: Phase, work: impl FnOnce() -> R) -> R {
        let begin = Instant::now();
        self.thread.current.store(phase as usize, Ordering::Relaxed);
        let result = work();
        self.thread.current.store(NONE, Ordering::Relaxed);
        self.add(phase, begin, begin.elapsed());
        result
    }

    /// Returns a watch for an agent.
    ///
    /// With it, [`Track::time_update`] distinguishes statistics and targets from learning.
    #[must_use]
    pub fn watch(&self) -> Watch {
        let (current, mut begin) = (self.current.clone(), 0);
        Box::new(move |event| {
            let phase = match event {
                UpdateEvent::TargetsBegin | UpdateEvent::StatisticsBegin => return begin = nanos(),
                UpdateEvent::TargetsEnd => Phase::Targets,
                UpdateEvent::StatisticsEnd => Phase::Preprocessing,
            };
            current[phase as usize].fetch_add(nanos() - begin, Ordering::Relaxed);
        })
    }

    /// Runs an update, and records its time by phase and part.
    ///
    /// In a timeline, they follow each other, each with its sum over the minibatches.
    ///
    /// # Errors
    /// The errors of `update`.
    pub fn time_update(&self, update: impl FnOnce() -> Result<Metrics, rl_agents::Error>) -> Result<Metrics, rl_agents::Error> {
        let begin = Instant::now();
        self.thread.current.store(Phase::Update as usize, Ordering::Relaxed);
        LAST_STAGE.set(nanos().max(1));
        let metrics = update();
        LAST_STAGE.set(0);
        self.thread.current.store(NONE, Ordering::Relaxed);
        let (metrics, whole) = (metrics?, begin.elapsed());
        let spent = |phase: Phase| Duration::from_nanos(self.current[phase as usize].swap(0, Ordering::Relaxed));
        let (statistics, targets) = (spent(Phase::Preprocessing), spent(Phase::Targets));
        let mut at = begin + statistics + targets;
        if !statistics.is_zero() {
            self.add(Phase::Preprocessing, begin, statistics);
        }
        self.add(Phase::Targets, begin + statistics, targets);
        self.add(Phase::Update, at, (begin + whole).saturating_duration_since(at));
        for (part, length) in Phase::PARTS.map(|part| (part, spent(part))).into_iter().filter(|(_, length)| !length.is_zero()) {
            self.add(part, at, length);
            at += length;
        }
        Ok(metrics)
    }

    /// Records a span of `length` that started at `begin`.
    pub fn add(&self, phase: Phase, begin: Instant, length: Duration) {
        self.thread.nanos[phase as usize].fetch_add(length.as_nanos() as u64, Ordering::Relaxed);
        if self.timeline {
            let mut spans = locked(&self.thread.spans);
            if spans.len() < MAX_SPANS {
                spans.push(Span { phase, begin: begin.saturating_duration_since(self.begin), length });
            }
        }
    }
}

/// Nanoseconds since the first call.
pub(crate) fn nanos() -> u64 {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    BEGIN.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_holds_every_span_and_thread() {
        let profile = Profile::new(true);
        let (learner, collect) = (profile.track("learner"), profile.track("collect"));
        let begin = Instant::now();
        learner.add(Phase::Update, begin, Duration::from_millis(3));
        learner.add(Phase::Update, begin, Duration::from_millis(2));
        profile.track("collect").add(Phase::WaitLearner, begin, Duration::from_millis(1));
        collect.time(Phase::Envs, || ());
        assert!((profile.seconds(Phase::Update) - 0.005).abs() < 1e-9);
        let trace: Value = serde_json::from_str(&profile.timeline()).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).count();
        assert_eq!([named("thread_name"), named("update"), named("wait for the learner"), named("envs")], [2, 2, 1, 1]);
        assert_eq!(events.iter().find(|event| event["name"] == "update").unwrap()["dur"], 3000.0);
    }

    #[cfg(feature = "cli")]
    #[test]
    fn parts_of_an_update_are_measured_on_request_and_on_its_own_thread() {
        let plain = Profile::new(false);
        assert!(plain.probe(&plain.track("learner")).is_none(), "no clock is read for a minibatch unless requested");
        let profile = Profile::new(true).with_details();
        let track = profile.track("learner");
        let (probe, mut watch) = (profile.probe(&track).unwrap(), track.watch());
        let wait = || std::thread::sleep(Duration::from_millis(2));
        probe(Stage::Forward);
        let update = || {
            let events =
                [UpdateEvent::StatisticsBegin, UpdateEvent::StatisticsEnd, UpdateEvent::TargetsBegin, UpdateEvent::TargetsEnd];
            events.into_iter().for_each(|event| {
                watch(event);
                wait();
            });
            probe(Stage::Targets);
            for stage in Stage::ALL {
                wait();
                probe(stage);
                // A thread of the pool.
                std::thread::scope(|scope| _ = scope.spawn(|| probe(Stage::Drawing)));
            }
            Ok(Metrics::default())
        };
        track.time_update(update).unwrap();
        probe(Stage::Forward);
        let parts = Phase::PARTS.map(|part| profile.seconds(part));
        assert!(parts.iter().all(|seconds| *seconds >= 0.002) && parts.iter().sum::<f64>() <= profile.seconds(Phase::Update));
        let apart = [Phase::Preprocessing, Phase::Targets].map(|phase| profile.seconds(phase));
        assert!(apart.iter().all(|seconds| *seconds >= 0.002), "{apart:?}");
        assert!(profile.lines()[0].contains("% (inputs ") && profile.lines()[0].contains("%), else "), "{:?}", profile.lines());
        let trace: Value = serde_json::from_str(&profile.timeline()).unwrap();
        let spans: Vec<_> = trace["traceEvents"].as_array().unwrap()[1..].iter().map(|span| span["name"].clone()).collect();
        let names =
            ["preprocessing", "targets", "update", "inputs", "forward", "backward", "optimizer", "adding", "drawing", "waiting"];
        assert_eq!(spans, names);
    }

    #[cfg(feature = "cli")]
    #[test]
    fn a_device_has_a_track_that_no_sum_over_threads_counts() {
        assert!(Profile::new(true).device_watch().is_none(), "devices are not measured unless requested");
        let profile = Profile::new(true).with_details();
        let mut watch = profile.device_watch().unwrap();
        assert!(profile.lines().is_empty(), "no track without a span");
        watch(DeviceSpan { phase: DevicePhase::Acting, begin: 0.5, seconds: 0.25 });
        watch(DeviceSpan { phase: DevicePhase::Learning, begin: 1.0, seconds: 0.125 });
        let device = &profile.json()["threads"]["device"];
        assert_eq!((&device["acting and environments"], &device["update"]), (&json!(0.25), &json!(0.125)));
        assert_eq!([profile.seconds(Phase::Acting), profile.seconds(Phase::Update)], [0.0; 2]);
        let trace: Value = serde_json::from_str(&profile.timeline()).unwrap();
        let spans: Vec<f64> = [1, 2].map(|i| trace["traceEvents"][i]["ts"].as_f64().unwrap()).into();
        assert!((spans[1] - spans[0] - 5e5).abs() < 1.0, "{trace}");
    }
}
