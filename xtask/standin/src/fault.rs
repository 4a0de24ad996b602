//! Faults: what a program may not do on a device.

use std::fmt;

/// Way of accessing memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    Write,
    Atomic,
}

/// Kind of a fault; its text is what tests look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An access beyond an allocation.
    OutOfBounds,
    /// An access to freed memory.
    Freed,
    /// An address that is not a multiple of the access's size.
    Misaligned,
    /// A read of memory that was never written.
    Uninitialized,
    /// Two accesses, one of them a write, without an order between them.
    Race,
    /// Threads of a block at different barriers.
    Barrier,
    /// A thread that executes more instructions than any kernel should.
    Endless,
}

impl Kind {
    /// Returns the name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfBounds => "out of bounds",
            Self::Freed => "use after free",
            Self::Misaligned => "misaligned",
            Self::Uninitialized => "uninitialized",
            Self::Race => "race",
            Self::Barrier => "divergent barrier",
            Self::Endless => "endless kernel",
        }
    }
}

/// Fault of a kernel or a copy.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Kind.
    pub kind: Kind,
    /// Message: address, and for a kernel its name, line of PTX, block and thread.
    pub text: String,
}

impl Fault {
    pub(crate) fn new(kind: Kind, text: String) -> Box<Self> {
        Box::new(Self { kind, text })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.text)
    }
}

impl std::error::Error for Fault {}
