//! Columns of a step: observations and actions of either type, in any storage.
//!
//! Slices, vectors, arrays, views and device buffers are all [`Obs`] and [`Actions`]: type aliases name the common ones, and
//! their variants are written through the alias, `ObsSlice::F32(&row)`.

use ndarray::{ArrayView, Dimension};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{ActionSpace, Dtype, Error, either};

/// Observations of either element type, in the storage `F` or `U`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Obs<F, U> {
    /// 32-bit floating point.
    F32(F),
    /// Bytes.
    U8(U),
}

/// Actions of either kind, in the storage `D` or `C`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actions<D, C> {
    /// Indices, for a discrete space.
    Discrete(D),
    /// Vectors of A numbers, for a continuous space.
    Continuous(C),
}

/// One observation (D), or several, flat.
pub type ObsSlice<'a> = Obs<&'a [f32], &'a [u8]>;
/// Observations, flat, borrowed for writing.
pub type ObsSliceMut<'a> = Obs<&'a mut [f32], &'a mut [u8]>;
/// Observations, flat and owned.
pub type ObsRows = Obs<Vec<f32>, Vec<u8>>;

/// One action for one environment.
pub type Action<'a> = Actions<u32, &'a [f32]>;
/// Actions (N) or (N, A), flat.
pub type ActionSlice<'a> = Actions<&'a [u32], &'a [f32]>;
/// Actions (N) or (N, A), flat, borrowed for writing.
pub type ActionSliceMut<'a> = Actions<&'a mut [u32], &'a mut [f32]>;
/// Actions (N) or (N, A), flat and owned.
pub type ActionRows = Actions<Vec<u32>, Vec<f32>>;

/// Implements an enum of two storages: methods for any storage, then for arrays.
macro_rules! storage {
    ($Enum:ident, $First:ident($first:ty), $Second:ident($second:ty)) => {
        impl<A, B> $Enum<A, B> {
            /// Replaces the storage.
            #[inline]
            pub fn map<P, Q>(self, first: impl FnOnce(A) -> P, second: impl FnOnce(B) -> Q) -> $Enum<P, Q> {
                match self {
                    Self::$First(a) => $Enum::$First(first(a)),
                    Self::$Second(b) => $Enum::$Second(second(b)),
                }
            }

            /// Computes one value from either storage.
            #[inline]
            pub fn either<R>(self, first: impl FnOnce(A) -> R, second: impl FnOnce(B) -> R) -> R {
                match self {
                    Self::$First(a) => first(a),
                    Self::$Second(b) => second(b),
                }
            }

            /// Borrows the storage.
            #[inline]
            pub fn as_ref(&self) -> $Enum<&A, &B> {
                match self {
                    Self::$First(a) => $Enum::$First(a),
                    Self::$Second(b) => $Enum::$Second(b),
                }
            }

            /// Borrows the storage for writing.
            #[inline]
            pub fn as_mut(&mut self) -> $Enum<&mut A, &mut B> {
                match self {
                    Self::$First(a) => $Enum::$First(a),
                    Self::$Second(b) => $Enum::$Second(b),
                }
            }

            /// Pairs two storages, or returns `None` if they are of different kinds.
            #[inline]
            pub fn zip<P, Q>(self, other: $Enum<P, Q>) -> Option<$Enum<(A, P), (B, Q)>> {
                match (self, other) {
                    (Self::$First(a), $Enum::$First(p)) => Some($Enum::$First((a, p))),
                    (Self::$Second(b), $Enum::$Second(q)) => Some($Enum::$Second((b, q))),
                    _ => None,
                }
            }
        }

        impl<A, B, P, Q> $Enum<(A, P), (B, Q)> {
            /// Separates pairs.
            #[inline]
            pub fn unzip(self) -> ($Enum<A, B>, $Enum<P, Q>) {
                match self {
                    Self::$First((a, p)) => ($Enum::$First(a), $Enum::$First(p)),
                    Self::$Second((b, q)) => ($Enum::$Second(b), $Enum::$Second(q)),
                }
            }
        }

        impl<'a, N: Dimension, M: Dimension> $Enum<ArrayView<'a, $first, N>, ArrayView<'a, $second, M>> {
            /// Returns all elements in order.
            ///
            /// # Panics
            /// If the array is not contiguous.
            #[inline]
            #[must_use]
            pub fn to_slice(self) -> $Enum<&'a [$first], &'a [$second]> {
                self.map(|a| a.to_slice().expect(CONTIGUOUS), |b| b.to_slice().expect(CONTIGUOUS))
            }
        }
    };
}

const CONTIGUOUS: &str = "an array of columns is contiguous";

storage!(Obs, F32(f32), U8(u8));
storage!(Actions, Discrete(u32), Continuous(f32));

