//! Graphs: captured work that a device repeats with one call.

use std::fmt;

use crate::driver::api::{CudaGraph, sys};
use crate::driver::captures::Turn;
use crate::driver::emulated::Work;
use crate::driver::stream::Raw;
use crate::{Device, Error, Stream};

/// Operation that an error names if a capture fails.
pub(crate) const CAPTURING: &str = "capturing a graph";

/// Captured work that the device can repeat with one call.
///
/// Buffers that are dropped while a device has graphs keep their memory until its last graph is dropped, so a graph's memory is
/// always there.
#[derive(Debug)]
pub struct Graph {
    raw: GraphRaw,
    /// Dropped last: memory is freed after the graph.
    _kept: Kept,
}

enum GraphRaw {
    Cuda(CudaGraph),
    Emulated(Vec<Work>),
}

// SAFETY: the driver lets any thread use a graph, one at a time: every use but the last, its drop, borrows it exclusively.
#[allow(unsafe_code)]
unsafe impl Send for GraphRaw {}

impl fmt::Debug for GraphRaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda(_) => "Cuda",
            Self::Emulated(_) => "Emulated",
        })
    }
}

/// A graph's hold on the memory of its device.
#[derive(Debug)]
struct Kept(Device);

impl Kept {
    fn new(device: &Device) -> Self {
        device.keep_memory();
        Self(device.clone())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.release_memory();
    }
}

impl Stream {
    /// Captures the work that `work` queues on this stream, without running it.
    ///
    /// Kernels and copies within the device can be captured. A kernel's first launch may load it, which no capture allows: run
    /// the work once before.
    ///
    /// # Errors
    /// The errors of `work`, and [`Error::Driver`], for instance for a call that waits.
    pub fn capture<E: From<Error>>(&self, work: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let _kept = Kept::new(self.device());
        let raw = match self.raw() {
            Raw::Cuda(stream) => {
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                let _turn = Turn::new();
                stream.begin_capture(mode).map_err(Error::driver("beginning to capture a graph"))?;
                let worked = work();
                // End the capture even if `work` failed.
                let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
                worked?;
                let graph = graph.map_err(Error::driver(CAPTURING))?;
                GraphRaw::Cuda(graph.ok_or(Error::Driver { doing: CAPTURING, reason: "it is empty".into() })?)
            }
            Raw::Emulated(captured) => {
                let lock = || captured.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                *lock() = Some(Vec::new());
                let worked = work();
                let graph = lock().take().unwrap_or_default();
                worked?;
                GraphRaw::Emulated(graph)
            }
        };
        Ok(Graph { raw, _kept })
    }
}

impl Graph {
    /// Queues the captured work on the stream that it was captured from.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn launch(&mut self) -> Result<(), Error> {
        match &mut self.raw {
            GraphRaw::Cuda(graph) => graph.launch().map_err(Error::driver("launching a graph")),
            GraphRaw::Emulated(work) => {
                work.iter_mut().for_each(Work::run);
                Ok(())
            }
        }
    }
}
