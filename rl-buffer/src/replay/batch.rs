//! Batches of transitions drawn from a buffer, each one slab.

use std::sync::Arc;

use rl_cuda::{Buffer, Device, Stream, View};
use rl_envs::{ActionKind, Actions, Obs, Rng, visit};

use crate::slab::{Layout, Memory, Slab, Span};
use crate::{Error, TransitionShape};

/// Columns of B transitions, with storages F of f32, U of u8 and W of u32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transitions<F, U, W> {
    /// Factor of each loss, (B): the importance weight with priorities, otherwise 1.
    pub weights: F,
    /// Indices of the transitions in the buffer, (B).
    pub indices: W,
    /// Observations, (B, D).
    pub obs: Obs<F, U>,
    /// Actions, (B) or (B, A).
    pub actions: Actions<W, F>,
    /// Sums of up to n rewards, each discounted to the first step, (B).
    pub rewards: F,
    /// gamma^k after k steps, 0 after termination, (B).
    pub discounts: F,
    /// Observations after the last step, (B, D).
    pub next_obs: Obs<F, U>,
    /// Legal actions at `next_obs`, (B, A); empty without masks.
    pub next_masks: U,
}

/// Columns of transitions as slices.
pub type TransitionSlices<'a> = Transitions<&'a [f32], &'a [u8], &'a [u32]>;
/// Columns of transitions in a device's memory.
pub type TransitionViews<'a> = Transitions<View<'a, f32>, View<'a, u8>, View<'a, u32>>;
/// Positions of the columns in a slab.
pub(crate) type Spans = Transitions<Span<f32>, Span<u8>, Span<u32>>;
/// Columns of transitions as slices to write.
pub(crate) type TransitionSlicesMut<'a> = Transitions<&'a mut [f32], &'a mut [u8], &'a mut [u32]>;

/// Replaces each column by one expression, in the order of the fields.
macro_rules! each_column {
    ($columns:expr, |$x:pat_param| $body:expr) => {{
        let columns = $columns;
        let weights = match columns.weights {
            $x => $body,
        };
        let indices = match columns.indices {
            $x => $body,
        };
        let obs = visit!(Obs, columns.obs, |$x| $body);
        let actions = visit!(Actions, columns.actions, |$x| $body);
        let rewards = match columns.rewards {
            $x => $body,
        };
        let discounts = match columns.discounts {
            $x => $body,
        };
        let next_obs = visit!(Obs, columns.next_obs, |$x| $body);
        let next_masks = match columns.next_masks {
            $x => $body,
        };
        Transitions { weights, indices, obs, actions, rewards, discounts, next_obs, next_masks }
    }};
}
pub(crate) use each_column;

/// Lays out the columns of `len` transitions.
fn spans(shape: &TransitionShape, len: usize) -> (Spans, Layout) {
    let widths = Transitions {
        weights: 1,
        indices: 1,
        obs: Obs::new(shape.obs, || shape.obs_len, || shape.obs_len),
        actions: match shape.actions {
            ActionKind::Discrete { .. } => Actions::Discrete(1),
            ActionKind::Continuous { len } => Actions::Continuous(len),
        },
        rewards: 1,
        discounts: 1,
        next_obs: Obs::new(shape.obs, || shape.obs_len, || shape.obs_len),
        next_masks: shape.mask_len(),
    };
    let mut layout = Layout::default();
    let spans = each_column!(widths, |width| layout.push(len, width));
    (spans, layout)
}

/// B transitions drawn from a buffer, in reusable memory: one slab.
#[derive(Clone, Debug)]
pub struct Batch {
    slab: Slab,
    spans: Spans,
    pub(crate) drawn_at: u64,
    /// Random words of the latest draw, one per transition.
    words: Vec<u32>,
    /// Hash table of drawn indices, for drawing without replacement.
    pub(crate) seen: Vec<u32>,
    /// Positions of the draws in the sum of all priorities.
    pub(crate) targets: Vec<f64>,
}

impl Batch {
    /// Allocates a batch of `len` transitions, all zeros.
    ///
    /// # Errors
    /// [`Error::Empty`] or [`Error::Setting`] if the shape is impossible or `len` is 0, [`Error::OutOfMemory`] if it does not
    /// fit.
    pub fn new(shape: &TransitionShape, len: usize) -> Result<Self, Error> {
        Self::new_in(shape, len, &<dyn Memory>::host())
    }

