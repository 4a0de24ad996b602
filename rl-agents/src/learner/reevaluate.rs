//! A rollout through another policy than the one that acted.

use std::ops::Range;

use ndarray::{Array1, Array2, s};
use rl_buffer::{ActionSlice, ObsRows, Rollout};
use rl_envs::{Actions, Pool, pool};

use crate::kernel::samples::TILE;
use crate::kernel::slices::{MAX_SLICES, MIN_SLICE};
use crate::policy::distributions::{Distribution, log_prob_of, log_softmax_heads, standardize_columns};
use crate::policy::network::TileScratch;
use crate::{ActorCritic, Error, Policy as _, Scratch};

/// Reason why every array of a rollout has a slice.
pub(crate) const CONTIGUOUS: &str = "a rollout's arrays are contiguous";

/// Values and log-probabilities of a rollout by another policy.
pub(crate) struct Reevaluated {
    /// Log-probabilities of the actions; (0, 0) unless requested.
    pub(crate) log_probs: Array2<f32>, // (T, N)
    pub(crate) values: Array2<f32>, // (T, N)
    /// Values of the observations after the last step.
    pub(crate) last_values: Array1<f32>, // (N)
    /// Values of final observations, in the order of [`Rollout::final_at`].
    pub(crate) final_values: Vec<f32>,
}

/// Computes values, and log-probabilities if requested, of a rollout by `policy`.
///
/// With memory, from the states before the first step that the policy that acted has left.
pub(crate) fn reevaluate(
    policy: &ActorCritic,
    rollout: &Rollout,
    with_log_probs: bool,
    pool: &Pool,
) -> Result<Reevaluated, Error> {
    let (n_steps, n_envs) = rollout.values().dim();
    let mut found = Reevaluated {
        log_probs: Array2::zeros(if with_log_probs { (n_steps, n_envs) } else { (0, 0) }),
        values: Array2::zeros((n_steps, n_envs)),
        last_values: Array1::zeros(n_envs),
        final_values: vec![0.0; rollout.final_at().len()],
    };
    if policy.state_len() > 0 {
        reevaluate_sequences(policy, rollout, &mut found, pool)?;
        return Ok(found);
    }
    let Reevaluated { log_probs, values, last_values, final_values } = &mut found;
    let mut rest = (log_probs.as_slice_mut().expect(CONTIGUOUS), values.as_slice_mut().expect(CONTIGUOUS));
    let mut work = Vec::with_capacity(MAX_SLICES);
    for rows in pool::slices(rollout.len(), MAX_SLICES, TILE) {
        let (log_probs, more_log_probs) = rest.0.split_at_mut(if with_log_probs { rows.len() } else { 0 });
        let (values, more_values) = rest.1.split_at_mut(rows.len());
        rest = (more_log_probs, more_values);
        work.push((rows, log_probs, values, Scratch::default(), Ok(())));
    }
    pool.each(&mut work, &|(rows, log_probs, values, scratch, result)| {
        *result = reevaluate_rows(policy, rollout, rows, &mut [], log_probs, values, scratch);
    });
    work.into_iter().try_for_each(|(.., result)| result)?;
    let mut scratch = Scratch::default();
    // An actor-critic's values are the same whatever is legal.
    policy.values(rollout.final_obs(), &[], &[], final_values, &mut scratch)?;
    let last_obs = rollout.obs_rows(n_steps * n_envs..(n_steps + 1) * n_envs);
    policy.values(last_obs, &[], &[], last_values.as_slice_mut().expect(CONTIGUOUS), &mut scratch)?;
    Ok(found)
}

/// Computes values and log-probabilities of `rows` (m) of a rollout.
///
/// No log-probabilities if `log_probs` is empty. With memory, takes one step from `states` (m, S), and replaces them.
fn reevaluate_rows(
    policy: &ActorCritic,
    rollout: &Rollout,
    rows: &Range<usize>,
    states: &mut [f32],
    log_probs: &mut [f32],
    values: &mut [f32],
    scratch: &mut Scratch,
) -> Result<(), Error> {
    let obs = rollout.obs_rows(rows.clone());
    if log_probs.is_empty() && states.is_empty() {
        return policy.values(obs, &[], &[], values, scratch);
    }
    let (a, actions) = (policy.n_actions(), chosen_actions(policy, rollout)?);
    let masks = rollout.masks().map(|masks| masks.to_slice().expect(CONTIGUOUS));
    let TileScratch { workspace, outputs, chosen, .. } = policy.network().tile_scratch(scratch, a);
    policy.each_tile(obs, states, workspace, outputs, values, &mut |range, outputs| {
        if log_probs.is_empty() {
            return;
        }
        let m = range.len();
        let of_all = rows.start + range.start..rows.start + range.end;
        let log_probs = &mut log_probs[range];
        match actions {
            Actions::Discrete((actions, heads)) => {
                let legal = masks.map_or(&[][..], |masks| &masks[of_all.start * a..of_all.end * a]);
                log_softmax_heads(outputs, m, heads, legal, &mut [0.0; 2 * TILE]);
                for (s, (log_prob, &action)) in log_probs.iter_mut().zip(&actions[of_all]).enumerate() {
                    *log_prob = log_prob_of(outputs, m, s, heads, action);
                }
            }
            Actions::Continuous((actions, log_std)) => {
                let columns = &mut chosen[..a * m];
                for (s, row) in actions[of_all.start * a..of_all.end * a].chunks_exact(a).enumerate() {
                    columns[s..].iter_mut().step_by(m).zip(row).for_each(|(to, &action)| *to = action);
                }
                standardize_columns(outputs, columns, m, log_std, log_probs);
            }
        }
    })
}

