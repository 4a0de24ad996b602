//! Times of a device's work, measured by events on its stream.
//!
//! An event is recorded where a phase begins, outside of captured work. Once the device has passed the events, its own clock
//! gives the seconds between them, and a receiver is told. Without a receiver nothing is recorded.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rl_cuda::{Error, Event, Stream};

/// Phase of a device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevicePhase {
    /// The policy acts, and environments step.
    Acting,
    /// Settings and rollouts are copied between the host and the device.
    Copies,
    /// Values are computed for a rollout of the host or of an older policy.
    Targets,
    /// Advantages, gradients and steps are computed.
    Learning,
}

/// Span of a device's work, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceSpan {
    /// Phase.
    pub phase: DevicePhase,
    /// Begin, counted from the begin of the watch.
    ///
    /// That is the call of [`OnDevice::watch_device`](crate::OnDevice::watch_device).
    pub begin: f64,
    /// Length.
    pub seconds: f64,
}

/// Receiver of [`DeviceSpan`]s, on the thread that collects or updates.
pub type DeviceWatch = Box<dyn FnMut(DeviceSpan) + Send>;

/// Events on a stream where phases begin, if there is a receiver of their times.
#[derive(Default)]
pub(crate) struct DeviceTimes {
    marks: Mutex<Option<Marks>>,
}

struct Marks {
    watch: DeviceWatch,
    /// Seconds from the first mark to the latest that was reported, which is `from`.
    elapsed: f64,
    from: Mark,
    later: Vec<Mark>,
}

/// Event, and the phase that begins there; `None` for none.
type Mark = (Option<DevicePhase>, Event);

impl fmt::Debug for DeviceTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceTimes").finish_non_exhaustive()
    }
}

impl DeviceTimes {
    fn marks(&self) -> MutexGuard<'_, Option<Marks>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the stream, and reports later phases on it to `watch`.
    pub(crate) fn begin(&self, stream: &Stream, watch: DeviceWatch) -> Result<(), Error> {
        stream.synchronize()?;
        *self.marks() = Some(Marks { watch, elapsed: 0.0, from: (None, stream.record()?), later: Vec::new() });
        Ok(())
    }

    /// Marks the begin of a phase, which ends the one before.
    pub(crate) fn mark(&self, stream: &Stream, phase: impl Into<Option<DevicePhase>>) -> Result<(), Error> {
        if let Some(marks) = &mut *self.marks() {
            marks.later.push((phase.into(), stream.record()?));
        }
        Ok(())
    }

    /// Reports all phases that have ended.
    ///
    /// Waits for the device if it has not passed the marks.
    pub(crate) fn report(&self) -> Result<(), Error> {
        let Some(Marks { watch, elapsed, from, later }) = &mut *self.marks() else { return Ok(()) };
        for mark in later.drain(..) {
            // From one event to the next: single precision would not do for hours.
            let seconds = from.1.seconds_to(&mark.1)?;
            if let Some(phase) = from.0 {
                watch(DeviceSpan { phase, begin: *elapsed, seconds });
            }
            *elapsed += seconds;
            *from = mark;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rl_cuda::Device;

    use super::*;

    #[test]
    fn spans_follow_each_other_and_pauses_are_none() {
        for device in Device::for_tests() {
            let (stream, times) = (device.stream().unwrap(), DeviceTimes::default());
            times.mark(&stream, DevicePhase::Copies).unwrap();
            times.report().unwrap();
            let spans = Arc::new(Mutex::new(Vec::new()));
            let told = spans.clone();
            times.begin(&stream, Box::new(move |span| told.lock().unwrap().push(span))).unwrap();
            for _ in 0..2 {
                times.mark(&stream, DevicePhase::Acting).unwrap();
                times.mark(&stream, DevicePhase::Learning).unwrap();
                times.mark(&stream, None).unwrap();
                times.report().unwrap();
            }
            let spans = spans.lock().unwrap();
            let phases: Vec<_> = spans.iter().map(|span| span.phase).collect();
            let both = [DevicePhase::Acting, DevicePhase::Learning];
            assert_eq!(phases, [both, both].concat(), "{device}");
            assert!(spans.iter().all(|span| span.seconds >= 0.0), "{spans:?}");
            assert!(spans.windows(2).all(|pair| pair[0].begin + pair[0].seconds <= pair[1].begin), "{spans:?}");
        }
    }
}
