//! Checkpoints of a training: when they fail, when they are the best.

use std::io::Write;
use std::time::{Duration, Instant};

use rl_agents::Agent;

use crate::print::{grouped, program, quoted};
use crate::run::checkpoint::{self, Checkpoint, WriteReplay};
use crate::run::event::{Listener, warn};
use crate::run::run_dir::RunDir;
use crate::{Config, Error};

/// Consecutive failed saves after which training ends.
const MAX_FAILED: u32 = 3;
/// Greatest share of the time that checkpoints take if `checkpoint_every` is 0.
const SHARE: f64 = 0.02;
/// Least time between such checkpoints.
const LEAST: Duration = Duration::from_secs(10);
/// Greatest time between them, whatever their share.
const MOST: Duration = Duration::from_mins(10);
/// Time from one that failed to the next attempt.
const RETRY: Duration = Duration::from_secs(30);
/// Pauses between the attempts of the last save.
const PAUSES_MS: [u64; 3] = [100, 300, 1000];

/// Record of a run's checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    /// Env steps of the last checkpoint that was saved or loaded.
    saved: Option<u64>,
    /// Mean return of the best evaluation.
    best: Option<f64>,
    /// Old checkpoints that could not be removed the last time.
    stuck: usize,
    /// Consecutive failed saves.
    failed: u32,
    /// Time at which the checkpoint that follows became due, if time decides.
    due: Option<Instant>,
    /// Time from which on the next one is.
    next: Option<Instant>,
}

/// True if the agent itself is what cannot be saved, now and later.
fn is_final(error: &Error) -> bool {
    matches!(error, Error::Agent(rl_agents::Error::Snapshot(_)))
}

/// Warns of checkpoints that cannot be removed, with the first error.
fn warn_of_stuck(stuck: &[Error], listener: Listener<'_>) {
    if let Some(first) = stuck.first() {
        warn(listener, &format!("{} old checkpoints cannot be removed, first: {first}", stuck.len()));
    }
}

impl Saves {
    /// Continues from a checkpoint of `env_steps` env steps.
    pub(crate) fn loaded(env_steps: u64) -> Self {
        Self { saved: Some(env_steps), ..Self::default() }
    }

    /// Removes half-written checkpoints, and reads the best one's return.
    pub(crate) fn begin(&mut self, dir: &RunDir, config: &Config, listener: Listener<'_>) {
        warn_of_stuck(&checkpoint::clean(&dir.checkpoints()), listener);
        self.best = checkpoint::best_return(&dir.checkpoints(), config).unwrap_or_else(|error| {
            warn(listener, &format!("the best checkpoint is not known any more, the next evaluation replaces it: {error}"));
            None
        });
        self.failed = 0;
    }

    /// True if a checkpoint is due after an iteration that began at `before` env steps.
    ///
    /// If time decides, one is due after the first iteration, and then after a time of which the last one, with the wait for
    /// rollouts in flight, took at most 2%.
    pub(crate) fn is_due(&mut self, now: Instant, every: u64, before: u64, env_steps: u64) -> bool {
        if let (Some(before), Some(after)) = (before.checked_div(every), env_steps.checked_div(every)) {
            return before < after;
        }
        let is_due = self.next.is_none_or(|next| next <= now);
        if is_due {
            // The rollouts in flight ask again.
            self.due.get_or_insert(now);
        }
        is_due
    }

    /// Plans the next checkpoint after one that was due.
    fn plan(&mut self, now: Instant, is_saved: bool) {
        let Some(due) = self.due.take() else { return };
        let pause = now.duration_since(due).mul_f64(1.0 / SHARE).clamp(LEAST, MOST);
        self.next = now.checked_add(if is_saved { pause } else { RETRY });
    }

