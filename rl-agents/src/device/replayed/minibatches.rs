//! Minibatches of transitions on their way to a device.
//!
//! The host keeps the transitions and draws minibatches. A minibatch is gathered into page-locked memory and copied to the device
//! while the device learns from the one before it. Alternatively only its indices are copied, and the device gathers it from a
//! copy of the transitions.

use std::sync::Arc;

use rl_buffer::{Batch, DeviceBatch, DeviceReplay, Memory, Pinned, TransitionViews};
use rl_cuda::learner::{LearnerCounters, LearnerState};
use rl_cuda::{Buffer, CpuAccess, Device, Event, PinnedSlab, Stream, View};

use crate::Error;
use crate::algorithms::replayed::Experience;
use crate::device::staged::Staged;
use crate::device::times::{DevicePhase, DeviceTimes};

/// A minibatch at which learning stopped, and what was computed from it.
#[derive(Debug)]
pub(crate) struct Repeated<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) targets: Vec<f32>,
    pub(crate) gradient: Vec<f32>,
    /// Means of the terms of the loss, the loss first.
    pub(crate) last: [f32; 3],
}

/// Number of minibatches that have memory: one is learnt from, one is drawn.
pub(crate) const SLOTS: usize = 2;

/// Memory of a minibatch, on the host and on the device.
#[derive(Debug)]
struct Slot {
    here: Batch,
    there: DeviceBatch,
    /// Number of minibatches drawn before, (1).
    update: Staged<u64>,
    errors: PinnedSlab<f32>,
    /// Counters of each optimizer after the device learnt from the minibatch.
    counters: Vec<PinnedSlab<u64>>,
    /// End of the update; `None` once waited for.
    learnt: Option<Event>,
}

/// Two minibatches of B transitions.
///
/// The device learns from one while the host draws the other. So the host notices that learning stopped one minibatch later,
/// unless it waits for the errors of each.
#[derive(Debug)]
pub(crate) struct DeviceMinibatches {
    /// Stream of the updates.
    pub(crate) stream: Stream,
    /// Stream of the copies and gathers of minibatches.
    copies: Stream,
    replay: Option<DeviceReplay>,
    /// Generation of the transitions that `replay` is a copy of.
    generation: u64,
    slots: [Slot; SLOTS],
    /// Slot of the latest minibatch.
    at: usize,
    pub(crate) times: DeviceTimes,
}

impl DeviceMinibatches {
    /// Allocates memory for minibatches of `b` transitions.
    ///
    /// `n_optimizers` learn from them. With a copy of the replay memory if `copied`.
    ///
    /// # Errors
    /// [`Error::Setting`] for a copy of a shard; [`Error::Buffer`] and [`Error::Device`].
    pub(crate) fn new(device: &Device, of: &Experience, copied: bool, b: usize, n_optimizers: usize) -> Result<Self, Error> {
        if copied && of.is_sharded() {
            let allowed = "but each rank stores a shard of the transitions, and a copy has all";
            return Err(Error::Setting { name: "replay_on_device", value: "true".into(), allowed });
        }
        let (replay, shape) = (of.transitions(), of.transitions().shape());
        let memory: Arc<dyn Memory> = Arc::new(Pinned(device.clone()));
        let counters = |_| PinnedSlab::zeros(Some(device), LearnerCounters::LEN, CpuAccess::ReadWrite);
        let slot = || {
            Ok::<_, Error>(Slot {
                here: Batch::new_in(shape, b, &memory)?,
                there: DeviceBatch::new(device, shape, b)?,
                update: Staged::new(device, 1)?,
                errors: PinnedSlab::zeros(Some(device), b, CpuAccess::ReadWrite)?,
                counters: (0..n_optimizers).map(counters).collect::<Result<_, _>>()?,
                learnt: None,
            })
        };
        Ok(Self {
            stream: device.stream()?,
            copies: device.stream()?,
            replay: copied.then(|| DeviceReplay::new(device, replay, b)).transpose()?,
            generation: of.generation(),
            slots: [slot()?, slot()?],
            at: 0,
            times: DeviceTimes::default(),
        })
    }

