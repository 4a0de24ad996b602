//! Settings that suit an environment and an algorithm.

use rl_agents::{Activation, NetConfig};
use rl_envs::{Dtype, Space};

use crate::config::algo::Algo;
use crate::sources::worker::GYM;

/// Workloads for any environment: name, TOML.
///
/// Environments that answer over HTTP: long rollouts, wide networks. Many environments: few steps on large minibatches.
pub const WORKLOADS: &[(&str, &str)] = &[
    ("http-small", include_str!("../../presets/http-small.toml")),
    ("http-large", include_str!("../../presets/http-large.toml")),
    ("many-envs", include_str!("../../presets/many-envs.toml")),
];

/// The presets: environment, algorithm, TOML.
///
/// An environment that ends with `*` is any whose name begins like that, without the module of Gymnasium's. The first that fits
/// is taken.
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
    ("gym:LunarLanderContinuous-v3", Algo::SAC, include_str!("../../presets/lunar_lander-sac.toml")),
    ("gym:LunarLanderContinuous-v3", Algo::TD3, include_str!("../../presets/lunar_lander-td3.toml")),
    ("gym:HalfCheetah-v5", Algo::SAC, MUJOCO_SAC),
    ("gym:HalfCheetah-v5", Algo::TD3, MUJOCO_TD3),
    ("gym:Hopper-v5", Algo::SAC, MUJOCO_SAC),
    ("gym:Hopper-v5", Algo::TD3, MUJOCO_TD3),
    ("gym:Walker2d-v5", Algo::SAC, MUJOCO_SAC),
    ("gym:Walker2d-v5", Algo::TD3, MUJOCO_TD3),
    ("gym:ALE/*", Algo::PPO, include_str!("../../presets/atari-ppo.toml")),
    ("gym:ALE/*", Algo::A2C, include_str!("../../presets/atari-a2c.toml")),
    ("gym:ALE/*", Algo::DQN, include_str!("../../presets/atari-dqn.toml")),
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
    ("empty", Algo::PPO, GRID_WORLD_PPO),
    ("multi_room", Algo::PPO, GRID_WORLD_PPO),
    ("door_key", Algo::PPO, include_str!("../../presets/door_key-ppo.toml")),
    ("asterix", Algo::PPO, MINATAR_PPO),
    ("breakout", Algo::PPO, MINATAR_PPO),
    ("freeway", Algo::PPO, MINATAR_PPO),
    ("seaquest", Algo::PPO, MINATAR_PPO),
    ("space_invaders", Algo::PPO, MINATAR_PPO),
    ("asterix", Algo::DQN, MINATAR_DQN),
    ("breakout", Algo::DQN, MINATAR_DQN),
    ("freeway", Algo::DQN, MINATAR_DQN),
    ("seaquest", Algo::DQN, MINATAR_DQN),
    ("space_invaders", Algo::DQN, MINATAR_DQN),
    ("repeat_first", Algo::PPO, include_str!("../../presets/repeat_first-ppo.toml")),
    ("*", Algo::SAC, include_str!("../../presets/continuous-sac.toml")),
    ("*", Algo::TD3, include_str!("../../presets/continuous-td3.toml")),
];

/// Presets of MinAtar's games.
const MINATAR_PPO: &str = include_str!("../../presets/minatar-ppo.toml");
const MINATAR_DQN: &str = include_str!("../../presets/minatar-dqn.toml");

/// Preset of small grid worlds.
const GRID_WORLD_PPO: &str = include_str!("../../presets/grid_world-ppo.toml");

/// Presets of MuJoCo's environments.
const MUJOCO_SAC: &str = include_str!("../../presets/mujoco-sac.toml");
const MUJOCO_TD3: &str = include_str!("../../presets/mujoco-td3.toml");

/// Returns the preset of an environment and an algorithm.
pub(super) fn preset(env: &str, algo: Algo) -> Option<&'static str> {
    let of_module = env.strip_prefix(GYM).and_then(|id| id.rsplit_once(':')).map(|(_, id)| format!("{GYM}{id}"));
    let name = of_module.as_deref().unwrap_or(env);
    let fits = |of: &str| of.strip_suffix('*').map_or(of == env, |begin| name.starts_with(begin));
    PRESETS.iter().find(|(of, of_algo, _)| *of_algo == algo && fits(of)).map(|(.., toml)| *toml)
}

/// Convolutions of Nature-DQN (Mnih et al., 2015).
const NATURE: &[[usize; 3]] = &[[32, 8, 4], [64, 4, 2], [64, 3, 1]];

/// Returns the convolutions of this name, as a setting.
pub(super) fn named_conv(name: &str) -> Option<toml::Value> {
    let layer = |layer: &[usize; 3]| toml::Value::Array(layer.map(|size| toml::Value::Integer(size as i64)).into());
    (name == "nature").then(|| NATURE.iter().map(layer).collect::<Vec<_>>().into())
}

/// Networks for pictures.
///
/// Minimum number of rows and columns, convolutions, units of a hidden layer.
/// The last are those of MiniGrid's guide.
const PICTURES: &[(usize, &[[usize; 3]], usize)] = &[
    (36, NATURE, 512),
    (16, &[[16, 4, 2], [32, 3, 2]], 128),
    (10, &[[16, 3, 1], [32, 3, 1]], 128),
    (4, &[[16, 2, 1], [32, 2, 1], [64, 2, 1]], 128),
];

/// Most rows and columns of a picture that convolutions are chosen for.
///
/// The hidden layer of larger ones would have more than 25 million weights.
const LARGEST: usize = 256;

