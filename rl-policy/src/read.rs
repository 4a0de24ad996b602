//! Reads a policy's file, in place.

use core::fmt;

use crate::error::Error;
use crate::format::{self, MAGIC, VERSION, checksum};
use crate::words::{Floats, MAX_LEN, Words, product, sum};

/// Number of the first layer's inputs for an element of the observation.
///
/// One for a number, and one for each category.
pub(crate) fn inputs_of(n_categories: &[u8; 4]) -> u32 {
    u32::from_le_bytes(*n_categories).max(1)
}

/// Head of a policy, as stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredHead<'a> {
    Categorical { sizes: &'a [[u8; 4]], masked: bool },
    Values { n: usize, masked: bool, dueling: bool },
    Gaussian { bounds: [Floats<'a>; 2], log_std: Floats<'a> },
    Squashed { bounds: [Floats<'a>; 2] },
    Deterministic { bounds: [Floats<'a>; 2] },
}

/// Shape of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conv {
    pub(crate) channels: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) planes: bool,
}

/// Products of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Dense { real: usize, padded: usize },
    Conv(Conv),
    Gru,
    Lstm,
    Norm,
}

/// One layer.
#[derive(Clone, Copy)]
pub(crate) struct StoredLayer<'a> {
    pub(crate) kind: Kind,
    /// Number of inputs.
    pub(crate) n_in: usize,
    /// Number of outputs: of a convolution, at all positions.
    pub(crate) n_out: usize,
    /// Number of elements of the state.
    pub(crate) state_len: usize,
    /// [`format::IDENTITY`] to [`format::GELU`].
    pub(crate) activation: u32,
    pub(crate) weight: Floats<'a>, // (terms, bias.len())
    pub(crate) bias: Floats<'a>,
}

impl<'a> StoredLayer<'a> {
    /// Reads a layer whose parts fit together.
    fn read(words: &mut Words<'a>) -> Result<Self, Error> {
        let kind = match words.u32()? {
            format::DENSE => Kind::Dense { real: words.len()?, padded: words.len()? },
            format::CONV => Kind::Conv(Conv {
                channels: words.len()?,
                rows: words.len()?,
                columns: words.len()?,
                kernel: words.len()?,
                stride: words.len()?,
                planes: words.flag()?,
            }),
            format::GRU => Kind::Gru,
            format::LSTM => Kind::Lstm,
            format::NORM => Kind::Norm,
            _ => return Err(Error::Contents),
        };
        let (activation, terms, n) = (words.u32()?, words.len()?, words.len()?);
        let (fits, n_in, n_out) = match kind {
            Kind::Dense { real, padded } => {
                product(&[terms / real, padded])?;
                (terms.is_multiple_of(real) && real <= padded, terms, n)
            }
            Kind::Norm => (terms == 1, n, n),
            Kind::Gru => (activation == format::IDENTITY && product(&[3, terms])? == n, n, terms),
            Kind::Lstm => (activation == format::IDENTITY && product(&[4, terms])? == n, n, terms),
            Kind::Conv(Conv { channels, rows, columns, kernel, stride, .. }) => {
                let positions = |len: usize| len.checked_sub(kernel).map(|rest| rest / stride + 1).ok_or(Error::Contents);
                let n_out = product(&[positions(rows)?, positions(columns)?, n])?;
                (product(&[channels, kernel, kernel])? == terms, product(&[channels, rows, columns])?, n_out)
            }
        };
        if !fits || activation > format::GELU {
            return Err(Error::Contents);
        }
        let (weight, bias) = (words.floats(product(&[terms, n])?)?, words.floats(n)?);
        let state_len = match kind {
            Kind::Dense { .. } | Kind::Conv(_) | Kind::Norm => 0,
            Kind::Gru => n_out,
            Kind::Lstm => product(&[2, n_out])?,
        };
        Ok(Self { kind, n_in, n_out, state_len, activation, weight, bias })
    }
}

/// Layers that are still to be computed.
#[derive(Clone, Copy)]
pub(crate) struct Layers<'a> {
    words: Words<'a>,
    left: usize,
}

impl Layers<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Layers<'a> {
    type Item = StoredLayer<'a>;

    /// Reads the next layer, which was without errors when the file was opened.
    fn next(&mut self) -> Option<StoredLayer<'a>> {
        self.left = self.left.checked_sub(1)?;
        StoredLayer::read(&mut self.words).ok()
    }
}

/// Parts of an observation that are still to be computed.
#[derive(Clone, Copy)]
pub(crate) struct Parts<'a> {
    words: Words<'a>,
    left: usize,
}

/// Elements of an observation that follow each other, and their layers.
pub(crate) struct StoredPart<'a> {
    pub(crate) len: usize,
    pub(crate) layers: Layers<'a>,
}

