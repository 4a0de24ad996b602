//! The process of an actor as its rank sees it: started, given orders, replaced.
//!
//! Both talk over a Unix socket: each message has its length (u64) before it.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rl_envs::{Purpose, rng};

use crate::channel::Sender;
use crate::pipeline::faults::Restarts;
use crate::ranks::mpi::messages::{self, BEAT, LEARNER, MessageKind, Role, SILENCE};
use crate::ranks::mpi::remote::Mail;
use crate::thread::spawn;
use crate::{Config, Error, interrupt, print};

/// Verb of the program that runs an actor's process.
pub(crate) const VERB: &str = "actor-process";
/// Longest message that is believed.
const MAX_LEN: u64 = 1 << 36;
/// Longest wait for a process to take an order, beyond `start_timeout_s`.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Time in which a process ends once its environments are closed, or at once.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Returns the seed of an actor's process.
///
/// It differs by the run's seed, the rank, the rollouts learnt from, and the processes before it.
fn seed_of(seed: u64, rank: usize, learnt: u64, started: u64) -> u64 {
    let words = rng::block(seed, rank as u32, learnt, Purpose::Actor, started as u32 & 0xFF_FFFF);
    (u64::from(words[0]) << 32 | u64::from(words[1])) & i64::MAX as u64
}

/// Messages of a process, with its number; or the cause of its end.
pub(super) type Heard = Sender<(u64, Result<Vec<u8>, String>)>;

/// An actor's process, and its replacements.
pub(super) struct ActorRank<'a> {
    rank: usize,
    n_ranks: usize,
    config: &'a Config,
    /// Python of environments in worker processes, if one was named.
    python: Option<&'a Path>,
    process: Option<ActorProcess>,
    restarts: Restarts,
    /// Processes started so far.
    started: u64,
    /// True once the learner has been told of an interrupt.
    told: bool,
}

impl<'a> ActorRank<'a> {
    pub(super) fn new([rank, n_ranks]: [usize; 2], config: &'a Config, python: Option<&'a Path>) -> Self {
        Self { rank, n_ranks, config, python, process: None, restarts: Restarts::default(), started: 0, told: false }
    }

    /// Number of processes started so far.
    pub(super) fn started(&self) -> u64 {
        self.started
    }

    /// Starts a process unless one runs; returns the cause if it cannot be started.
    ///
    /// The policy has learnt from `learnt` rollouts. A thread passes its messages on to `heard`, if that is given.
    pub(super) fn start(&mut self, learnt: u64, heard: Option<&Heard>) -> Result<(), String> {
        if self.process.is_some() {
            return Ok(());
        }
        let seed = seed_of(self.config.run.seed, self.rank, learnt, self.started);
        self.started += 1;
        let role = Role { settings: self.config.to_toml(), seed, actor: [self.rank - 1, self.n_ranks - 1] };
        let failed = |error: Error| format!("cannot be started: {error}");
        let process = ActorProcess::spawn(&role, self.python, self.config.faults().start_timeout).map_err(failed)?;
        if let Some(heard) = heard.cloned() {
            let socket = process.link.socket.try_clone().map_err(|error| failed(Error::io(VERB)(error)))?;
            let (mut link, number) = (Link::new(socket), self.started);
            let pass_on = move || {
                loop {
                    let message = link.read();
                    let ended = message.is_err();
                    if heard.send((number, message)).is_err() || ended {
                        return;
                    }
                }
            };
            spawn("heard", pass_on).map_err(|error| failed(error.into()))?;
        }
        self.process = Some(process);
        Ok(())
    }

