//! Streams, events and graphs: queued work, its order, and when it runs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::fault::{Fault, How, Kind};
use crate::pinned::{Direction, Slab};
use crate::ptx::Kernel;
use crate::run::counts::{self, Counter, Counts};
use crate::run::exec::{self, Launch, Nothing};
use crate::run::memory::{Actor, MAX_STREAMS, Memory};
use crate::run::mutants::Mutants;
use crate::settings::{Schedule, Settings};

/// Error code of the driver.
pub(crate) type Code = i32;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const INVALID_DEVICE: Code = 101;
pub(crate) const INVALID_CONTEXT: Code = 201;
pub(crate) const INVALID_PTX: Code = 218;
pub(crate) const INVALID_HANDLE: Code = 400;
pub(crate) const NOT_FOUND: Code = 500;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ILLEGAL_ADDRESS: Code = 700;
pub(crate) const LAUNCH_FAILED: Code = 719;
pub(crate) const CAPTURE_UNSUPPORTED: Code = 900;
pub(crate) const CAPTURE_INVALIDATED: Code = 901;
pub(crate) const CAPTURE_ISOLATION: Code = 905;
pub(crate) const CAPTURED_EVENT: Code = 907;

/// Host memory of a copy.
#[derive(Clone, Debug)]
pub(crate) enum HostMemory {
    /// Bytes of pageable memory, taken when the copy was queued.
    Staged(Arc<[u8]>),
    /// Address in pageable memory, which the copy writes before the call returns.
    Pageable(usize),
    /// Driver's address in a slab, and the slab's address.
    Pinned { own: usize, slab: usize },
}

/// Work of a stream or a graph.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Launch { kernel: Arc<Kernel>, grid: [u32; 3], block: [u32; 3], params: Arc<[u8]> },
    ToDevice { to: u64, from: HostMemory, len: usize },
    ToHost { to: HostMemory, from: u64, len: usize },
    Within { to: u64, from: u64, len: usize },
    Fill { to: u64, value: u8, len: usize },
    Record(Arc<Mark>),
    Wait(Arc<Mark>),
}

impl Work {
    /// Returns the slab that a copy uses, and the direction.
    fn pinned(&self) -> Option<(usize, Direction)> {
        match self {
            Self::ToDevice { from: HostMemory::Pinned { slab, .. }, .. } => Some((*slab, Direction::FromHost)),
            Self::ToHost { to: HostMemory::Pinned { slab, .. }, .. } => Some((*slab, Direction::ToHost)),
            _ => None,
        }
    }
}

/// One recording of an event.
#[derive(Debug)]
pub(crate) struct Mark {
    stream: usize,
    done: OnceLock<(Vec<u32>, Instant)>,
}

impl Mark {
    pub(crate) fn time(&self) -> Option<Instant> {
        self.done.get().map(|(_, time)| *time)
    }
}

#[derive(Debug)]
struct Queued {
    work: Work,
    seq: u32,
    /// Clock of the host when it queued the work.
    host: Vec<u32>,
}

/// Work captured so far.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    pub(crate) work: Vec<Work>,
    /// True after a call that no capture allows.
    pub(crate) is_broken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Stream {
    queue: VecDeque<Queued>,
    issued: u32,
    clock: Vec<u32>,
    pub(crate) capture: Option<Capture>,
    pub(crate) is_destroyed: bool,
}

/// Event: its last recording, if any, and whether that belongs to a capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Event {
    pub(crate) mark: Option<Arc<Mark>>,
    pub(crate) is_captured: bool,
}

/// Everything that the process knows of its devices.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) memory: Memory,
    pub(crate) streams: Vec<Stream>,
    pub(crate) events: HashMap<u64, Event>,
    /// Kernels of each module, by handle.
    pub(crate) modules: HashMap<u64, Vec<u64>>,
    pub(crate) functions: HashMap<u64, Arc<Kernel>>,
    pub(crate) graphs: HashMap<u64, Arc<[Work]>>,
    pub(crate) slabs: BTreeMap<usize, Slab>,
    /// Error that every later call returns.
    pub(crate) sticky: Option<Code>,
    /// Number of launches that have run.
    launches: u64,
    host: Vec<u32>,
    last_handle: u64,
    random: u64,
    counts: Counts,
    pub(crate) mutants: Option<Mutants>,
}

