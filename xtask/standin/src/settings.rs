//! Settings from the environment.

use std::path::PathBuf;

/// Order in which work of streams runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Work runs as soon as it is queued.
    Eager,
    /// Work runs when the host waits for it, and nothing else runs before.
    Latest,
    /// When the host waits, streams advance at random.
    Random(u64),
}

/// All settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) schedule: Schedule,
    pub(crate) memory: usize,
    pub(crate) devices: i32,
    /// Number of multiprocessors that a device claims to have.
    pub(crate) multiprocessors: i32,
    /// Maximum nodes of a graph.
    ///
    /// A GPU takes more, slowly: a graph's size must not depend on that of a run.
    pub(crate) nodes: usize,
    /// Number of launches after which the device is lost.
    pub(crate) launches: u64,
    pub(crate) counts: Option<PathBuf>,
    pub(crate) mutants: Option<PathBuf>,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Panics
    /// If a variable has no valid value.
    pub(crate) fn read() -> Self {
        let schedule = variable("RL_STANDIN_SCHEDULE").map_or(Schedule::Latest, |text| match &*text {
            "eager" => Schedule::Eager,
            "latest" => Schedule::Latest,
            _ => {
                let seed = text.strip_prefix("random:").and_then(|seed| seed.parse().ok());
                Schedule::Random(seed.expect("RL_STANDIN_SCHEDULE is eager, latest or random:SEED"))
            }
        });
        Self {
            schedule,
            memory: variable("RL_STANDIN_MEMORY").map_or(4 << 30, |text| text.parse().expect("RL_STANDIN_MEMORY is a number")),
            devices: variable("RL_STANDIN_DEVICES").map_or(1, |text| text.parse().expect("RL_STANDIN_DEVICES is a number")),
            multiprocessors: variable("RL_STANDIN_MULTIPROCESSORS")
                .map_or(1, |text| text.parse().expect("RL_STANDIN_MULTIPROCESSORS is a number")),
            nodes: variable("RL_STANDIN_NODES").map_or(10_000, |text| text.parse().expect("RL_STANDIN_NODES is a number")),
            launches: variable("RL_STANDIN_LAUNCHES")
                .map_or(u64::MAX, |text| text.parse().expect("RL_STANDIN_LAUNCHES is a number")),
            counts: variable("RL_STANDIN_COUNTS").map(PathBuf::from),
            mutants: variable("RL_STANDIN_MUTANTS").map(PathBuf::from),
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
