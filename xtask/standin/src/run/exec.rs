//! The interpreter: one block, and up to a barrier one thread, at a time.

use crate::fault::{Fault, How, Kind};
use crate::ptx::{Access, Instruction, Kernel, Operation, SPECIAL, Space};
use crate::run::memory::{Actor, Memory, Phase};
use crate::run::shared::Scratch;

/// Instructions of a thread, beyond which it is thought to run forever.
pub(crate) const MAX_INSTRUCTIONS: u64 = 1 << 28;

/// Observer of what a launch executes.
pub(crate) trait Observer {
    /// Notes that a thread executes an instruction whose guard holds.
    fn executes(&mut self, index: usize);
    /// Notes that the executed instruction accesses memory.
    fn accesses(&mut self, index: usize, space: Space, address: u64, bytes: usize);
    /// Notes that a thread begins, or continues behind a barrier.
    fn enters(&mut self, thread: u32);
    /// Notes that the launch is over.
    fn ends(&mut self) {}
}

/// Observer of nothing.
pub(crate) struct Nothing;

impl Observer for Nothing {
    #[inline(always)]
    fn executes(&mut self, _: usize) {}
    #[inline(always)]
    fn accesses(&mut self, _: usize, _: Space, _: u64, _: usize) {}
    #[inline(always)]
    fn enters(&mut self, _: u32) {}
}

/// Kernel with its grid and its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) params: &'a [u8],
    /// Maximum number of instructions of a thread.
    pub(crate) limit: u64,
}

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Returned,
    /// Waits at the barrier before the instruction with this index.
    Barrier(usize),
}

/// Everything that the threads of a launch share.
struct Run<'a, O> {
    launch: Launch<'a>,
    memory: &'a mut Memory,
    scratch: Scratch,
    actor: Actor<'a>,
    observer: &'a mut O,
    /// Allocation that each instruction used last.
    hints: Vec<u32>,
    /// Difference between a thread's number in the memory's phase and in the launch.
    offset: u32,
    /// First thread of the next block with barriers, in the memory's phases.
    begin: u32,
    /// Most instructions of a thread of the block before the last barrier.
    executed: u64,
    /// True if registers hold the kernel's constants from a block before.
    has_constants: bool,
}

/// Runs all threads of a launch.
pub(crate) fn run<O: Observer>(
    launch: Launch<'_>,
    memory: &mut Memory,
    actor: Actor<'_>,
    observer: &mut O,
) -> Result<(), Box<Fault>> {
    let hints = vec![0; launch.kernel.code.len()];
    memory.phase = Phase::default();
    let scratch = std::mem::take(&mut memory.scratch);
    let mut run = Run { launch, memory, scratch, actor, observer, hints, offset: 0, begin: 0, executed: 0, has_constants: false };
    let [nx, ny, nz] = launch.grid;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                run.block([x, y, z])?;
            }
        }
    }
    run.observer.ends();
    run.memory.scratch = run.scratch;
    Ok(())
}