/// Returns the shapes of the pictures in an observation: (channels, rows, columns).
fn picture_shapes(obs: &Space) -> Vec<[usize; 3]> {
    match (obs.parts(), obs.shape()) {
        ([], &[channels, rows, columns]) if obs.dtype() == Dtype::U8 => vec![[channels, rows, columns]],
        (parts, _) => parts.iter().filter_map(rl_envs::Part::picture).collect(),
    }
}

/// Replaces settings of a network that are not `given` by those for pictures.
///
/// Returns `None` if there are no pictures, or some that are too small or too large.
pub(super) fn for_pictures(net: &NetConfig, obs: &Space, given: impl Fn(&str) -> bool) -> Option<NetConfig> {
    let pictures = picture_shapes(obs);
    let least = pictures.iter().map(|[_, rows, columns]| *rows.min(columns)).min()?;
    if pictures.iter().any(|[_, rows, columns]| *rows.max(columns) > LARGEST) {
        return None;
    }
    let (_, conv, units) = PICTURES.iter().find(|(size, ..)| least >= *size)?;
    let mut net = NetConfig { conv: conv.to_vec(), ..net.clone() };
    if !given("hidden") {
        net.hidden = vec![*units];
    }
    if !given("activation") {
        net.activation = Activation::Relu;
    }
    Some(net)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Layers;
    use rl_envs::catalog::find;

    #[test]
    fn convolutions_fit_the_smallest_picture() {
        for size in 1..100 {
            let obs = Space::bytes(&[3, size, size + 5], 255, 1.0);
            let net = for_pictures(&NetConfig::default(), &obs, |_| false);
            assert_eq!(net.is_some(), size >= 4, "{size}");
            assert!(net.is_none_or(|net| net.check(&obs).is_ok()), "{size}");
        }
        let part = |shape: [usize; 3]| rl_envs::Part { name: shape[1].to_string(), shape: shape.into() };
        let obs = Space::vector(&vec![0.0; 1800], &vec![1.0; 1800]).with_parts(&[part([1, 40, 40]), part([2, 10, 10])]);
        let net = for_pictures(&NetConfig::default(), &obs, |_| false).unwrap();
        assert_eq!((net.conv.len(), net.conv[0], net.check(&obs).is_ok()), (2, [16, 3, 1], true));
    }

    #[test]
    fn a_preset_fits_names_that_begin_like_its_own_with_and_without_a_module() {
        let atari = preset("gym:ALE/Pong-v5", Algo::PPO);
        assert!(atari.is_some_and(|toml| toml.contains("frame_stack = 4")));
        assert_eq!(preset("gym:ale_py:ALE/Pong-v5", Algo::PPO), atari);
        assert_eq!((preset("gym:Pong-v5", Algo::PPO), preset("gym:Pendulum-v1", Algo::A2C)), (None, None));
        assert!(preset("snake", Algo::DQN).is_some() && preset("snakes", Algo::DQN).is_none());
        let of = |env| preset(env, Algo::SAC).unwrap();
        assert!(of("pendulum").contains("steps = 20_000") && !of("gym:Pendulum-v1").contains("steps"));
        assert_eq!((of("gym:Pendulum-v1"), of("gym:Hopper-v5")), (of("exec:mine"), MUJOCO_SAC));
    }

    #[test]
    fn runs_of_older_versions_keep_their_observations() {
        let full = crate::Config::new("gym:ALE/Pong-v5", Algo::PPO);
        assert_eq!(full.env.settings["atari_preprocessing"].as_bool(), Some(true));
        let mut table = full.table().unwrap();
        table.insert("env".into(), "gym:ALE/Pong-v5".into());
        table.insert("algo".into(), "ppo".into());
        let read = crate::Config::from_toml(&toml::to_string(&table).unwrap(), "config.toml").unwrap();
        for key in ["atari_preprocessing", "float_images"] {
            assert_eq!(read.env.settings[key].as_bool(), Some(false), "{key}");
        }
        assert_eq!(read.env.settings["normalize_images"].as_bool(), Some(true));
    }

    #[test]
    fn settings_that_are_given_stay_and_an_algorithm_that_reads_no_pictures_gets_none() {
        let resolve = |env: &str, algo: Algo, settings: &[&str]| {
            let mut layers = Layers::default();
            settings.iter().for_each(|setting| layers.add_assignment(setting));
            layers.resolve(find(env).unwrap(), algo).unwrap().net
        };
        let snake = resolve("snake", Algo::A2C, &[]);
        assert_eq!(
            (snake.conv.len(), &snake.hidden[..], snake.activation, snake.shared_trunk),
            (2, &[128][..], Activation::Relu, true)
        );
        let given = resolve("snake", Algo::A2C, &["hidden=[9]", "activation=tanh", "shared_trunk=false"]);
        assert_eq!(
            (given.conv.len(), &given.hidden[..], given.activation, given.shared_trunk),
            (2, &[9][..], Activation::Tanh, false)
        );
        assert!(resolve("snake", Algo::A2C, &["conv=[]"]).conv.is_empty());
        assert!(!resolve("snake", Algo::A2C, &["critic_hidden=[7]"]).shared_trunk);
        assert!(!resolve("breakout", Algo::DQN, &[]).shared_trunk && !resolve("breakout", Algo::DQN, &[]).conv.is_empty());
        assert!(resolve("cartpole", Algo::PPO, &[]).conv.is_empty());
        assert_eq!(for_pictures(&NetConfig::default(), &Space::bytes(&[3, 100, 400], 255, 1.0), |_| false), None);
        assert_eq!(resolve("cartpole", Algo::PPO, &["env.pixels=84"]).conv.len(), 3);
        let nature = resolve("cartpole", Algo::PPO, &["env.pixels=84", "conv=nature"]);
        assert_eq!((&nature.conv[..], &nature.hidden[..], nature.activation), (NATURE, &[64, 64][..], Activation::Tanh));
    }
}