/// Columns of a rollout that a thread re-evaluates, step by step.
struct ReevaluatedColumns {
    columns: Range<usize>,
    states: Vec<f32>,        // (m, S)
    log_probs: Vec<f32>,     // (T, m), or empty
    values: Vec<f32>,        // (T + 1, m)
    ends: Vec<(usize, f32)>, // index among the final observations, and value
    scratch: Scratch,
    result: Result<(), Error>,
}

/// [`reevaluate`] with memory.
fn reevaluate_sequences(policy: &ActorCritic, rollout: &Rollout, found: &mut Reevaluated, pool: &Pool) -> Result<(), Error> {
    let (n_steps, n_envs) = rollout.values().dim();
    let (s, with_log_probs) = (policy.state_len(), !found.log_probs.is_empty());
    let mut work: Vec<_> = pool::slices(n_envs, MAX_SLICES, MIN_SLICE)
        .map(|columns| ReevaluatedColumns {
            states: rollout.first_states()[columns.start * s..columns.end * s].to_vec(),
            log_probs: vec![0.0; if with_log_probs { n_steps * columns.len() } else { 0 }],
            values: vec![0.0; (n_steps + 1) * columns.len()],
            columns,
            ends: Vec::new(),
            scratch: Scratch::default(),
            result: Ok(()),
        })
        .collect();
    pool.each(&mut work, &|slice| slice.result = slice.reevaluate(policy, rollout));
    for ReevaluatedColumns { columns, log_probs, values, ends, result, .. } in work {
        result?;
        let (m, n) = (columns.len(), columns.start..columns.end);
        for (t, values) in values.chunks_exact(m).enumerate() {
            let mut to = if t < n_steps { found.values.row_mut(t) } else { found.last_values.view_mut() };
            to.slice_mut(s![n.clone()]).iter_mut().zip(values).for_each(|(to, value)| *to = *value);
        }
        for (t, log_probs) in log_probs.chunks_exact(m).enumerate() {
            let mut to = found.log_probs.row_mut(t);
            to.slice_mut(s![n.clone()]).iter_mut().zip(log_probs).for_each(|(to, log_prob)| *to = *log_prob);
        }
        ends.into_iter().for_each(|(end, value)| found.final_values[end] = value);
    }
    Ok(())
}

impl ReevaluatedColumns {
    fn reevaluate(&mut self, policy: &ActorCritic, rollout: &Rollout) -> Result<(), Error> {
        let Self { columns, states, log_probs, values, ends, scratch, .. } = self;
        let (n_steps, n_envs) = rollout.values().dim();
        let (m, s, d) = (columns.len(), policy.state_len(), rollout.shape().obs_len);
        let rows = |t: usize| t * n_envs + columns.start..t * n_envs + columns.end;
        let mut all: Vec<_> = rollout.final_at().iter().zip(0..).filter(|((_, n), _)| columns.contains(n)).collect();
        all.sort_unstable();
        let mut ended = all.chunk_by(|((t, _), _), ((next, _), _)| t == next).peekable();
        let mut final_obs = ObsRows::zeros(rollout.shape().obs, 0);
        for t in 0..n_steps {
            let of_step = if log_probs.is_empty() { &mut [] } else { &mut log_probs[t * m..(t + 1) * m] };
            let values = &mut values[t * m..(t + 1) * m];
            reevaluate_rows(policy, rollout, &rows(t), states, of_step, values, scratch)?;
            let Some(ended) = ended.next_if(|ended| ended[0].0.0 == t) else { continue };
            let state = |&((_, n), _): &(&(usize, usize), usize)| (n - columns.start) * s..(n - columns.start + 1) * s;
            let final_states: Vec<f32> = ended.iter().flat_map(|end| &states[state(end)]).copied().collect();
            final_obs.clear();
            ended.iter().for_each(|&(_, end)| final_obs.extend(rollout.final_obs().rows(end..end + 1, d)));
            let mut final_values = vec![0.0; ended.len()];
            policy.values(final_obs.as_slice(), &[], &final_states, &mut final_values, scratch)?;
            ended.iter().for_each(|end| states[state(end)].fill(0.0));
            ends.extend(ended.iter().map(|&(_, end)| end).zip(final_values));
        }
        policy.values(rollout.obs_rows(rows(n_steps)), &[], states, &mut values[n_steps * m..], scratch)
    }
}

/// Actions of a rollout, with what their probabilities need: heads, or parameters.
pub(crate) type ChosenActions<'a> = Actions<(&'a [u32], &'a [usize]), (&'a [f32], &'a [f32])>;

pub(crate) fn chosen_actions<'a>(policy: &'a ActorCritic, rollout: &'a Rollout) -> Result<ChosenActions<'a>, Error> {
    match (policy.distribution(), rollout.actions().to_slice()) {
        (Distribution::Categorical { heads }, ActionSlice::Discrete(actions)) => Ok(Actions::Discrete((actions, heads))),
        (Distribution::Gaussian { log_std }, ActionSlice::Continuous(actions)) => {
            Ok(Actions::Continuous((actions, &policy.params()[log_std.clone()])))
        }
        _ => Err(Error::ActionKind),
    }
}
