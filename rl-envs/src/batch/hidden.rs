//! Batches with elements of their observations replaced by 0.

use crate::batch::vec_env::{VecEnv, inherited};
use crate::{ActionSpace, Canvas, Error, ObsSliceMut, Space, StepSlicesMut, either, visit};

/// Batch whose observations have elements replaced by 0.
///
/// As with [`Hide`](crate::wrappers::Hide) around each environment, but the environments may step in lanes.
pub(crate) struct HiddenVecEnv {
    envs: Box<dyn VecEnv>,
    elements: Vec<usize>,
    observation_space: Space,
}

impl HiddenVecEnv {
    /// Hides the velocities of `envs`.
    pub(crate) fn new(envs: Box<dyn VecEnv>) -> Self {
        let elements = envs.observation_space().velocities().to_vec();
        let observation_space = envs.observation_space().clone().with_zeros(&elements);
        Self { envs, elements, observation_space }
    }

    /// Replaces elements of each observation by 0.
    fn hide(&self, obs: ObsSliceMut<'_>) {
        let d = self.observation_space.len();
        either!(Obs, obs, |obs| for row in obs.chunks_exact_mut(d) {
            self.elements.iter().for_each(|&element| row[element] = Default::default());
        });
    }
}

impl VecEnv for HiddenVecEnv {
    inherited!(|self| self.envs, observation_space: &self.observation_space);

    fn reset_into(&mut self, seed: u64, mut obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.reset_into(seed, visit!(Obs, obs.as_mut(), |obs| &mut **obs), masks)?;
        self.hide(obs);
        Ok(())
    }

    fn step_into(&mut self, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.step_into(steps.view_mut())?;
        let StepSlicesMut { obs, final_obs, .. } = steps;
        [obs, final_obs].into_iter().for_each(|obs| self.hide(obs));
        Ok(())
    }

    fn restart(&mut self, env_idx: usize, mut obs: ObsSliceMut<'_>, masks: Option<&mut [u8]>) -> Result<(), Error> {
        self.envs.restart(env_idx, visit!(Obs, obs.as_mut(), |obs| &mut **obs), masks)?;
        self.hide(obs);
        Ok(())
    }

    fn repeat_step(&mut self, env_idx: usize, mut steps: StepSlicesMut<'_>) -> Result<(), Error> {
        self.envs.repeat_step(env_idx, steps.view_mut())?;
        let StepSlicesMut { obs, final_obs, .. } = steps;
        [obs, final_obs].into_iter().for_each(|obs| self.hide(obs));
        Ok(())
    }

    fn raw_rewards(&self, rewards: &mut [f32]) {
        self.envs.raw_rewards(rewards);
    }

    fn save(&self) -> Result<Vec<u8>, Error> {
        self.envs.save()
    }

    fn load(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.envs.load(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog;
    use crate::wrappers::{Hidden, Hide, Wrappers};
    use crate::{RandomActions, Steps, SyncVecEnv, acrobot::Acrobot};

    #[test]
    fn a_batch_with_hidden_elements_steps_as_environments_that_hide_them() {
        let wrappers = Wrappers { hide: Hidden::Velocities, ..Wrappers::default() };
        let mut fast = catalog::find("acrobot").unwrap().wrapped(wrappers).sync(21).unwrap();
        let mut slow = SyncVecEnv::new(21, Hide::new(Acrobot::default(), Hidden::Velocities));
        assert_eq!(fast.observation_space(), slow.observation_space());
        let [mut of_fast, mut of_slow] = [Steps::new(&*fast), Steps::new(&slow)];
        fast.reset(5, &mut of_fast).unwrap();
        slow.reset(5, &mut of_slow).unwrap();
        let mut actions = RandomActions::new(5, 21, slow.action_space());
        for step in 0..600 {
            actions.fill(of_fast.actions.as_mut_slice());
            of_slow.actions = of_fast.actions.clone();
            if step % 7 == 3 {
                let (saved, same) = (fast.save().unwrap(), slow.save().unwrap());
                assert_eq!(saved, same);
                fast.load(&same).unwrap();
            }
            fast.step(&mut of_fast).unwrap();
            slow.step(&mut of_slow).unwrap();
            let of =
                |steps: &Steps| (steps.obs.clone(), steps.rewards.clone(), steps.terminated.clone(), steps.truncated.clone());
            assert_eq!(of(&of_fast), of(&of_slow), "step {step}");
            let ended = of_fast.terminated.iter().zip(&of_fast.truncated).any(|(a, b)| a | b != 0);
            assert!(!ended || of_fast.final_obs == of_slow.final_obs, "step {step}");
        }
    }
}
