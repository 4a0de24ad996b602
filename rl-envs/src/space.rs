//! What observations and actions look like.

use ndarray::ArrayViewMut2;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ObsViewMut;

/// Element type of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floating point, as it is.
    F32,
    /// Bytes, which a learner multiplies by the space's scale.
    U8,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }
}

/// A type that observations are made of: `f32` or `u8`.
pub trait Element: Copy + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// The type as a value.
    const DTYPE: Dtype;
    /// The rows of `obs`, if they are of this type.
    fn rows(obs: ObsViewMut<'_>) -> Option<ArrayViewMut2<'_, Self>>;
    /// Returns true unless this is an infinite number or NaN.
    fn is_finite(self) -> bool;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    fn rows(obs: ObsViewMut<'_>) -> Option<ArrayViewMut2<'_, Self>> {
        obs.either(Some, |_| None)
    }

    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}

impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
    fn rows(obs: ObsViewMut<'_>) -> Option<ArrayViewMut2<'_, Self>> {
        obs.either(|_| None, Some)
    }

    fn is_finite(self) -> bool {
        true
    }
}

/// The space of observations of one environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Space {
    shape: Vec<usize>,
    dtype: Dtype,
    scale: f32,
    stack: usize,
    low: Vec<f32>,
    high: Vec<f32>,
}

impl Space {
    /// Vectors of f32 between `low` and `high` (which may be infinite), dimension by dimension.
    ///
    /// # Panics
    /// If the two differ in length.
    #[must_use]
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        assert_eq!(low.len(), high.len(), "a bound for every dimension");
        Self { shape: vec![low.len()], dtype: Dtype::F32, scale: 1.0, stack: 1, low: low.into(), high: high.into() }
    }

    /// Bytes from 0 to `high`, which a learner multiplies by `scale`.
    #[must_use]
    pub fn bytes(shape: &[usize], high: u8, scale: f32) -> Self {
        let len = shape.iter().product();
        Self { shape: shape.into(), dtype: Dtype::U8, scale, stack: 1, low: vec![0.0; len], high: vec![f32::from(high); len] }
    }

    /// The shape of one observation.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements D of one observation.
    #[expect(clippy::len_without_is_empty, reason = "a space is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// What a learner multiplies an element by.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// How many observations, the oldest first, each of these holds: 1 if it is not stacked.
    #[must_use]
    pub fn stack(&self) -> usize {
        self.stack
    }

    /// The least value of each element, D of them.
    #[must_use]
    pub fn low(&self) -> &[f32] {
        &self.low
    }

    /// The greatest value of each element, D of them.
    #[must_use]
    pub fn high(&self) -> &[f32] {
        &self.high
    }

    /// The space of `k` such observations, one after the other: the first axis is k times as long.
    #[must_use]
    pub fn stacked(&self, k: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|axis| *axis *= k);
        Self { shape, stack: k * self.stack, low: self.low.repeat(k), high: self.high.repeat(k), ..*self }
    }

    /// Whether `obs` (D elements, not scaled) lies within the bounds; NaN never does.
    #[must_use]
    pub fn contains(&self, obs: &[f32]) -> bool {
        obs.len() == self.len() && obs.iter().zip(&self.low).zip(&self.high).all(|((x, low), high)| low <= x && x <= high)
    }
}

/// The space of actions of one environment.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionSpace {
    /// One of `n` actions, 0 to n - 1.
    Discrete {
        /// The number of actions A.
        n: u32,
        /// Whether the environment says, step by step, which of them are legal.
        masked: bool,
    },
    /// A vector of A numbers between `low` and `high`.
    Continuous {
        /// The least value of each dimension.
        low: Vec<f32>,
        /// The greatest value of each dimension.
        high: Vec<f32>,
    },
}

/// The kind of actions, and the lengths of their arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// One number each.
    Discrete {
        /// With masks: the number of actions A.
        masked: Option<usize>,
    },
    /// A vector each.
    Continuous {
        /// Its length A.
        len: usize,
    },
}

impl ActionSpace {
    /// The kind of the actions.
    #[must_use]
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Discrete { n, masked } => ActionKind::Discrete { masked: masked.then_some(*n as usize) },
            Self::Continuous { low, .. } => ActionKind::Continuous { len: low.len() },
        }
    }

    /// The number of actions, or of dimensions of an action: A.
    #[expect(clippy::len_without_is_empty, reason = "a space is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Discrete { n, .. } => *n as usize,
            Self::Continuous { low, .. } => low.len(),
        }
    }

    /// Whether there are action masks.
    #[must_use]
    pub fn masked(&self) -> bool {
        matches!(self, Self::Discrete { masked: true, .. })
    }
}
