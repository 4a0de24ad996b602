//! Catalog of all environments, by name.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use serde_json::Value;

use crate::batch::hidden::HiddenVecEnv;
use crate::batch::lanes::{Dynamics, Lane, LanesVecEnv};
use crate::batch::wrappers::{Hidden, Wrappers};
use crate::check::batch::{check_batches, check_kernels, check_lanes};
use crate::check::trace::{TraceStep, trace};
use crate::check::{Check, check_env_each};
use crate::envs::grid_world::GridWorld;
use crate::envs::*;
use crate::{
    BlockingEnv, Canvas, Constructor, Env, Error, Isa, MakeBlocking, Pool, PooledVecEnv, Spaces, Steps, SyncVecEnv, VecEnv,
    batch::pool,
};

pub use crate::batch::outside::{Batches, Limits};

/// All environments. A new one adds its line here.
///
/// A static: a constant is copied into each crate that uses it, which would compile every environment again.
pub static ENVS: &[Entry] = &[
    Entry::lanes::<cartpole::Params, _, _>("cartpole", "balance a pole on a cart (Gymnasium's CartPole-v1)").twinned(),
    Entry::lanes::<mountain_car::Params, _, _>("mountain_car", "drive out of a valley (Gymnasium's MountainCar-v0)").twinned(),
    Entry::lanes::<mountain_car_continuous::Params, _, _>(
        "mountain_car_continuous",
        "drive out of a valley with little force (Gymnasium's MountainCarContinuous-v0)",
    )
    .twinned(),
    Entry::lanes::<acrobot::Params, _, _>("acrobot", "swing up two linked rods (Gymnasium's Acrobot-v1)").twinned(),
    Entry::lanes::<pendulum::Params, _, _>("pendulum", "swing up a rod and hold it (Gymnasium's Pendulum-v1)").twinned(),
    Entry::of::<snake::Snake>("snake", "eat fruit and grow on a board of 12 by 12 (Jumanji's Snake-v1)").twinned(),
    Entry::of::<breakout::Breakout>("breakout", "break bricks with a ball on a board of 10 by 10 (MinAtar's Breakout)").twinned(),
    Entry::of::<asterix::Asterix>("asterix", "pick up gold between enemies (MinAtar's Asterix)").twinned(),
    Entry::of::<freeway::Freeway>("freeway", "cross a road between cars (MinAtar's Freeway)").twinned(),
    Entry::of::<seaquest::Seaquest>("seaquest", "dive, shoot, save divers, and come up for air (MinAtar's Seaquest)").twinned(),
    Entry::of::<space_invaders::SpaceInvaders>("space_invaders", "shoot aliens that come down (MinAtar's Space Invaders)")
        .twinned(),
    Entry::of::<GridWorld<grid_world::Empty>>("empty", "find the goal of a room (MiniGrid's Empty-8x8, random start)").twinned(),
    Entry::of::<GridWorld<grid_world::DoorKey>>("door_key", "fetch a key, unlock a door, find the goal (MiniGrid's DoorKey-8x8)")
        .twinned(),
    Entry::of::<GridWorld<grid_world::MultiRoom>>("multi_room", "find the goal behind a door (MiniGrid's MultiRoom-N2-S4)")
        .twinned(),
    Entry::of::<repeat_first::RepeatFirst>("repeat_first", "remember the first of 104 cards (POPGym's RepeatFirst, 2 decks)")
        .twinned(),
];

/// One environment of the catalog.
#[derive(Clone, Copy)]
pub struct Entry {
    /// Name of the environment.
    pub name: &'static str,
    /// Description of the task in a line.
    pub about: &'static str,
    wrappers: Wrappers,
    twin: Twin,
    kind: Kind,
}

/// Kernels that step an environment on a device.
#[derive(Clone, Copy)]
enum Twin {
    Missing,
    /// Kernels of `rl-cuda` with the entry's name.
    Named,
    Own(&'static (dyn Any + Sync)),
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("wrappers", &self.wrappers).finish_non_exhaustive()
    }
}

