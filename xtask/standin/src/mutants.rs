//! Mutants: changed kernels that run beside the original, on the same memory.
//!
//! `RL_STANDIN_MUTANTS` names a file of lines `ENTRY:LINE:TEXT`, each a kernel with another text in a line of its module. At every
//! launch of the entry, its mutants run on the memory before the launch. One that faults or writes other bytes than the original is
//! noticed. When the process ends, the file holds the mutants that nothing has noticed.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::exec::{self, Launch, Nothing, Observer};
use crate::memory::{Actor, Memory, Written};
use crate::ptx::{self, Kernel, Space};

/// Kernel with one line changed.
#[derive(Debug)]
struct Mutant {
    /// Line of the module, and what stands there.
    change: String,
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
            let (entry, change) = line.split_once(':').expect("ENTRY:LINE:TEXT");
            entries.entry(entry.to_owned()).or_default().push(Mutant { change: change.to_owned(), kernel: None });
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
        let mut longest = Longest::default();
        let original = memory.attempt(|memory| exec::run(launch, memory, by, &mut longest));
        let Ok(original) = original else { return }; // the launch itself reports its fault
        let limit = 64 * longest.longest + 1_000_000;
        mutants.retain_mut(|mutant| {
            if mutant.kernel.is_none() {
                mutant.kernel = changed(text, &mutant.change);
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
                let _ = writeln!(text, "{entry}:{}", mutant.change);
            });
        }
        std::fs::write(&self.path, text)
    }
}

/// Parses an entry with a change `LINE:TEXT`; `None` if that is no PTX.
fn changed(text: &str, change: &str) -> Option<Kernel> {
    let (line, new) = change.split_once(':')?;
    ptx::parse(&ptx::with_line(text, line.parse().ok()?, new)).ok()?.pop()
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

/// Observer of the most instructions that a thread executes without a barrier.
#[derive(Default)]
struct Longest {
    current: u64,
    longest: u64,
}

impl Observer for Longest {
    fn executes(&mut self, _: usize) {
        self.current += 1;
        self.longest = self.longest.max(self.current);
    }

    fn accesses(&mut self, _: usize, _: Space, _: u64, _: usize) {}

    fn enters(&mut self, _: u32) {
        self.current = 0;
    }
}
