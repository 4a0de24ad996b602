//! Parts of a network: parameters, layers in candle operations, normalization.

pub(crate) mod activation;
pub(crate) mod layer_norm;
pub(crate) mod mlp;
pub(crate) mod normalize;
pub mod params;
pub(crate) mod precision;
pub(crate) mod recurrent;
