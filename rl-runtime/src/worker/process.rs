//! A worker process: spawned, talked to over a socket, killed.
//!
//! Waits spin for a moment before they sleep, because waking a sleeping core takes longer than a step of a small environment.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::Deserialize;

use super::messages::{CLOSE, FAILED, HELLO, Hello, MAX_JSON, REPLY};
use crate::channel::{Sender, bounded};
use crate::interrupt;
use crate::resources::{Counted, of_worker};
use crate::thread::spawn;

/// The worker of Gymnasium environments.
const SCRIPT: &str = include_str!("worker.py");

/// Time that a wait for a reply spins.
///
/// A thread that sleeps may wake on the core of another worker, and then waits for that worker's batch: on two cores of an AMD
/// EPYC (Zen 5), a bare loop of these messages took 287 to 297 k steps/s of 16 CartPoles with 20 us, 264 to 285 k with 100 us,
/// and 144 or 306 k without. Longer waits leave the core to the workers: 16 LunarLanders took 57 k with 100 us and 67 k without.
const SPIN: Duration = Duration::from_micros(20);
/// Longest time that a worker spins, in microseconds.
pub(super) const WORKER_SPIN_US: u64 = 50;
/// Longest wait for a greeting, and for the start of episodes.
///
/// Imports read hundreds of files, which a cold disk takes a while for.
pub(super) const START_LIMIT: Duration = Duration::from_secs(120);
/// Longest wait for an answer after an interrupt.
const INTERRUPTED_LIMIT: Duration = Duration::from_secs(1);
/// Time in which a process ends once asked.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Largest picture of an environment.
const MAX_PIXELS: u64 = 1 << 26;
/// Time in which the log of a process that has ended is read.
const LOG_LIMIT: Duration = Duration::from_millis(500);
/// Lines of a log that are shown.
const LOG_LINES: usize = 20;
/// Bytes of a log that are kept.
const MAX_LOG: usize = 8 << 10;

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
    #[error("no answer within {0:.1?}")]
    Hung(Duration),
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

/// Sender to the thread that spawns all workers.
///
/// The kernel kills a worker when the thread that has spawned it ends, so that thread lives as long as the program.
static SPAWNER: LazyLock<Option<Sender<Work>>> = LazyLock::new(|| {
    let (work, works) = bounded::<Work>(1);
    spawn("spawner", move || works.iter().for_each(|work| work())).ok().map(|_| work)
});

/// Width, height and RGB bytes.
pub(super) type Picture = (usize, usize, Vec<u8>);

/// Worker process.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    _counted: Counted,
    socket: UnixStream,
    log: Arc<Mutex<Vec<u8>>>,
    /// True once the greeting has been read.
    greeted: bool,
    /// Bytes of a request, which the number of environments decides.
    pub(super) request_len: usize,
    limit: Duration,
    /// Time limit of a read, as the socket knows it.
    look: Duration,
    /// True once it has failed to draw, after which it answers nothing.
    is_spent: AtomicBool,
}