impl Driver {
    pub(crate) fn new(settings: Settings) -> Self {
        let seed = if let Schedule::Random(seed) = settings.schedule { seed } else { 0 };
        Self {
            mutants: settings.mutants.clone().map(Mutants::read),
            settings,
            memory: Memory::default(),
            streams: vec![Stream::default()],
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            slabs: BTreeMap::new(),
            sticky: None,
            launches: 0,
            host: Vec::new(),
            last_handle: 0x1000,
            random: seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            counts: Counts::new(),
        }
    }

    /// Reports an error to standard error, and returns its code.
    pub(crate) fn refuse(&mut self, code: Code, text: &str) -> Code {
        eprintln!("STAND-IN: {text}");
        code
    }

    pub(crate) fn new_handle(&mut self) -> u64 {
        self.last_handle += 1;
        self.last_handle
    }

    /// Returns the index of a live stream.
    pub(crate) fn stream(&mut self, handle: usize) -> Result<usize, Code> {
        match self.streams.get(handle) {
            Some(stream) if !stream.is_destroyed => Ok(handle),
            _ => Err(self.refuse(INVALID_HANDLE, "no such stream")),
        }
    }

    /// Creates a stream, in the place of a destroyed and empty one if possible.
    pub(crate) fn new_stream(&mut self) -> Result<usize, Code> {
        let host = &self.host;
        let is_free = |(i, stream): &(usize, &Stream)| {
            let known = host.get(*i).copied().unwrap_or(0);
            stream.is_destroyed && stream.queue.is_empty() && known >= stream.issued
        };
        if let Some((index, _)) = self.streams.iter().enumerate().find(is_free) {
            self.streams[index].is_destroyed = false;
            return Ok(index);
        }
        if self.streams.len() == MAX_STREAMS {
            return Err(self.refuse(OUT_OF_MEMORY, "too many streams"));
        }
        self.streams.push(Stream::default());
        Ok(self.streams.len() - 1)
    }

    /// Returns the streams that any thread captures.
    pub(crate) fn capturing(&self) -> Vec<usize> {
        (0..self.streams.len()).filter(|&index| self.streams[index].capture.is_some()).collect()
    }

    /// Refuses a call that captures forbid, and breaks them.
    pub(crate) fn refuse_in_capture(&mut self, captures: &[usize], what: &str) -> Result<(), Code> {
        if captures.is_empty() {
            return Ok(());
        }
        for &stream in captures {
            if let Some(capture) = &mut self.streams[stream].capture {
                capture.is_broken = true;
            }
        }
        Err(self.refuse(CAPTURE_UNSUPPORTED, &format!("{what} during a capture")))
    }

    /// Queues work on a stream, or adds it to the stream's capture.
    pub(crate) fn queue(&mut self, index: usize, work: Work) -> Result<(), Code> {
        let stream = &mut self.streams[index];
        if let Some(capture) = &mut stream.capture {
            capture.work.push(work);
            return Ok(());
        }
        stream.issued += 1;
        let seq = stream.issued;
        if let Some((slab, direction)) = work.pinned() {
            let Some(slab) = self.slabs.get_mut(&slab) else {
                return Err(self.refuse(ILLEGAL_ADDRESS, "use after free: a copy of a freed slab"));
            };
            slab.begin_copy(index, seq, direction);
        }
        self.streams[index].queue.push_back(Queued { work, seq, host: self.host.clone() });
        if self.settings.schedule == Schedule::Eager { self.run_stream(index) } else { Ok(()) }
    }

    /// Creates the mark of an event that is recorded on a stream.
    pub(crate) fn new_mark(stream: usize) -> Arc<Mark> {
        Arc::new(Mark { stream, done: OnceLock::new() })
    }

