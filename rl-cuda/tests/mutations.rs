//! Mistakes planted into the kernels.
//!
//! The comparison with Rust must notice each of them; otherwise it would prove nothing.
#![allow(clippy::unwrap_used, reason = "tests")]

mod beside;

use std::collections::HashMap;

use beside::{check_bound, compare};
use rl_cuda::Device;

/// Environment, file, original text, replacement.
const MUTATIONS: &[[&str; 4]] = &[
    // Swapped flags, and a merged one.
    ["cartpole", "vec_env.cuh", "out.terminated[at] = outcome.terminated;", "out.terminated[at] = outcome.truncated;"],
    [
        "cartpole",
        "vec_env.cuh",
        "out.truncated[at] = outcome.truncated;",
        "out.truncated[at] = outcome.truncated | outcome.terminated;",
    ],
    ["pendulum", "vec_env.cuh", "if (outcome.terminated | outcome.truncated)", "if (outcome.terminated)"],
    // Off-by-one bounds.
    ["cartpole", "vec_env.cuh", "if (i >= envs.n_envs) return;", "if (i > envs.n_envs) return;"],
    ["cartpole", "vec_env.cuh", "if (i >= envs.n_envs) return;", "if (i + 1 >= envs.n_envs) return;"],
    ["cartpole", "cartpole.cu", "state.elapsed >= max_steps", "state.elapsed > max_steps"],
    ["mountain_car", "mountain_car.cu", "state.elapsed >= max_steps", "state.elapsed > max_steps"],
    ["breakout", "breakout.cu", "y >= 1 && y < 4", "y >= 1 && y < 3"],
    ["asterix", "asterix.cu", "ramp_timer >= 0", "ramp_timer > 0"],
    ["freeway", "freeway.cu", "move_timer > 0 ? 1 : 0", "move_timer > 1 ? 1 : 0"],
    ["seaquest", "seaquest.cu", "(x + (to_the_right ? 1 : 15)) & 15", "(x + (to_the_right ? 1 : 14)) & 15"],
    ["space_invaders", "space_invaders.cu", "d <= pos", "d < pos"],
    ["asterix", "minatar.cuh", "params.sticky > 0.0f && rng.uniform() < params.sticky", "rng.uniform() > params.sticky"],
    ["snake", "snake.cu", "seen <= rank", "seen < rank"],
    // Grid worlds: what the agent sees, where it goes, what it opens, how a level begins.
    ["door_key", "grid_world.cuh", "from | from >> 1 | from << 1", "from | from << 1"],
    ["door_key", "grid_world.cuh", "left |= path & left >> shift;", "left |= left >> shift;"],
    ["door_key", "grid_world.cuh", "(lit & transparent)) ^ transparent", "lit) ^ transparent"],
    ["door_key", "grid_world.cuh", "carrying == 0 ? EMPTY : carrying", "carrying == 0 ? 0 : carrying"],
    ["empty", "grid_world.cuh", "right = along_columns ? forward : -forward", "right = forward"],
    ["empty", "grid_world.cuh", "at > LIMIT ? LIMIT : at", "at > LIMIT ? LIMIT - 1 : at"],
    ["door_key", "grid_world.cuh", "is_transparent(cell) && object != KEY", "is_transparent(cell)"],
    ["door_key", "grid_world.cuh", "carrying = cell;", "carrying = KEY;"],
    ["multi_room", "grid_world.cuh", "cell < LOCKED || carrying", "carrying"],
    ["empty", "grid_world.cuh", "elapsed >= params.max_steps", "elapsed > params.max_steps"],
    ["door_key", "grid_world.cuh", "!(c == x && r == y)", "true"],
    ["door_key", "door_key.cu", "1 + rng.below(SIZE - 3)", "1 + rng.below(SIZE - 2)"],
    ["multi_room", "multi_room.cu", "room.top < LIMIT", "room.top <= LIMIT"],
    ["multi_room", "multi_room.cu", "aside = Room::SIZE - 2 - (i32)", "aside = Room::SIZE - 1 - (i32)"],
    // Constants, changed by one unit in the last place where possible.
    ["cartpole", "math.cuh", "4.1666646e-2f", "4.1666642e-2f"],
    [
        "cartpole",
        "cartpole.cu",
        "rng.uniform_in(-0.05f, 0.05f);\n        f32 x_dot",
        "rng.uniform_in(-0.05f, 0.06f);\n        f32 x_dot",
    ],
    ["acrobot", "acrobot.cu", "k1 + 2.0f * k2 + 2.0f * k3 + k4", "k1 + 2.0f * (k2 + k3) + k4"],
    ["mountain_car_continuous", "mountain_car_continuous.cu", "0.1f * (action * action)", "0.1f * action * action"],
    // Random numbers of another step or another purpose.
    [
        "cartpole",
        "vec_env.cuh",
        "Rng restart(seed, index, steps + 1, PURPOSE_RESET)",
        "Rng restart(seed, index, steps, PURPOSE_RESET)",
    ],
    [
        "breakout",
        "vec_env.cuh",
        "Rng rng(seed, index, steps + 1, PURPOSE_STEP)",
        "Rng rng(seed, index, steps + 1, PURPOSE_RESET)",
    ],
    ["cartpole", "philox.cuh", "round < 10", "round < 9"],
    // The observation after an episode's end instead of its last one; a stale mask.
    ["cartpole", "vec_env.cuh", "world.observe((typename World::Obs*)out.final_obs + at * d);", ""],
    ["snake", "vec_env.cuh", "world.mask(out.final_masks, at);", ""],
    ["snake", "snake.cu", "leaves(r * params.columns + c) <= clock + 1", "leaves(r * params.columns + c) <= clock"],
    ["repeat_first", "repeat_first.cu", "rank < left[suit]", "rank <= left[suit]"],
    ["repeat_first", "repeat_first.cu", "first = card;", "first = 0;"],
    // Reordered operations, which round differently.
    ["pendulum", "pendulum.cu", "3.0f * gravity / (2.0f * length)", "1.5f * gravity / length * 1.0000001f"],
    ["cartpole", "cartpole.cu", "s.theta_dot * s.theta_dot) * sin", "s.theta_dot * sin) * s.theta_dot"],
];