    fn write(
        &mut self,
        dir: &RunDir,
        checkpoint: &Checkpoint,
        agent: &mut dyn Agent,
        listener: Listener<'_>,
    ) -> Result<(), Error> {
        let (layout, keep) = (agent.layout().clone(), checkpoint.config.run.keep_checkpoints);
        let memory = agent.replay().filter(|memory| memory.is_saved());
        let write_replay = memory.map(|memory| |out: &mut dyn Write| memory.save_replay(out));
        let replay = write_replay.as_ref().map(|write| write as WriteReplay<'_>);
        let saved = checkpoint::save(&dir.checkpoints(), checkpoint, &layout, replay, keep, &mut |_| Ok(()))?;
        self.saved = Some(checkpoint.progress.env_steps);
        if saved.stuck.len() > self.stuck {
            warn_of_stuck(&saved.stuck, listener);
        }
        self.stuck = saved.stuck.len();
        Ok(())
    }

    /// Saves during training.
    ///
    /// Only the last of several consecutive failures is an error.
    ///
    /// # Errors
    /// [`Error::NotSaved`] after too many consecutive failures, [`Error::NotFinite`] if the agent has such numbers.
    pub(crate) fn save(
        &mut self,
        dir: &RunDir,
        checkpoint: &Checkpoint,
        agent: &mut dyn Agent,
        listener: Listener<'_>,
    ) -> Result<(), Error> {
        let written = self.write(dir, checkpoint, agent, listener);
        self.plan(Instant::now(), written.is_ok());
        let Err(error) = written else {
            self.failed = 0;
            return Ok(());
        };
        self.failed += 1;
        if self.failed == MAX_FAILED || is_final(&error) {
            return Err(self.gave_up(dir, self.failed, error));
        }
        warn(listener, &format!("checkpoint not saved, training continues: {error}"));
        Ok(())
    }

    /// Saves at the end of training; retries after a pause.
    ///
    /// # Errors
    /// [`Error::NotSaved`] if all attempts failed, [`Error::NotFinite`] if the agent has such numbers.
    pub(crate) fn save_last(
        &mut self,
        dir: &RunDir,
        checkpoint: &Checkpoint,
        agent: &mut dyn Agent,
        listener: Listener<'_>,
    ) -> Result<(), Error> {
        let mut pauses = PAUSES_MS.iter();
        loop {
            match (self.write(dir, checkpoint, agent, listener), pauses.next()) {
                (Ok(()), _) => return Ok(()),
                (Err(error), Some(&ms)) if !is_final(&error) => {
                    warn(listener, &format!("the last checkpoint is not saved: {error}; trying again in {ms} ms"));
                    std::thread::sleep(Duration::from_millis(ms));
                }
                (Err(error), _) => return Err(self.gave_up(dir, PAUSES_MS.len() as u32 + 1, error)),
            }
        }
    }

    /// Saves what was learnt before an environment failed, without the environments.
    pub(crate) fn save_after_fault(
        &mut self,
        dir: &RunDir,
        checkpoint: &Checkpoint,
        agent: &mut dyn Agent,
        listener: Listener<'_>,
    ) {
        match self.write(dir, checkpoint, agent, listener) {
            Ok(()) => {
                let (steps, dir, program) = (grouped(checkpoint.progress.env_steps), quoted(dir.path()), program());
                warn(
                    listener,
                    &format!(
                        "an environment has failed; {steps} env steps are saved, continue with: {program} train --resume {dir}"
                    ),
                );
            }
            Err(error) => warn(listener, &format!("an environment has failed, and no checkpoint is saved: {error}")),
        }
    }

    /// True if no evaluation had such a mean return before.
    pub(crate) fn is_best(&self, return_mean: f64) -> bool {
        !return_mean.is_nan() && self.best.is_none_or(|best| return_mean > best)
    }

    /// Replaces the best checkpoint; a failure is a warning.
    pub(crate) fn save_best(
        &mut self,
        dir: &RunDir,
        checkpoint: &Checkpoint,
        agent: &mut dyn Agent,
        return_mean: f64,
        listener: Listener<'_>,
    ) {
        let layout = agent.layout();
        match checkpoint::save_best(&dir.checkpoints(), checkpoint, layout, return_mean, &mut |_| Ok(())) {
            Ok(saved) => {
                self.best = Some(return_mean);
                warn_of_stuck(&saved.stuck, listener);
            }
            Err(error) => warn(listener, &format!("the best checkpoint is not saved, training continues: {error}")),
        }
    }

    fn gave_up(&self, dir: &RunDir, attempts: u32, cause: Error) -> Error {
        let run = dir.path().into();
        match cause {
            Error::Agent(rl_agents::Error::Snapshot(cause)) => Error::NotFinite { run, cause, saved: self.saved },
            cause => Error::NotSaved { run, attempts, cause: Box::new(cause), saved: self.saved },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_or_time_decide_when_a_checkpoint_is_due() {
        let begin = Instant::now();
        let at = |ms: u64| begin + Duration::from_millis(ms);
        let mut saves = Saves::default();
        let due = [(0, 96), (96, 192), (192, 288), (288, 384)].map(|(before, after)| saves.is_due(at(0), 200, before, after));
        assert_eq!((due, saves.due), ([false, false, true, false], None));

        assert!(saves.is_due(at(0), 0, 0, 8), "after the first iteration");
        saves.plan(at(30), true);
        assert!(!saves.is_due(at(9_000), 0, 8, 1 << 40), "within ten seconds, whatever the steps");
        // Two rollouts are in flight when one is due: their time counts, 300 ms in all.
        assert!([20_000, 20_100, 20_200].map(|ms| saves.is_due(at(ms), 0, 8, 16)).iter().all(|&is_due| is_due));
        saves.plan(at(20_300), true);
        assert_eq!((saves.next, saves.due), (Some(at(20_300 + 50 * 300)), None));
        // One that took minutes is not followed by hours without.
        assert!(saves.is_due(at(100_000), 0, 8, 16));
        saves.plan(at(400_000), true);
        assert_eq!(saves.next, Some(at(400_000) + MOST));
        // The attempt after a failure waits for the disk, not for 50 times what the failure took.
        assert!(saves.is_due(at(2_000_000), 0, 8, 16));
        saves.plan(at(2_030_000), false);
        assert_eq!(saves.next, Some(at(2_030_000) + RETRY));
    }
}
