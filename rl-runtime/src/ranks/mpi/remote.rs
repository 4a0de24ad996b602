//! Actors, as the learner sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rl_agents::Policy;
use rl_buffer::RolloutShape;
use rl_envs::Spaces;

use crate::pipeline::{Collect, Filled};
use crate::ranks::mpi::messages::{self, MessageKind, RolloutOrder};
use crate::report::profile::{Phase, Track};
use crate::{Error, interrupt};

/// Interval at which a thread that waits looks for a message.
///
/// MPI's own waits take a core each.
pub(super) const LOOK: Duration = Duration::from_micros(200);

/// Messages between this rank and the others.
pub(super) trait Mail: Send + 'static {
    /// Sends a message to another rank; blocks until that takes it, if it is long.
    fn send_message(&self, message: &[u8], to: usize);

    /// Receives a message from another rank, if one has arrived.
    fn try_receive_message(&self, from: usize) -> Option<Vec<u8>>;

    /// Waits for a message from another rank; returns `None` once `stop` is set.
    fn receive_message(&self, from: usize, stop: &AtomicBool) -> Option<Vec<u8>> {
        while !stop.load(Ordering::Relaxed) {
            if let Some(message) = self.try_receive_message(from) {
                return Some(message);
            }
            std::thread::sleep(LOOK);
        }
        None
    }
}

/// Collector whose rollouts come from another rank.
pub(super) struct Remote<M: Mail> {
    pub(super) mail: M,
    pub(super) rank: usize,
    pub(super) n_envs: usize,
    pub(super) spaces: Spaces,
    /// Number of elements of the policy's state.
    pub(super) state_len: usize,
    pub(super) stop: Arc<AtomicBool>,
}

impl<M: Mail> Remote<M> {
    fn lost(&self, text: impl Into<String>) -> Error {
        rl_agents::Error::Rank { rank: self.rank, text: text.into() }.into()
    }
}

impl<M: Mail> Collect for Remote<M> {
    fn collect(&mut self, policy: &dyn Policy, learnt: u64, filled: &mut Filled, track: &Track) -> Result<(), Error> {
        let order = RolloutOrder::new(policy, learnt, filled.remaining).message()?;
        track.time(Phase::Envs, || {
            self.mail.send_message(&order, self.rank);
            loop {
                let message = self.mail.receive_message(self.rank, &self.stop).ok_or_else(|| self.lost("stopped"))?;
                match MessageKind::split(&message) {
                    Some((MessageKind::Rollout, contents)) => return messages::decode(contents, filled),
                    Some((MessageKind::Failed, text)) => return Err(self.lost(String::from_utf8_lossy(text))),
                    Some((MessageKind::Interrupted, _)) => interrupt::request(),
                    _ => return Err(self.lost("sent no rollout")),
                }
            }
        })
    }

    fn shape(&self, n_steps: usize) -> RolloutShape {
        RolloutShape::new(n_steps, self.n_envs, &self.spaces.obs, &self.spaces.actions).with_state_len(self.state_len)
    }

    fn remember(&mut self, len: usize) -> Result<(), Error> {
        self.state_len = len;
        Ok(())
    }

    fn stopper(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }
}

impl<M: Mail> Drop for Remote<M> {
    fn drop(&mut self) {
        self.mail.send_message(&MessageKind::End.with(&[]), self.rank);
    }
}
