//! Buffers in a kind of memory of their own, made with rl-buffer alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rl_buffer::{ActionKind, Batch, Block, Dtype, Error, Host, Memory, ReplayBuffer, Rollout, RolloutShape, TransitionShape};

/// The host's memory, counted.
#[derive(Debug, Default)]
pub struct Counted {
    /// Number of bytes allocated so far.
    pub bytes: AtomicUsize,
}

impl Memory for Counted {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>, Error> {
        self.bytes.fetch_add(bytes, Relaxed);
        Host.allocate(bytes)
    }
}

/// Creates a rollout, a replay buffer and a batch of it in `memory`.
///
/// # Errors
/// Errors of rl-buffer.
pub fn buffers(memory: &Arc<dyn Memory>) -> Result<(Rollout, ReplayBuffer, Batch), Error> {
    let actions = ActionKind::Continuous { len: 2 };
    let rollout = RolloutShape { n_steps: 4, n_envs: 3, obs_len: 5, obs: Dtype::U8, actions, state_len: 0 };
    let transition = TransitionShape { n_envs: 3, obs_len: 5, obs: Dtype::U8, stack: 1, actions, n_step: 1, gamma: 0.9 };
    let batch = Batch::new_in(&transition, 4, memory)?;
    Ok((Rollout::new_in(rollout, memory)?, ReplayBuffer::new_in(transition, 7, memory)?, batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_live_in_memory_of_any_kind() {
        let counted = Arc::new(Counted::default());
        let (rollout, replay, batch) = buffers(&(counted.clone() as Arc<dyn Memory>)).unwrap();
        assert_eq!((rollout.len(), replay.capacity(), batch.columns().rewards), (12, 7, &[0.0; 4][..]));
        assert!(counted.bytes.load(Relaxed) > 12 * 5 + 7 * 10 + 4 * 10);
    }
}
