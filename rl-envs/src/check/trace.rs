//! One environment stepped with given actions, to compare with a reference.

use serde::Serialize;
use serde_json::Value;

use crate::check::any_env::AnyEnv;
use crate::{Action, ActionSpace, Actions, Error, ObsRows, Purpose, Rng, either};

/// One step of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceStep {
    /// The observation after the step, D elements.
    pub obs: Vec<Value>,
    /// Reward of the step.
    pub reward: f32,
    /// True if the task is over; see [`Step`](crate::Step).
    pub terminated: bool,
    /// True if the episode was cut off; see [`Step`](crate::Step).
    pub truncated: bool,
    /// Legal actions after the step, if the action space has masks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask: Option<Vec<u8>>,
}

/// Steps `env` with each of `actions` from `init`: one state, or one per action.
///
/// From one state, steps follow on each other up to the one that ends the episode; later actions are ignored. The environment is
/// never reset. Randomness in the dynamics comes from seed 0.
///
/// # Errors
/// [`Error::BadTrace`] if `init` or `actions` do not fit the environment; [`Error::BadState`] if it refuses a state.
pub(crate) fn trace(env: &mut dyn AnyEnv, init: &Value, actions: &Value) -> Result<Vec<TraceStep>, Error> {
    let bad = |what: String| Error::BadTrace(what);
    let actions = actions.as_array().ok_or_else(|| bad("the actions must be a JSON array".into()))?;
    let state = |value: &Value, place: &str| env.state_of_json(value).map_err(|e| bad(format!("the initial state{place}: {e}")));
    let states = match init {
        Value::Array(states) if states.len() == actions.len() => {
            states.iter().enumerate().map(|(i, s)| state(s, &format!(" {i}"))).collect::<Result<Vec<_>, _>>()?
        }
        Value::Array(states) => {
            let (n, m) = (states.len(), actions.len());
            return Err(bad(format!("{n} initial states for {m} actions: give one state, or one for each action")));
        }
        single => vec![state(single, "")?],
    };
    let space = env.action_space();
    let actions = actions
        .iter()
        .enumerate()
        .map(|(i, value)| action(value, &space).ok_or_else(|| bad(format!("action {i} is {value}, the space is {space:?}"))))
        .collect::<Result<Vec<_>, _>>()?;

    let one_episode = !init.is_array();
    let mut states = states.into_iter();
    let mut obs = ObsRows::zeros(env.dtype(), env.observation_space().len());
    let mut steps = Vec::with_capacity(actions.len());
    for (action, t) in actions.iter().zip(1..) {
        if let Some(state) = states.next() {
            env.set_state(state)?;
        }
        let outcome = env.step(action.borrow(), &mut Rng::new(0, 0, t, Purpose::Step), &mut obs);
        let mask = space.masked().then(|| {
            let mut mask = vec![0; space.len()];
            env.mask(&mut mask);
            mask
        });
        steps.push(TraceStep {
            obs: json(&obs),
            reward: outcome.reward,
            terminated: outcome.terminated,
            truncated: outcome.truncated,
            mask,
        });
        if one_episode && outcome.done() {
            break;
        }
    }
    Ok(steps)
}

fn json(obs: &ObsRows) -> Vec<Value> {
    either!(Obs, obs, |row| row.iter().map(|&x| Value::from(x)).collect())
}

/// One action for one environment, owned.
pub(crate) type OwnedAction = Actions<u32, Vec<f32>>;

impl OwnedAction {
    pub(crate) fn borrow(&self) -> Action<'_> {
        self.as_ref().map(|&action| action, Vec::as_slice)
    }
}

fn action(value: &Value, space: &ActionSpace) -> Option<OwnedAction> {
    match space {
        ActionSpace::Discrete { .. } | ActionSpace::MultiDiscrete { .. } => {
            let action = u32::try_from(value.as_u64()?).ok()?;
            (action < space.n_discrete()?).then_some(OwnedAction::Discrete(action))
        }
        ActionSpace::Continuous { low, high } => {
            let action: Vec<f32> = serde_json::from_value(value.clone()).ok()?;
            let fits = action.len() == low.len() && action.iter().zip(low.iter().zip(high)).all(|(a, (l, h))| l <= a && a <= h);
            fits.then_some(OwnedAction::Continuous(action))
        }
    }
}
