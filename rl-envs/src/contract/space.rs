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
    categories: Vec<u32>,
    velocities: Vec<usize>,
    parts: Vec<Part>,
}

/// A named part of an observation: elements that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name, as in a dictionary of observations.
    pub name: String,
    /// Shape; a part of three dimensions is a picture: (channels, rows, columns).
    pub shape: Vec<usize>,
}

impl Part {
    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "a part is not a container")]
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of channels, rows and columns of a picture; `None` for numbers.
    #[must_use]
    pub fn picture(&self) -> Option<[usize; 3]> {
        self.shape.as_slice().try_into().ok()
    }
}

/// Maximum number of categories of an element.
///
/// f32 holds every whole number below exactly.
pub const MAX_CATEGORIES: u32 = 1 << 24;

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
        Self {
            shape: vec![low.len()],
            dtype: Dtype::F32,
            scale: 1.0,
            stack: 1,
            low: low.into(),
            high: high.into(),
            categories: Vec::new(),
            velocities: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Names the elements that are velocities.
    ///
    /// [`Hide`](crate::wrappers::Hide) hides them.
    ///
    /// # Panics
    /// If there is no such element.
    #[must_use]
    pub fn with_velocities(mut self, elements: &[usize]) -> Self {
        assert!(elements.iter().all(|&i| i < self.len()), "elements of an observation");
        self.velocities = elements.into();
        self
    }

    /// Replaces the bounds of some elements by 0.
    #[must_use]
    pub(crate) fn with_zeros(mut self, elements: &[usize]) -> Self {
        elements.iter().for_each(|&i| (self.low[i], self.high[i]) = (0.0, 0.0));
        self
    }

    /// Makes elements of a vector categories: whole numbers without an order.
    ///
    /// `categories` has n for each element, whose numbers are 0 to n - 1; n = 0 leaves a number. A network has an input for
    /// each category, as for a one-hot vector.
    ///
    /// ```
    /// use rl_envs::Space;
    /// let space = Space::vector(&[-1.0, 0.0], &[1.0, 0.0]).with_categories(&[0, 500]);
    /// assert_eq!((space.len(), space.n_inputs(), space.high()[1]), (2, 501, 499.0));
    /// ```
    ///
    /// # Panics
    /// If the elements are bytes, the lengths differ, or n is above [`MAX_CATEGORIES`].
    #[must_use]
    pub fn with_categories(mut self, categories: &[u32]) -> Self {
        assert!(self.dtype == Dtype::F32 && self.shape == [categories.len()], "a number of categories for every element");
        assert!(categories.iter().all(|&n| n <= MAX_CATEGORIES), "at most {MAX_CATEGORIES} categories");
        for ((low, high), &n) in self.low.iter_mut().zip(&mut self.high).zip(categories).filter(|(_, n)| **n > 0) {
            (*low, *high) = (0.0, (n - 1) as f32);
        }
        self.categories = if categories.iter().any(|&n| n > 0) { categories.into() } else { Vec::new() };
        self
    }

    /// Names the parts of a vector, in order.
    ///
    /// Convolutions read each picture on its own.
    ///
    /// ```
    /// use rl_envs::{Part, Space};
    /// let parts = [("camera", vec![1, 8, 8]), ("joints", vec![3])];
    /// let parts = parts.map(|(name, shape)| Part { name: name.into(), shape });
    /// let space = Space::vector(&[0.0; 67], &[1.0; 67]).with_parts(&parts);
    /// assert_eq!(space.parts()[0].picture(), Some([1, 8, 8]));
    /// ```
    ///
    /// # Panics
    /// If the elements are bytes, or are not all in one part, or a part has none.
    #[must_use]
    pub fn with_parts(mut self, parts: &[Part]) -> Self {
        assert!(self.dtype == Dtype::F32 && self.shape.len() == 1, "parts of a vector");
        assert!(parts.iter().all(|part| part.len() > 0), "elements in every part");
        assert_eq!(parts.iter().map(Part::len).sum::<usize>(), self.len(), "every element in a part");
        self.parts = parts.into();
        self
    }

    /// Creates a space of bytes from 0 to `high`.
    ///
    /// A learner multiplies the bytes by `scale`.
    #[must_use]
    pub fn bytes(shape: &[usize], high: u8, scale: f32) -> Self {
        let len = shape.iter().product();
        Self {
            shape: shape.into(),
            dtype: Dtype::U8,
            scale,
            stack: 1,
            low: vec![0.0; len],
            high: vec![f32::from(high); len],
            categories: Vec::new(),
            velocities: Vec::new(),
            parts: Vec::new(),
        }
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

    /// Number of categories of each element, 0 for a number.
    ///
    /// Empty if all elements are numbers.
    #[must_use]
    pub fn categories(&self) -> &[u32] {
        &self.categories
    }

    /// Indices of the elements that are velocities, as far as they are named.
    #[must_use]
    pub fn velocities(&self) -> &[usize] {
        &self.velocities
    }

    /// Named parts, in order; empty if the observation is one.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of inputs of a network: one for each number, and one for each category.
    #[must_use]
    pub fn n_inputs(&self) -> usize {
        if self.categories.is_empty() { self.len() } else { self.categories.iter().map(|&n| n.max(1) as usize).sum() }
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
    /// The first axis is k times as long, also that of a picture that is the only part. Several parts are those of each frame;
    /// their names begin with its index.
    #[must_use]
    pub fn stacked(&self, k: usize) -> Self {
        let mut shape = self.shape.clone();
        shape.iter_mut().take(1).for_each(|axis| *axis *= k);
        let categories = self.categories.repeat(k);
        let velocities = (0..k).flat_map(|frame| self.velocities.iter().map(move |i| frame * self.len() + i)).collect();
        let (low, high) = (self.low.repeat(k), self.high.repeat(k));
        let part = |frame: usize, of: &Part| Part { name: format!("{frame}.{}", of.name), shape: of.shape.clone() };
        let parts = match &self.parts[..] {
            [Part { name, shape }] => {
                let first = |(axis, len): (usize, &usize)| if axis == 0 { k * len } else { *len };
                vec![Part { name: name.clone(), shape: shape.iter().enumerate().map(first).collect() }]
            }
            all if k == 1 => all.to_vec(),
            all => (0..k).flat_map(|frame| all.iter().map(move |of| part(frame, of))).collect(),
        };
        Self { shape, stack: k * self.stack, low, high, categories, velocities, parts, ..*self }
    }

    /// True if `obs` (D elements, not scaled) is within the bounds; NaN never is.
    ///
    /// Categories must be whole numbers.
    #[must_use]
    pub fn contains(&self, obs: &[f32]) -> bool {
        obs.len() == self.len()
            && obs.iter().zip(&self.low).zip(&self.high).all(|((x, low), high)| low <= x && x <= high)
            && obs.iter().zip(&self.categories).all(|(x, &n)| n == 0 || x.fract() == 0.0)
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

/// Spaces of one environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Spaces {
    /// Observation space.
    pub obs: Space,
    /// Action space.
    pub actions: ActionSpace,
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
