//! Ranks over MPI: joining them, their exchange, and the end of all when one fails.
//!
//! A thread of each rank sends a heartbeat to the next rank, in a ring. A rank that hears nothing for [`SILENCE`] ends the job,
//! so a rank that hangs ends it, too. No port of our own is opened: everything passes through MPI.
//!
//! [`Job::supervise`] makes a rank an [actor](mod@actor) of the learner, rank 0. The learner sees it as a [`Remote`] collector,
//! or as environments for which it chooses the actions itself ([`central`]).

mod actor;
mod calls;
mod central;
mod messages;
mod process;
mod remote;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rl_agents::ranks::{Ranks, gather};
use rl_agents::{ARITHMETIC, Isa};
use rl_envs::catalog::Entry;

use crate::config::{MAX_AGE, Mpi};
use crate::pipeline::Collect;
use crate::run::train::Peers;
use crate::thread::{Thread, spawn};
use crate::{Config, Error, print};
pub(crate) use actor::work;
use calls::World;
use messages::{BEAT, SILENCE};
pub(crate) use process::VERB;
use remote::Remote;

/// Time that a rank that fails alone gives rank 0 to end the job.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time that a rank gives rank 0, which has the same error, to save.
const SAVING: Duration = Duration::from_secs(600);
/// Exit code of the job after a panic of a rank, as that of a process alone.
const PANICKED: u8 = 101;
/// Exit code of the job after a rank hung.
const HUNG: u8 = 1;
/// The last heartbeat of a rank.
const LAST: u8 = 1;

/// The ranks of a job, until it ends.
pub(crate) struct Job {
    world: World,
    ranks: Arc<dyn Peers>,
    stop: Arc<AtomicBool>,
    heart: Option<Thread<()>>,
}

