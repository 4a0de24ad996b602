//! Crate outside the workspace that depends on rl-envs alone.

#[cfg(test)]
mod tests {
    #[test]
    fn environments_can_be_made_and_stepped() {
        let steps = rl_envs::catalog::find("cartpole").unwrap().sync(3).unwrap();
        assert_eq!(steps.observation_space().len(), 4);
    }
}
