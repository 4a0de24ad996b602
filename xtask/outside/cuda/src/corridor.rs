//! Corridor: walk uphill to its right end.
//!
//! - Observation, f32 (1): position, from 0 to 3.
//! - Action, discrete (2): a step to the left (0), to the right (1).
//! - Reward: 1 for the step that arrives, else 0.
//! - `terminated`: the position is 3.
//! - `truncated`: at step 100.
//! - Start: position uniform in 0 to 1.
//!
//! The rules are written here, and again in `corridor.cu`.

use rl_cuda::{Constants, EnvKernels, Module};
use rl_envs::catalog::Entry;
use rl_envs::lanes::Dynamics;
use rl_envs::{ActionSpace, Rng, Space, Step, math};
use serde::{Deserialize, Serialize};

/// CUDA source and PTX.
static MODULE: Module = Module::new("corridor", include_str!("../kernels/corridor.cu"), include_str!("../kernels/corridor.ptx"));
/// Kernels of the environment.
// SAFETY: the kernels are made by ENV_KERNELS of the rules of `Params`, which access nothing but their arguments.
pub static KERNELS: EnvKernels = unsafe { EnvKernels::of::<Params, 2, 1>(&MODULE) };

/// Entry of the environment, with its kernels.
pub const ENTRY: Entry = Entry::lanes::<Params, 2, 1>("corridor", "walk uphill to the right end").with_kernels(&KERNELS);

/// Constants of the environment.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    pub length: f32,
    pub stride: f32,
    pub slope: f32,
    pub max_steps: u32,
}

impl Default for Params {
    fn default() -> Self {
        Self { length: 3.0, stride: 0.5, slope: 0.1, max_steps: 100 }
    }
}

impl Constants for Params {
    fn words(&self) -> Vec<u32> {
        let Self { length, stride, slope, max_steps } = *self;
        vec![length.to_bits(), stride.to_bits(), slope.to_bits(), max_steps]
    }
}

/// State of an episode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub x: f32,
    pub elapsed: u32,
}

impl Dynamics<2, 1> for Params {
    type State = State;
    type Action = u32;

    fn observation_space(&self) -> Space {
        Space::vector(&[0.0], &[self.length])
    }

    fn action_space(&self) -> ActionSpace {
        ActionSpace::Discrete { n: 2, masked: false }
    }

    fn start(&self, rng: &mut Rng) -> State {
        State { x: rng.uniform_in(0.0, 1.0), elapsed: 0 }
    }

    #[inline(always)]
    fn advance(&self, State { x, elapsed }: State, action: u32) -> (State, Step) {
        let pace = if action == 1 { self.stride } else { -self.stride };
        let x = math::clamp(x + (pace - self.slope * x), 0.0, self.length);
        let (arrived, elapsed) = (x >= self.length, elapsed + 1);
        let reward = if arrived { 1.0 } else { 0.0 };
        (State { x, elapsed }, Step { reward, terminated: arrived, truncated: elapsed >= self.max_steps })
    }

    #[inline(always)]
    fn observe(&self, state: &State) -> [f32; 1] {
        [state.x]
    }

    fn fault(&self, state: &State) -> Option<String> {
        let is_valid = (0.0..self.length).contains(&state.x) && state.elapsed < self.max_steps;
        (!is_valid).then(|| format!("{state:?}: x must be below {}, elapsed below {}", self.length, self.max_steps))
    }

    #[inline(always)]
    fn pack(State { x, elapsed }: State) -> [u32; 2] {
        [x.to_bits(), elapsed]
    }

    #[inline(always)]
    fn unpack([x, elapsed]: [u32; 2]) -> State {
        State { x: f32::from_bits(x), elapsed }
    }
}
