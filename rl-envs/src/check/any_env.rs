//! An environment of any type, as a trait object.
//!
//! Checks and traces are compiled once for all environments.

use std::any::Any;

use serde_json::Value;

use crate::{Action, ActionSpace, Dtype, Element, Env, Error, ObsRows, Rng, Space, Step, SyncVecEnv, VecEnv, numerics::codec};

/// [`Env::State`] of an [`AnyEnv`].
pub(super) type AnyState = Box<dyn Any>;

/// An [`Env`] with its type erased.
pub(crate) trait AnyEnv {
    fn dtype(&self) -> Dtype;
    fn observation_space(&self) -> Space;
    fn action_space(&self) -> ActionSpace;
    fn boxed_clone(&self) -> Box<dyn AnyEnv>;
    fn reset(&mut self, rng: &mut Rng, obs: &mut ObsRows);
    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut ObsRows) -> Step;
    fn mask(&self, mask: &mut [u8]);
    fn state(&self) -> Option<AnyState>;
    /// Continues from a state of this environment's type.
    fn set_state(&mut self, state: AnyState) -> Result<(), Error>;
    /// Returns the state after it was written as bytes and read.
    fn state_through_bytes(&self, state: &AnyState) -> Result<AnyState, String>;
    /// Returns the state after it was written as JSON and read.
    fn state_through_json(&self, state: &AnyState) -> Result<AnyState, String>;
    /// Reads a state, or returns what is wrong with it.
    fn state_of_json(&self, value: &Value) -> Result<AnyState, String>;
    /// Creates a batch of `n` copies.
    fn batch(&self, n: usize) -> Box<dyn VecEnv>;
}

/// Returns all elements of rows.
fn elements<O: Element>(rows: &mut ObsRows) -> &mut [O] {
    O::elements(rows.as_mut_slice()).expect(OWN)
}

const OWN: &str = "of the environment's own type";

impl<E: Env + 'static> AnyEnv for E {
    fn dtype(&self) -> Dtype {
        E::Obs::DTYPE
    }

    fn observation_space(&self) -> Space {
        Env::observation_space(self)
    }

    fn action_space(&self) -> ActionSpace {
        Env::action_space(self)
    }

    fn boxed_clone(&self) -> Box<dyn AnyEnv> {
        Box::new(self.clone())
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut ObsRows) {
        Env::reset(self, rng, elements(obs));
    }

    fn step(&mut self, action: Action<'_>, rng: &mut Rng, obs: &mut ObsRows) -> Step {
        Env::step(self, action, rng, elements(obs))
    }

    fn mask(&self, mask: &mut [u8]) {
        Env::mask(self, mask);
    }

    fn state(&self) -> Option<AnyState> {
        Env::state(self).map(|state| Box::new(state) as _)
    }

    fn set_state(&mut self, state: AnyState) -> Result<(), Error> {
        Env::set_state(self, *state.downcast().expect(OWN))
    }

    fn state_through_bytes(&self, state: &AnyState) -> Result<AnyState, String> {
        let state: &E::State = state.downcast_ref().expect(OWN);
        let copy = codec::encode(state).and_then(|bytes| codec::decode::<E::State>(&bytes));
        copy.map(|state| Box::new(state) as _).map_err(|e| e.to_string())
    }

    fn state_through_json(&self, state: &AnyState) -> Result<AnyState, String> {
        let state: &E::State = state.downcast_ref().expect(OWN);
        let copy = serde_json::to_string(state).and_then(|text| serde_json::from_str::<E::State>(&text));
        copy.map(|state| Box::new(state) as _).map_err(|e| e.to_string())
    }

    fn state_of_json(&self, value: &Value) -> Result<AnyState, String> {
        serde_json::from_value::<E::State>(value.clone()).map(|state| Box::new(state) as _).map_err(|e| e.to_string())
    }

    fn batch(&self, n: usize) -> Box<dyn VecEnv> {
        Box::new(SyncVecEnv::new(n, self.clone()))
    }
}
