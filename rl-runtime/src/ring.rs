//! Circulating buffers: the one protocol between the threads of a pipeline.
//!
//! A ring has any number of stages, with a channel from each to the next. All buffers start in front of the first stage. That
//! stage takes an empty buffer, fills it and passes it on; the last stage passes it back to the first. Every channel has room for
//! all buffers, so passing on never waits. A stage that is too fast waits for a buffer, so the number of buffers is the
//! back-pressure. A running ring allocates nothing.
//!
//! Dropping a stage, by the end of its thread or by a panic, closes both its channels. Its neighbours notice when they next wait
//! or pass on, end too, and close theirs. No thread waits for a dropped stage, in whatever order stages are dropped.

use std::time::Duration;

use crate::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

/// Error of a stage whose neighbour has ended: no more buffers will pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the neighbouring stage of the pipeline has ended")]
pub struct Closed;

/// Stage of a ring, with a channel to each neighbour.
#[derive(Debug)]
pub struct Stage<T> {
    input: Receiver<T>,
    output: Sender<T>,
}

/// Creates a ring of N stages with these buffers.
///
/// Each stage may move to its own thread.
///
/// # Panics
/// If there are no buffers or no stages.
pub fn ring<T, const N: usize>(buffers: impl IntoIterator<Item = T>) -> [Stage<T>; N] {
    let buffers: Vec<T> = buffers.into_iter().collect();
    assert!(N > 0 && !buffers.is_empty(), "a stage and a buffer at least");
    let (mut outputs, mut inputs): (Vec<_>, Vec<_>) = (0..N).map(|_| bounded(buffers.len())).unzip();
    for buffer in buffers {
        let sent = outputs[N - 1].send(buffer);
        assert!(sent.is_ok(), "the channel has room, and its other end is here");
    }
    // Stage i receives from channel i - 1 and sends to channel i.
    inputs.rotate_right(1);
    std::array::from_fn(|_| Stage { input: inputs.remove(0), output: outputs.remove(0) })
}

impl<T> Stage<T> {
    /// Waits for a buffer.
    ///
    /// # Errors
    /// [`Closed`] once the previous stage has ended and all its buffers have been received.
    pub fn recv(&self) -> Result<T, Closed> {
        self.input.recv().map_err(|_| Closed)
    }

    /// Takes a buffer if one is available.
    ///
    /// # Errors
    /// The errors of [`Stage::recv`].
    pub fn try_recv(&self) -> Result<Option<T>, Closed> {
        match self.input.try_recv() {
            Ok(buffer) => Ok(Some(buffer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Closed),
        }
    }

    /// Waits for a buffer until the timeout.
    ///
    /// # Errors
    /// The errors of [`Stage::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<T>, Closed> {
        match self.input.recv_timeout(timeout) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }

    /// Passes a buffer on; never waits.
    ///
    /// # Errors
    /// [`Closed`] if the next stage has ended.
    pub fn send(&self, buffer: T) -> Result<(), Closed> {
        self.output.send(buffer).map_err(|_| Closed)
    }

    /// Returns the number of buffers that wait for this stage.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.input.len()
    }
}