/// Environment that is stepped in batches, that blocks, or that is made elsewhere.
#[derive(Clone, Copy)]
enum Kind {
    Stepped(Stepped),
    Blocking { make: MakeBlocking, bytes: usize },
    Outside(&'static dyn Batches),
}

/// Functions of an [`Env`].
#[derive(Clone, Copy)]
struct Stepped {
    spaces: fn(&Wrappers) -> Spaces,
    sync: fn(usize, &Wrappers) -> Box<dyn VecEnv>,
    slice: fn(Range<usize>, &Wrappers) -> Box<dyn VecEnv>,
    trace: fn(&Value, &Value) -> Result<Vec<TraceStep>, Error>,
    check: fn(&mut dyn FnMut(Check)),
    bytes: fn(&Wrappers) -> usize,
}

/// No wrappers.
const PLAIN: Wrappers =
    Wrappers { frame_stack: 1, time_limit: 0, action_repeat: 1, pixels: 0, reward_clip: 0.0, hide: Hidden::Nothing };

impl Stepped {
    const fn of<E: Env + Default + 'static>() -> Self {
        Self {
            spaces: |wrappers| {
                let env = wrappers.around(E::default());
                let obs = env.observation_space();
                let obs = if wrappers.pixels > 0 { wrappers.around_pixels(E::default()).observation_space() } else { obs };
                Spaces { obs, actions: env.action_space() }
            },
            sync: |n_envs, wrappers| match wrappers.leave_env() {
                true => Box::new(SyncVecEnv::new(n_envs, E::default())),
                false => wrapped_slice::<E>(0..n_envs, wrappers),
            },
            slice: |range, wrappers| match wrappers.leave_env() {
                true => Box::new(SyncVecEnv::slice(range, E::default()).with_isa(Isa::best())),
                false => wrapped_slice::<E>(range, wrappers),
            },
            trace: |init, actions| trace(&mut E::default(), init, actions),
            check: |each| check_env_each(&E::default(), each),
            bytes: |wrappers| match wrappers.leave_env() {
                true => size_of::<E>() + E::default().heap_bytes(),
                false => wrapped_bytes::<E>(wrappers),
            },
        }
    }
}

