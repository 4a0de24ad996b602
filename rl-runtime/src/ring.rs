//! Buffers that go round: the one protocol between the threads of a pipeline.
//!
//! A ring has as many stages as are asked for, and a channel from each to the next. All buffers begin before the first stage: it takes
//! an empty one, fills it and passes it on; the last stage passes it back to the first. Every channel has room for all buffers, so
//! passing on never waits, and who is too fast waits for a buffer: back-pressure is their number. Nothing is allocated once it runs.
//!
//! A stage that is dropped, by the end of its thread or by a panic, closes both its channels. Its neighbours see that when they next
//! wait or pass on, end too, and close theirs: no thread waits for one that has gone, in whatever order stages are dropped.

use std::time::Duration;

use crate::channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};

/// A neighbour has gone: nothing more will come, or nobody will take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the neighbouring stage of the pipeline has ended")]
pub struct Closed;

/// One stage of a ring: where buffers come from, and where they go to.
#[derive(Debug)]
pub struct Stage<T> {
    input: Receiver<T>,
    output: Sender<T>,
}

/// A ring of N stages with these buffers. The stages may be sent to threads of their own.
///
/// # Panics
/// If there is no buffer or no stage.
pub fn ring<T, const N: usize>(buffers: impl IntoIterator<Item = T>) -> [Stage<T>; N] {
    let buffers: Vec<T> = buffers.into_iter().collect();
    assert!(N > 0 && !buffers.is_empty(), "a stage and a buffer at least");
    let (mut outputs, mut inputs): (Vec<_>, Vec<_>) = (0..N).map(|_| bounded(buffers.len())).unzip();
    for buffer in buffers {
        let sent = outputs[N - 1].send(buffer);
        assert!(sent.is_ok(), "the channel has room, and its other end is here");
    }
    // Stage i takes from channel i - 1 and passes on to channel i.
    inputs.rotate_right(1);
    std::array::from_fn(|_| Stage { input: inputs.remove(0), output: outputs.remove(0) })
}

impl<T> Stage<T> {
    /// Waits for a buffer.
    ///
    /// # Errors
    /// [`Closed`] once the stage before has gone and all that it had passed on has been taken.
    pub fn recv(&self) -> Result<T, Closed> {
        self.input.recv().map_err(|_| Closed)
    }

    /// Takes a buffer if there is one.
    ///
    /// # Errors
    /// As [`Stage::recv`].
    pub fn try_recv(&self) -> Result<Option<T>, Closed> {
        match self.input.try_recv() {
            Ok(buffer) => Ok(Some(buffer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Closed),
        }
    }

    /// Waits for a buffer for so long at most.
    ///
    /// # Errors
    /// As [`Stage::recv`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<T>, Closed> {
        match self.input.recv_timeout(timeout) {
            Ok(buffer) => Ok(Some(buffer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Closed),
        }
    }

    /// Passes a buffer on. Never waits.
    ///
    /// # Errors
    /// [`Closed`] if the next stage has gone.
    pub fn send(&self, buffer: T) -> Result<(), Closed> {
        self.output.send(buffer).map_err(|_| Closed)
    }

    /// How many buffers lie before this stage.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.input.len()
    }
}
