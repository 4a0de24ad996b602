//! Settings that suit an environment and an algorithm.

use crate::config::algo::Algo;

/// Workloads for any environment: name, TOML.
///
/// Environments that answer over HTTP: long rollouts, wide networks. Many environments: few steps on large minibatches.
pub const WORKLOADS: &[(&str, &str)] = &[
    ("http-small", include_str!("../../presets/http-small.toml")),
    ("http-large", include_str!("../../presets/http-large.toml")),
    ("many-envs", include_str!("../../presets/many-envs.toml")),
];

/// The presets: environment, algorithm, TOML.
pub const PRESETS: &[(&str, Algo, &str)] = &[
    ("cartpole", Algo::PPO, include_str!("../../presets/cartpole-ppo.toml")),
    ("cartpole", Algo::A2C, include_str!("../../presets/cartpole-a2c.toml")),
    ("cartpole", Algo::DQN, include_str!("../../presets/cartpole-dqn.toml")),
    ("slow_cartpole", Algo::PPO, include_str!("../../presets/slow_cartpole-ppo.toml")),
    #[cfg(feature = "crawl")]
    ("crawl", Algo::PPO, include_str!("../../presets/crawl-ppo.toml")),
    #[cfg(feature = "crawl")]
    ("crawl", Algo::DQN, include_str!("../../presets/crawl-dqn.toml")),
    ("gym:LunarLander-v3", Algo::PPO, include_str!("../../presets/lunar_lander-ppo.toml")),
    ("gym:HalfCheetah-v5", Algo::PPO, include_str!("../../presets/half_cheetah-ppo.toml")),
    ("mountain_car", Algo::PPO, include_str!("../../presets/mountain_car-ppo.toml")),
    ("mountain_car", Algo::A2C, include_str!("../../presets/mountain_car-a2c.toml")),
    ("mountain_car", Algo::DQN, include_str!("../../presets/mountain_car-dqn.toml")),
    ("mountain_car_continuous", Algo::PPO, include_str!("../../presets/mountain_car_continuous-ppo.toml")),
    ("mountain_car_continuous", Algo::A2C, include_str!("../../presets/mountain_car_continuous-a2c.toml")),
    ("mountain_car_continuous", Algo::TD3, include_str!("../../presets/mountain_car_continuous-td3.toml")),
    ("acrobot", Algo::PPO, include_str!("../../presets/acrobot-ppo.toml")),
    ("acrobot", Algo::A2C, include_str!("../../presets/acrobot-a2c.toml")),
    ("acrobot", Algo::DQN, include_str!("../../presets/acrobot-dqn.toml")),
    ("pendulum", Algo::PPO, include_str!("../../presets/pendulum-ppo.toml")),
    ("pendulum", Algo::A2C, include_str!("../../presets/pendulum-a2c.toml")),
    ("pendulum", Algo::SAC, include_str!("../../presets/pendulum-sac.toml")),
    ("pendulum", Algo::TD3, include_str!("../../presets/pendulum-td3.toml")),
    ("snake", Algo::PPO, include_str!("../../presets/snake-ppo.toml")),
    ("snake", Algo::DQN, include_str!("../../presets/snake-dqn.toml")),
    ("breakout", Algo::PPO, include_str!("../../presets/breakout-ppo.toml")),
    ("repeat_first", Algo::PPO, include_str!("../../presets/repeat_first-ppo.toml")),
];
