//! Errors.

use core::fmt;

use crate::format::VERSION;

/// Error of a file or of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The bytes are no policy's file.
    Magic,
    /// The file is of another version of the format.
    Version(u32),
    /// The file is shorter, or longer, than it says.
    Length,
    /// The checksum differs: the file is damaged.
    Checksum,
    /// The parts of the file do not fit together.
    Contents,
    /// The slice with this name has another length, or element type, than the policy's.
    Call(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("this is no policy file"),
            Self::Version(version) => {
                write!(f, "the policy file has version {version} of the format; this loader reads {VERSION}")
            }
            Self::Length => f.write_str("the policy file is cut off, or followed by something else"),
            Self::Checksum => f.write_str("the policy file is damaged: its checksum differs"),
            Self::Contents => f.write_str("the parts of the policy file do not fit together"),
            Self::Call(what) => write!(f, "the {what} does not fit the policy in length or type"),
        }
    }
}

impl core::error::Error for Error {}
