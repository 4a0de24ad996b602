//! Spaces: shape, element type and bounds of observations and actions.

/// Element type of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// Bytes, which a learner multiplies by the space's scale.
    U8,
}

impl Dtype {
    /// Returns the bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::U8 => 1,
        }
    }
}

/// The observation space of one environment.
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
    /// Creates a space of f32 vectors with bounds for each dimension.
    ///
    /// Bounds may be infinite.
    ///
    /// # Panics
    /// If the two differ in length.
    #[must_use]
    pub fn vector(low: &[f32], high: &[f32]) -> Self {
        assert_eq!(low.len(), high.len(), "a bound for every dimension");
        Self { shape: vec![low.len()], dtype: Dtype::F32, scale: 1.0, stack: 1, low: low.into(), high: high.into() }
    }

    /// Creates a space of bytes from 0 to `high`.
    ///
    /// A learner multiplies the bytes by `scale`.
    #[must_use]
    pub fn bytes(shape: &[usize], high: u8, scale: f32) -> Self {
        let len = shape.iter().product();
        Self { shape: shape.into(), dtype: Dtype::U8, scale, stack: 1, low: vec![0.0; len], high: vec![f32::from(high); len] }
    }

    /// Shape of one observation.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements D of one observation.
    #[expect(clippy::len_without_is_empty, reason = "a space is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Factor that a learner multiplies elements by.
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Number of stacked observations, oldest first; 1 without stacking.
    #[must_use]
    pub fn stack(&self) -> usize {
        self.stack
    }

    /// Lower bound of each element, (D).
    #[must_use]
    pub fn low(&self) -> &[f32] {
        &self.low
    }

    /// Upper bound of each element, (D).
    #[must_use]
    pub fn high(&self) -> &[f32] {
        &self.high
    }

    /// Returns the space of `k` stacked observations.
    ///
    /// The first axis is k times as long.
    #[must_use]
    pub fn stacked(&self, k: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|axis| *axis *= k);
        Self { shape, stack: k * self.stack, low: self.low.repeat(k), high: self.high.repeat(k), ..*self }
    }

    /// True if `obs` (D elements, not scaled) is within the bounds; NaN never is.
    #[must_use]
    pub fn contains(&self, obs: &[f32]) -> bool {
        obs.len() == self.len() && obs.iter().zip(&self.low).zip(&self.high).all(|((x, low), high)| low <= x && x <= high)
    }
}

/// The action space of one environment.
#[derive(Clone, Debug, PartialEq)]
pub enum ActionSpace {
    /// One of `n` actions, 0 to n - 1.
    Discrete {
        /// Number of actions A.
        n: u32,
        /// True if the environment reports at each step which actions are legal.
        masked: bool,
    },
    /// One choice for each of several heads, as one number.
    ///
    /// The number is in mixed radix; the last head is the fastest.
    MultiDiscrete {
        /// Number of choices of each head; their product fits u32, and their sum is A.
        sizes: Vec<u32>,
    },
    /// A vector of A numbers between `low` and `high`.
    Continuous {
        /// Lower bound of each dimension.
        low: Vec<f32>,
        /// Upper bound of each dimension.
        high: Vec<f32>,
    },
}

/// Kind of actions, with the lengths of their arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionKind {
    /// An index.
    Discrete {
        /// Number of actions A, if there are masks.
        masked: Option<usize>,
    },
    /// A vector.
    Continuous {
        /// Length A of the vector.
        len: usize,
    },
}

impl ActionSpace {
    /// Kind of the actions.
    #[must_use]
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Discrete { n, masked } => ActionKind::Discrete { masked: masked.then_some(*n as usize) },
            Self::MultiDiscrete { .. } => ActionKind::Discrete { masked: None },
            Self::Continuous { low, .. } => ActionKind::Continuous { len: low.len() },
        }
    }

    /// Number of discrete actions, of all heads together; `None` for vectors.
    #[must_use]
    pub fn n_discrete(&self) -> Option<u32> {
        match self {
            Self::Discrete { n, .. } => Some(*n),
            Self::MultiDiscrete { sizes } => Some(sizes.iter().product()),
            Self::Continuous { .. } => None,
        }
    }

    /// Number of actions, of choices of all heads, or of dimensions of an action: A.
    #[expect(clippy::len_without_is_empty, reason = "a space is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Discrete { n, .. } => *n as usize,
            Self::MultiDiscrete { sizes } => sizes.iter().map(|&size| size as usize).sum(),
            Self::Continuous { low, .. } => low.len(),
        }
    }

    /// True if there are action masks.
    #[must_use]
    pub fn masked(&self) -> bool {
        matches!(self, Self::Discrete { masked: true, .. })
    }
}