    /// Allocates a batch in memory of the given kind.
    ///
    /// # Errors
    /// The errors of [`Batch::new`], or [`Error::Block`] if the memory does not keep its promise.
    pub fn new_in(shape: &TransitionShape, len: usize, memory: &Arc<dyn Memory>) -> Result<Self, Error> {
        shape.check()?;
        if len == 0 {
            return Err(Error::Empty("transition in a batch"));
        }
        let obs_size = shape.obs.size() as u128;
        let each = 2 * obs_size * shape.obs_len as u128 + 4 * shape.action_len() as u128 + shape.mask_len() as u128 + 32;
        crate::memory::check(len, each, 0)?;
        let (spans, layout) = spans(shape, len);
        let slab = Slab::new(&layout, memory)?;
        let mut batch = Self { slab, spans, drawn_at: 0, words: Vec::new(), seen: Vec::new(), targets: Vec::new() };
        batch.columns_mut().weights.fill(1.0);
        Ok(batch)
    }

    /// Number of transitions B.
    #[expect(clippy::len_without_is_empty, reason = "a batch is never empty")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.indices.len()
    }

    /// Checks that the batch is for transitions of this shape.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn check(&self, shape: &TransitionShape) {
        assert!(self.spans == spans(shape, self.len()).0, "the batch is for transitions of another shape");
    }

    /// Lends the batch with new random words, one per transition.
    pub(crate) fn with_words<R>(&mut self, rng: &mut Rng, draw: impl FnOnce(&[u32], &mut Self) -> R) -> R {
        let mut words = std::mem::take(&mut self.words);
        words.clear();
        words.extend((0..self.len()).map(|_| rng.next_u32()));
        let drawn = draw(&words, self);
        self.words = words;
        drawn
    }

    /// Number of transitions added to the buffer before these were drawn.
    ///
    /// It tells whether an index has been overwritten since.
    #[must_use]
    pub fn drawn_at(&self) -> u64 {
        self.drawn_at
    }

    /// Borrows the columns.
    #[must_use]
    pub fn columns(&self) -> TransitionSlices<'_> {
        each_column!(self.spans, |span| self.slab.get(span))
    }

    /// Borrows the columns for writing.
    pub(crate) fn columns_mut(&mut self) -> TransitionSlicesMut<'_> {
        let mut cut = self.slab.cut();
        each_column!(self.spans, |span| cut.take(span))
    }
}

/// B transitions in a device's memory, in one block.
#[derive(Debug)]
pub struct DeviceBatch {
    pub(crate) slab: Buffer<u8>,
    pub(crate) spans: Spans,
}

impl DeviceBatch {
    /// Allocates a batch of `len` transitions, all zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(device: &Device, shape: &TransitionShape, len: usize) -> Result<Self, rl_cuda::Error> {
        let (spans, layout) = spans(shape, len);
        Ok(Self { slab: Buffer::zeros(device, layout.bytes)?, spans })
    }

    /// Bytes of the batch.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.slab.bytes()
    }

    /// Copies a batch of the same shape and length from the host, in one copy.
    ///
    /// From [`Pinned`](crate::Pinned) memory without waiting: the batch waits before it is filled again.
    ///
    /// # Errors
    /// [`rl_cuda::Error::Kind`] if shapes or lengths differ; errors of the device.
    pub fn upload(&mut self, stream: &Stream, batch: &Batch) -> Result<(), rl_cuda::Error> {
        self.upload_first(stream, batch, self.slab.len())
    }

    /// Copies weights and indices alone, as [`DeviceBatch::upload`] copies all columns.
    pub(crate) fn upload_drawn(&mut self, stream: &Stream, batch: &Batch) -> Result<(), rl_cuda::Error> {
        let Transitions { indices, .. } = self.spans;
        self.upload_first(stream, batch, indices.at() + indices.len() * size_of::<u32>())
    }

    fn upload_first(&mut self, stream: &Stream, batch: &Batch, bytes: usize) -> Result<(), rl_cuda::Error> {
        if batch.spans != self.spans {
            return Err(rl_cuda::Error::Kind { what: "batch", expected: "one of the same shape" });
        }
        batch.slab.upload(stream, &self.slab.view_mut().into_slice(0..bytes))
    }

    /// Waits for the stream, and copies the batch to the host.
    ///
    /// # Errors
    /// [`rl_cuda::Error::Length`] if shapes or lengths differ; errors of the device.
    pub fn download(&self, stream: &Stream, batch: &mut Batch) -> Result<(), rl_cuda::Error> {
        stream.download(batch.slab.bytes_mut(), &self.slab.view())
    }

    /// Borrows the columns.
    #[must_use]
    pub fn columns(&self) -> TransitionViews<'_> {
        let slab = self.slab.view();
        each_column!(self.spans, |span| span.of(slab))
    }
}
