//! Memory in which a worker leaves large observations.
//!
//! A socket copies every byte twice, at most 200 kB per write. Shared memory is copied once, into the caller's buffer.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Memory of a fixed length without a name.
///
/// A worker maps it, and this program reads it.
#[derive(Debug)]
pub(super) struct Memory {
    file: File,
    len: usize,
}

impl Memory {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// Errors of `memfd_create`, `ftruncate` and `fcntl`; `Unsupported` outside Linux.
    #[cfg(target_os = "linux")]
    pub(super) fn new(len: usize) -> std::io::Result<Self> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

        let file = memfd_create("observations", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        // A worker that truncated the file would make reads fail.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { file: file.into(), len })
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn new(_len: usize) -> std::io::Result<Self> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Sends the memory with one byte.
    ///
    /// # Errors
    /// The errors of the system: [`Errno::AGAIN`] after the socket's limit of time.
    pub(super) fn send(&self, socket: &UnixStream) -> Result<(), Errno> {
        let (files, mut space) = ([self.file.as_fd()], [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
        let mut message = SendAncillaryBuffer::new(&mut space);
        message.push(SendAncillaryMessage::ScmRights(&files));
        sendmsg(socket, &[IoSlice::new(&[0])], &mut message, SendFlags::NOSIGNAL).map(drop)
    }

    /// Reads bytes from `at` on.
    ///
    /// # Panics
    /// If the memory has fewer.
    pub(super) fn read(&self, at: usize, to: &mut [u8]) {
        self.file.read_exact_at(to, at as u64).expect("the memory keeps its length");
    }
}