impl Entry {
    /// Creates an entry for an environment made by its `Default`.
    ///
    /// A program that passes it to `rl_runtime::cli::main` finds the environment by its name in every verb, with the wrappers of
    /// `env.*`; a library makes batches of it.
    ///
    /// ```
    /// use rl_envs::{VecEnv, cartpole::CartPole, catalog::Entry};
    ///
    /// let entry = Entry::of::<CartPole>("my_cartpole", "an environment of my own");
    /// assert_eq!(entry.sync(8)?.n_envs(), 8);
    /// # Ok::<(), rl_envs::Error>(())
    /// ```
    #[must_use]
    pub const fn of<E: Env + Default + 'static>(name: &'static str, about: &'static str) -> Self {
        Self { name, about, wrappers: PLAIN, twin: Twin::Missing, kind: Kind::Stepped(Stepped::of::<E>()) }
    }

    /// Creates an entry for an environment that blocks, made by its `Default`.
    ///
    /// `Default` cannot fail: open connections in [`BlockingEnv::reset`].
    #[must_use]
    pub fn blocking<E: BlockingEnv + Default>(name: &'static str, about: &'static str) -> Self {
        Self::blocking_with(name, about, E::default)
    }

    /// Creates an entry for an environment that blocks, made by `make`.
    ///
    /// `make` cannot fail, and is never freed.
    #[must_use]
    pub fn blocking_with<E: BlockingEnv>(
        name: &'static str,
        about: &'static str,
        make: impl Fn() -> E + Send + Sync + 'static,
    ) -> Self {
        let make: Constructor<E::Obs> = Box::leak(Box::new(move || Box::new(make()) as _));
        let any: &dyn Any = &make;
        let floats = any.downcast_ref().map(|&make| MakeBlocking::F32(make));
        let bytes = || any.downcast_ref().map(|&make| MakeBlocking::U8(make));
        let make = floats.or_else(bytes).expect("elements are f32 or u8");
        Self { name, about, wrappers: PLAIN, twin: Twin::Missing, kind: Kind::Blocking { make, bytes: size_of::<E>() } }
    }

    /// Adds that there are CUDA kernels of the same name.
    const fn twinned(self) -> Self {
        Self { twin: Twin::Named, ..self }
    }

    /// Adds kernels of your own, which step the same environment.
    ///
    /// `kernels` is an `rl_cuda::EnvKernels`. The environment then steps on the device that learns, like environments of the
    /// catalog.
    #[must_use]
    pub const fn with_kernels(self, kernels: &'static (dyn Any + Sync)) -> Self {
        Self { twin: Twin::Own(kernels), ..self }
    }

    /// Returns the kernels of [`with_kernels`](Self::with_kernels).
    #[must_use]
    pub fn kernels(&self) -> Option<&'static (dyn Any + Sync)> {
        if let Twin::Own(kernels) = self.twin { Some(kernels) } else { None }
    }

    /// Returns true if kernels step the same environment on a device.
    ///
    /// False with any wrapper but that which hides elements.
    #[must_use]
    pub fn is_twinned(&self) -> bool {
        let plain = Wrappers { hide: Hidden::Nothing, ..self.wrappers } == Wrappers::default();
        plain && !matches!(self.twin, Twin::Missing)
    }

    /// Returns the elements of an observation that the wrappers hide.
    #[must_use]
    pub fn hidden(&self) -> Vec<usize> {
        match self.wrappers.hide {
            Hidden::Nothing => Vec::new(),
            Hidden::Velocities => self.wrapped(Wrappers::default()).spaces().obs.velocities().to_vec(),
        }
    }

    /// Returns the constructor of an environment that blocks, or `None` for any other.
    #[must_use]
    pub fn make_blocking(&self) -> Option<MakeBlocking> {
        if let Kind::Blocking { make, .. } = self.kind { Some(make) } else { None }
    }

    /// Creates an entry for environments that `batches` makes.
    ///
    /// Two wrappers apply: stacked frames and clipped rewards.
    #[must_use]
    pub fn outside(name: &'static str, about: &'static str, batches: &'static dyn Batches) -> Self {
        Self { name, about, wrappers: PLAIN, twin: Twin::Missing, kind: Kind::Outside(batches) }
    }

    /// Returns the maker of batches of an [`Entry::outside`], or `None`.
    #[must_use]
    pub fn batches(&self) -> Option<&'static dyn Batches> {
        if let Kind::Outside(batches) = self.kind { Some(batches) } else { None }
    }

    /// Returns the functions of an environment whose type is known here.
    fn stepped(&self) -> Result<&Stepped, Error> {
        match &self.kind {
            Kind::Stepped(stepped) => Ok(stepped),
            Kind::Blocking { .. } => Err(Error::Blocking { name: self.name }),
            Kind::Outside(_) => {
                Err(Error::Outside(format!("{} is made outside of this program, which cannot do that with it", self.name)))
            }
        }
    }

    /// Creates an entry for an environment that steps in vector instructions.
    #[must_use]
    pub const fn lanes<P: Dynamics<W, D> + 'static, const W: usize, const D: usize>(
        name: &'static str,
        about: &'static str,
    ) -> Self {
        let slice: fn(Range<usize>, &Wrappers) -> Box<dyn VecEnv> = |range, wrappers| match wrappers.leave_env() {
            true => Box::new(LanesVecEnv::slice(range, P::default())),
            false => wrapped_slice::<Lane<P, W, D>>(range, wrappers),
        };
        let bytes: fn(&Wrappers) -> usize = |wrappers| match wrappers.leave_env() {
            true => W * size_of::<u32>(),
            false => wrapped_bytes::<Lane<P, W, D>>(wrappers),
        };
        let check: fn(&mut dyn FnMut(Check)) = |each| {
            check_env_each(&Lane::<P, W, D>::default(), each);
            let alone = |n| Ok(Box::new(SyncVecEnv::new(n, Lane::<P, W, D>::default())) as Box<dyn VecEnv>);
            each(check_lanes([&alone, &|n| Ok(Box::new(LanesVecEnv::slice(0..n, P::default())))]));
        };
        let stepped = Stepped { slice, bytes, check, ..Stepped::of::<Lane<P, W, D>>() };
        Self { name, about, wrappers: PLAIN, twin: Twin::Missing, kind: Kind::Stepped(stepped) }
    }

    /// Returns this environment in `wrappers`, which replace those of the entry.
    ///
    /// [`trace`](Self::trace) and [`check`](Self::check) ignore wrappers. Wrapped environments step one after the other, without
    /// vector lanes.
    #[must_use]
    pub fn wrapped(&self, wrappers: Wrappers) -> Self {
        Self { wrappers, ..*self }
    }

    /// Returns the spaces of observations and actions.
    #[must_use]
    pub fn spaces(&self) -> Spaces {
        match &self.kind {
            Kind::Stepped(stepped) => (stepped.spaces)(&self.wrappers),
            Kind::Blocking { make: MakeBlocking::F32(make), .. } => spaces(&make()),
            Kind::Blocking { make: MakeBlocking::U8(make), .. } => spaces(&make()),
            Kind::Outside(batches) => {
                let spaces = batches.spaces();
                Spaces { obs: spaces.obs.stacked(self.wrappers.frame_stack), ..spaces }
            }
        }
    }

    /// True if the environment draws itself.
    ///
    /// [`Pixels`](crate::batch::wrappers::Pixels) needs that. False for environments that block or are made elsewhere.
    ///
    /// # Errors
    /// The errors of a reset.
    pub fn draws(&self) -> Result<bool, Error> {
        let Ok(stepped) = self.stepped() else { return Ok(false) };
        let mut envs = (stepped.sync)(1, &PLAIN);
        let (mut steps, mut canvas) = (Steps::new(&envs), Canvas::new(8, 8));
        envs.reset(0, &mut steps)?;
        envs.render(0, &mut canvas);
        Ok(!canvas.is_empty())
    }

    /// Bytes of memory per environment of a batch.
    #[must_use]
    pub fn bytes_per_env(&self) -> usize {
        match &self.kind {
            Kind::Stepped(stepped) => (stepped.bytes)(if self.wrappers.hide_alone() { &PLAIN } else { &self.wrappers }),
            Kind::Blocking { bytes, .. } => *bytes,
            Kind::Outside(batches) if self.wrappers.frame_stack > 1 => {
                let frame = batches.spaces().obs;
                (self.wrappers.frame_stack + 2) * frame.len() * frame.dtype().size()
            }
            Kind::Outside(_) => 0,
        }
    }

    /// Creates a batch of `n_envs`, stepped one after the other: the referee.
    ///
    /// # Errors
    /// [`Error::EnvCount`] if `n_envs` is 0 or does not fit u32; [`Error::Blocking`], [`Error::Outside`].
    pub fn sync(&self, n_envs: usize) -> Result<Box<dyn VecEnv>, Error> {
        check_count(n_envs)?;
        match self.batches() {
            Some(_) => self.make(0..n_envs),
            None => {
                let stepped = self.stepped()?;
                Ok(self.wrappers.around_rewards(self.hiding(|wrappers| (stepped.sync)(n_envs, wrappers))))
            }
        }
    }

    /// Creates a batch of `n_envs`, stepped by the threads of `pool`.
    ///
    /// # Errors
    /// [`Error::EnvCount`] if `n_envs` is 0 or does not fit u32; [`Error::Blocking`], [`Error::Outside`].
    pub fn pooled(&self, n_envs: usize, pool: &Pool) -> Result<Box<dyn VecEnv>, Error> {
        check_count(n_envs)?;
        let stepped = self.stepped()?;
        let slice = |range| self.wrappers.around_rewards(self.hiding(|wrappers| (stepped.slice)(range, wrappers)));
        Ok(Box::new(PooledVecEnv::of(n_envs, pool, slice)))
    }

    /// Creates a batch of `n_envs` in fixed slices, for threads that step their own.
    ///
    /// # Errors
    /// [`Error::EnvCount`] if `n_envs` is 0 or does not fit u32; [`Error::Blocking`], [`Error::Outside`].
    pub fn slices(&self, n_envs: usize, max_slices: usize, min_len: usize) -> Result<Vec<Box<dyn VecEnv>>, Error> {
        check_count(n_envs)?;
        pool::slices(n_envs, max_slices, min_len).map(|range| self.make(range)).collect()
    }

    /// Creates the environments `range` of a larger batch, equal to those of the whole.
    ///
    /// # Errors
    /// [`Error::EnvCount`] if the range is empty, or its indices do not fit u32.
    pub fn slice(&self, range: Range<usize>) -> Result<Box<dyn VecEnv>, Error> {
        check_count(range.len())?;
        check_count(range.end)?;
        self.make(range)
    }

    /// Makes a batch, around which elements are hidden if no other wrapper is on.
    fn hiding(&self, make: impl FnOnce(&Wrappers) -> Box<dyn VecEnv>) -> Box<dyn VecEnv> {
        match self.wrappers.hide_alone() {
            true => Box::new(HiddenVecEnv::new(make(&PLAIN))),
            false => make(&self.wrappers),
        }
    }

    fn make(&self, range: Range<usize>) -> Result<Box<dyn VecEnv>, Error> {
        let envs = match self.batches() {
            Some(batches) => self.wrappers.around_frames(batches.slice(range)?),
            None => {
                let stepped = self.stepped()?;
                self.hiding(|wrappers| (stepped.slice)(range, wrappers))
            }
        };
        Ok(self.wrappers.around_rewards(envs))
    }

    /// Steps one environment with `actions`, a JSON array.
    ///
    /// `init` is a JSON object with a state by field name (steps then follow on each other, up to the one that ends the episode),
    /// or an array with one for each action. The environment is never reset.
    ///
    /// # Errors
    /// [`Error::BadTrace`] if `init` or `actions` do not fit the environment; [`Error::BadState`] if it refuses a state.
    pub fn trace(&self, init: &Value, actions: &Value) -> Result<Vec<TraceStep>, Error> {
        (self.stepped()?.trace)(init, actions)
    }

    /// Tests the environment against the contract: see [`check_env`](crate::check_env).
    ///
    /// # Errors
    /// [`Error::Blocking`] if the environment blocks.
    pub fn check(&self) -> Result<Vec<Check>, Error> {
        let mut checks = Vec::new();
        self.check_each(&mut |check| checks.push(check))?;
        Ok(checks)
    }

    /// Tests that kernels on a device give the bits of this environment.
    ///
    /// `on_device` creates batches of n environments there. The observations, rewards, flags and saved states of up to 65 of them
    /// are compared over some hundred random steps.
    #[must_use]
    pub fn check_kernels(&self, on_device: &dyn Fn(usize) -> Result<Box<dyn VecEnv>, Error>) -> Check {
        check_kernels([&|n| self.sync(n), on_device])
    }

    /// Passes each of the checks of [`check`](Self::check) to `each` once it is done.
    ///
    /// # Errors
    /// Errors of [`check`](Self::check).
    pub fn check_each(&self, each: &mut dyn FnMut(Check)) -> Result<(), Error> {
        match self.batches() {
            Some(batches) => check_batches(batches, each),
            None => (self.stepped()?.check)(each),
        }
        Ok(())
    }
}

