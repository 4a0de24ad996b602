//! Writing of recordings.

use std::io;
use std::path::Path;

use rl_agents::{Episode, Policy};
use rl_buffer::{ActionSlice, Rollout};
use rl_envs::codec;

use crate::Error;
use crate::pipeline::{Collect, Filled};
use crate::report::profile::Track;
use crate::sources::recording::{Heading, MAGIC, obs_bytes};

/// Truncates the episodes still running after the last step.
pub(super) fn cut(rollout: &mut Rollout) {
    let last = rollout.shape().n_steps - 1;
    let state = vec![0.0; rollout.shape().state_len]; // a recording has none
    for n in 0..rollout.shape().n_envs {
        let mut columns = rollout.columns();
        let step = columns.step(last);
        if step.terminated[n] | step.truncated[n] == 0 {
            step.truncated[n] = 1;
            rollout.end(last, n, &state);
        }
    }
}

/// Writes the steps of a rollout.
fn encode(rollout: &mut Rollout, out: &mut Vec<u8>) {
    let (d, n_steps) = (rollout.shape().obs_len, rollout.shape().n_steps);
    let (obs, masks) = (rollout.final_obs(), rollout.final_masks());
    let a = masks.len().checked_div(rollout.final_at().len()).unwrap_or(0);
    let mut ends: Vec<_> = rollout.final_at().iter().copied().zip(0..).collect();
    ends.sort_unstable();
    let finals: Vec<_> =
        ends.iter().map(|&((t, _), i)| (t, [obs_bytes(obs.row(i, d)), &masks[i * a..(i + 1) * a]].concat())).collect();
    let mut finals = finals.iter().peekable();
    let mut columns = rollout.columns();
    for t in 0..n_steps {
        out.extend_from_slice(obs_bytes(columns.obs(t)));
        out.extend_from_slice(columns.masks(t));
        match columns.actions(t) {
            ActionSlice::Discrete(actions) => out.extend_from_slice(bytemuck::cast_slice(actions)),
            ActionSlice::Continuous(actions) => out.extend_from_slice(bytemuck::cast_slice(actions)),
        }
        let step = columns.step(t);
        out.extend_from_slice(bytemuck::cast_slice(step.rewards));
        out.extend_from_slice(step.terminated);
        out.extend_from_slice(step.truncated);
        while let Some((_, bytes)) = finals.next_if(|(at, _)| *at == t) {
            out.extend_from_slice(bytes);
        }
    }
}

/// Steps to record, from a collector and a policy.
pub(crate) struct Recorder<'a> {
    /// Environment with its settings, as JSON.
    pub(crate) env: String,
    pub(crate) collector: Box<dyn Collect>,
    pub(crate) policy: &'a dyn Policy,
    /// Minimum number of env steps.
    pub(crate) env_steps: u64,
}

impl Recorder<'_> {
    /// Writes the recording.
    ///
    /// `progress` receives the env steps so far and the episodes since its last call. If `progress` returns `false`, so does this
    /// method, and the recording is incomplete.
    ///
    /// # Errors
    /// The errors of environments and policy; [`Error::Io`].
    pub(crate) fn write(
        mut self,
        path: &Path,
        out: &mut dyn io::Write,
        track: &Track,
        progress: &mut dyn FnMut(u64, &[Episode]) -> bool,
    ) -> Result<bool, Error> {
        let head = Heading::new(&self.env, &self.collector.shape(1), self.env_steps);
        let io = |written: io::Result<()>| written.map_err(Error::io(path));
        let encoded = codec::encode(&head)?;
        io(out.write_all(MAGIC))?;
        io(out.write_all(&(encoded.len() as u64).to_le_bytes()))?;
        io(out.write_all(&encoded))?;
        let empty =
            || Rollout::new(self.collector.shape(head.block_steps as usize)).map(Filled::new).map_err(rl_agents::Error::from);
        let [mut last, mut next] = [empty()?, empty()?];
        let (blocks, mut block) = (head.steps / head.block_steps, Vec::new());
        self.collector.collect(self.policy, 0, &mut last, track)?;
        for i in 1..=blocks {
            // An episode that was dropped between two rollouts ends with the first of them.
            if i < blocks {
                self.collector.collect(self.policy, 0, &mut next, track)?;
            }
            if i == blocks || next.rollout.cut_before {
                cut(&mut last.rollout);
            }
            block.clear();
            encode(&mut last.rollout, &mut block);
            io(out.write_all(&(block.len() as u64).to_le_bytes()))?;
            io(out.write_all(blake3::hash(&block).as_bytes()))?;
            io(out.write_all(&block))?;
            if !progress(i * head.block_steps * head.n_envs as u64, &last.episodes) {
                return Ok(false);
            }
            std::mem::swap(&mut last, &mut next);
        }
        Ok(true)
    }
}
