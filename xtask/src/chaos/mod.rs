//! Programs that are fed, killed and starved at random.

pub(crate) mod behaviours;
pub(crate) mod corpus;
pub(crate) mod foreign;
pub(crate) mod full_disk;
pub(crate) mod fuzz;
pub(crate) mod kill9;
pub(crate) mod kills;
pub(crate) mod mutate;
pub(crate) mod soak;
pub(crate) mod worker;
