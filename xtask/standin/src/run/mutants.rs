//! Mutants: changed kernels that run beside the original, on the same memory.
//!
//! `RL_STANDIN_MUTANTS` names a file of lines `ENTRY:LINE:TEXT`, each a kernel with another text in a line of its module. At
//! every launch of the entry that reaches the line, its mutants run on the memory before the launch. One that faults or writes
//! other bytes than the original is noticed. When the process ends, the file holds the mutants that nothing has noticed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::ptx::{self, Kernel, Space, TRUE};
use crate::run::exec::{self, Launch, Nothing, Observer};
use crate::run::memory::{Actor, Memory, Written};

/// Kernel with one line changed.
#[derive(Debug)]
struct Mutant {
    /// Line of the module.
    line: u32,
    /// Changed line.
    text: String,
    /// Parsed at the first launch.
    kernel: Option<Kernel>,
}

/// Mutants that nothing has noticed so far.
#[derive(Debug)]
pub(crate) struct Mutants {
    path: PathBuf,
    /// Mutants by entry.
    entries: BTreeMap<String, Vec<Mutant>>,
    /// Text of each entry, once its module is loaded.
    texts: HashMap<String, String>,
}

impl Mutants {
    /// Reads the mutants.
    ///
    /// # Panics
    /// If the file cannot be read, or a line names no entry.
    pub(crate) fn read(path: PathBuf) -> Self {
        let mut entries = BTreeMap::<_, Vec<_>>::new();
        for line in std::fs::read_to_string(&path).expect("RL_STANDIN_MUTANTS names a file").lines() {
            let [entry, at, text] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { panic!("ENTRY:LINE:TEXT, not {line}") };
            let mutant = Mutant { line: at.parse().expect("LINE is a number"), text: text.to_owned(), kernel: None };
            entries.entry(entry.to_owned()).or_default().push(mutant);
        }
        Self { path, entries, texts: HashMap::new() }
    }

    /// Keeps the texts of a module's entries.
    pub(crate) fn load(&mut self, module: &str) {
        for entry in self.entries.keys() {
            if let Some(text) = ptx::alone(module, entry) {
                self.texts.entry(entry.clone()).or_insert(text);
            }
        }
    }

    /// Runs the mutants of a kernel, and drops those that are noticed.
    pub(crate) fn run(&mut self, launch: Launch<'_>, memory: &mut Memory, by: Actor<'_>) {
        let name = &launch.kernel.name;
        let (Some(mutants), Some(text)) = (self.entries.get_mut(name), self.texts.get(name)) else { return };
        if mutants.is_empty() {
            return;
        }
        let mut path = Path { reached: vec![false; launch.kernel.code.len()], ..Path::default() };
        let original = memory.attempt(|memory| exec::run(launch, memory, by, &mut path));
        let Ok(original) = original else { return }; // the launch itself reports its fault
        let limit = 64 * path.executed.iter().max().copied().unwrap_or_default() + 100_000;
        // A guarded instruction may be reached without being executed.
        let code = launch.kernel.code.iter().zip(&path.reached);
        let reached: BTreeSet<u32> = code
            .filter(|(instruction, reached)| **reached || instruction.guard != TRUE)
            .map(|(instruction, _)| instruction.line)
            .collect();
        mutants.retain_mut(|mutant| {
            if !reached.contains(&mutant.line) {
                return true;
            }
            if mutant.kernel.is_none() {
                mutant.kernel = ptx::parse(&ptx::with_line(text, mutant.line as usize, &mutant.text))
                    .ok()
                    .and_then(|mut kernels| kernels.pop());
            }
            let Some(kernel) = &mutant.kernel else { return true };
            let launch = Launch { kernel, limit, ..launch };
            let written = memory.attempt(|memory| exec::run(launch, memory, by, &mut Nothing));
            written.is_ok_and(|written| written == original || effect(&written) == effect(&original))
        });
    }

    /// Writes the mutants that are left.
    pub(crate) fn finish(&self) -> std::io::Result<()> {
        let mut text = String::new();
        for (entry, mutants) in &self.entries {
            mutants.iter().for_each(|mutant| {
                let _ = writeln!(text, "{entry}:{}:{}", mutant.line, mutant.text);
            });
        }
        std::fs::write(&self.path, text)
    }
}

/// Bytes that a launch changed, with their last values.
fn effect(written: &[Written]) -> BTreeMap<(u32, usize), u8> {
    let mut bytes = BTreeMap::new();
    for write in written {
        for (i, (&before, &after)) in write.before.iter().zip(&write.after).enumerate().take(write.len) {
            bytes.entry((write.allocation, write.at + i)).or_insert((before, after));
        }
    }
    bytes.into_iter().filter(|(_, (before, after))| before != after).map(|(place, (_, after))| (place, after)).collect()
}

/// Observer of the instructions reached, and of each thread's number of them.
#[derive(Default)]
struct Path {
    reached: Vec<bool>,
    executed: Vec<u64>,
    thread: usize,
}

impl Observer for Path {
    fn executes(&mut self, index: usize) {
        self.reached[index] = true;
        self.executed[self.thread] += 1;
    }

    fn accesses(&mut self, _: usize, _: Space, _: u64, _: usize) {}

    fn enters(&mut self, thread: u32) {
        self.thread = thread as usize;
        self.executed.resize(self.executed.len().max(self.thread + 1), 0);
    }
}