impl Parts<'_> {
    pub(crate) fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> StoredPart<'a> {
    /// Reads a part, but not its layers.
    fn read(words: &mut Words<'a>) -> Result<Self, Error> {
        let (len, left) = (words.len()?, words.u32()? as usize);
        Ok(Self { len, layers: Layers { words: *words, left } })
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = StoredPart<'a>;

    /// Reads the next part, which was without errors when the file was opened.
    fn next(&mut self) -> Option<StoredPart<'a>> {
        self.left = self.left.checked_sub(1)?;
        let part = StoredPart::read(&mut self.words).ok()?;
        let mut layers = part.layers;
        layers.by_ref().for_each(drop);
        self.words = layers.words;
        Some(part)
    }
}

/// A policy in the bytes of its file.
#[derive(Clone, Copy)]
pub struct Policy<'a> {
    pub(crate) about: &'a str,
    pub(crate) d: usize,
    pub(crate) frames: usize,
    /// Factor of bytes, if observations are bytes.
    pub(crate) bytes: Option<f32>,
    pub(crate) normalize: Option<[Floats<'a>; 2]>,
    pub(crate) categories: &'a [[u8; 4]],
    pub(crate) head: StoredHead<'a>,
    pub(crate) parts: Parts<'a>,
    pub(crate) layers: Layers<'a>,
    pub(crate) state_len: usize,
    /// Greatest number of inputs or outputs of a layer.
    pub(crate) widest: usize,
    /// Greatest number of outputs of a part's layer.
    pub(crate) widest_of_part: usize,
    /// Greatest number of outputs that are summed together.
    pub(crate) together: usize,
    pub(crate) n_outputs: usize,
}

impl<'a> Policy<'a> {
    /// Opens a file.
    ///
    /// Nothing is copied: the policy reads its weights from `file`.
    ///
    /// # Errors
    /// All but [`Error::Call`], for bytes that are no undamaged file.
    pub fn new(file: &'a [u8]) -> Result<Self, Error> {
        if !file.starts_with(&MAGIC) {
            return Err(Error::Magic);
        }
        let (words, rest) = file.as_chunks::<4>();
        let Some((header, body)) = words.split_first_chunk() else { return Err(Error::Length) };
        let [_, _, version, len, sum] = header.map(u32::from_le_bytes);
        if version != VERSION {
            return Err(Error::Version(version));
        }
        if len as usize != file.len() || !rest.is_empty() {
            return Err(Error::Length);
        }
        if sum != checksum(body.as_flattened()) {
            return Err(Error::Checksum);
        }
        Self::read(Words(body))
    }

    /// Reads all but the header.
    fn read(mut words: Words<'a>) -> Result<Self, Error> {
        let n = words.u32()? as usize;
        let about = &words.take(n.div_ceil(4))?.as_flattened()[..n];
        let about = core::str::from_utf8(about).map_err(|_| Error::Contents)?;
        let rank = words.len()?;
        let d = (0..rank).try_fold(1, |d, _| product(&[d, words.len()?]))?;
        let (frames, is_bytes, scale) = (words.len()?, words.flag()?, words.floats(1)?.at(0));
        let normalize = if words.flag()? { Some([words.floats(d)?, words.floats(d)?]) } else { None };
        let n_categories = words.u32()? as usize;
        let categories = words.take(n_categories)?;
        let head = Self::read_head(&mut words)?;
        let mut fits = d.is_multiple_of(frames) && (categories.is_empty() || categories.len() == d);

        let n_parts = words.u32()? as usize;
        let parts = Parts { words, left: n_parts };
        let (mut first, mut n_features, mut widest_of_part, mut together) = (0, 0, 0, 0);
        for _ in 0..n_parts {
            let StoredPart { len, layers } = StoredPart::read(&mut words)?;
            let end = first + len; // of at most 2^28 each
            let categories = if categories.is_empty() { &[] } else { categories.get(first..end).ok_or(Error::Contents)? };
            let is_picture = layers.left > 0;
            let mut n_before = if is_picture || categories.is_empty() { len } else { sum(categories.iter().map(inputs_of))? };
            fits &= !is_picture || categories.iter().all(|n| *n == [0; 4]);
            for _ in 0..layers.left {
                let layer = StoredLayer::read(&mut words)?;
                fits &= layer.n_in == n_before && matches!(layer.kind, Kind::Conv(_));
                (n_before, together) = (layer.n_out, together.max(layer.bias.len()));
                widest_of_part = widest_of_part.max(layer.n_out);
            }
            (first, n_features) = (end, n_features + n_before);
            if first > d || n_features > MAX_LEN {
                return Err(Error::Contents);
            }
        }
        fits &= n_parts == 0 || first == d;

        let n_layers = words.len()?;
        let layers = Layers { words, left: n_layers };
        let mut n_before = match n_parts {
            0 if categories.is_empty() => d,
            0 => sum(categories.iter().map(inputs_of))?,
            _ => n_features,
        };
        let (mut widest, mut state_len) = (d.max(n_features), 0);
        for i in 0..n_layers {
            let layer = StoredLayer::read(&mut words)?;
            let reads_categories = i == 0 && n_parts == 0 && !categories.is_empty();
            fits &= layer.n_in == n_before;
            fits &= !reads_categories || layer.kind == Kind::Dense { real: n_before, padded: n_before };
            (n_before, widest, together) = (layer.n_out, widest.max(layer.n_out), together.max(layer.bias.len()));
            state_len += layer.state_len; // of fewer numbers than the file has
        }
        let n_outputs = match head {
            StoredHead::Categorical { sizes, .. } => sum(sizes.iter().map(|n| u32::from_le_bytes(*n)))?,
            StoredHead::Values { n, dueling, .. } => n + usize::from(dueling),
            StoredHead::Gaussian { bounds, .. } | StoredHead::Deterministic { bounds } => bounds[0].len(),
            StoredHead::Squashed { bounds } => 2 * bounds[0].len(),
        };
        if !fits || n_before != n_outputs || !words.0.is_empty() {
            return Err(Error::Contents);
        }
        let bytes = is_bytes.then_some(scale);
        Ok(Self {
            about,
            d,
            frames,
            bytes,
            normalize,
            categories,
            head,
            parts,
            layers,
            state_len,
            widest,
            widest_of_part,
            together,
            n_outputs,
        })
    }

