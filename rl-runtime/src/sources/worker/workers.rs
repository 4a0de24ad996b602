//! Workers of one kind of environments: their processes, started, kept and counted.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rl_envs::Spaces;
use rl_envs::wrappers::Wrappers;
use serde_json::{Map, Value};

use crate::pipeline::faults::FaultConfig;
use crate::print;
use crate::sources::worker::process::{Failure, Launch, Limit, Process, Spin};
use crate::thread::{cores, locked};

/// Workers of one kind of environments, and processes that wait for work.
pub(super) struct Workers {
    pub(super) launch: Launch,
    /// Wrappers that the processes apply.
    pub(super) wrappers: Wrappers,
    /// First message to a process, without its parent.
    pub(super) ask: Map<String, Value>,
    pub(super) spaces: Spaces,
    /// True if the loss of a life ends an episode.
    pub(super) lives: bool,
    /// True if a worker can leave observations in memory.
    pub(super) has_memory: bool,
    /// Directory in which the first worker has found the environment's module.
    pub(super) path: String,
    /// Resident memory of the first process once it had greeted, in bytes.
    pub(super) rss: u64,
    pub(super) config: Mutex<FaultConfig>,
    pub(super) idle: Mutex<Vec<Process>>,
    /// Processes that were asked to close their environments.
    pub(super) closing: Mutex<Vec<Process>>,
    /// Batches, each of which has a process.
    pub(super) batches: AtomicUsize,
    /// Environments that threads of their own have.
    pub(super) alone: AtomicUsize,
    /// Processes that have failed.
    pub(super) failures: AtomicU64,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("launch", &self.launch).field("ask", &self.ask).finish_non_exhaustive()
    }
}

/// Spawns a process, and tells it its parent with the rest of `ask`.
pub(super) fn spawn(launch: &Launch, ask: &Map<String, Value>) -> std::io::Result<Process> {
    Process::spawn(launch, |parent| {
        let mut ask = ask.clone();
        ask.insert("parent".into(), parent.into());
        Value::Object(ask).to_string()
    })
}

impl Workers {
    /// Returns the handling of faults.
    pub(super) fn faults(&self) -> FaultConfig {
        locked(&self.config).clone()
    }

    /// Returns the times for which waits spin.
    pub(super) fn spin(&self) -> Spin {
        // An environment of a thread of its own has a batch from its first reset on.
        Spin::of(self.batches.load(Ordering::Relaxed).max(self.alone.load(Ordering::Relaxed)), cores())
    }

    /// Returns a process that waits for work, or a new one.
    pub(super) fn process(&self) -> Result<Process, Failure> {
        let idle = locked(&self.idle).pop();
        idle.map_or_else(|| spawn(&self.launch, &self.ask), Ok)
            .map_err(|error| Failure::Gone(format!("cannot be spawned: {error}")))
    }

    /// Reads the greeting of a new process, which must have the spaces of the first.
    pub(super) fn greet(&self, process: &mut Process, limit: Limit) -> Result<(), Failure> {
        match process.greet(limit)?.map(|hello| hello.spaces().map(|spaces| (spaces, hello.memory))) {
            None => Ok(()),
            Some(Ok((spaces, memory))) if spaces == self.spaces && (memory || !self.has_memory) => Ok(()),
            Some(Ok((spaces, _))) if spaces == self.spaces => {
                Err(Failure::Garbage("it cannot leave observations in memory, unlike the first worker".into()))
            }
            Some(Ok(_)) => Err(Failure::Garbage("its spaces differ from those of the first worker".into())),
            Some(Err(what)) => Err(Failure::Garbage(what)),
        }
    }

    /// Keeps a process, closes it if there are enough, or kills it if it is spent.
    pub(super) fn put_back(&self, process: Process) {
        if process.is_spent() {
            return;
        }
        let mut idle = locked(&self.idle);
        if idle.len() < cores() {
            idle.push(process);
        } else if process.ask_to_close() {
            let mut closing = locked(&self.closing);
            closing.retain(|process| !process.has_closed());
            closing.push(process);
        }
    }

    /// Counts a failure, and warns of the first, second, fourth and so on.
    pub(super) fn report(&self, which: &str, failure: &Failure, log: Option<String>, then: &str) {
        let n = self.count(failure, log);
        if n.is_power_of_two() {
            print::err(&format!("warning: {which}, fault {n}: {failure}; {then}"));
        }
    }

    /// Counts a failure, and prints the traceback or the last lines of the first.
    pub(super) fn count(&self, failure: &Failure, log: Option<String>) -> u64 {
        let n = 1 + self.failures.fetch_add(1, Ordering::Relaxed);
        let details = match failure {
            Failure::Raised(raised) => raised.traceback.clone(),
            _ => log.unwrap_or_default(),
        };
        if n == 1 && !details.is_empty() {
            print::err(details.trim_end());
        }
        n
    }
}
