//! A worker process: spawned, talked to over a socket, closed or killed.
//!
//! Waits spin for a moment before they sleep, because waking a sleeping core takes longer than a step of a small environment. A
//! call has one deadline for all of its bytes, in both directions.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Deserialize;

use super::memory::Memory;
use super::messages::{CLOSE, FAILED, HELLO, Hello, MAX_JSON, REPLY};
use crate::channel::{Sender, bounded};
use crate::interrupt;
use crate::pipeline::faults::FaultConfig;
use crate::pipeline::pauses::{paused_since, watch};
use crate::report::resources::{Counted, of_trees};
use crate::thread::{locked, spawn};

/// The worker of Gymnasium environments.
const SCRIPT: &str = include_str!("worker.py");
/// Parent of each worker.
const KEEPER: &str = include_str!("keeper.sh");

/// Times for which a wait spins before it sleeps, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spin {
    /// Wait of this program for a reply.
    program_us: u64,
    /// Wait of the worker for a request.
    pub(super) worker_us: u64,
}

impl Spin {
    /// Workers on all cores.
    ///
    /// A thread that sleeps may wake on the core of another worker, and then waits for that worker's batch: on two cores of an
    /// AMD EPYC (Zen 5), a bare loop of these messages took 287 to 297 k steps/s of 16 CartPoles with 20 us, 264 to 285 k with
    /// 100 us, and 144 or 306 k without. Longer waits leave the core to the workers: 16 LunarLanders took 57 k with 100 us and
    /// 67 k without.
    const SHORT: Self = Self { program_us: 20, worker_us: 50 };
    /// A core is free of workers.
    ///
    /// Neither side sleeps through a step, nor the worker through an update of small networks. With one worker on two cores of
    /// an Intel Xeon (family 6, model 207), medians of five in turn with the short times: PPO on HalfCheetah 9.2 and 15.5 k
    /// steps/s, SAC 64-64 on Pendulum 2.9 and 4.1 k, DQN on CartPole 35 and 42 k, TD3 256-256 on HalfCheetah 405 and 411.
    const LONG: Self = Self { program_us: 200, worker_us: 400 };

    /// Times for this number of workers.
    pub(super) fn of(workers: usize, cores: usize) -> Self {
        if workers < cores { Self::LONG } else { Self::SHORT }
    }
}

/// Time between looks at the deadline and at interrupts.
const LOOK: Duration = Duration::from_millis(100);
/// Longest wait for an answer after an interrupt.
const INTERRUPTED_LIMIT: Duration = Duration::from_millis(700);
/// Bytes that are sent at once to a worker that reads slowly.
const CHUNK: usize = 16 << 10;
/// Longest wait for the end of a worker without a socket, or of its keeper.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Largest picture of an environment.
const MAX_PIXELS: u64 = 1 << 26;
/// Time in which the log of a process that has ended is read.
const LOG_LIMIT: Duration = Duration::from_millis(500);
/// Lines of a log that are shown.
const LOG_LINES: usize = 20;
/// Bytes of a log that are kept.
const MAX_LOG: usize = 8 << 10;

/// Longest time of a call, and the setting that bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    time: Duration,
    setting: &'static str,
}

impl Limit {
    /// Limit of a step, a restart or a picture.
    pub(super) fn of_call(config: &FaultConfig) -> Self {
        Self { time: config.timeout, setting: "timeout_s" }
    }

    /// Limit of a greeting, and of the start of episodes.
    ///
    /// Imports read hundreds of files, which a cold disk takes a while for.
    pub(super) fn of_start(config: &FaultConfig) -> Self {
        Self { time: config.start_timeout, setting: "start_timeout_s" }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({})", self.time, self.setting)
    }
}

/// Deadline of a call.
struct Deadline {
    limit: Limit,
    begin: Instant,
    interrupted: Option<Instant>,
}

impl Deadline {
    fn new(limit: Limit) -> Self {
        Self { limit, begin: Instant::now(), interrupted: None }
    }

    /// Fails if the time is over, or soon after an interrupt.
    fn check(&mut self) -> Result<(), Failure> {
        if self.interrupted.is_none() && interrupt::drops_rollouts() {
            self.interrupted = Some(Instant::now());
        }
        let stops = self.interrupted.is_some_and(|at| at.elapsed() >= INTERRUPTED_LIMIT);
        let is_over = self.begin.elapsed() >= self.limit.time;
        let is_late = is_over && self.begin.elapsed().saturating_sub(paused_since(self.begin)) >= self.limit.time;
        if stops || is_late { Err(Failure::Hung(self.limit)) } else { Ok(()) }
    }
}