    /// Bytes of the copy of the replay memory, and of the minibatches.
    pub(crate) fn bytes(&self) -> [usize; 2] {
        let slots = self.slots.iter().map(|slot| slot.there.bytes()).sum();
        [self.replay.as_ref().map_or(0, DeviceReplay::bytes), slots]
    }

    /// Turns to the other minibatch, and waits for the update with its last one.
    ///
    /// Returns the first optimizer at which learning stopped there, if any.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub(crate) fn turn(&mut self) -> Result<Option<usize>, Error> {
        self.at = 1 - self.at;
        self.wait()
    }

    /// Waits for the update with the current minibatch.
    ///
    /// As [`DeviceMinibatches::turn`] does.
    pub(crate) fn wait(&mut self) -> Result<Option<usize>, Error> {
        let Slot { counters, learnt, .. } = &mut self.slots[self.at];
        let Some(learnt) = learnt.take() else { return Ok(None) };
        learnt.synchronize()?;
        for (i, counters) in counters.iter().enumerate() {
            if LearnerCounters::read(counters)?.stop == LearnerCounters::DIVERGED {
                self.forget()?;
                return Ok(Some(i));
            }
        }
        Ok(None)
    }

    /// Waits for all updates, and forgets whether learning stopped there.
    pub(crate) fn forget(&mut self) -> Result<(), Error> {
        for learnt in self.slots.iter_mut().filter_map(|slot| slot.learnt.take()) {
            learnt.synchronize()?;
        }
        Ok(())
    }

    /// Draws the current minibatch, and enqueues its copy.
    ///
    /// After the fraction `done` of training.
    ///
    /// # Errors
    /// [`Error::Buffer`] and [`Error::Device`]; [`Error::PeerEnded`] if another rank will not draw.
    pub(crate) fn draw(&mut self, experience: &mut Experience, done: f32) -> Result<(), Error> {
        let Self { stream, copies, replay, generation, slots, at, times } = self;
        let Slot { here, there, update, .. } = &mut slots[*at];
        update.upload(copies, [experience.updates()].into_iter())?;
        experience.draw(done, here, replay.is_some())?;
        match replay {
            None => there.upload(copies, here)?,
            Some(copy) => {
                if *generation != experience.generation() {
                    copy.clear();
                    *generation = experience.generation();
                }
                copy.update(copies, experience.transitions())?;
                copy.gather(copies, here, there)?;
            }
        }
        stream.wait(&copies.record()?)?;
        Ok(times.mark(stream, DevicePhase::Learning)?)
    }

    /// Columns of the current minibatch on the device.
    pub(crate) fn columns(&self) -> TransitionViews<'_> {
        self.slots[self.at].there.columns()
    }

    /// Number of the current minibatch, (1): how many were drawn before.
    pub(crate) fn update(&self) -> View<'_, u64> {
        self.slots[self.at].update.there.view()
    }

    /// Index of the current minibatch's memory, below [`SLOTS`].
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Ends the update with the current minibatch.
    ///
    /// The errors are copied to the host.
    pub(crate) fn end(&mut self, errors: &Buffer<f32>, optimizers: &[&LearnerState]) -> Result<(), Error> {
        let Self { stream, slots, at, times, .. } = self;
        let slot = &mut slots[*at];
        stream.download_async(&mut slot.errors, &errors.view())?;
        for (state, counters) in optimizers.iter().zip(&mut slot.counters) {
            state.copy_counters(stream, counters)?;
        }
        slot.learnt = Some(stream.record()?);
        Ok(times.mark(stream, None)?)
    }

    /// Returns the current minibatch and its errors, which have been waited for.
    pub(crate) fn errors(&self) -> Result<(&Batch, &[f32]), Error> {
        let Slot { here, errors, .. } = &self.slots[self.at];
        Ok((here, errors.read()?))
    }

    /// Copies the current minibatch to the host, all columns of it.
    pub(crate) fn download(&mut self) -> Result<&Batch, Error> {
        let Slot { here, there, .. } = &mut self.slots[self.at];
        there.download(&self.stream, here)?;
        Ok(here)
    }
}
