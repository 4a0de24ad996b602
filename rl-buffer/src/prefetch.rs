//! Two batches that take turns: one is learnt from while the other is filled.
//!
//! Nothing here starts a thread. [`Prefetch::parts`] lends out both halves at once; the one to be filled may be sent to any
//! thread, and what it is filled with depends on the buffer and the random words alone, so results do not depend on who fills it,
//! or when. What differs from drawing just in time is that a batch is drawn before the batch before it has been learnt from: with
//! priorities it does not see their last update.

use crate::{Batch, Error, TransitionShape};

/// A batch to learn from and the one after it.
#[derive(Clone, Debug)]
pub struct Prefetch {
    current: Batch,
    next: Batch,
    filled: bool,
}

/// The batch that is to be filled.
#[derive(Debug)]
pub struct Fill<'a> {
    batch: &'a mut Batch,
    filled: &'a mut bool,
}

impl Fill<'_> {
    /// Draws into the batch, anew if it had been filled.
    ///
    /// # Errors
    /// Those of `draw`; the batch counts as not filled then.
    pub fn run(self, draw: impl FnOnce(&mut Batch) -> Result<(), Error>) -> Result<(), Error> {
        *self.filled = false;
        draw(self.batch)?;
        *self.filled = true;
        Ok(())
    }
}

impl Prefetch {
    /// Two batches of `len` transitions, neither of them filled.
    ///
    /// # Errors
    /// Those of [`Batch::new`].
    pub fn new(shape: &TransitionShape, len: usize) -> Result<Self, Error> {
        let next = Batch::new(shape, len)?;
        Ok(Self { current: Batch::new(shape, len)?, next, filled: false })
    }

    /// The batch to learn from, and the next one to be filled meanwhile.
    pub fn parts(&mut self) -> (&Batch, Fill<'_>) {
        (&self.current, Fill { batch: &mut self.next, filled: &mut self.filled })
    }

    /// Turns to the next batch, or returns `None` and stays if it has not been filled.
    pub fn advance(&mut self) -> Option<&Batch> {
        if !std::mem::take(&mut self.filled) {
            return None;
        }
        std::mem::swap(&mut self.current, &mut self.next);
        Some(&self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReplayBuffer;
    use crate::testing::{History, random, shape};

    #[test]
    fn batches_filled_on_another_thread_are_those_drawn_just_in_time() {
        let mut replay = ReplayBuffer::new(shape(65, 2), 500).expect("fits");
        let mut history = History::new(*replay.shape(), 5, 0.1);
        (0..20).for_each(|_| _ = history.step(|step| replay.push(step).expect("finite")));
        let words = |i: u64| {
            let mut rng = random(i);
            (0..31).map(|_| rng.next_u32()).collect::<Vec<u32>>()
        };
        let mut prefetch = Prefetch::new(replay.shape(), 31).expect("fits");
        assert!(prefetch.advance().is_none());
        prefetch.parts().1.run(|batch| replay.sample(&words(0), batch)).expect("enough");
        for i in 0..10 {
            let mut expected = replay.batch(31).expect("fits");
            replay.sample(&words(i), &mut expected).expect("enough");
            assert_eq!(prefetch.advance(), Some(&expected));
            let (current, fill) = prefetch.parts();
            std::thread::scope(|scope| {
                let (words, replay) = (words(i + 1), &replay);
                scope.spawn(move || fill.run(|batch| replay.sample(&words, batch)).expect("enough"));
                assert_eq!(current, &expected);
            });
        }
    }

    #[test]
    fn a_batch_that_could_not_be_filled_is_not_learnt_from() {
        let replay = ReplayBuffer::new(shape(1, 1), 5).expect("fits");
        let mut prefetch = Prefetch::new(replay.shape(), 1).expect("fits");
        assert!(prefetch.parts().1.run(|batch| replay.sample(&[0], batch)).is_err());
        assert!(prefetch.advance().is_none());
        prefetch.parts().1.run(|_| Ok(())).expect("nothing to fail");
        assert!(prefetch.advance().is_some());
        assert!(prefetch.advance().is_none(), "a batch is learnt from once");
    }
}