impl Process {
    /// Spawns a worker and sends it `ask`, without waiting for the greeting.
    ///
    /// # Errors
    /// The errors of the system, such as a program that does not exist.
    pub(super) fn spawn(launch: &Launch, ask: &str) -> std::io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        let mut command = match launch {
            Launch::Python(python) => {
                let mut command = Command::new(python);
                // Not a file: the first place that Python imports from is then the current directory.
                command.args(["-c", SCRIPT]);
                command
            }
            Launch::Shell(line) => {
                let mut command = Command::new("sh");
                // The shell becomes the program, which is then the process to wait for.
                command.args(["-c", &format!("exec {line}")]);
                command
            }
        };
        // A group of its own: Ctrl-C at the terminal is for this program alone.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        let (spawned, child) = bounded(1);
        let gone = || std::io::Error::other("the thread that spawns workers has ended");
        let work = Box::new(move || drop(spawned.send(command.spawn())));
        SPAWNER.as_ref().ok_or_else(gone)?.send(work).map_err(|_| gone())?;
        let mut child = child.recv().map_err(|_| gone())??;
        let log = Arc::<Mutex<Vec<u8>>>::default();
        if let Some(mut lines) = child.stderr.take() {
            let log = log.clone();
            let read = move || {
                let mut some = [0; 4096];
                while let Ok(n @ 1..) = lines.read(&mut some) {
                    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                    log.extend_from_slice(&some[..n]);
                    let more = log.len().saturating_sub(MAX_LOG);
                    log.drain(..more);
                }
            };
            spawn("worker-log", read).map_err(std::io::Error::other)?;
        }
        socket.set_write_timeout(Some(START_LIMIT))?;
        // If the process has ended already, reading the greeting says so.
        let _ = (&socket).write_all(&[&(ask.len() as u32).to_le_bytes(), ask.as_bytes()].concat());
        Ok(Self {
            _counted: Counted::new(child.id()),
            child,
            socket,
            log,
            greeted: false,
            request_len: 4,
            limit: START_LIMIT,
            look: Duration::ZERO,
            is_spent: AtomicBool::new(false),
        })
    }

    /// Reads the greeting unless it has been read.
    pub(super) fn greet(&mut self) -> Result<Option<Hello>, Failure> {
        if std::mem::replace(&mut self.greeted, true) {
            return Ok(None);
        }
        let limit = std::mem::replace(&mut self.limit, START_LIMIT);
        let mut head = [0; 4];
        let greeting = self.fill(&mut head, 0, 4, Duration::ZERO).and_then(|_| self.json(HELLO, u32::from_le_bytes(head), &[]));
        self.limit = limit;
        let body = greeting?;
        serde_json::from_slice(&body).map(Some).map_err(|error| Failure::Garbage(format!("greeting: {error}")))
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: &[u8]) -> Result<(), Failure> {
        match self.socket.write_all(message) {
            Ok(()) => Ok(()),
            Err(error) if is_timeout(&error) => Err(Failure::Hung(self.limit)),
            // A report may wait in the socket.
            Err(_) => Err(self.last_words()),
        }
    }

    /// Waits for a reply of at least `needed` bytes, within `limit`.
    ///
    /// `len` computes the bytes of the whole reply from those, which begin with the tag.
    pub(super) fn reply(
        &mut self,
        reply: &mut [u8],
        needed: usize,
        limit: Duration,
        len: impl FnOnce(&[u8]) -> usize,
    ) -> Result<(), Failure> {
        self.limit = limit;
        let got = self.fill(reply, 0, 4, SPIN)?;
        let tag = u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]]);
        if tag != REPLY {
            let body = self.json(FAILED, tag, &reply[4..got])?;
            return Err(raised(&body));
        }
        let got = self.fill(reply, got, needed, Duration::ZERO)?;
        let len = len(&reply[..needed]);
        if self.fill(reply, got, len, Duration::ZERO)? == len {
            return Ok(());
        }
        Err(Failure::Garbage("more bytes than the reply has".into()))
    }

    /// Requests a picture; returns width, height and RGB bytes, or `None` without one.
    ///
    /// After a failure there is no picture, and the process is of no use.
    pub(super) fn picture(&self, what: u32) -> Result<Option<Picture>, Failure> {
        if self.is_spent() {
            return Ok(None);
        }
        let mut request = what.to_le_bytes().to_vec();
        request.resize(self.request_len, 0);
        let drawn = (&self.socket).write_all(&request).and_then(|()| {
            self.socket.set_read_timeout(Some(START_LIMIT))?;
            self.read_picture()
        });
        let _ = self.socket.set_read_timeout(Some(self.look));
        let picture = drawn.unwrap_or_else(|error| Err(Failure::Gone(format!("has sent no picture: {error}"))));
        self.is_spent.store(picture.is_err(), Ordering::Relaxed);
        picture
    }

    /// True if the process answers nothing any more.
    pub(super) fn is_spent(&self) -> bool {
        self.is_spent.load(Ordering::Relaxed)
    }

    fn read_picture(&self) -> std::io::Result<Result<Option<Picture>, Failure>> {
        let mut head = [[0; 4]; 2];
        (&self.socket).read_exact(head.as_flattened_mut())?;
        let [tag, height] = head.map(u32::from_le_bytes);
        if tag == FAILED && height as usize <= MAX_JSON {
            let mut report = vec![0; height as usize];
            (&self.socket).read_exact(&mut report)?;
            return Ok(Err(raised(&report)));
        }
        let mut width = [0; 4];
        (&self.socket).read_exact(&mut width)?;
        let width = u32::from_le_bytes(width);
        if tag != REPLY || u64::from(height) * u64::from(width) > MAX_PIXELS {
            return Ok(Err(Failure::Garbage(format!("a picture of {width} x {height} pixels, with the tag {tag}"))));
        }
        let mut pixels = vec![0; height as usize * width as usize * 3];
        (&self.socket).read_exact(&mut pixels)?;
        Ok(Ok((!pixels.is_empty()).then_some((width as usize, height as usize, pixels))))
    }

    /// Reads the JSON after a tag, of which `begun` has been read.
    fn json(&mut self, expected: u32, tag: u32, begun: &[u8]) -> Result<Vec<u8>, Failure> {
        if tag != expected && tag != FAILED {
            let mut bytes = [&tag.to_le_bytes(), begun, &[0; 200]].concat();
            let got = 4 + begun.len();
            let _ = self.socket.set_nonblocking(true);
            let more = self.socket.read(&mut bytes[got..]).unwrap_or(0);
            let shown = String::from_utf8_lossy(&bytes[..(got + more).min(200)]).into_owned();
            return Err(Failure::Garbage(format!("its answer begins with {shown:?}")));
        }
        let mut body = begun.to_vec();
        self.extend(&mut body, 4)?;
        let len = u32::from_le_bytes([body[0], body[1], body[2], body[3]]) as usize;
        if len > MAX_JSON {
            return Err(Failure::Garbage(format!("a text of {len} bytes")));
        }
        self.extend(&mut body, 4 + len)?;
        let body = body[4..].to_vec();
        if tag == FAILED && expected != FAILED { Err(raised(&body)) } else { Ok(body) }
    }

    /// Reads until `buffer` has `len` bytes.
    fn extend(&mut self, buffer: &mut Vec<u8>, len: usize) -> Result<(), Failure> {
        let got = buffer.len();
        buffer.resize(len.max(got), 0);
        self.fill(buffer, got, len, Duration::ZERO).map(drop)
    }

    /// Reads from byte `got` until `buffer` holds `needed`; returns the number held.
    fn fill(&mut self, buffer: &mut [u8], mut got: usize, needed: usize, spin: Duration) -> Result<usize, Failure> {
        let begin = Instant::now();
        while got < needed && begin.elapsed() < spin {
            match recv(&self.socket, &mut buffer[got..], RecvFlags::DONTWAIT) {
                Ok((n @ 1.., _)) => got += n,
                Err(Errno::AGAIN) => std::thread::yield_now(),
                // The read below explains the error.
                _ => break,
            }
        }
        let look = self.limit.min(INTERRUPTED_LIMIT);
        if got < needed && look != self.look {
            self.socket.set_read_timeout(Some(look)).map_err(|error| Failure::Gone(error.to_string()))?;
            self.look = look;
        }
        while got < needed {
            match self.socket.read(&mut buffer[got..]) {
                Ok(0) => return Err(self.gone()),
                Ok(n) => got += n,
                Err(error) if is_timeout(&error) => {
                    if interrupt::drops_rollouts() || begin.elapsed() >= self.limit {
                        return Err(Failure::Hung(begin.elapsed()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(self.gone()),
            }
        }
        Ok(got)
    }

    /// Reads the report of a process that takes no more messages.
    fn last_words(&mut self) -> Failure {
        let mut head = [0; 4];
        self.limit = CLOSE_LIMIT;
        let body = self.fill(&mut head, 0, 4, Duration::ZERO).and_then(|_| self.json(FAILED, u32::from_le_bytes(head), &[]));
        body.map_or_else(|failure| failure, |body| raised(&body))
    }

    /// Describes the end of a process that has closed its socket.
    fn gone(&mut self) -> Failure {
        Failure::Gone(match self.wait(CLOSE_LIMIT) {
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

    /// Waits for the process to end.
    fn wait(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let begin = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(1)),
                _ => return None,
            }
        }
    }

    /// Time that the process has run, and has waited for a processor.
    pub(super) fn cpu_times(&self) -> Option<[Duration; 2]> {
        let stat = std::fs::read_to_string(format!("/proc/{}/schedstat", self.child.id())).ok()?;
        let mut times = stat.split(' ').map_while(|time| time.parse().ok().map(Duration::from_nanos));
        Some([times.next()?, times.next()?])
    }

    /// Resident memory of the process, in bytes.
    pub(super) fn rss(&self) -> u64 {
        of_worker(self.child.id())[1] as u64
    }

    /// Last lines that the process has printed.
    pub(super) fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    /// Kills the process; its guard kills whatever it has started.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
    }
}

impl Drop for Process {
    /// Asks the process to close its environments and end, and kills it if it does not.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let mut request = CLOSE.to_le_bytes().to_vec();
            request.resize(self.request_len.max(4), 0);
            let _ = self.socket.set_write_timeout(Some(CLOSE_LIMIT));
            let asked = self.socket.write_all(&request).is_ok();
            if !asked || self.wait(CLOSE_LIMIT).is_none() {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

fn raised(body: &[u8]) -> Failure {
    match serde_json::from_slice(body) {
        Ok(raised) => Failure::Raised(Box::new(raised)),
        Err(error) => Failure::Garbage(format!("report of an exception: {error}")),
    }
}