impl<F, U> Obs<F, U> {
    /// Creates the storage for an element type.
    #[inline]
    pub fn new(dtype: Dtype, f32s: impl FnOnce() -> F, u8s: impl FnOnce() -> U) -> Self {
        match dtype {
            Dtype::F32 => Self::F32(f32s()),
            Dtype::U8 => Self::U8(u8s()),
        }
    }

    /// Element type.
    #[inline]
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32(_) => Dtype::F32,
            Self::U8(_) => Dtype::U8,
        }
    }
}

impl<F: AsMut<[f32]>, U: AsMut<[u8]>> Obs<F, U> {
    /// Borrows all elements for writing.
    #[inline]
    pub fn as_mut_slice(&mut self) -> ObsSliceMut<'_> {
        self.as_mut().map(AsMut::as_mut, AsMut::as_mut)
    }
}

impl<D: AsRef<[u32]>, C: AsRef<[f32]>> Actions<D, C> {
    /// Returns all elements.
    #[inline]
    pub fn as_slice(&self) -> ActionSlice<'_> {
        self.as_ref().map(AsRef::as_ref, AsRef::as_ref)
    }
}

impl<D: AsMut<[u32]>, C: AsMut<[f32]>> Actions<D, C> {
    /// Borrows all elements for writing.
    #[inline]
    pub fn as_mut_slice(&mut self) -> ActionSliceMut<'_> {
        self.as_mut().map(AsMut::as_mut, AsMut::as_mut)
    }
}

impl<F: AsRef<[f32]>, U: AsRef<[u8]>> Obs<F, U> {
    /// Returns all elements.
    #[inline]
    pub fn as_slice(&self) -> ObsSlice<'_> {
        self.as_ref().map(AsRef::as_ref, AsRef::as_ref)
    }

    /// Number of elements.
    #[expect(clippy::len_without_is_empty, reason = "columns are rarely empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.as_slice().either(<[f32]>::len, <[u8]>::len)
    }
}

impl<'a> ActionSlice<'a> {
    /// Returns action `i` of several of `a` elements each.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    #[must_use]
    pub fn row(self, i: usize, a: usize) -> Action<'a> {
        self.map(|actions| actions[i], |actions| &actions[i * a..(i + 1) * a])
    }

    /// Checks kind, number and range of the actions of `n_envs` environments.
    ///
    /// # Errors
    /// [`Error::Kind`] or [`Error::Length`] if kind or number differ; [`Error::ActionOutOfRange`] or [`Error::ActionOutOfBounds`]
    /// if an action is outside of the space.
    pub fn check(self, space: &ActionSpace, n_envs: usize) -> Result<(), Error> {
        let length = |expected, found| {
            if expected == found { Ok(()) } else { Err(Error::Length { what: "actions", expected, found }) }
        };
        match (self, space) {
            (Self::Discrete(actions), space) if let Some(n) = space.n_discrete() => {
                length(n_envs, actions.len())?;
                match actions.iter().position(|&action| action >= n) {
                    Some(env_idx) => Err(Error::ActionOutOfRange { env_idx, action: actions[env_idx], n }),
                    None => Ok(()),
                }
            }
            (Self::Continuous(actions), ActionSpace::Continuous { low, high }) => {
                length(n_envs * low.len(), actions.len())?;
                for (env_idx, action) in actions.chunks_exact(low.len().max(1)).enumerate() {
                    for (dim, ((&action, &low), &high)) in action.iter().zip(low).zip(high).enumerate() {
                        if !action.is_finite() || !(low..=high).contains(&action) {
                            return Err(Error::ActionOutOfBounds { env_idx, dim, action, low, high });
                        }
                    }
                }
                Ok(())
            }
            (Self::Discrete(_), _) => {
                Err(Error::Kind { what: "actions", expected: "continuous actions", found: "discrete actions" })
            }
            (Self::Continuous(_), _) => {
                Err(Error::Kind { what: "actions", expected: "discrete actions", found: "continuous actions" })
            }
        }
    }
}

impl<'a> ObsSlice<'a> {
    /// Returns observation `i` of several of `d` elements each.
    ///
    /// # Panics
    /// If `i` is out of range.
    #[inline]
    #[must_use]
    pub fn row(self, i: usize, d: usize) -> Self {
        self.rows(i..i + 1, d)
    }

    /// Returns the observations in `range` of several of `d` elements each.
    ///
    /// # Panics
    /// If `range` is out of range.
    #[inline]
    #[must_use]
    pub fn rows(self, range: std::ops::Range<usize>, d: usize) -> Self {
        let elements = range.start * d..range.end * d;
        match self {
            Self::F32(obs) => Self::F32(&obs[elements]),
            Self::U8(obs) => Self::U8(&obs[elements]),
        }
    }

