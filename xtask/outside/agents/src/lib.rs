//! Crate outside the workspace that depends on rl-agents alone.

#[cfg(test)]
mod tests {
    use rl_agents::distributions::{greedy, log_softmax};
    use rl_agents::optim::{Optimizer, Rule};

    #[test]
    fn an_optimizer_makes_the_rewarded_action_the_most_likely() {
        let (mut logits, rewarded) = ([0.5, 0.0, -0.5], 2);
        let mut optimizer = Optimizer::new(Rule::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 }, logits.len());
        for _ in 0..100 {
            let mut log_probs = logits;
            log_softmax(&mut log_probs, &[]);
            // The gradient of -ln p of the rewarded action.
            let gradient: Vec<f32> =
                log_probs.iter().enumerate().map(|(action, x)| x.exp() - f32::from(u8::from(action == rewarded))).collect();
            optimizer.step(&mut logits, &gradient, 0.1, 1.0);
        }
        assert_eq!(greedy(&logits), rewarded as u32);
        assert_eq!(optimizer.steps().taken, 100);
    }
}
