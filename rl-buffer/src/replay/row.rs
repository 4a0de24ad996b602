//! A transition as a row of words.

use crate::replay::transition::Complete;
use crate::{Dtype, ObsSlice, TransitionShape};

/// Layout of a row of words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// Words of an observation; 0 for byte observations.
    pub(crate) obs: usize,
    pub(crate) action: usize,
    /// Offset of the reward, which the discount follows.
    pub(crate) reward: usize,
    pub(crate) mask: usize,
    /// Bytes of a mask.
    pub(crate) mask_len: usize,
    /// Bytes of an observation; 0 for f32 observations.
    pub(crate) bytes: usize,
    pub(crate) len: usize,
}

impl Row {
    pub(crate) fn new(shape: &TransitionShape) -> Self {
        let (obs, bytes) = if shape.obs == Dtype::F32 { (shape.obs_len, 0) } else { (0, shape.obs_len) };
        let action = 2 * obs;
        let reward = action + shape.action_len();
        let mask_len = shape.mask_len();
        Self { obs, action, reward, mask: reward + 2, mask_len, bytes, len: reward + 2 + mask_len.div_ceil(4) }
    }

    /// Writes a transition as row `at`.
    pub(crate) fn write(&self, at: usize, words: &mut [u32], bytes: &mut [u8], transition: &Complete<'_>) {
        let words = &mut words[at * self.len..][..self.len];
        match (transition.obs, transition.next_obs) {
            (ObsSlice::F32(obs), ObsSlice::F32(next_obs)) => {
                store::<0>(words, obs);
                store::<0>(&mut words[self.obs..], next_obs);
            }
            (ObsSlice::U8(obs), ObsSlice::U8(next_obs)) => {
                let bytes = &mut bytes[at * 2 * self.bytes..][..2 * self.bytes];
                bytes[..self.bytes].copy_from_slice(obs);
                bytes[self.bytes..].copy_from_slice(next_obs);
            }
            _ => unreachable!("both are of the shape's type"),
        }
        words[self.action..self.reward].copy_from_slice(transition.action);
        words[self.reward] = transition.reward.to_bits();
        words[self.reward + 1] = transition.discount.to_bits();
        store_mask(&mut words[self.mask..], transition.next_mask);
    }
}

/// Stores numbers as words; with D = 0, the length is that of the slices.
#[inline(always)]
pub(crate) fn store<const D: usize>(words: &mut [u32], numbers: &[f32]) {
    let d = if D == 0 { numbers.len() } else { D };
    words[..d].iter_mut().zip(&numbers[..d]).for_each(|(word, number)| *word = number.to_bits());
}

/// Loads numbers from words; with D = 0, the length is that of the slices.
#[inline(always)]
pub(crate) fn load<const D: usize>(numbers: &mut [f32], words: &[u32]) {
    let d = if D == 0 { words.len() } else { D };
    numbers[..d].iter_mut().zip(&words[..d]).for_each(|(number, word)| *number = f32::from_bits(*word));
}

pub(crate) fn store_mask(words: &mut [u32], mask: &[u8]) {
    for (word, bytes) in words.iter_mut().zip(mask.chunks(4)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
    }
}

pub(crate) fn load_mask(mask: &mut [u8], words: &[u32]) {
    for (bytes, word) in mask.chunks_mut(4).zip(words) {
        bytes.iter_mut().zip(word.to_le_bytes()).for_each(|(byte, value)| *byte = value);
    }
}

/// Calls `$self.$method::<D>(..)` with common observation lengths as constants.
macro_rules! with_obs_len {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self.row.obs {
            1 => $self.$method::<1>($($argument),*),
            2 => $self.$method::<2>($($argument),*),
            3 => $self.$method::<3>($($argument),*),
            4 => $self.$method::<4>($($argument),*),
            6 => $self.$method::<6>($($argument),*),
            8 => $self.$method::<8>($($argument),*),
            _ => $self.$method::<0>($($argument),*),
        }
    };
}
pub(crate) use with_obs_len;
