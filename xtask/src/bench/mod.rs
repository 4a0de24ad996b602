//! Benches and studies; each writes its record below `bench/`.

pub(crate) mod actors;
pub(crate) mod board;
pub(crate) mod grids;
pub(crate) mod growth;
pub(crate) mod http;
pub(crate) mod lag;
pub(crate) mod learning;
pub(crate) mod peers;
pub(crate) mod pipeline;
pub(crate) mod presets;
pub(crate) mod ranks;
pub(crate) mod sb3;
pub(crate) mod scale;
pub(crate) mod study;
