//! Crate outside the workspace that depends on rl-buffer alone.

#[cfg(test)]
mod tests {
    use rl_buffer::{ActionKind, Dtype, Rollout, RolloutShape};

    #[test]
    fn a_rollout_can_be_made() {
        let actions = ActionKind::Continuous { len: 2 };
        let shape = RolloutShape { n_steps: 4, n_envs: 3, obs_len: 5, obs: Dtype::U8, actions };
        assert_eq!(Rollout::new(shape).unwrap().shape(), shape);
    }
}
