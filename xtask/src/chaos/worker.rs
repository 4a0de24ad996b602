//! A worker process that misbehaves as planned.
//!
//! `cargo xtask worker PLAN`, a hidden command for `exec:`, steps walks on a line as `docs/worker-protocol.md` asks. `PLAN` is a
//! JSON object:
//!
//! | field | is |
//! |---|---|
//! | `greeting` | the greeting: version, spaces |
//! | `faults` | objects with `phase`, `nth`, `act` and, as the act needs them, `ms`, `seed`, `holds` |
//! | `processes` | `[from, to]`: processes with such an index, in the order of starts, have the faults; `to` may be null |
//! | `close_ms` | time that closing takes |
//! | `stubborn` | true if the worker stays when its socket closes |
//!
//! The `nth` answer of a phase (start, hello, begin, step, restart, step_one, render, close) misbehaves by [`FAULTS`]. The
//! working directory gets a file for each process, `committed` with a line for each fault, and `closed` with a line for each
//! worker that has closed in time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::{Value, json};

use crate::chaos::mutate::{Random, mutate_bytes, mutate_json_text, mutate_numbers};
use crate::process::signal;

/// Tags of a greeting and of a report of an exception.
const HELLO: u32 = 0xA000_0000;
const FAILED: u32 = 0xE000_0000;

/// Time after which a worker that hangs ends, in case that nothing else ends it.
const LONGEST: Duration = Duration::from_secs(300);

/// Phases with an answer; `start` is before the worker reads anything.
pub(crate) const PHASES: [&str; 8] = ["start", "hello", "begin", "step", "restart", "step_one", "render", "close"];

/// Deviations that are no fault: late or slow answers, a noisy log.
pub(crate) const HARMLESS: [&str; 5] = ["none", "late", "pieces", "drip", "stderr"];

/// Faults that `rl` must notice and count.
pub(crate) const FAULTS: [&str; 13] =
    ["trickle", "short", "cut", "long", "random", "flood", "report", "hang", "deaf", "exit", "crash", "shut", "shut-reading"];

/// Deviations that may be a fault or not.
///
/// `scribble` writes to the memory for observations without an end.
pub(crate) const DOUBTFUL: [&str; 7] = ["mutate", "numbers", "json", "length", "flags", "nan", "scribble"];

/// Processes that a worker starts.
///
/// In its group, a group or a session of their own, deaf to signals, or without environment variables.
pub(crate) const FORKS: [&str; 7] =
    ["fork-child", "fork-group", "fork-session", "fork-daemon", "fork-deaf", "fork-tree", "fork-bare"];

/// Lengths of the messages of a greeting's spaces.
#[derive(Clone, Copy, Default)]
struct Lengths {
    /// Elements of an observation, and bytes of each.
    obs: usize,
    element: usize,
    /// Words of an action, and actions in a mask.
    words: usize,
    mask: usize,
}

/// Walks, their socket and plan.
struct Worker {
    plan: Value,
    socket: UnixStream,
    /// Memory for observations, if there is any.
    memory: Option<File>,
    lengths: Lengths,
    /// Answers so far of each phase.
    answers: BTreeMap<&'static str, u64>,
    /// True if the faults of the plan are this process's.
    misbehaves: bool,
    places: Vec<i8>,
    times: Vec<u8>,
}

/// Writes a line to a file of the working directory.
fn note(file: &str, line: &str) -> io::Result<()> {
    File::options().append(true).create(true).open(file)?.write_all(format!("{line}\n").as_bytes())
}

/// Hangs, whatever is sent.
fn hang() -> ! {
    std::thread::sleep(LONGEST);
    std::process::exit(0)
}

/// A text: length and bytes.
fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

