//! Instruction sets: code compiled once for each, the best chosen at run time.
//!
//! Code without fused multiply-add gives the same bits with every instruction set, for the compiler never fuses on its own.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

/// Index in [`Isa::ALL`] of the fastest instruction set that may be used.
static FASTEST: AtomicUsize = AtomicUsize::new(0);

/// An instruction set to run with.
///
/// Results differ in rounding between sets with and without fused multiply-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// 128-bit vectors with fused multiply-add, which every aarch64 machine has.
    Neon,
    /// The instructions that every machine has.
    Plain,
}

impl Isa {
    /// All instruction sets, the fastest first, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Plain];

    /// True if this machine has it.
    #[must_use]
    pub fn supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            let avx512 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512bw");
            match self {
                Self::Avx512 => avx2 && avx512,
                Self::Avx2 => avx2,
                Self::Neon => false,
                Self::Plain => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Plain || cfg!(target_arch = "aarch64") && self == Self::Neon
        }
    }

    /// The fastest that this machine has and [`Isa::limit`] allows.
    #[must_use]
    pub fn best() -> Self {
        let allowed = &Self::ALL[FASTEST.load(Ordering::Relaxed)..];
        allowed.iter().copied().find(|isa| isa.supported()).unwrap_or(Self::Plain)
    }

    /// Uses nothing faster from now on, to measure as on a machine without it.
    ///
    /// For a program's first lines: environments and networks keep the instruction set that they were created with.
    pub fn limit(self) {
        FASTEST.store(self as usize, Ordering::Relaxed);
    }
}

/// An instruction set as a type, for code that is compiled once for each.
pub trait Set: Copy {
    /// True if multiply-adds are fused.
    const FMA: bool;
    /// The same instruction set as a value.
    const ISA: Isa;

    /// Returns `a * b + c`, rounded once if multiply-adds are fused.
    #[inline(always)]
    fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
        if Self::FMA { a.mul_add(b, c) } else { a * b + c }
    }
}

/// [`Isa::Avx512`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct Avx512;

/// [`Isa::Avx2`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct Avx2;

/// [`Isa::Neon`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct Neon;

/// [`Isa::Plain`] as a type.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl Set for Avx512 {
    const FMA: bool = true;
    const ISA: Isa = Isa::Avx512;
}

impl Set for Avx2 {
    const FMA: bool = true;
    const ISA: Isa = Isa::Avx2;
}

impl Set for Neon {
    const FMA: bool = true;
    const ISA: Isa = Isa::Neon;
}

impl Set for Plain {
    const FMA: bool = false;
    const ISA: Isa = Isa::Plain;
}

/// Work that is compiled once for each instruction set.
pub trait Work {
    /// Result of the work.
    type Output;

    /// Does the work with the instructions of `S`.
    ///
    /// Implementations must be `inline(always)`, and so must what they call: only inlined code is compiled for the instruction
    /// set. Closures are not.
    fn run<S: Set>(self) -> Self::Output;
}

/// Runs `work` compiled for an instruction set.
///
/// # Panics
/// If this machine does not have it.
pub fn dispatch<W: Work>(isa: Isa, work: W) -> W::Output {
    assert!(isa.supported(), "this machine has no {isa:?}");
    match isa {
        // SAFETY: the assertion above says that the machine has the instructions.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(work) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(work) },
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => work.run::<Neon>(),
        _ => work.run::<Plain>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn avx512<W: Work>(work: W) -> W::Output {
    work.run::<Avx512>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<W: Work>(work: W) -> W::Output {
    work.run::<Avx2>()
}
