//! The policy of the documentation balances the pole.

use rl_envs::cartpole::CartPole;
use rl_envs::{Env as _, Purpose, Rng};
use rl_policy::{Action, Choice, Obs, Policy};

#[test]
fn the_policy_in_the_documentation_balances_the_pole() {
    const EPISODES: u32 = 20;
    let policy = Policy::new(include_bytes!("data/cartpole.policy")).unwrap();
    let (mut memory, mut obs, mut action) = (vec![0.0; policy.memory_len()], [0.0; 4], [0]);
    let mut sum = 0.0;
    for env in 0..EPISODES {
        let (mut cartpole, rng) = (CartPole::default(), &mut Rng::new(5, env, 0, Purpose::Reset));
        cartpole.reset(rng, &mut obs);
        loop {
            policy.act(Obs::F32(&obs), &[], Choice::Greedy, &mut memory, Action::Discrete(&mut action)).unwrap();
            let step = cartpole.step(rl_envs::Action::Discrete(action[0]), rng, &mut obs);
            sum += step.reward;
            if step.terminated || step.truncated {
                break;
            }
        }
    }
    assert!(sum / EPISODES as f32 >= 475.0, "mean return {}", sum / EPISODES as f32);
}