impl<O: Observer> Run<'_, O> {
    /// Registers of a thread before its first instruction.
    fn begin_thread(&self, registers: &mut [u64], block: [u32; 3], index: u32) {
        let [nx, ny, _] = self.launch.block;
        let thread = [index % nx, index / nx % ny, index / nx / ny];
        let special = [thread, self.launch.block, block, self.launch.grid];
        registers[1..=SPECIAL.len()].iter_mut().zip(special.as_flattened()).for_each(|(to, &from)| *to = from.into());
    }

    fn block(&mut self, block: [u32; 3]) -> Result<(), Box<Fault>> {
        let kernel = self.launch.kernel;
        let n_threads: u32 = self.launch.block.iter().product();
        let [nx, ny, _] = self.launch.grid;
        let first = ((block[2] * ny + block[1]) * nx + block[0]).wrapping_mul(n_threads);
        self.scratch.shared.begin_block(kernel.shared_bytes);
        if !kernel.has_barriers {
            let mut registers = kernel.registers.clone();
            for index in 0..n_threads {
                self.begin_thread(&mut registers, block, index);
                self.thread(&mut registers, 0, first.wrapping_add(index))?;
            }
            return Ok(());
        }
        let mut all = std::mem::take(&mut self.scratch.registers);
        // No instruction changes a constant. Other registers are undefined until they are written.
        if !std::mem::replace(&mut self.has_constants, true) {
            all.clear();
            (0..n_threads).for_each(|_| all.extend_from_slice(&kernel.registers));
        }
        let mut threads: Vec<_> = all.chunks_exact_mut(kernel.registers.len()).map(Some).collect();
        for (index, registers) in threads.iter_mut().flatten().enumerate() {
            self.begin_thread(registers, block, index as u32);
        }
        // A thread that has returned is gone: from compute capability 7.0 on, a barrier waits for the others.
        let (mut at, mut barriers, mut executed) = (0, 0, 0);
        loop {
            self.executed = executed;
            let phase = Phase::new(self.begin, n_threads, barriers);
            self.memory.phase = phase;
            self.offset = phase.first().wrapping_sub(first);
            let mut waiting: Option<(usize, usize)> = None; // a thread, and the instruction behind its barrier
            for (index, thread) in threads.iter_mut().enumerate() {
                let Some(registers) = thread else { continue };
                let (stop, count) = self.thread(registers, at, first.wrapping_add(index as u32))?;
                executed = executed.max(count);
                match (stop, waiting) {
                    (Stop::Returned, _) => *thread = None,
                    (Stop::Barrier(next), None) => waiting = Some((index, next)),
                    (Stop::Barrier(next), Some((other, expected))) if next != expected => {
                        let line = |next: usize| kernel.code[next - 1].line;
                        let (here, there) = (line(next), line(expected));
                        let text = format!("thread {other} waits at line {there}, thread {index} at line {here}");
                        return Err(Fault::new(Kind::Barrier, format!("kernel {}, block {block:?}: {text}", kernel.name)));
                    }
                    (Stop::Barrier(_), Some(_)) => {}
                }
            }
            let Some((_, next)) = waiting else {
                self.begin = phase.first().wrapping_add(n_threads + 1);
                self.scratch.registers = all;
                return Ok(());
            };
            at = next;
            barriers += 1;
            self.scratch.shared.pass_barrier();
        }
    }

    /// Names the kernel, the line and the thread of a fault.
    #[cold]
    fn located(&self, fault: &Fault, instruction: &Instruction, thread: u32) -> Box<Fault> {
        let n_threads: u32 = self.launch.block.iter().product();
        let place = format!(
            "kernel {}, line {}, block {}, thread {}",
            self.launch.kernel.name,
            instruction.line,
            thread / n_threads,
            thread % n_threads
        );
        Fault::new(fault.kind, format!("{place}: {}", fault.text))
    }

    /// Runs a thread from the instruction `at` on, until it returns or waits.
    ///
    /// Returns the number of its instructions, too.
    #[allow(unsafe_code)]
    fn thread(&mut self, registers: &mut [u64], at: usize, thread: u32) -> Result<(Stop, u64), Box<Fault>> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instructions.
            return unsafe { self.thread_with_fma(registers, at, thread) };
        }
        self.interpret(registers, at, thread)
    }

    /// The same: a fused multiply-add is one instruction here, and a call elsewhere.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "fma")]
    fn thread_with_fma(&mut self, registers: &mut [u64], at: usize, thread: u32) -> Result<(Stop, u64), Box<Fault>> {
        self.interpret(registers, at, thread)
    }

    #[inline(always)]
    fn interpret(&mut self, registers: &mut [u64], at: usize, thread: u32) -> Result<(Stop, u64), Box<Fault>> {
        let (code, params) = (&self.launch.kernel.code[..], self.launch.params);
        self.observer.enters(thread);
        let (mut next, mut executed) = (at, self.executed);
        loop {
            let index = next;
            let instruction = &code[index];
            next += 1;
            executed += 1;
            if executed > self.launch.limit {
                let fault = Fault::new(Kind::Endless, format!("more than {} instructions", self.launch.limit));
                return Err(self.located(&fault, instruction, thread));
            }
            if (registers[usize::from(instruction.guard)] != 0) == instruction.unless {
                continue;
            }
            self.observer.executes(index);
            match instruction.operation {
                Operation::Arithmetic(arithmetic) => {
                    let operand = |i: usize| registers[usize::from(instruction.registers[i])];
                    registers[usize::from(instruction.main)] = arithmetic.apply(operand);
                }
                Operation::Branch => next = instruction.offset as usize,
                Operation::Return => return Ok((Stop::Returned, executed)),
                Operation::Barrier => return Ok((Stop::Barrier(next), executed)),
                Operation::LoadParam(bytes) => {
                    let from = &params[instruction.offset as usize..][..usize::from(bytes)];
                    registers[usize::from(instruction.main)] = number(from);
                }
                Operation::Load(access) => {
                    let from = match self.bytes(registers, index, access, How::Read, thread) {
                        Ok(from) => from,
                        Err(fault) => return Err(self.located(&fault, instruction, thread)),
                    };
                    let elements = from.chunks_exact(access.bytes.into());
                    for (&register, element) in instruction.registers.iter().zip(elements) {
                        registers[usize::from(register)] = number(element);
                    }
                }
                Operation::Store(access) => {
                    let to = match self.bytes(registers, index, access, How::Write, thread) {
                        Ok(to) => to,
                        Err(fault) => return Err(self.located(&fault, instruction, thread)),
                    };
                    let elements = to.chunks_exact_mut(access.bytes.into());
                    for (&register, element) in instruction.registers.iter().zip(elements) {
                        let value = registers[usize::from(register)].to_le_bytes();
                        element.copy_from_slice(&value[..element.len()]);
                    }
                }
                Operation::AtomicMin => {
                    let access = Access { space: Space::Global, bytes: 4, count: 1 };
                    let place = match self.bytes(registers, index, access, How::Atomic, thread) {
                        Ok(place) => place,
                        Err(fault) => return Err(self.located(&fault, instruction, thread)),
                    };
                    let [old, value, ..] = instruction.registers.map(usize::from);
                    let before = number(place) as u32;
                    place.copy_from_slice(&before.min(registers[value] as u32).to_le_bytes());
                    registers[old] = before.into();
                }
            }
        }
    }

    /// Returns the bytes that an instruction accesses, after all checks.
    #[inline(always)]
    fn bytes(&mut self, registers: &[u64], index: usize, access: Access, how: How, thread: u32) -> Result<&mut [u8], Box<Fault>> {
        let instruction = &self.launch.kernel.code[index];
        let address = registers[usize::from(instruction.main)].wrapping_add_signed(instruction.offset.into());
        let len = usize::from(access.bytes) * usize::from(access.count);
        self.observer.accesses(index, access.space, address, len);
        match access.space {
            Space::Global => {
                self.memory.access(&mut self.hints[index], address, len, how, &self.actor, thread.wrapping_add(self.offset))
            }
            Space::Shared => self.scratch.shared.access(address, len, how, thread),
        }
    }
}

/// Reads a little-endian number of 1 to 8 bytes.
#[inline(always)]
fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        [a, b, c, d, e, f, g, h] => u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        _ => unreachable!("elements have 1, 2, 4 or 8 bytes"),
    }
}
