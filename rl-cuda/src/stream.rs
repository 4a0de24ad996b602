//! Streams of work, events in them, graphs of them, and copies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, result, sys};

use crate::buffer::Element;
use crate::device::Driver;
use crate::kernel::Args;
use crate::{Device, Error, PinnedSlab, View, ViewMut, emulated};

/// Work that the device does in order; what lies in different streams it may do at the same time. Nothing here waits for the device
/// but where it says so. An emulated device does everything at once, in order. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    raw: Arc<Raw>,
}

#[derive(Debug)]
enum Raw {
    Cuda(Arc<CudaStream>),
    /// What has been captured, while a graph is.
    Emulated(Mutex<Option<Vec<Work>>>),
}

/// A launch of an emulated kernel.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) function: emulated::Function,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) args: Args,
}

impl std::fmt::Debug for Work {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work").field("blocks", &self.blocks).field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// A place in a stream.
#[derive(Debug)]
pub struct Event {
    raw: EventRaw,
}

#[derive(Debug)]
enum EventRaw {
    Cuda(CudaEvent),
    /// An emulated device has come so far when it is recorded.
    Emulated(Instant),
}

impl Event {
    /// Waits until the device has come so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn synchronize(&self) -> Result<(), Error> {
        match &self.raw {
            EventRaw::Cuda(event) => event.synchronize().map_err(Error::driver("waiting for an event")),
            EventRaw::Emulated(_) => Ok(()),
        }
    }

    /// Whether the device has come so far.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_complete(&self) -> Result<bool, Error> {
        match &self.raw {
            EventRaw::Cuda(event) => event.try_is_complete().map_err(Error::driver("asking for an event")),
            EventRaw::Emulated(_) => Ok(true),
        }
    }

    /// Seconds on the device's clock from this event to `later`, for which it waits.
    ///
    /// # Errors
    /// [`Error::Kind`] if they are of different kinds of devices, or [`Error::Driver`].
    pub fn seconds_to(&self, later: &Self) -> Result<f64, Error> {
        later.synchronize()?;
        match (&self.raw, &later.raw) {
            (EventRaw::Cuda(first), EventRaw::Cuda(second)) => {
                first.elapsed_ms(second).map(|ms| f64::from(ms) * 1e-3).map_err(Error::driver("reading the device's clock"))
            }
            (EventRaw::Emulated(first), EventRaw::Emulated(second)) => Ok(second.duration_since(*first).as_secs_f64()),
            _ => Err(Error::Kind { what: "event", expected: "one of the same device" }),
        }
    }
}

/// Work that was captured and can be given to the device again with one call.
#[derive(Debug)]
pub(crate) struct Graph {
    raw: GraphRaw,
}

enum GraphRaw {
    Cuda(CudaGraph),
    Emulated(Vec<Work>),
}

