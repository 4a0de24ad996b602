//! A run shown: boards, lines, charts, animations.

pub(crate) mod animation;
pub(crate) mod board;
pub(crate) mod chart;
pub(crate) mod full_screen;
pub(crate) mod heartbeat;
pub(crate) mod live;
pub(crate) mod recorded;
pub(crate) mod report;
pub(crate) mod screen;