    fn read_head(words: &mut Words<'a>) -> Result<StoredHead<'a>, Error> {
        let (kind, n, flags) = (words.u32()?, words.len()?, words.u32()?);
        let mut bounds = || Ok([words.floats(n)?, words.floats(n)?]);
        Ok(match (kind, flags) {
            (format::CATEGORICAL, 0 | 1) => {
                let sizes = words.take(n)?;
                if sizes.contains(&[0; 4]) || flags == 1 && n > 1 {
                    return Err(Error::Contents);
                }
                StoredHead::Categorical { sizes, masked: flags == 1 }
            }
            (format::VALUES, 0..=3) => StoredHead::Values { n, masked: flags & 1 == 1, dueling: flags & 2 == 2 },
            (format::GAUSSIAN, 0) => StoredHead::Gaussian { bounds: bounds()?, log_std: words.floats(n)? },
            (format::SQUASHED, 0) => StoredHead::Squashed { bounds: bounds()? },
            (format::DETERMINISTIC, 0) => StoredHead::Deterministic { bounds: bounds()? },
            _ => return Err(Error::Contents),
        })
    }

    /// Origin of the policy, in words.
    #[must_use]
    pub fn about(&self) -> &'a str {
        self.about
    }

    /// Number of elements D of an observation, all its frames together.
    #[must_use]
    pub fn obs_len(&self) -> usize {
        self.d
    }

    /// Number of frames that an observation stacks: see [`stack`](crate::stack).
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// True if the elements of an observation are bytes; false for f32.
    #[must_use]
    pub fn reads_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Number of flags of legal actions; 0 without masks.
    #[must_use]
    pub fn mask_len(&self) -> usize {
        match self.head {
            StoredHead::Categorical { masked: true, .. } => self.n_outputs,
            StoredHead::Values { n, masked: true, .. } => n,
            _ => 0,
        }
    }

    /// Number of choices of a discrete action, or of dimensions of a continuous one.
    #[must_use]
    pub fn action_len(&self) -> usize {
        match self.head {
            StoredHead::Categorical { sizes, .. } => sizes.len(),
            StoredHead::Values { .. } => 1,
            StoredHead::Gaussian { bounds, .. } | StoredHead::Squashed { bounds } | StoredHead::Deterministic { bounds } => {
                bounds[0].len()
            }
        }
    }

    /// True if an action is discrete: [`Action::Discrete`](crate::Action::Discrete).
    #[must_use]
    pub fn is_discrete(&self) -> bool {
        matches!(self.head, StoredHead::Categorical { .. } | StoredHead::Values { .. })
    }

    /// Number of outputs of the network.
    #[must_use]
    pub fn n_outputs(&self) -> usize {
        self.n_outputs
    }

    /// Number of f32 that acting needs, the state among them.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.state_len + 2 * self.widest + 2 * self.widest_of_part + self.together
    }

    /// Number of elements of the state; 0 for a policy that does not remember.
    ///
    /// The state lies at the beginning of the memory, and goes from step to step: each agent has a memory of its own, which
    /// [`Policy::reset`] prepares at the start of an episode.
    #[must_use]
    pub fn state_len(&self) -> usize {
        self.state_len
    }

    /// Starts an episode: fills the state, at the beginning of `memory`, with zeros.
    pub fn reset(&self, memory: &mut [f32]) {
        memory.iter_mut().take(self.state_len).for_each(|x| *x = 0.0);
    }
}

impl fmt::Debug for Policy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Policy");
        fields.field("about", &self.about).field("obs_len", &self.d).field("frames", &self.frames);
        fields.field("head", &self.head).field("n_layers", &self.layers.left).finish_non_exhaustive()
    }
}
