//! Counts of executed instructions by line, and of memory transactions.
//!
//! `RL_STANDIN_COUNTS` names a file to which each process appends, for each kernel that it ran:
//!
//! ```text
//! kernel NAME launches N threads N instructions N global_accesses N sectors N shared_accesses N wavefronts N
//! line NAME LINE EXECUTIONS
//! ```
//!
//! Accesses are those of warps: the threads of a warp that execute an instruction for the k-th time count as one. A sector is an
//! aligned block of 32 bytes of global memory, and a wavefront a pass through the 32 banks of shared memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

use crate::ptx::{Kernel, Space};
use crate::run::exec::Observer;

/// Threads of a warp.
const WARP: u32 = 32;
/// Bytes of a sector.
const SECTOR: u64 = 32;
/// Banks of shared memory, of 4 bytes each.
const BANKS: u64 = 32;

/// Counts of one kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelCounts {
    lines: Vec<u32>,
    executions: Vec<u64>,
    launches: u64,
    threads: u64,
    global_accesses: u64,
    sectors: u64,
    shared_accesses: u64,
    wavefronts: u64,
}

/// Counts of every kernel, by name.
pub(crate) type Counts = BTreeMap<String, KernelCounts>;

/// Returns the counts as text.
pub(crate) fn text(counts: &Counts) -> String {
    let mut text = String::new();
    for (name, kernel) in counts {
        let KernelCounts { launches, threads, global_accesses, sectors, shared_accesses, wavefronts, .. } = kernel;
        let instructions: u64 = kernel.executions.iter().sum();
        let _ = writeln!(
            text,
            "kernel {name} launches {launches} threads {threads} instructions {instructions} global_accesses {global_accesses} sectors {sectors} \
             shared_accesses {shared_accesses} wavefronts {wavefronts}"
        );
        for (line, executions) in kernel.lines.iter().zip(&kernel.executions) {
            let _ = writeln!(text, "line {name} {line} {executions}");
        }
    }
    text
}

/// Memory, addresses and sizes of an access by the threads of a warp.
type WarpAccess = (Space, Vec<(u64, usize)>);

/// Observer that counts a launch.
pub(crate) struct Counter<'a> {
    counts: &'a mut KernelCounts,
    block_threads: u32,
    warp: u32,
    /// Executions of each instruction by the current thread.
    visits: HashMap<usize, u32>,
    /// Accesses of the current warp, by instruction and its k-th execution.
    accesses: HashMap<(usize, u32), WarpAccess>,
}

impl<'a> Counter<'a> {
    pub(crate) fn new(counts: &'a mut Counts, kernel: &Kernel, block_threads: u32) -> Self {
        let counts = counts.entry(kernel.name.clone()).or_default();
        if counts.lines.is_empty() {
            counts.lines = kernel.code.iter().map(|instruction| instruction.line).collect();
            counts.executions = vec![0; kernel.code.len()];
        }
        counts.launches += 1;
        Self { counts, block_threads, warp: u32::MAX, visits: HashMap::new(), accesses: HashMap::new() }
    }

    fn end_warp(&mut self) {
        for (_, (space, places)) in self.accesses.drain() {
            match space {
                Space::Global => {
                    let sectors = places.iter().flat_map(|&(at, len)| at / SECTOR..=(at + len as u64 - 1) / SECTOR);
                    self.counts.global_accesses += 1;
                    self.counts.sectors += sectors.collect::<BTreeSet<_>>().len() as u64;
                }
                Space::Shared => {
                    self.counts.shared_accesses += 1;
                    self.counts.wavefronts += wavefronts(&places);
                }
            }
        }
    }
}

/// Number of passes through the banks: most different words in one bank.
///
/// Accesses of 8 and 16 bytes are served for 16 and 8 threads at a time.
fn wavefronts(places: &[(u64, usize)]) -> u64 {
    let words = places.first().map_or(1, |&(_, len)| len.div_ceil(4));
    let passes = places.chunks(WARP as usize / words).map(|threads| {
        let mut banks = vec![BTreeSet::new(); BANKS as usize];
        for &(at, len) in threads {
            (at / 4..(at + len as u64).div_ceil(4)).for_each(|word| {
                banks[(word % BANKS) as usize].insert(word);
            });
        }
        banks.iter().map(BTreeSet::len).max().unwrap_or(0) as u64
    });
    passes.sum()
}

impl Observer for Counter<'_> {
    fn executes(&mut self, index: usize) {
        self.counts.executions[index] += 1;
    }

    fn accesses(&mut self, index: usize, space: Space, address: u64, bytes: usize) {
        let visit = self.visits.entry(index).or_default();
        *visit += 1;
        self.accesses.entry((index, *visit)).or_insert_with(|| (space, Vec::new())).1.push((address, bytes));
    }

    /// Begins a warp where a block begins, or continues behind a barrier.
    fn enters(&mut self, thread: u32) {
        let warp = thread / self.block_threads * self.block_threads.div_ceil(WARP) + thread % self.block_threads / WARP;
        if warp != self.warp || thread.is_multiple_of(self.block_threads) {
            self.end_warp();
            self.warp = warp;
        }
        self.visits.clear();
        self.counts.threads += 1;
    }

    fn ends(&mut self) {
        self.end_warp();
    }
}
