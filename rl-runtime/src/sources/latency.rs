//! Distributions of delays.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Distribution of delays around their mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// Constant.
    Fixed,
    /// Exponential.
    Exp,
    /// Pareto with exponent 2: mostly shorter, rarely much longer, infinite variance.
    Pareto,
}

impl Distribution {
    /// Returns the delay at the quantile `uniform`, from 0 to below 1.
    #[must_use]
    pub(crate) fn at(self, uniform: f32, mean: Duration) -> Duration {
        let rest = f64::from(1.0 - uniform);
        mean.mul_f64(match self {
            Self::Fixed => 1.0,
            Self::Exp => -rest.ln(),
            Self::Pareto => 0.5 / rest.sqrt(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_have_the_mean_that_was_asked_for() {
        let mean = Duration::from_millis(50);
        for (distribution, tolerance) in [(Distribution::Fixed, 1e-6), (Distribution::Exp, 0.01), (Distribution::Pareto, 0.02)] {
            let n = 100_000;
            let sum: f64 = (0..n).map(|i| distribution.at((i as f32 + 0.5) / n as f32, mean).as_secs_f64()).sum();
            assert!((sum / f64::from(n) / 0.05 - 1.0).abs() < tolerance, "{distribution:?}: {}", sum / f64::from(n));
        }
    }
}