fn spaces(env: &impl BlockingEnv) -> Spaces {
    Spaces { obs: env.observation_space(), actions: env.action_space() }
}

/// Creates a batch of wrapped environments, with plain instructions.
///
/// Wrappers move memory, which other instructions do not do faster.
fn wrapped_slice<E: Env + Default + 'static>(range: Range<usize>, wrappers: &Wrappers) -> Box<dyn VecEnv> {
    match wrappers.pixels {
        0 => Box::new(SyncVecEnv::slice(range, wrappers.around(E::default()))),
        _ => Box::new(SyncVecEnv::slice(range, wrappers.around_pixels(E::default()))),
    }
}

fn wrapped_bytes<E: Env + Default>(wrappers: &Wrappers) -> usize {
    fn bytes(env: &impl Env) -> usize {
        size_of_val(env) + env.heap_bytes()
    }
    match wrappers.pixels {
        0 => bytes(&wrappers.around(E::default())),
        _ => bytes(&wrappers.around_pixels(E::default())),
    }
}

fn check_count(n_envs: usize) -> Result<(), Error> {
    if n_envs > 0 && u32::try_from(n_envs).is_ok() { Ok(()) } else { Err(Error::EnvCount { n_envs }) }
}

/// Returns the environments that have CUDA kernels.
pub fn twinned() -> impl Iterator<Item = &'static Entry> {
    ENVS.iter().filter(|entry| entry.is_twinned())
}

/// Returns the environment called `name`.
///
/// # Errors
/// [`Error::UnknownEnv`], with the known names, if there is none.
pub fn find(name: &str) -> Result<&'static Entry, Error> {
    find_among(ENVS, name)
}

/// Returns the environment called `name` among `entries`.
///
/// # Errors
/// [`Error::UnknownEnv`], with the known names, if there is none.
pub fn find_among<'a>(entries: &'a [Entry], name: &str) -> Result<&'a Entry, Error> {
    entries.iter().find(|entry| entry.name == name).ok_or_else(|| Error::UnknownEnv {
        name: name.into(),
        known: entries.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", "),
    })
}
