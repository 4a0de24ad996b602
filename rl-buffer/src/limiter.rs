//! How often each transition is drawn: samples per insert, as Reverb limits it (Cassirer et al., "Reverb: A Framework For
//! Experience Replay", 2021, section 3.4).
//!
//! `error = inserted * samples_per_insert - sampled` is kept between two bounds: who adds waits while it would rise above the
//! upper one, who draws while it would fall below the lower one. Nothing here waits or counts by itself: the limiter says what may
//! be done, and is told what was.

use std::ops::RangeInclusive;

use crate::Error;

/// Keeps adding and drawing in step.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    samples_per_insert: f64,
    min_size: u64,
    min_diff: f64,
    max_diff: f64,
    insert: u64,
    sample: u64,
    inserted: u64,
    sampled: u64,
}

impl RateLimiter {
    /// A limiter where `insert` transitions are added and `sample` drawn at a time, which is not limited before `min_size` have
    /// been added, and impossible to draw before.
    ///
    /// # Errors
    /// [`Error::Setting`] if a rate or a size is not positive, or the range so narrow that neither could be done:
    /// `max_diff - min_diff` is at least `insert * samples_per_insert + sample`.
    pub fn new(
        samples_per_insert: f64,
        min_size: u64,
        diff: RangeInclusive<f64>,
        insert: u64,
        sample: u64,
    ) -> Result<Self, Error> {
        let (min_diff, max_diff) = diff.into_inner();
        let positive = "positive and finite";
        for (what, value) in [
            ("samples_per_insert", samples_per_insert),
            ("min_size", min_size as f64),
            ("insert", insert as f64),
            ("sample", sample as f64),
        ] {
            if !(value > 0.0 && value < f64::INFINITY) {
                return Err(Error::Setting { what, value, range: positive });
            }
        }
        let width = max_diff - min_diff;
        if !(width >= insert as f64 * samples_per_insert + sample as f64 && width < f64::INFINITY) {
            let range = "finite and at least insert * samples_per_insert + sample, so that one of both can always go on";
            return Err(Error::Setting { what: "max_diff - min_diff", value: width, range });
        }
        Ok(Self { samples_per_insert, min_size, min_diff, max_diff, insert, sample, inserted: 0, sampled: 0 })
    }

    fn error(&self, inserted: u64, sampled: u64) -> f64 {
        inserted as f64 * self.samples_per_insert - sampled as f64
    }

    /// How far drawing is behind adding, in samples.
    #[must_use]
    pub fn diff(&self) -> f64 {
        self.error(self.inserted, self.sampled)
    }

    /// Whether a batch may be drawn now.
    #[must_use]
    pub fn may_sample(&self) -> bool {
        self.inserted >= self.min_size && self.error(self.inserted, self.sampled.saturating_add(self.sample)) >= self.min_diff
    }

    /// Whether transitions may be added now. Always so if none may be drawn, whatever rounding does to the bounds.
    #[must_use]
    pub fn may_insert(&self) -> bool {
        self.inserted < self.min_size
            || self.error(self.inserted.saturating_add(self.insert), self.sampled) <= self.max_diff
            || !self.may_sample()
    }

    /// Notes that `n` transitions have been added.
    pub fn inserted(&mut self, n: u64) {
        self.inserted = self.inserted.saturating_add(n);
    }

    /// Notes that `n` transitions have been drawn.
    pub fn sampled(&mut self, n: u64) {
        self.sampled = self.sampled.saturating_add(n);
    }

    /// How many have been added and drawn.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.inserted, self.sampled)
    }

    /// Goes on from counts as [`RateLimiter::counts`] gave them.
    pub fn restore(&mut self, (inserted, sampled): (u64, u64)) {
        (self.inserted, self.sampled) = (inserted, sampled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;
    use proptest::prelude::*;

    #[test]
    fn the_limiter_equals_the_case_worked_out_by_hand() {
        // Two samples for each insert, 4 inserts first, error from 0 to 12, one insert and 8 samples at a time (2 + 8 <= 12).
        let mut limiter = RateLimiter::new(2.0, 4, 0.0..=12.0, 1, 8).expect("possible");
        for _ in 0..4 {
            assert!(limiter.may_insert() && !limiter.may_sample());
            limiter.inserted(1);
        }
        assert_eq!(limiter.diff(), 8.0);
        assert!(limiter.may_sample());
        limiter.inserted(1);
        assert!(limiter.may_insert()); // to 12
        limiter.inserted(1);
        assert!(!limiter.may_insert()); // would be 14
        limiter.sampled(8);
        assert!(limiter.may_insert() && !limiter.may_sample()); // 4, would be -4
        let mut again = RateLimiter::new(2.0, 4, 0.0..=12.0, 1, 8).expect("possible");
        again.restore(limiter.counts());
        assert_eq!(again.diff(), 4.0);
    }

    #[test]
    fn impossible_settings_are_refused() {
        assert!(RateLimiter::new(2.0, 4, 0.0..=9.9, 1, 8).is_err());
        assert!(RateLimiter::new(2.0, 4, 5.0..=-5.0, 1, 1).is_err());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(RateLimiter::new(bad, 4, 0.0..=12.0, 1, 8).is_err());
        }
        assert!(RateLimiter::new(1.0, 4, 0.0..=f64::NAN, 1, 8).is_err());
        assert!(RateLimiter::new(1.0, 4, f64::NEG_INFINITY..=0.0, 1, 8).is_err());
        for (min_size, insert, sample) in [(0, 1, 1), (1, 0, 1), (1, 1, 0)] {
            assert!(RateLimiter::new(1.0, min_size, 0.0..=12.0, insert, sample).is_err());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn one_of_both_can_always_go_on_and_the_error_stays_in_range(
            seed in any::<u64>(), rate in 0.01..9.0f64, min_size in 1u64..50,
            low in -50.0..50.0f64, insert in 1u64..70, sample in 1u64..70,
            more in prop::sample::select(vec![0.0, 1.0, 40.0]),
        ) {
            let mut rng = random(seed);
            let high = low + insert as f64 * rate + sample as f64 + more + 1e-9;
            let mut limiter = RateLimiter::new(rate, min_size, low..=high, insert, sample).expect("possible");
            let mut began = false;
            for _ in 0..500 {
                prop_assert!(limiter.may_insert() || limiter.may_sample());
                if limiter.may_sample() && (!limiter.may_insert() || rng.next_u32().is_multiple_of(2)) {
                    limiter.sampled(sample);
                    began = began || (low..=high).contains(&limiter.diff());
                    prop_assert!(limiter.diff() >= low);
                } else {
                    limiter.inserted(insert);
                    if began {
                        prop_assert!(limiter.diff() <= high + 1e-6);
                    }
                }
            }
        }
    }
}