    /// Sends a message to the process; returns the cause if that fails.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), String> {
        let process = self.process.as_mut().ok_or("has not been started")?;
        write(&process.link.socket, message).map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => process.link.last_words(),
            _ => error.to_string(),
        })
    }

    /// Ends a process that has failed, which may be replaced then.
    ///
    /// # Errors
    /// [`Error::Actor`] if it was replaced too often.
    pub(super) fn lose(&mut self, failed: String) -> Result<(), Error> {
        let cause = self.process.take().map_or(failed.clone(), |process| process.end(&failed));
        if !self.restarts.allow(Instant::now(), &self.config.faults()) {
            return Err(Error::Actor { cause });
        }
        print::err(&format!("warning: the process of actor {} {cause}; it is replaced, and new episodes begin", self.rank));
        Ok(())
    }

    /// Tells the learner once that a signal asks the training to stop.
    pub(super) fn tell_of_interrupt(&mut self, mail: &impl Mail) {
        if interrupt::requested() && !std::mem::replace(&mut self.told, true) {
            mail.send_message(&MessageKind::Interrupted.with(&[]), LEARNER);
        }
    }

    /// Sends the learner a rollout for each of its orders, until the last one.
    pub(super) fn fill_orders(&mut self, mail: &impl Mail) -> Result<(), Error> {
        let never = AtomicBool::new(false);
        while let Some(message) = mail.receive_message(LEARNER, &never) {
            let Some((MessageKind::Order, _)) = MessageKind::split(&message) else { break };
            let rollout = self.rollout(mail, &message)?;
            mail.send_message(&rollout, LEARNER);
        }
        Ok(())
    }

    /// Returns the message of a rollout; replaces a process that fails.
    fn rollout(&mut self, mail: &impl Mail, order: &[u8]) -> Result<Vec<u8>, Error> {
        loop {
            match self.attempt(mail, order) {
                Ok(rollout) => return Ok(rollout),
                Err(failed) => self.lose(failed)?,
            }
        }
    }

    /// Lets the process collect a rollout; returns the cause if it fails.
    fn attempt(&mut self, mail: &impl Mail, order: &[u8]) -> Result<Vec<u8>, String> {
        self.start(messages::learnt(order), None)?;
        self.send(order)?;
        loop {
            self.tell_of_interrupt(mail);
            let message = self.process.as_mut().ok_or("has not been started")?.link.read()?;
            match MessageKind::split(&message) {
                Some((MessageKind::Rollout, _)) => return Ok(messages::replaced(message, self.started - 1)),
                Some((MessageKind::Failed, text)) => return Err(failed(text)),
                Some((MessageKind::Beat, _)) => {}
                _ => return Err("sent what is no rollout".into()),
            }
        }
    }
}

/// A process that collects.
struct ActorProcess {
    child: Child,
    link: Link,
    /// Time in which it ends once its socket is closed.
    limit: Duration,
}

impl ActorProcess {
    /// Spawns a process, whose environments start within `start`.
    fn spawn(role: &Role, python: Option<&Path>, start: Duration) -> Result<Self, Error> {
        let spawned = || -> std::io::Result<(Child, UnixStream)> {
            let (socket, theirs) = UnixStream::pair()?;
            let mut command = Command::new(std::env::current_exe()?);
            command.arg(VERB).args(["--parent", &std::process::id().to_string()]);
            if let Some(python) = python {
                command.arg("--python").arg(python);
            }
            // A group of its own: Ctrl-C at the terminal is for the ranks.
            command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).process_group(0);
            let child = command.spawn()?;
            socket.set_read_timeout(Some(BEAT))?;
            // An order may not fit into the socket's memory, and a process that starts its environments reads none.
            socket.set_write_timeout(Some(start.saturating_add(START_LIMIT)))?;
            Ok((child, socket))
        };
        let (child, socket) = spawned().map_err(Error::io(VERB))?;
        write(&socket, &MessageKind::Role.encode(role)?).map_err(Error::io(VERB))?;
        Ok(Self { child, link: Link::new(socket), limit: END_LIMIT })
    }

    /// Ends the process; returns the cause of its failure.
    fn end(mut self, failed: &str) -> String {
        let status = self.wait(Duration::from_millis(100));
        match status.map(|status| (status, status.signal())) {
            Some((_, Some(signal))) => format!("was killed by signal {signal}"),
            Some((status, None)) if !status.success() => format!("{failed}, {status}"),
            _ => failed.into(),
        }
    }

    /// Waits for the process to end.
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(2)),
                ended => return ended.ok().flatten(),
            }
        }
    }
}