/// Program of a worker.
#[derive(Clone, Debug)]
pub(super) enum Launch {
    /// A Python with Gymnasium.
    Python(PathBuf),
    /// A command for the shell.
    Shell(String),
}

/// Exception in a worker, as it reports it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Raised {
    /// Part of the work: protocol, import, find, make, spaces, reset, step or render.
    pub(super) at: String,
    /// Index of the environment within its worker.
    pub(super) env: Option<u32>,
    pub(super) kind: String,
    pub(super) message: String,
    #[serde(default)]
    pub(super) traceback: String,
}

/// Reason why a worker cannot be used any more.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("its process {0}")]
    Gone(String),
    #[error("no answer within {0}")]
    Hung(Limit),
    #[error("{}", in_words(_0))]
    Raised(Box<Raised>),
    #[error("it does not speak the protocol: {0}")]
    Garbage(String),
}

/// Describes an exception in a line.
fn in_words(Raised { at, kind, message, .. }: &Raised) -> String {
    let message = message.trim_end();
    if message.is_empty() { format!("{kind} in {at}") } else { format!("{kind} in {at}: {message}") }
}

/// Work of the thread that spawns all workers.
type Work = Box<dyn FnOnce() + Send>;

/// Sender to the thread that spawns all workers, and that thread's process.
///
/// The kernel kills a worker when the thread that has spawned it ends, so that thread lives as long as the program. A program
/// that was forked from this one needs a thread of its own.
static SPAWNER: Mutex<Option<(u32, Sender<Work>)>> = Mutex::new(None);

/// Returns the sender to the thread that spawns all workers, which may start.
fn spawner() -> std::io::Result<Sender<Work>> {
    let (process, of_process) = (std::process::id(), &mut *locked(&SPAWNER));
    if let Some((_, work)) = of_process.as_ref().filter(|(of, _)| *of == process) {
        return Ok(work.clone());
    }
    let (work, works) = bounded::<Work>(1);
    spawn("spawner", move || works.iter().for_each(|work| work())).map_err(std::io::Error::other)?;
    *of_process = Some((process, work.clone()));
    Ok(work)
}

/// Width, height and RGB bytes.
pub(super) type Picture = (usize, usize, Vec<u8>);

/// Worker process, below a keeper.
#[derive(Debug)]
pub(super) struct Process {
    /// The worker's parent, which ends soon after the worker and as it has ended.
    keeper: Mutex<Child>,
    pid: Pid,
    _counted: Counted,
    socket: UnixStream,
    log: Arc<Mutex<Vec<u8>>>,
    /// Part of the first message that the worker has not taken yet.
    unsent: Vec<u8>,
    /// True once the greeting has been read.
    greeted: bool,
    /// Bytes of a request, which the number of environments decides.
    pub(super) request_len: usize,
    /// Times for which waits spin, set before episodes begin.
    pub(super) spin: Spin,
    /// True once it has failed to draw, after which it answers nothing.
    is_spent: AtomicBool,
    /// Memory for large observations, if its batch needs some.
    pub(super) memory: Option<Memory>,
}

