//! Streams, events and copies.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::driver::Driver;
use crate::driver::api::{CudaEvent, CudaStream, result, sys};
use crate::driver::buffer::Element;
use crate::driver::captures::no_capture;
use crate::driver::emulated::Work;
use crate::error::length;
use crate::{Device, Error, View, ViewMut};

/// Queue of work that the device runs in order.
///
/// Work in different streams may run at the same time. Methods return before the device is done, unless they say that they wait.
/// An emulated device runs everything at once, in order. Clones share the same stream.
#[derive(Clone, Debug)]
pub struct Stream {
    device: Device,
    raw: Arc<Raw>,
}

#[derive(Debug)]
pub(crate) enum Raw {
    Cuda(Arc<CudaStream>),
    /// Work captured so far, while a capture is open.
    Emulated(Mutex<Option<Vec<Work>>>),
}

/// Mark in a stream; complete once all work queued before it is done.
#[derive(Debug)]
pub struct Event {
    raw: EventRaw,
}

#[derive(Debug)]
enum EventRaw {
    Cuda(CudaEvent),
    /// An emulated device has already finished when the event is recorded.
    Emulated(Instant),
}

impl Event {
    /// Waits for the event.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn synchronize(&self) -> Result<(), Error> {
        match &self.raw {
            EventRaw::Cuda(event) => event.synchronize().map_err(Error::driver("waiting for an event")),
            EventRaw::Emulated(_) => Ok(()),
        }
    }

    /// Returns true if the event is complete.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn is_complete(&self) -> Result<bool, Error> {
        match &self.raw {
            EventRaw::Cuda(event) => event.try_is_complete().map_err(Error::driver("asking for an event")),
            EventRaw::Emulated(_) => Ok(true),
        }
    }

    /// Waits for `later` and returns the seconds between the events.
    ///
    /// The device's own clock measures them.
    ///
    /// # Errors
    /// [`Error::Kind`] if the events belong to different kinds of devices, or [`Error::Driver`].
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

impl Device {
    /// Creates a stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn stream(&self) -> Result<Stream, Error> {
        Stream::new(self)
    }
}

impl Stream {
    fn new(device: &Device) -> Result<Self, Error> {
        let raw = match device.driver() {
            Driver::Cuda { context, .. } => {
                let _lock = no_capture(); // a context's first stream waits for it
                Raw::Cuda(context.new_stream().map_err(Error::driver("making a stream"))?)
            }
            Driver::Emulated(_) => Raw::Emulated(Mutex::new(None)),
        };
        Ok(Self { device: device.clone(), raw: Arc::new(raw) })
    }

    /// Returns the device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> &Raw {
        &self.raw
    }

    pub(crate) fn cuda(&self) -> Option<&Arc<CudaStream>> {
        match &*self.raw {
            Raw::Cuda(stream) => Some(stream),
            Raw::Emulated(_) => None,
        }
    }

    /// Runs or captures emulated work; `None` if this stream is not emulated.
    pub(crate) fn emulate(&self, mut work: Work) -> Option<()> {
        let Raw::Emulated(captured) = &*self.raw else { return None };
        match &mut *captured.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(captured) => captured.push(work),
            None => work.run(),
        }
        Some(())
    }

    /// Waits until all work in this stream is done.
    ///
    /// # Errors
    /// [`Error::Driver`], also for errors that a kernel raised.
    pub fn synchronize(&self) -> Result<(), Error> {
        self.cuda().map_or(Ok(()), |stream| stream.synchronize().map_err(Error::driver("waiting for a stream")))
    }

    /// Records an event, timed by the device's clock.
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

    /// Makes later work in this stream wait for `event` of another stream.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        match (self.cuda(), &event.raw) {
            (Some(stream), EventRaw::Cuda(event)) => stream.wait(event).map_err(Error::driver("making a stream wait")),
            _ => Ok(()),
        }
    }

    /// Copies to the device and waits.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn upload<T: Element>(&self, to: &ViewMut<'_, T>, from: &[T]) -> Result<(), Error> {
        length("upload", to.len(), from.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying to the device"))?;
                // SAFETY: `to` borrows device memory of this length, and `from` lives until `synchronize` returns.
                unsafe { result::memcpy_htod_async(to.address(), from, stream.cu_stream()) }
                    .map_err(Error::driver("copying to the device"))?;
                self.synchronize()
            }
            Raw::Emulated(_) => {
                // SAFETY: `to` alone borrows host memory of this length, and every bit pattern is a valid `Element`.
                unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.address() as *mut T, from.len()) };
                Ok(())
            }
        }
    }

    /// Copies from the device and waits.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn download<T: Element>(&self, to: &mut [T], from: &View<'_, T>) -> Result<(), Error> {
        length("download", from.len(), to.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                stream.context().bind_to_thread().map_err(Error::driver("copying from the device"))?;
                // SAFETY: `from` borrows device memory of this length, and `to` lives until `synchronize` returns.
                unsafe { result::memcpy_dtoh_async(to, from.address(), stream.cu_stream()) }
                    .map_err(Error::driver("copying from the device"))?;
                self.synchronize()
            }
            Raw::Emulated(_) => {
                // SAFETY: `from` borrows host memory of this length, and every bit pattern is a valid `Element`.
                unsafe { std::ptr::copy_nonoverlapping(from.address() as *const T, to.as_mut_ptr(), to.len()) };
                Ok(())
            }
        }
    }

    /// Copies within the device without waiting.
    ///
    /// # Errors
    /// [`Error::Length`] or [`Error::Driver`].
    #[allow(unsafe_code)]
    pub fn copy<T: Element>(&self, to: &ViewMut<'_, T>, from: &View<'_, T>) -> Result<(), Error> {
        length("copy", to.len(), from.len())?;
        match &*self.raw {
            Raw::Cuda(stream) => {
                let failed = || Error::driver("copying within the device");
                stream.context().bind_to_thread().map_err(failed())?;
                let bytes = size_of::<T>() * to.len();
                // SAFETY: both views borrow device memory of this length, and a buffer frees it only after the device is done.
                unsafe { result::memcpy_dtod_async(to.address(), from.address(), bytes, stream.cu_stream()) }.map_err(failed())
            }
            Raw::Emulated(_) => {
                // Both views borrow host memory of this length; `to` is borrowed exclusively, so they do not overlap.
                self.emulate(Work::Copy { to: to.address(), from: from.address(), bytes: size_of::<T>() * to.len() });
                Ok(())
            }
        }
    }
}