/// Off-by-one bounds of discrete actions.
///
/// Environment, file, original text, replacement.
const BOUNDS: &[[&str; 4]] = &[
    ["cartpole", "cartpole.cu", "return action < 2;", "return action <= 2;"],
    ["mountain_car", "mountain_car.cu", "return action < 3;", "return action <= 3;"],
    ["acrobot", "acrobot.cu", "return action < 3;", "return action <= 3;"],
    ["snake", "snake.cu", "return action < 4;", "return action <= 4;"],
    ["repeat_first", "repeat_first.cu", "return action < SUITS;", "return action <= SUITS;"],
    ["breakout", "breakout.cu", "N_ACTIONS = 3", "N_ACTIONS = 4"],
    ["asterix", "asterix.cu", "N_ACTIONS = 5", "N_ACTIONS = 6"],
    ["freeway", "freeway.cu", "N_ACTIONS = 3", "N_ACTIONS = 4"],
    ["seaquest", "seaquest.cu", "N_ACTIONS = 6", "N_ACTIONS = 7"],
    ["space_invaders", "space_invaders.cu", "N_ACTIONS = 4", "N_ACTIONS = 5"],
    ["empty", "grid_world.cuh", "N_ACTIONS = 7", "N_ACTIONS = 8"],
    ["door_key", "grid_world.cuh", "N_ACTIONS = 7", "N_ACTIONS = 8"],
    ["multi_room", "grid_world.cuh", "N_ACTIONS = 7", "N_ACTIONS = 8"],
];

#[test]
fn a_bound_of_actions_that_is_off_by_one_is_noticed_in_every_discrete_kernel() {
    for entry in rl_envs::catalog::twinned() {
        let planted = BOUNDS.iter().find(|[name, ..]| *name == entry.name);
        assert_eq!(planted.is_some(), matches!(entry.spaces().actions, rl_envs::ActionSpace::Discrete { .. }), "{}", entry.name);
        if let Some(&[name, file, original, mistake]) = planted {
            let unnoticed = Device::unnoticed(file, &[[original, mistake]], |device| check_bound(device, name));
            assert!(unnoticed.is_empty(), "{name}: {unnoticed:?}");
        }
    }
}

#[test]
fn every_planted_mistake_is_noticed() {
    let mut unnoticed = Vec::new();
    for &[name, file, original, mistake] in MUTATIONS {
        let compare = |device: &Device| {
            [(33, 1200), (200, 300)].iter().for_each(|&(n, t)| {
                compare(device, name, n, 3, t).unwrap();
            })
        };
        unnoticed.extend(Device::unnoticed(file, &[[original, mistake]], compare));
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

#[test]
fn a_mistake_that_does_not_compile_is_told() {
    if Device::emulated().is_ok() {
        let device = Device::emulated_with(HashMap::from([("cartpole.cu".into(), "__syncthreads();".into())])).unwrap();
        let error = rl_cuda::CudaVecEnv::new(&device, "cartpole", 1).unwrap_err().to_string();
        assert!(error.starts_with("emulated device: cartpole.cu does not compile"), "{error}");
    }
}