    /// Writes the observations to `to`.
    ///
    /// # Panics
    /// If element types or lengths differ.
    #[inline]
    pub fn copy_to(self, to: ObsSliceMut<'_>) {
        let both = to.zip(self).expect("observations of one element type");
        either!(Obs, both, |(to, from)| to.copy_from_slice(from));
    }
}

impl ObsRows {
    /// Allocates zeros.
    #[must_use]
    pub fn zeros(dtype: Dtype, len: usize) -> Self {
        Self::new(dtype, || vec![0.0; len], || vec![0; len])
    }

    /// Appends observations.
    ///
    /// # Panics
    /// If the element types differ.
    pub fn extend(&mut self, more: ObsSlice<'_>) {
        let both = self.as_mut().zip(more).expect("observations of one element type");
        either!(Obs, both, |(all, more)| all.extend_from_slice(more));
    }

    /// Removes all observations.
    pub fn clear(&mut self) {
        self.as_mut().either(Vec::clear, Vec::clear);
    }
}

impl ActionRows {
    /// Allocates zeros for `n` environments.
    #[must_use]
    pub fn zeros(space: &ActionSpace, n: usize) -> Self {
        match space {
            ActionSpace::Continuous { low, .. } => Self::Continuous(vec![0.0; n * low.len()]),
            _ => Self::Discrete(vec![0; n]),
        }
    }
}

impl<'a> Action<'a> {
    /// Returns the index of a discrete action.
    ///
    /// # Panics
    /// If the action is continuous; a batch checks the kind before its environments step.
    #[inline]
    #[must_use]
    pub fn discrete(self) -> u32 {
        self.either(|action| action, |_| panic!("a discrete space takes discrete actions"))
    }

    /// Returns the numbers of a continuous action.
    ///
    /// # Panics
    /// If the action is discrete; a batch checks the kind before its environments step.
    #[inline]
    #[must_use]
    pub fn continuous(self) -> &'a [f32] {
        self.either(|_| panic!("a continuous space takes continuous actions"), |action| action)
    }
}

/// An element type of observations: `f32` or `u8`.
pub trait Element: Copy + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// The type as a value.
    const DTYPE: Dtype;
    /// Returns the elements of `obs`, or `None` if their type differs.
    fn elements(obs: ObsSliceMut<'_>) -> Option<&mut [Self]>;
    /// Returns false for infinities and NaN.
    fn is_finite(self) -> bool;
    /// Wraps elements.
    fn slice(obs: &[Self]) -> ObsSlice<'_>;
    /// Wraps elements for writing.
    fn slice_mut(obs: &mut [Self]) -> ObsSliceMut<'_>;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
    fn elements(obs: ObsSliceMut<'_>) -> Option<&mut [Self]> {
        obs.either(Some, |_| None)
    }

    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }

    fn slice(obs: &[f32]) -> ObsSlice<'_> {
        ObsSlice::F32(obs)
    }

    fn slice_mut(obs: &mut [f32]) -> ObsSliceMut<'_> {
        ObsSliceMut::F32(obs)
    }
}

impl Element for u8 {
    const DTYPE: Dtype = Dtype::U8;
    fn elements(obs: ObsSliceMut<'_>) -> Option<&mut [Self]> {
        obs.either(|_| None, Some)
    }

    fn is_finite(self) -> bool {
        true
    }

    fn slice(obs: &[u8]) -> ObsSlice<'_> {
        ObsSlice::U8(obs)
    }

    fn slice_mut(obs: &mut [u8]) -> ObsSliceMut<'_> {
        ObsSliceMut::U8(obs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_different_kinds_do_not_pair() {
        let (floats, bytes) = (ObsSlice::F32(&[1.0, 2.0]), ObsSlice::U8(&[3]));
        assert!(floats.zip(bytes).is_none());
        assert_eq!(floats.zip(floats).map(Obs::unzip), Some((floats, floats)));
        assert_eq!((floats.dtype(), bytes.dtype()), (Dtype::F32, Dtype::U8));
    }

    #[test]
    fn rows_are_counted_in_observations() {
        let obs = ObsRows::U8((0..12).collect());
        assert_eq!(obs.as_slice().row(1, 3), ObsSlice::U8(&[3, 4, 5]));
        assert_eq!(obs.as_slice().rows(2..4, 3), ObsSlice::U8(&[6, 7, 8, 9, 10, 11]));
        let mut to = ObsRows::zeros(Dtype::U8, 3);
        obs.as_slice().row(1, 3).copy_to(to.as_mut_slice());
        to.extend(obs.as_slice().row(0, 1));
        assert_eq!((to.len(), &to), (4, &ObsRows::U8(vec![3, 4, 5, 0])));
    }

    #[test]
    #[should_panic(expected = "a discrete space takes discrete actions")]
    fn a_continuous_action_is_no_index() {
        let _ = Action::Continuous(&[0.5]).discrete();
    }
}