impl Process {
    /// Spawns a worker and sends it `ask` of its parent; does not wait for an answer.
    ///
    /// # Errors
    /// The errors of the system, such as a lack of processes.
    pub(super) fn spawn(launch: &Launch, ask: impl FnOnce(u32) -> String) -> std::io::Result<Self> {
        watch();
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]);
        match launch {
            // Not a file, whose directory Python would import from.
            Launch::Python(python) => command.arg(python).args(["-c", SCRIPT]),
            Launch::Shell(line) => command.args(["sh", "-c", line]),
        };
        // A group of its own: Ctrl-C at the terminal is for this program alone.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        #[cfg(target_os = "linux")]
        keep(&mut command);
        let (spawned, child) = bounded(1);
        let gone = || std::io::Error::other("the thread that spawns workers has ended");
        let work = Box::new(move || drop(spawned.send(command.spawn())));
        spawner()?.send(work).map_err(|_| gone())?;
        let mut keeper = child.recv().map_err(|_| gone())??;
        let log = Arc::<Mutex<Vec<u8>>>::default();
        if let Some(mut lines) = keeper.stderr.take() {
            let log = log.clone();
            let read = move || {
                let mut some = [0; 4096];
                while let Ok(n @ 1..) = lines.read(&mut some) {
                    let mut log = locked(&log);
                    log.extend_from_slice(&some[..n]);
                    let more = log.len().saturating_sub(MAX_LOG);
                    log.drain(..more);
                }
            };
            spawn("worker-log", read).map_err(std::io::Error::other)?;
        }
        socket.set_read_timeout(Some(LOOK))?;
        socket.set_write_timeout(Some(LOOK))?;
        let ask = ask(keeper.id());
        let mut unsent = [&(ask.len() as u32).to_le_bytes(), ask.as_bytes()].concat();
        // If the process has ended already, reading the greeting says so.
        let sent = send(&socket, &unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).unwrap_or(0);
        unsent.drain(..sent);
        Ok(Self {
            pid: Pid::from_child(&keeper),
            _counted: Counted::new(keeper.id()),
            keeper: Mutex::new(keeper),
            socket,
            log,
            unsent,
            greeted: false,
            request_len: 4,
            spin: Spin::SHORT,
            is_spent: AtomicBool::new(false),
            memory: None,
        })
    }

    /// Reads the greeting unless it has been read.
    pub(super) fn greet(&mut self, limit: Limit) -> Result<Option<Hello>, Failure> {
        if std::mem::replace(&mut self.greeted, true) {
            return Ok(None);
        }
        let (mut head, deadline) = ([0; 4], &mut Deadline::new(limit));
        let unsent = std::mem::take(&mut self.unsent);
        // A process that ends before it has read everything may have greeted.
        self.push(&unsent, deadline)?;
        self.fill(&mut head, 0, 4, Duration::ZERO, deadline)?;
        let body = self.json(HELLO, u32::from_le_bytes(head), &[], deadline)?;
        serde_json::from_slice(&body).map(Some).map_err(|error| Failure::Garbage(format!("greeting: {error}")))
    }

    /// Replaces the memory for observations by `len` bytes; by none if `len` is 0.
    pub(super) fn reserve(&mut self, len: usize) -> std::io::Result<()> {
        if self.memory.as_ref().map_or(0, Memory::len) != len {
            self.memory = if len > 0 { Some(Memory::new(len)?) } else { None };
        }
        Ok(())
    }

    /// Sends a message and reads a reply of at least `needed` bytes within `limit`.
    ///
    /// `memory` for observations follows `BEGIN`, if there is any. `len` computes the bytes of the whole reply from the needed
    /// ones, which begin with the tag.
    pub(super) fn call(
        &self,
        message: &[u8],
        memory: Option<&Memory>,
        reply: &mut [u8],
        needed: usize,
        limit: Limit,
        len: impl FnOnce(&[u8]) -> Result<usize, String>,
    ) -> Result<(), Failure> {
        let deadline = &mut Deadline::new(limit);
        self.send(message, deadline)?;
        while let Some(Err(error)) = memory.map(|memory| memory.send(&self.socket)) {
            match error {
                Errno::AGAIN | Errno::INTR => deadline.check()?,
                Errno::PIPE | Errno::CONNRESET => return Err(self.last_words()),
                error => return Err(Failure::Gone(format!("cannot be sent the memory for observations: {error}"))),
            }
        }
        let got = self.fill(reply, 0, 4, Duration::from_micros(self.spin.program_us), deadline)?;
        let tag = u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]);
        if tag != REPLY {
            let body = self.json(FAILED, tag, &reply[4..got], deadline)?;
            return Err(raised(&body));
        }
        let got = self.fill(reply, got, needed, Duration::ZERO, deadline)?;
        let len = len(&reply[..needed]).map_err(Failure::Garbage)?;
        if self.fill(reply, got, len, Duration::ZERO, deadline)? == len {
            return Ok(());
        }
        Err(Failure::Garbage("more bytes than the reply has".into()))
    }

    /// Requests a picture; returns width, height and RGB bytes, or `None` without one.
    ///
    /// After a failure there is no picture, and the process is of no use.
    pub(super) fn picture(&self, what: u32, limit: Limit) -> Result<Option<Picture>, Failure> {
        if self.is_spent() {
            return Ok(None);
        }
        let picture = self.draw(what, &mut Deadline::new(limit));
        self.is_spent.store(picture.is_err(), Ordering::Relaxed);
        picture
    }

    /// True if the process answers nothing any more.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }

    fn draw(&self, what: u32, deadline: &mut Deadline) -> Result<Option<Picture>, Failure> {
        let mut request = what.to_le_bytes().to_vec();
        request.resize(self.request_len, 0);
        self.send(&request, deadline)?;
        let mut head = [[0; 4]; 3];
        let got = self.fill(head.as_flattened_mut(), 0, 4, Duration::ZERO, deadline)?;
        let tag = u32::from_le_bytes(head[0]);
        if tag != REPLY {
            return Err(raised(&self.json(FAILED, tag, &head.as_flattened()[4..got], deadline)?));
        }
        self.fill(head.as_flattened_mut(), got, 12, Duration::ZERO, deadline)?;
        let [_, height, width] = head.map(u32::from_le_bytes);
        if u64::from(height) * u64::from(width) > MAX_PIXELS {
            return Err(Failure::Garbage(format!("a picture of {width} x {height} pixels")));
        }
        let mut pixels = vec![0; height as usize * width as usize * 3];
        let len = pixels.len();
        self.fill(&mut pixels, 0, len, Duration::ZERO, deadline)?;
        Ok((!pixels.is_empty()).then_some((width as usize, height as usize, pixels)))
    }

    /// Reads the JSON after a tag, of which `begun` has been read.
    fn json(&self, expected: u32, tag: u32, begun: &[u8], deadline: &mut Deadline) -> Result<Vec<u8>, Failure> {
        if tag != expected && tag != FAILED {
            let mut bytes = [&tag.to_le_bytes(), begun, &[0; 200]].concat();
            let got = 4 + begun.len();
            let (_, more) = recv(&self.socket, &mut bytes[got..], RecvFlags::DONTWAIT).unwrap_or((0, 0));
            let shown = String::from_utf8_lossy(&bytes[..(got + more).min(200)]).into_owned();
            return Err(Failure::Garbage(format!("its answer begins with {shown:?}")));
        }
        let mut body = begun.to_vec();
        self.extend(&mut body, 4, deadline)?;
        let len = u32::from_le_bytes([body[0], body[1], body[2], body[3]]) as usize;
        if len > MAX_JSON {
            return Err(Failure::Garbage(format!("a text of {len} bytes")));
        }
        self.extend(&mut body, 4 + len, deadline)?;
        let body = body[4..].to_vec();
        if tag == FAILED && expected != FAILED { Err(raised(&body)) } else { Ok(body) }
    }

    /// Reads until `buffer` has `len` bytes.
    fn extend(&self, buffer: &mut Vec<u8>, len: usize, deadline: &mut Deadline) -> Result<(), Failure> {
        let got = buffer.len();
        buffer.resize(len.max(got), 0);
        self.fill(buffer, got, len, Duration::ZERO, deadline).map(drop)
    }

    /// Sends all of `message`.
    fn send(&self, message: &[u8], deadline: &mut Deadline) -> Result<(), Failure> {
        // A report may wait in the socket.
        if self.push(message, deadline)? { Ok(()) } else { Err(self.last_words()) }
    }

    /// Sends all of `message`; false if the process reads no more.
    fn push(&self, message: &[u8], deadline: &mut Deadline) -> Result<bool, Failure> {
        let mut left = match send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => &message[n..],
            Err(Errno::AGAIN) => message,
            Err(_) => return Ok(false),
        };
        while !left.is_empty() {
            match (&self.socket).write(&left[..left.len().min(CHUNK)]) {
                Ok(n) => left = &left[n..],
                Err(error) if is_timeout(&error) => {}
                Err(_) => return Ok(false),
            }
            deadline.check()?;
        }
        Ok(true)
    }

    /// Reads from byte `got` until `buffer` holds `needed`; returns the number held.
    fn fill(
        &self,
        buffer: &mut [u8],
        mut got: usize,
        needed: usize,
        spin: Duration,
        deadline: &mut Deadline,
    ) -> Result<usize, Failure> {
        let begin = Instant::now();
        while got < needed && begin.elapsed() < spin {
            match recv(&self.socket, &mut buffer[got..], RecvFlags::DONTWAIT) {
                Ok((n @ 1.., _)) => got += n,
                Err(Errno::AGAIN) => std::thread::yield_now(),
                // The read below explains the error.
                _ => break,
            }
        }
        while got < needed {
            match (&self.socket).read(&mut buffer[got..]) {
                Ok(0) => return Err(self.gone()),
                Ok(n) => got += n,
                Err(error) if is_timeout(&error) => {}
                Err(_) => return Err(self.gone()),
            }
            if got < needed {
                deadline.check()?;
            }
        }
        Ok(got)
    }

    /// Reads the report of a process that takes no more messages.
    fn last_words(&self) -> Failure {
        let (mut head, deadline) = ([0; 4], &mut Deadline::new(Limit { time: END_LIMIT, setting: "" }));
        let head = self.fill(&mut head, 0, 4, Duration::ZERO, deadline).map(|_| head);
        match head.and_then(|head| self.json(FAILED, u32::from_le_bytes(head), &[], deadline)) {
            Ok(body) => raised(&body),
            Err(Failure::Hung(_)) => self.gone(),
            Err(failure) => failure,
        }
    }

    /// Describes the end of a process that has closed its socket.
    fn gone(&self) -> Failure {
        Failure::Gone(match self.wait(END_LIMIT) {
            Some(status) => {
                self.finish_log();
                format!("has ended: {status}")
            }
            None => "has closed its socket".into(),
        })
    }

    /// Waits for the thread that reads the log of a process that has ended.
    ///
    /// A program that the process has started may keep the pipe open, so the wait is short.
    fn finish_log(&self) {
        let begin = Instant::now();
        while Arc::strong_count(&self.log) > 1 && begin.elapsed() < LOG_LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Status of a worker that has ended, with all that it has started.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        locked(&self.keeper).try_wait().ok().flatten()
    }

    /// Waits for the worker to end.
    fn wait(&self, limit: Duration) -> Option<ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.status() {
                None if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(1)),
                status => return status,
            }
        }
    }

    /// Time that the worker has run, and has waited for a processor.
    pub(super) fn cpu_times(&self) -> Option<[Duration; 2]> {
        let worker = children(self.pid.as_raw_nonzero().get())?.first().copied()?;
        cpu_times(worker)
    }

    /// Resident memory of the worker and its descendants, in bytes.
    pub(super) fn rss(&self) -> u64 {
        of_trees(vec![locked(&self.keeper).id()])[1] as u64
    }

    /// Last lines that the process has printed.
    pub(super) fn log(&self) -> String {
        let log = locked(&self.log);
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Asks the worker to close its environments and end; false if it cannot be asked.
    pub(super) fn ask_to_close(&self) -> bool {
        let mut request = CLOSE.to_le_bytes().to_vec();
        request.resize(self.request_len, 0);
        self.unsent.is_empty() && send(&self.socket, &request, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Ok(request.len())
    }

    /// True once a worker that was asked to close has ended.
    ///
    /// Takes what the worker still sends, so that it does not wait.
    pub(super) fn has_closed(&self) -> bool {
        let mut some = [0; 4096];
        while recv(&self.socket, &mut some, RecvFlags::DONTWAIT).is_ok_and(|(n, _)| n > 0) {}
        self.status().is_some()
    }

    /// Tells the keeper to kill the worker and all that it has started.
    pub(super) fn kill(&self) {
        // A keeper that has been waited for is no process any more.
        if self.status().is_none() {
            let _ = kill_process(self.pid, Signal::USR2);
        }
    }
}

impl Drop for Process {
    /// Kills the worker and all that it has started.
    fn drop(&mut self) {
        self.kill();
        if self.wait(END_LIMIT).is_none() {
            // The keeper was stopped.
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = locked(&self.keeper).wait();
        }
    }
}

/// Makes a command a subreaper, which gets USR2 when this program dies.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn keep(command: &mut Command) {
    use rustix::process::{getpid, getppid, set_child_subreaper, set_parent_process_death_signal};
    let program = getpid();
    let set = move || {
        set_child_subreaper(Some(getpid()))?;
        set_parent_process_death_signal(Some(Signal::USR2))?;
        if getppid() == Some(program) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: `set` makes system calls only, which a child may do after a fork.
    unsafe { command.pre_exec(set) };
}

/// Processes that the first thread of a process has started.
fn children(pid: i32) -> Option<Vec<i32>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    Some(text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

/// Times run and waited for a processor, of a process and its descendants.
fn cpu_times(pid: i32) -> Option<[Duration; 2]> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    let mut times = stat.split(' ').map_while(|time| time.parse().ok().map(Duration::from_nanos));
    let own = [times.next()?, times.next()?];
    let below = children(pid).unwrap_or_default().into_iter().filter_map(cpu_times);
    Some(below.fold(own, |[ran, waited], [r, w]| [ran + r, waited + w]))
}

/// True for an error after which the call may be repeated.
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn raised(body: &[u8]) -> Failure {
    match serde_json::from_slice(body) {
        Ok(raised) => Failure::Raised(Box::new(raised)),
        Err(error) => Failure::Garbage(format!("report of an exception: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_short_unless_a_core_is_free_of_workers() {
        assert_eq!([Spin::of(1, 1), Spin::of(2, 2), Spin::of(9, 8)], [Spin::SHORT; 3]);
        assert_eq!([Spin::of(1, 2), Spin::of(7, 8)], [Spin::LONG; 2]);
    }
}
