//! Learning from a replay memory on a device: DQN, SAC and TD3.

pub(crate) mod actor_critics;
pub(crate) mod critics;
pub(crate) mod dqn;
pub(crate) mod learnt;
pub(crate) mod minibatches;
pub(crate) mod sac;
pub(crate) mod td3;
