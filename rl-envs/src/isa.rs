//! Instruction sets: the same code compiled once for each, and the best chosen at run time.
//!
//! Code without fused multiply-add gives the same bits with all of them, for the compiler never fuses on its own.
#![allow(unsafe_code)]

use serde::{Deserialize, Serialize};

/// An instruction set to run with. Results differ in rounding between those with and without fused multiply-add.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// 512-bit vectors with fused multiply-add.
    Avx512,
    /// 256-bit vectors with fused multiply-add.
    Avx2,
    /// Whatever every machine has.
    Plain,
}

impl Isa {
    /// All of them, the fastest first.
    pub const ALL: [Self; 3] = [Self::Avx512, Self::Avx2, Self::Plain];

    /// Whether this machine has it.
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
                Self::Plain => true,
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Plain
        }
    }

    /// The fastest that this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.into_iter().find(|isa| isa.supported()).unwrap_or(Self::Plain)
    }
}

/// Work that is compiled once for each instruction set.
pub trait Work {
    /// What it gives.
    type Output;
    /// Does it, with fused multiply-add or without; the registers hold `ROWS` rows of `WIDE` numbers as sums. It has to be
    /// `inline(always)`, for only what stands in line is compiled for the instruction set (a closure is not).
    fn run<const FMA: bool, const ROWS: usize, const WIDE: usize>(self) -> Self::Output;
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
        _ => work.run::<false, 2, 16>(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512bw,avx2,fma")]
fn avx512<W: Work>(work: W) -> W::Output {
    work.run::<true, 6, 64>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2<W: Work>(work: W) -> W::Output {
    work.run::<true, 6, 16>()
}