impl Job {
    /// Joins the other ranks of the launcher.
    ///
    /// # Errors
    /// [`Error::Config`] if MPI cannot be called by several threads, or the ranks are not of the same program with the same
    /// arguments.
    pub(crate) fn join() -> Result<Self, Error> {
        let failed = || Error::config("MPI cannot be initialized for calls of several threads (MPI_THREAD_MULTIPLE)");
        let world = World::init().ok_or_else(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let heart = spawn("heartbeat", {
            let stop = stop.clone();
            move || beat(world, &stop)
        })?;
        Ok(Self { world, ranks: Arc::new(world), stop, heart: Some(heart) })
    }

    pub(crate) fn ranks(&self) -> &Arc<dyn Peers> {
        &self.ranks
    }

    /// Collects for rank 0 until it needs no more, with its settings.
    ///
    /// `python` is that of environments in worker processes, if one was named.
    ///
    /// # Errors
    /// [`Error::Actor`] if the process that collects failed too often.
    pub(crate) fn supervise(&self, config: &Config, python: Option<&Path>) -> Result<(), Error> {
        let mut config = config.clone();
        if config.run.mpi == Mpi::Actors {
            // From one rollout of an actor to the next, the learner learns from one of every actor.
            config.run.max_age = (config.run.max_age * (self.world.n_ranks() as u64 - 1)).min(MAX_AGE as u64);
        }
        actor::supervise(&self.world, [self.world.rank(), self.world.n_ranks()], &config, python)
    }

    /// Refuses ranks of another version, or with other arguments than rank 0's.
    ///
    /// # Errors
    /// [`Error::Config`] on every rank.
    pub(crate) fn check_alike(&self) -> Result<(), Error> {
        // Without fused multiply-add, the bits differ.
        let fused = Isa::best() != Isa::Plain;
        let version = format!("rl {}, arithmetic {ARITHMETIC}, fused multiply-add {fused}", env!("CARGO_PKG_VERSION"));
        let args: Vec<_> = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let all = gather(&*self.ranks, Ok((self.world.host(), version, args.join(" "))))?;
        differing(&all).map_or(Ok(()), |problem| Err(Error::config(problem)))
    }

    /// Waits for the other ranks and ends MPI; after an error, ends the job.
    ///
    /// An error that all ranks have is printed by rank 0.
    pub(crate) fn end(mut self, result: Result<ExitCode, Error>) -> ExitCode {
        match result {
            Ok(code) => {
                self.world.barrier();
                self.stop.store(true, Ordering::Relaxed);
                self.heart.take().into_iter().for_each(|heart| drop(heart.join()));
                self.world.finalize();
                if code != ExitCode::SUCCESS && self.ranks.rank() == 0 {
                    // mpirun kills the others at the first exit code that is not 0.
                    std::thread::sleep(BEAT);
                }
                code
            }
            Err(error) => {
                let rank = self.ranks.rank();
                if rank == 0 {
                    print::err(&format!("error: {error}"));
                } else {
                    let is_shared = matches!(error, Error::Agent(rl_agents::Error::Rank { .. }));
                    std::thread::sleep(if is_shared { SAVING } else { PATIENCE });
                    print::err(&format!("error: rank {rank} ({}): {error}", self.world.host()));
                }
                self.world.abort(error.exit_code())
            }
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.abort(PANICKED);
        }
    }
}

impl Peers for World {
    fn actors(&self, config: &Config, entry: &Entry) -> Result<Vec<Box<dyn Collect>>, Error> {
        if config.run.mpi == Mpi::Central {
            return Ok(vec![central::collector(*self, self.n_ranks(), config, entry)?]);
        }
        let n_envs = config.run.n_envs;
        let actor = |rank| {
            Box::new(Remote { mail: *self, rank, n_envs, spaces: entry.spaces(), state_len: 0, stop: Arc::default() })
                as Box<dyn Collect>
        };
        Ok((1..self.n_ranks()).map(actor).collect())
    }
}

/// Finds a rank that differs from rank 0 in its version or its arguments.
///
/// `ranks` are host, version and arguments of each.
fn differing(ranks: &[(String, String, String)]) -> Option<String> {
    let (_, version, args) = &ranks[0];
    ranks.iter().enumerate().find_map(|(rank, (host, other_version, other_args))| {
        let pairs = [("is", other_version, version), ("was started with", other_args, args)];
        let (what, other, first) = pairs.into_iter().find(|(_, other, first)| other != first)?;
        Some(format!("rank {rank} ({host}) {what} \"{other}\", and rank 0 \"{first}\""))
    })
}

/// Sends heartbeats to the next rank and awaits those of the rank before.
///
/// Returns after `stop` is set here and the rank before has said its last.
fn beat(world: World, stop: &AtomicBool) {
    let (rank, n_ranks) = (world.rank(), world.n_ranks());
    let (before, next) = ((rank + n_ranks - 1) % n_ranks, (rank + 1) % n_ranks);
    let (mut heard, mut sent_last, mut heard_last) = (Instant::now(), false, false);
    let mut awake = Instant::now();
    while !sent_last || !heard_last {
        if !sent_last {
            sent_last = stop.load(Ordering::Relaxed);
            world.send(if sent_last { LAST } else { 0 }, next);
        }
        while let Some(byte) = world.try_receive(before) {
            heard_last |= byte == LAST;
            heard = Instant::now();
        }
        let now = Instant::now();
        if now.duration_since(awake) > SILENCE / 2 {
            heard = now; // it was this rank that hung, at any point since it looked
        }
        awake = now;
        if !heard_last && now.duration_since(heard) > SILENCE {
            let seconds = SILENCE.as_secs();
            print::err(&format!(
                "error: rank {before} has not been heard of for {seconds} seconds, the job ends (noticed by rank {rank})"
            ));
            world.abort(HUNG);
        }
        std::thread::sleep(BEAT);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_rank_of_another_version_or_with_other_arguments_is_named() {
        let rank = |host: &str, version: &str, args: &str| (host.to_string(), version.to_string(), args.to_string());
        let same = [rank("a", "rl 1", "train"), rank("b", "rl 1", "train")];
        assert_eq!(differing(&same), None);
        let found = differing(&[same[0].clone(), same[1].clone(), rank("c", "rl 2", "train")]);
        assert_eq!(found.as_deref(), Some("rank 2 (c) is \"rl 2\", and rank 0 \"rl 1\""));
        let found = differing(&[same[0].clone(), rank("b", "rl 1", "eval")]);
        assert_eq!(found.as_deref(), Some("rank 1 (b) was started with \"eval\", and rank 0 \"train\""));
    }

    #[test]
    fn a_panic_of_one_rank_ends_all_of_them() {
        const PART: &str = "RL_TEST_OF_A_PANIC";
        if let Ok(rank) = std::env::var(PART) {
            let job = Job::join().unwrap();
            assert!(job.ranks().rank().to_string() != rank, "on purpose");
            job.world.barrier();
        }
        for rank in ["0", "1", "2"] {
            let mut job = Command::new("timeout");
            job.args(["60", "mpirun", "--quiet", "--oversubscribe", "-n", "3"]).arg(std::env::current_exe().unwrap());
            job.args(["--exact", "ranks::mpi::tests::a_panic_of_one_rank_ends_all_of_them", "--nocapture"]).env(PART, rank);
            job.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
            let begin = Instant::now();
            let output = job.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(PANICKED.into()), "rank {rank}: {said}");
            assert!(said.matches("on purpose").count() == 1 && begin.elapsed() < Duration::from_secs(10), "rank {rank}: {said}");
        }
    }
}