impl Drop for ActorRank<'_> {
    /// Lets a process that has not failed close its environments.
    fn drop(&mut self) {
        let limit = self.config.faults().close_timeout + END_LIMIT;
        self.process.iter_mut().filter(|_| !interrupt::requested()).for_each(|process| process.limit = limit);
    }
}

impl Drop for ActorProcess {
    /// Lets the process close its environments, and kills it if that takes long.
    fn drop(&mut self) {
        let _ = self.link.socket.shutdown(Shutdown::Both);
        if self.wait(self.limit).is_none() {
            if self.limit > END_LIMIT {
                let seconds = self.limit.as_secs_f64();
                print::err(&format!("warning: the process of an actor has not ended within {seconds} s and is killed"));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Socket between a rank and its process.
pub(super) struct Link {
    socket: UnixStream,
    /// Part of a message that has been read.
    bytes: Vec<u8>,
}

impl Link {
    pub(super) fn new(socket: UnixStream) -> Self {
        Self { socket, bytes: Vec::new() }
    }

    /// Returns why the other end has closed.
    fn last_words(&mut self) -> String {
        loop {
            match self.read() {
                Ok(message) => {
                    if let Some((MessageKind::Failed, text)) = MessageKind::split(&message) {
                        return failed(text);
                    }
                }
                Err(cause) => return cause,
            }
        }
    }

    /// Reads a message.
    ///
    /// Returns the cause if the other end closes, or says nothing for [`SILENCE`] on a socket with a time limit.
    pub(super) fn read(&mut self) -> Result<Vec<u8>, String> {
        let mut heard = Instant::now();
        let mut some = vec![0; 1 << 16];
        loop {
            if let Some(message) = take(&mut self.bytes)? {
                return Ok(message);
            }
            match self.socket.read(&mut some) {
                Ok(0) => return Err("has ended".into()),
                Ok(n) => {
                    self.bytes.extend_from_slice(&some[..n]);
                    heard = Instant::now();
                }
                Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                    if heard.elapsed() > SILENCE {
                        return Err(format!("has not been heard of for {} seconds", SILENCE.as_secs()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
}

/// Describes the failure that a process reports.
pub(super) fn failed(text: &[u8]) -> String {
    format!("failed: {}", String::from_utf8_lossy(text))
}

/// Writes a message with its length.
pub(super) fn write(mut socket: &UnixStream, message: &[u8]) -> std::io::Result<()> {
    socket.write_all(&(message.len() as u64).to_le_bytes())?;
    socket.write_all(message)
}

/// Takes the first whole message out of bytes that were read.
fn take(bytes: &mut Vec<u8>) -> Result<Option<Vec<u8>>, String> {
    let Some((len, rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let len = u64::from_le_bytes(*len);
    if len > MAX_LEN {
        return Err(format!("sent a message of {len} bytes"));
    }
    if (rest.len() as u64) < len {
        return Ok(None);
    }
    let message = rest[..len as usize].to_vec();
    bytes.drain(..8 + len as usize);
    Ok(Some(message))
}

/// Sender of a process's messages to its rank.
pub(super) type Say = Arc<dyn Fn(&[u8]) -> std::io::Result<()> + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_processes_of_a_run_have_the_same_seed() {
        let mut seeds = Vec::new();
        for (rank, learnt) in [(1, 0), (2, 0), (1, 1), (1, 1 << 40)] {
            seeds.extend((0..3).flat_map(|started| [7, 8].map(|seed| seed_of(seed, rank, learnt, started))));
        }
        let n = seeds.len();
        seeds.sort_unstable();
        seeds.dedup();
        assert!(seeds.len() == n && seeds.iter().all(|&seed| seed <= i64::MAX as u64));
    }
}
