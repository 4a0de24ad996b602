//! Stages of an update, reported to a caller that has a clock.

use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use rl_envs::Pool;

/// Stage of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Advantages, returns, and values of next states.
    Targets,
    /// The order of samples, and the advantages of a minibatch.
    Shuffle,
    /// Copying observations to the network's inputs.
    Inputs,
    /// From inputs to outputs.
    Forward,
    /// The loss and its gradient with respect to the outputs.
    Loss,
    /// Gradients of layers and weights.
    Backward,
    /// Sums over the slices of a minibatch.
    Sum,
    /// The norm of the gradient and the step along it.
    Optimizer,
    /// Copying the parameters into the layouts of the kernel.
    Packing,
    /// Adding transitions to a replay memory.
    Adding,
    /// Drawing minibatches from a replay memory, and updating their priorities.
    Drawing,
    /// Waiting for work, for other threads or for a device.
    Waiting,
}

impl Stage {
    /// All stages, in the order of an update.
    pub const ALL: [Self; 12] = [
        Self::Targets,
        Self::Shuffle,
        Self::Inputs,
        Self::Forward,
        Self::Loss,
        Self::Backward,
        Self::Sum,
        Self::Optimizer,
        Self::Packing,
        Self::Adding,
        Self::Drawing,
        Self::Waiting,
    ];
}

/// Receiver of the stage that the calling thread has been in since its last call.
pub type Probe = Arc<dyn Fn(Stage) + Send + Sync>;

/// Reports that the calling thread has been in a stage, if there is a probe.
#[inline(always)]
pub(crate) fn report(probe: Option<&Probe>, stage: Stage) {
    if let Some(probe) = probe {
        probe(stage);
    }
}

/// Threads of a pool that report their stages.
#[derive(Clone, Copy)]
pub(crate) struct Threads<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) probe: Option<&'a Probe>,
}

impl<'a> Threads<'a> {
    /// Threads that report nothing.
    pub(crate) fn of(pool: &'a Pool) -> Self {
        Self { pool, probe: None }
    }

    /// Runs `f` on each item, as a part of `stage`.
    pub(crate) fn each<T: Send>(self, stage: Stage, items: &mut [T], f: &(impl Fn(&mut T) + Sync)) {
        self.report(stage);
        self.pool.each(items, &|item| {
            self.report(Stage::Waiting);
            f(item);
            self.report(stage);
        });
        self.report(Stage::Waiting);
    }

    /// Runs `f` on each item, with memory that no other thread uses.
    ///
    /// The items are a part of `stage`. `memory` is that of each thread of the pool.
    pub(crate) fn each_with<T: Send, M: Send>(
        self,
        stage: Stage,
        items: &mut [T],
        memory: &[Mutex<M>],
        f: &(impl Fn(&mut T, &mut M) + Sync),
    ) {
        self.each(stage, items, &|item| f(item, &mut unused(memory)));
    }

    /// Reports that the calling thread has been in a stage.
    #[inline(always)]
    pub(crate) fn report(self, stage: Stage) {
        report(self.probe, stage);
    }
}

/// Returns memory that no other thread uses.
fn unused<M>(memory: &[Mutex<M>]) -> MutexGuard<'_, M> {
    loop {
        for memory in memory {
            match memory.try_lock() {
                Ok(memory) => return memory,
                Err(TryLockError::Poisoned(memory)) => return memory.into_inner(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }
}