impl std::fmt::Debug for GraphRaw {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cuda(_) => "Cuda",
            Self::Emulated(_) => "Emulated",
        })
    }
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self, Error> {
        let raw = match device.driver() {
            Driver::Cuda { context, .. } => Raw::Cuda(context.new_stream().map_err(Error::driver("making a stream"))?),
            Driver::Emulated(_) => Raw::Emulated(Mutex::new(None)),
        };
        Ok(Self { device: device.clone(), raw: Arc::new(raw) })
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn cuda(&self) -> Option<&Arc<CudaStream>> {
        match &*self.raw {
            Raw::Cuda(stream) => Some(stream),
            Raw::Emulated(_) => None,
        }
    }

    /// Runs or captures a launch of an emulated kernel, if this stream is an emulated one.
    pub(crate) fn emulate(&self, mut work: Work) -> Option<()> {
        let Raw::Emulated(captured) = &*self.raw else { return None };
        match &mut *captured.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(captured) => captured.push(work),
            None => work.run(),
        }
        Some(())
    }

    /// Waits until everything in it is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for what went wrong in a kernel.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.cuda().map_or(Ok(()), |stream| stream.synchronize().map_err(Error::driver("waiting for a stream")))
    }

    /// The place that it has come to, with the device's clock.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn record(&self) -> Result<Event, Error> {
        let raw = match &*self.raw {
            Raw::Cuda(stream) => {
                let event = stream.record_event(Some(sys::CUevent_flags::CU_EVENT_DEFAULT));
                EventRaw::Cuda(event.map_err(Error::driver("recording an event"))?)
            }
            Raw::Emulated(_) => EventRaw::Emulated(Instant::now()),
        };
        Ok(Event { raw })
    }

    /// What follows in this stream waits for `event` of another.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        match (self.cuda(), &event.raw) {
            (Some(stream), EventRaw::Cuda(event)) => stream.wait(event).map_err(Error::driver("making a stream wait")),
            _ => Ok(()),
        }
    }

    /// Captures what `work` gives to this stream, without doing it.
    ///
    /// # Errors
    /// Those of `work`, and [`Error::Driver`].
    pub(crate) fn capture(&self, work: impl FnOnce() -> Result<(), Error>) -> Result<Graph, Error> {
        match &*self.raw {
            Raw::Cuda(stream) => {
                let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
                stream.begin_capture(mode).map_err(Error::driver("beginning to capture a graph"))?;
                let worked = work();
                // Whatever came of it, the stream must leave the capture.
                let graph = stream.end_capture(sys::CUgraphInstantiate_flags(0));
                worked?;
                let graph = graph.map_err(Error::driver("capturing a graph"))?;
                let graph = graph.ok_or(Error::Driver { doing: "capturing a graph", reason: "it is empty".into() })?;
                Ok(Graph { raw: GraphRaw::Cuda(graph) })
            }
            Raw::Emulated(captured) => {
                let lock = || captured.lock().unwrap_or_else(PoisonError::into_inner);
                *lock() = Some(Vec::new());
                let worked = work();
                let graph = lock().take().unwrap_or_default();
                worked?;
                Ok(Graph { raw: GraphRaw::Emulated(graph) })
            }
        }
    }

    /// Copies to the device, and waits for it.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn upload<T: Element>(&self, to: &ViewMut<'_, T>, from: &[T]) -> Result<(), Error> {
        same_length("upload", to.len(), from.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying to the device"))?;
                // SAFETY: the view borrows so much memory of the device, and `from` lives until the stream has been waited for.
                unsafe { result::memcpy_htod_async(to.address(), from, stream.cu_stream()) }
                    .map_err(Error::driver("copying to the device"))?;
                self.synchronize()
            }
            Raw::Emulated(_) => {
                // SAFETY: the view borrows so much memory of the host, nobody else does, and any bits are an `Element`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.address() as *mut T, from.len()) };
                Ok(())
            }
        }
    }

    /// Copies from the device, and waits for it.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn download<T: Element>(&self, to: &mut [T], from: &View<'_, T>) -> Result<(), Error> {
        same_length("download", from.len(), to.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying from the device"))?;
                // SAFETY: the view borrows so much memory of the device, and `to` lives until the stream has been waited for.
                unsafe { result::memcpy_dtoh_async(to, from.address(), stream.cu_stream()) }
                    .map_err(Error::driver("copying from the device"))?;
                self.synchronize()
            }
            Raw::Emulated(_) => {
                // SAFETY: as in `upload`.
                unsafe { std::ptr::copy_nonoverlapping(from.address() as *const T, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }

    /// Copies a slab's beginning to the device and does not wait: whoever next touches the slab does.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn upload_async<T: Element>(&self, to: &ViewMut<'_, T>, from: &mut PinnedSlab<T>) -> Result<(), Error> {
        let source = from.begin_copy("upload_async", to.len())?;
        // SAFETY: the slab owns so many initialized elements, stays where it is and waits for the event that it is given below before
        // anybody writes or frees them.
        let source = unsafe { std::slice::from_raw_parts(source.as_ptr(), to.len()) };
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying to the device"))?;
                // SAFETY: the view borrows so much memory of the device, and the source was seen to above.
                unsafe { result::memcpy_htod_async(to.address(), source, stream.cu_stream()) }
                    .map_err(Error::driver("copying to the device"))?;
                from.end_copy(self.record()?);
                Ok(())
            }
            Raw::Emulated(_) => self.upload(to, source),
        }
    }

    /// Copies from the device to a slab's beginning and does not wait: whoever next touches the slab does.
    ///
    /// # Errors
    /// [`Error::Length`] if the slab is shorter than the view, or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn download_async<T: Element>(&self, to: &mut PinnedSlab<T>, from: &View<'_, T>) -> Result<(), Error> {
        let target = to.begin_copy("download_async", from.len())?;
        // SAFETY: the slab owns so many initialized elements, stays where it is and waits for the event that it is given below before
        // anybody reads or frees them.
        let target = unsafe { std::slice::from_raw_parts_mut(target.as_ptr(), from.len()) };
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying from the device"))?;
                // SAFETY: the view borrows so much memory of the device, and the target was seen to above.
                unsafe { result::memcpy_dtoh_async(target, from.address(), stream.cu_stream()) }
                    .map_err(Error::driver("copying from the device"))?;
                to.end_copy(self.record()?);
                Ok(())
            }
            Raw::Emulated(_) => self.download(target, from),
        }
    }

    /// Copies within the device and does not wait.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn copy<T: Element>(&self, to: &ViewMut<'_, T>, from: &View<'_, T>) -> Result<(), Error> {
        same_length("copy", to.len(), from.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                let failed = || Error::driver("copying within the device");
                stream.context().bind_to_thread().map_err(failed())?;
                let bytes = size_of::<T>() * to.len();
                // SAFETY: the views borrow so much memory of the device, and it is not freed before the device is done with it.
                unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, stream.cu_stream()) }.map_err(failed())
            }
            Raw::Emulated(_) => {
                // SAFETY: as in `upload`; a view to be written borrows its memory alone.
                unsafe { std::ptr::copy_nonoverlapping(from.address() as *const T, to.address() as *mut T, to.len()) };
                Ok(())
            }
        }
    }
}

impl Graph {
    /// Gives the captured work to the stream that it was captured from.
    pub(crate) fn launch(&mut self) -> Result<(), Error> {
        match &mut self.raw {
            GraphRaw::Cuda(graph) => graph.launch().map_err(Error::driver("launching a graph")),
            GraphRaw::Emulated(work) => {
                work.iter_mut().for_each(Work::run);
                Ok(())
            }
        }
    }
}

fn same_length(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}