    /// Runs work until a stream is empty; the host does not know it yet.
    fn run_stream(&mut self, index: usize) -> Result<(), Code> {
        while !self.streams[index].queue.is_empty() {
            let next = self.choose(index);
            self.advance(next)?;
        }
        Ok(())
    }

    /// Waits until a stream is empty.
    pub(crate) fn wait_for_stream(&mut self, index: usize) -> Result<(), Code> {
        self.run_stream(index)?;
        let clock = self.streams[index].clock.clone();
        self.host_learns(&clock);
        Ok(())
    }

    /// Waits until all streams are empty; streams created last run first.
    pub(crate) fn wait_for_all(&mut self) -> Result<(), Code> {
        (0..self.streams.len()).rev().try_for_each(|index| self.wait_for_stream(index))
    }

    /// Waits for a mark.
    pub(crate) fn wait_for_mark(&mut self, mark: &Mark) -> Result<(), Code> {
        while mark.done.get().is_none() {
            let next = self.choose(mark.stream);
            self.advance(next)?;
        }
        self.check_mark(mark);
        Ok(())
    }

    /// Returns true if a mark is done; otherwise some work advances.
    pub(crate) fn ask_for_mark(&mut self, mark: &Mark) -> Result<bool, Code> {
        if self.check_mark(mark) {
            return Ok(true);
        }
        let next = self.choose(mark.stream);
        self.advance(next)?;
        Ok(false)
    }

    /// Returns true if a mark is done; the host knows it then.
    fn check_mark(&mut self, mark: &Mark) -> bool {
        let Some((clock, _)) = mark.done.get() else { return false };
        self.host_learns(clock);
        true
    }

    fn host_learns(&mut self, clock: &[u32]) {
        join(&mut self.host, clock);
        self.slabs.values_mut().for_each(|slab| slab.refresh(&self.host));
    }

    /// Returns a stream whose next work advances `wanted`, as the schedule has it.
    fn choose(&mut self, wanted: usize) -> usize {
        if let Schedule::Random(_) = self.settings.schedule {
            let ready: Vec<usize> = (0..self.streams.len()).filter(|&index| self.is_ready(index)).collect();
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            if let Some(&chosen) = ready.get((self.random % ready.len().max(1) as u64) as usize) {
                return chosen;
            }
        }
        let mut index = wanted;
        // Marks are recorded by work that was queued before the wait, so the chain ends.
        while let Some(Queued { work: Work::Wait(mark), .. }) = self.streams[index].queue.front()
            && mark.done.get().is_none()
        {
            index = mark.stream;
        }
        index
    }

    fn is_ready(&self, index: usize) -> bool {
        match self.streams[index].queue.front() {
            None => false,
            Some(Queued { work: Work::Wait(mark), .. }) => mark.done.get().is_some(),
            Some(_) => true,
        }
    }

    /// Runs the next work of a stream.
    fn advance(&mut self, index: usize) -> Result<(), Code> {
        let Some(Queued { work, seq, host }) = self.streams[index].queue.pop_front() else { return Ok(()) };
        let mut clock = std::mem::take(&mut self.streams[index].clock);
        clock.resize(self.streams.len(), 0);
        join(&mut clock, &host);
        clock[index] = seq;
        if let Work::Wait(mark) = &work
            && let Some((before, _)) = mark.done.get()
        {
            join(&mut clock, before);
        }
        self.launches += u64::from(matches!(work, Work::Launch { .. }));
        if self.launches > self.settings.launches {
            return Err(self.lose(LAUNCH_FAILED));
        }
        let overlapping = work.pinned().and_then(|(slab, direction)| {
            let done = |stream: usize| self.streams[stream].clock.get(stream).copied().unwrap_or(0);
            self.slabs.get(&slab)?.overlapping(index, &clock, done, direction)
        });
        let ran = match overlapping {
            Some(other) => {
                let text = format!("operation {seq} of stream {index} copies page-locked memory that stream {other} copies, too");
                Err(Fault::new(Kind::Race, text))
            }
            None => self.run(&work, Actor { stream: index as u32, seq, clock: &clock }),
        };
        if let Work::Record(mark) = &work {
            let _ = mark.done.set((clock.clone(), Instant::now()));
        }
        self.streams[index].clock = clock;
        ran.map_err(|fault| {
            self.refuse(ILLEGAL_ADDRESS, &fault.to_string());
            self.lose(ILLEGAL_ADDRESS)
        })
    }