impl Lengths {
    fn new(greeting: &Value) -> Self {
        let len = |list: &Value| list.as_array().map_or(0, Vec::len);
        let (observation, action) = (&greeting["observation"], &greeting["action"]);
        let shape = observation["shape"].as_array().into_iter().flatten();
        let obs = shape.map(|axis| axis.as_u64().unwrap_or(1) as usize).product();
        let n = action["n"].as_u64().unwrap_or(0) as usize;
        Self {
            obs,
            element: if observation["dtype"] == "u8" { 1 } else { 4 },
            words: len(&action["low"]).max(1),
            mask: if greeting["masked"] == true { n } else { 0 },
        }
    }
}

/// Serves until the socket closes.
pub(crate) fn serve(plan: &Path) -> Result<()> {
    let plan: Value = serde_json::from_slice(&fs::read(plan).with_context(|| plan.display().to_string())?)?;
    let index = (0..).find(|i| File::create_new(format!("process-{i}")).is_ok()).unwrap_or(u64::MAX);
    let bound = |i: usize| plan["processes"][i].as_u64();
    let misbehaves = bound(0).is_none_or(|from| from <= index) && bound(1).is_none_or(|to| index < to);
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let lengths = Lengths::new(&plan["greeting"]);
    let (answers, places, times) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut worker = Worker { plan, socket, memory: None, lengths, answers, misbehaves, places, times };
    let served = worker.serve();
    if worker.plan["stubborn"] == true {
        hang();
    }
    match served {
        Err(error) if ![ErrorKind::UnexpectedEof, ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind()) => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}

impl Worker {
    fn serve(&mut self) -> io::Result<()> {
        self.answer("start", Vec::new())?;
        self.read_text()?;
        let greeting = self.plan["greeting"].to_string();
        self.answer("hello", [&HELLO.to_le_bytes()[..], &text(greeting.as_bytes())].concat())?;
        loop {
            let what = self.read_word()?;
            let mut actions = vec![0; 4 * self.places.len() * self.lengths.words];
            self.socket.read_exact(&mut actions)?;
            let i = (what >> 8) as usize;
            match what & 0xFF {
                0 => {
                    let reply = self.step(0..self.places.len(), &actions)?;
                    self.answer("step", reply)?;
                }
                1 => {
                    let reply = self.step(i..i + 1, &actions)?;
                    self.answer("step_one", reply)?;
                }
                2 => {
                    (self.places[i], self.times[i]) = (0, 0);
                    let reply = self.step(0..0, &actions)?;
                    self.answer("restart", reply)?;
                }
                3 => {
                    let asked = self.read_text()?;
                    let asked = serde_json::from_slice::<Value>(&asked).unwrap_or_default();
                    let k = asked["seeds"].as_array().map_or(0, Vec::len);
                    (self.places, self.times) = (vec![0; k], vec![0; k]);
                    let has_memory = asked["memory"].as_u64().is_some_and(|len| len > 0);
                    self.memory = if has_memory { Some(received(&self.socket)?) } else { None };
                    let reply = self.step(0..0, &[])?;
                    self.answer("begin", reply)?;
                }
                4 => {
                    let picture = [&[0; 4][..], &4u32.to_le_bytes(), &8u32.to_le_bytes(), &[200; 96]].concat();
                    self.answer("render", picture)?;
                }
                _ => {
                    self.answer("close", Vec::new())?;
                    std::thread::sleep(Duration::from_millis(self.plan["close_ms"].as_u64().unwrap_or(0)));
                    return note("closed", "whole");
                }
            }
        }
    }

    fn read_word(&mut self) -> io::Result<u32> {
        let mut word = [0; 4];
        self.socket.read_exact(&mut word)?;
        Ok(u32::from_le_bytes(word))
    }

    fn read_text(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.read_word()? as usize];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Steps the walks in `which`; returns the reply.
    fn step(&mut self, which: std::ops::Range<usize>, actions: &[u8]) -> io::Result<Vec<u8>> {
        let (k, Lengths { obs, element, words, mask }) = (self.places.len(), self.lengths);
        let row = |place: i8| match element {
            1 => vec![(place + 5) as u8; obs],
            _ => f32::from(place).to_le_bytes().repeat(obs),
        };
        let (mut rewards, mut flags) = (vec![0f32; k], vec![0u8; 2 * k]);
        let (mut finals, mut masks) = (Vec::new(), Vec::new());
        for i in which {
            self.places[i] += if actions[4 * words * i] & 1 == 1 { 1 } else { -1 };
            self.times[i] += 1;
            let (place, is_over) = (self.places[i], self.places[i].abs() == 5);
            rewards[i] = f32::from(u8::from(place == 5));
            (flags[i], flags[k + i]) = (is_over.into(), (!is_over && self.times[i] == 20).into());
            if flags[i] | flags[k + i] == 1 {
                match &self.memory {
                    Some(memory) => memory.write_all_at(&row(place), ((k + i) * obs * element) as u64)?,
                    None => finals.extend(row(place)),
                }
                masks.extend(vec![1; mask]);
                (self.places[i], self.times[i]) = (0, 0);
            }
        }
        let mut reply = vec![0; 4];
        rewards.iter().for_each(|reward| reply.extend(reward.to_le_bytes()));
        reply.extend(flags);
        reply.extend(vec![1; k * mask]);
        reply.resize(reply.len().next_multiple_of(8), 0);
        let observations: Vec<u8> = self.places.iter().flat_map(|&place| row(place)).collect();
        match &self.memory {
            Some(memory) => memory.write_all_at(&observations, 0)?,
            None => reply.extend(observations),
        }
        Ok([reply, finals, masks].concat())
    }

    /// Sends an answer, or misbehaves.
    fn answer(&mut self, phase: &'static str, bytes: Vec<u8>) -> io::Result<()> {
        let answers = self.answers.entry(phase).or_default();
        *answers += 1;
        let is_due = |fault: &&Value| fault["phase"] == phase && fault["nth"] == *answers;
        let faults: Vec<Value> = self.plan["faults"].as_array().into_iter().flatten().filter(is_due).cloned().collect();
        let (forks, faults): (Vec<_>, Vec<_>) =
            faults.into_iter().partition(|fault| fault["act"].as_str().is_some_and(|act| FORKS.contains(&act)));
        forks.iter().try_for_each(start)?;
        match faults.first() {
            Some(fault) if self.misbehaves => {
                let act = fault["act"].as_str().unwrap_or_default();
                if !HARMLESS.contains(&act) {
                    note("committed", &format!("{phase} {act}"))?;
                }
                self.misbehave(fault, act, bytes)
            }
            _ => self.socket.write_all(&bytes),
        }
    }

    fn misbehave(&mut self, fault: &Value, act: &str, mut bytes: Vec<u8>) -> io::Result<()> {
        let pause = || std::thread::sleep(Duration::from_millis(fault["ms"].as_u64().unwrap_or(0)));
        let random = &mut Random::new(fault["seed"].as_u64().unwrap_or(0), 0);
        let k = self.places.len();
        let report = json!({
            "at": random.pick(&["protocol", "import", "find", "make", "spaces", "reset", "step", "render", "\u{1b}[2J"]),
            "env": if random.percent(50) { json!(random.below(3)) } else { Value::Null },
            "kind": "ValueError", "message": "\u{1b}]0;title\u{7} the walker stumbles", "traceback": "line 1\n\u{1b}[2Jline 2\n",
        });
        match act {
            "late" => pause(),
            "pieces" | "drip" | "trickle" => {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (piece, after) = rest.split_at(if act == "pieces" { 1 + random.below(rest.len()) } else { 1 });
                    self.socket.write_all(piece)?;
                    rest = after;
                    pause();
                }
                return Ok(());
            }
            "stderr" => {
                let line = "\u{1b}[2J\u{1b}]0;title\u{7} noise ".repeat(20) + "\n";
                (0..500).for_each(|_| eprint!("{line}"));
            }
            "mutate" => mutate_bytes(&mut bytes, random),
            "numbers" => mutate_numbers(&mut bytes, random),
            "json" if bytes.starts_with(&HELLO.to_le_bytes()) => {
                bytes = [&HELLO.to_le_bytes()[..], &text(&mutate_json_text(&bytes[8..], random))].concat();
            }
            "json" => {
                bytes = [&FAILED.to_le_bytes()[..], &text(&mutate_json_text(report.to_string().as_bytes(), random))].concat()
            }
            "length" => {
                let tag = if bytes.starts_with(&HELLO.to_le_bytes()) { HELLO } else { FAILED };
                let length = random.pick(&[0, 1, 1 << 16, (64 << 20) + 1, 64 << 20, 1 << 31, u32::MAX]).to_le_bytes();
                bytes = [&tag.to_le_bytes()[..], &length, b"{}"].concat();
            }
            "flags" if bytes.len() >= 4 + 6 * k => {
                let at = 4 + 4 * k + random.below(2 * k);
                bytes[at] = 2 + random.below(254) as u8;
            }
            "nan" if bytes.len() >= 4 + 4 * k => {
                let at = 4 + 4 * random.below(k);
                bytes[at..at + 4].copy_from_slice(&random.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]).to_le_bytes());
            }
            "scribble" => {
                if let Some(memory) = &self.memory {
                    let _ = memory.set_len(0); // fails: the length is sealed
                    let (memory, mut random) = (memory.try_clone()?, Random::new(random.next(), 0));
                    let len = memory.metadata()?.len() as usize;
                    std::thread::spawn(move || {
                        loop {
                            let _ = memory.write_all_at(&random.next().to_le_bytes(), random.below(len - 7) as u64);
                        }
                    });
                }
            }
            "long" => bytes.extend(vec![0xFF; 1 + random.below(4000)]),
            "short" | "cut" => {
                let len = random.below(bytes.len());
                self.socket.write_all(&bytes[..len])?;
                if act == "short" { hang() } else { std::process::exit(0) }
            }
            "random" => {
                bytes = (0..4 + random.below(500)).map(|_| random.next() as u8).collect();
                bytes[3] = 0x77;
            }
            "flood" => loop {
                self.socket.write_all(&[0xFF; 1 << 16])?;
            },
            "report" => {
                self.socket.write_all(&[&FAILED.to_le_bytes()[..], &text(report.to_string().as_bytes())].concat())?;
                std::process::exit(1);
            }
            "hang" => hang(),
            "deaf" => {
                self.socket.write_all(&bytes)?;
                hang();
            }
            "exit" => std::process::exit(random.below(256) as i32),
            "crash" => {
                let name = random.pick(&["KILL", "SEGV", "ABRT", "STOP"]);
                signal(std::process::id(), name).map_err(io::Error::other)?;
                hang();
            }
            "shut" | "shut-reading" => {
                self.socket.shutdown(if act == "shut" { Shutdown::Both } else { Shutdown::Read })?;
                hang();
            }
            _ => {}
        }
        self.socket.write_all(&bytes)
    }
}

/// Receives the file of the memory for observations.
fn received(socket: &UnixStream) -> io::Result<File> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut [0])], &mut files, RecvFlags::CMSG_CLOEXEC)?;
    let file = files.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    file.map(File::from).ok_or_else(|| io::Error::other("no descriptor follows BEGIN"))
}

/// Starts a process of [`FORKS`].
///
/// One that holds keeps the worker's socket and log open.
fn start(fork: &Value) -> io::Result<()> {
    let line = match fork["act"].as_str() {
        Some("fork-session") => "exec setsid sleep 300",
        Some("fork-daemon") => "setsid -f sleep 300",
        Some("fork-deaf") => "trap '' HUP INT TERM; exec sleep 300",
        Some("fork-tree") => "sleep 300 & setsid sleep 300 & exec sleep 300",
        // The argument marks it as a process of this run.
        Some("fork-bare") => "exec setsid env -i sleep 300 $RL_MARK",
        _ => "exec sleep 300",
    };
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdout(Stdio::null());
    if fork["act"] == "fork-group" {
        command.process_group(0);
    }
    if fork["holds"] != true {
        command.stdin(Stdio::null()).stderr(Stdio::null());
    }
    command.spawn().map(drop)
}