    /// Drops all work, and lets every later call return an error.
    fn lose(&mut self, code: Code) -> Code {
        self.sticky = Some(code);
        self.streams.iter_mut().for_each(|stream| stream.queue.clear());
        self.slabs.values_mut().for_each(Slab::drop_copies);
        code
    }

    #[allow(unsafe_code)]
    fn run(&mut self, work: &Work, by: Actor<'_>) -> Result<(), Box<Fault>> {
        match work {
            Work::Launch { kernel, grid, block, params } => {
                let launch = Launch { kernel, grid: *grid, block: *block, params, limit: exec::MAX_INSTRUCTIONS };
                if let Some(mutants) = &mut self.mutants {
                    mutants.run(launch, &mut self.memory, by);
                }
                if self.settings.counts.is_some() {
                    let mut counter = Counter::new(&mut self.counts, kernel, block.iter().product());
                    return exec::run(launch, &mut self.memory, by, &mut counter);
                }
                exec::run(launch, &mut self.memory, by, &mut Nothing)
            }
            Work::ToDevice { to, from, len } => {
                let to = self.memory.range(*to, *len, How::Write, &by)?;
                match from {
                    HostMemory::Staged(bytes) => to.copy_from_slice(bytes),
                    HostMemory::Pinned { own: from, .. } | HostMemory::Pageable(from) => {
                        let from = std::ptr::with_exposed_provenance::<u8>(*from);
                        // SAFETY: the copy's caller passed a slab of this length, which lives while copies are in flight.
                        unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), *len) };
                    }
                }
                Ok(())
            }
            Work::ToHost { to, from, len } => {
                let from = self.memory.range(*from, *len, How::Read, &by)?;
                if let HostMemory::Pinned { own: to, .. } | HostMemory::Pageable(to) = to {
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(*to);
                    // SAFETY: the copy's caller passed memory of this length. A slab lives while copies are in flight, and the
                    // call that passed pageable memory has not returned yet.
                    unsafe { from.as_ptr().copy_to_nonoverlapping(to, *len) };
                }
                Ok(())
            }
            Work::Within { to, from, len } => {
                let bytes = self.memory.range(*from, *len, How::Read, &by)?.to_vec();
                self.memory.range(*to, *len, How::Write, &by)?.copy_from_slice(&bytes);
                Ok(())
            }
            Work::Fill { to, value, len } => {
                self.memory.range(*to, *len, How::Write, &by)?.fill(*value);
                Ok(())
            }
            Work::Record(_) | Work::Wait(_) => Ok(()),
        }
    }

    /// Runs the work that is left and writes the counts; false after a fault.
    pub(crate) fn finish(&mut self) -> bool {
        let ran = self.sticky == Some(LAUNCH_FAILED) || self.sticky.is_none() && self.wait_for_all().is_ok();
        if let Some(path) = &self.settings.counts {
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            let written = file.and_then(|mut file| std::io::Write::write_all(&mut file, counts::text(&self.counts).as_bytes()));
            if let Err(error) = written {
                eprintln!("STAND-IN: {}: {error}", path.display());
                return false;
            }
        }
        if let Some(mutants) = &self.mutants
            && let Err(error) = mutants.finish()
        {
            eprintln!("STAND-IN: RL_STANDIN_MUTANTS: {error}");
            return false;
        }
        ran
    }
}

fn join(clock: &mut Vec<u32>, other: &[u32]) {
    if clock.len() < other.len() {
        clock.resize(other.len(), 0);
    }
    clock.iter_mut().zip(other).for_each(|(mine, &theirs)| *mine = (*mine).max(theirs));
}
