//! Messages between the learner and the processes of its actors.

use std::borrow::Cow;
use std::time::Duration;

use rl_agents::{Anomalies, Episode, Moments, Policy, Snapshot, Weights};
use rl_buffer::{ObsRows, Rollout};
use rl_envs::{ObsSlice, ObsSliceMut, codec};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::pipeline::Filled;
use crate::pipeline::calls::Calls;
use crate::pipeline::faults::FaultCounts;

/// Time without a heartbeat after which a rank counts as hung.
pub(super) const SILENCE: Duration = Duration::from_secs(6);
/// Interval between heartbeats.
pub(super) const BEAT: Duration = Duration::from_millis(250);
/// Rank that learns, and writes all files.
pub(super) const LEARNER: usize = 0;

/// First byte of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum MessageKind {
    /// To a new process: its part of the training, a [`Role`].
    Role,
    /// To an actor: an [`RolloutOrder`].
    Order,
    /// To an actor: no more orders come.
    End,
    /// From an actor: a rollout.
    Rollout,
    /// From an actor: its error, as text.
    Failed,
    /// From an actor: a signal asks the training to save and stop.
    Interrupted,
    /// From a process: a sign of life.
    Beat,
    /// To an environment of an actor: a call.
    Call,
    /// From an environment of an actor: its answer.
    Answer,
}

impl MessageKind {
    /// Returns the kind of a message, and its contents.
    pub(super) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        use MessageKind::{Answer, Beat, Call, End, Failed, Interrupted, Order, Role, Rollout};
        const ALL: [MessageKind; 9] = [Role, Order, End, Rollout, Failed, Interrupted, Beat, Call, Answer];
        let (&first, rest) = message.split_first()?;
        Some((*ALL.get(usize::from(first))?, rest))
    }

    /// Returns a message of this kind.
    pub(super) fn with(self, contents: &[u8]) -> Vec<u8> {
        [&[self as u8], contents].concat()
    }

    /// Returns a message of this kind that holds a value.
    pub(super) fn encode<T: Serialize>(self, value: &T) -> Result<Vec<u8>, Error> {
        let mut message = vec![self as u8];
        codec::encode_into(value, &mut message)?;
        Ok(message)
    }
}

/// Part of a process in a training.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Role {
    /// Settings of the run, as TOML.
    pub(super) settings: String,
    /// Seed of its environments and its policy.
    pub(super) seed: u64,
    /// Its index among the actors, and their number.
    pub(super) actor: [usize; 2],
}

/// Order of a rollout: the policy to collect it with.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RolloutOrder {
    /// Rollouts that the policy has learnt from.
    pub(super) learnt: u64,
    /// Fraction of training that remains, for exploration.
    pub(super) remaining: f32,
    version: u64,
    obs: Option<Moments>,
    /// Behind the encoded rest, as bytes.
    #[serde(skip)]
    params: Vec<f32>,
}

impl RolloutOrder {
    pub(super) fn new(policy: &dyn Policy, learnt: u64, remaining: f32) -> Self {
        let weights = policy.weights();
        Self { learnt, remaining, version: weights.version, params: weights.params.into_owned(), obs: weights.obs.cloned() }
    }

    /// Returns the message of the order.
    pub(super) fn message(&self) -> Result<Vec<u8>, Error> {
        let mut message = MessageKind::Order.encode(self)?;
        append_floats(&mut message, &self.params)?;
        Ok(message)
    }

    /// Returns the order in the contents of its message.
    pub(super) fn decode(contents: &[u8]) -> Result<Self, Error> {
        let (order, left) = codec::decode_from::<Self>(contents, contents.len() as u64)?;
        let bytes = &contents[contents.len() - left as usize..];
        if !bytes.len().is_multiple_of(4) {
            return Err(rl_envs::Error::BadState(format!("the parameters of an order take {left} bytes")).into());
        }
        let mut params = vec![0.0; bytes.len() / 4];
        codec::copy_floats(bytes, &mut params);
        Ok(Self { params, ..order })
    }

    /// Returns the snapshot of the policy.
    pub(super) fn snapshot(self) -> Snapshot {
        let Self { version, params, obs, .. } = self;
        Weights { version, params: Cow::Owned(params), obs: obs.as_ref() }.into()
    }
}

fn append_floats(message: &mut Vec<u8>, values: &[f32]) -> Result<(), Error> {
    Ok(codec::write_floats(values, message).map_err(|error| rl_envs::Error::BadState(error.to_string()))?)
}

/// Returns the number of rollouts learnt from in the message of an order.
pub(super) fn learnt(order: &[u8]) -> u64 {
    order[1..].first_chunk().map_or(0, |learnt| u64::from_le_bytes(*learnt))
}

/// A filled rollout, without its final observations and its columns of steps.
#[derive(Debug, Serialize, Deserialize)]
struct RolloutHead {
    contiguous: bool,
    cut_before: bool,
    continues: Vec<bool>,
    env_idx: Vec<u32>,
    policy_version: Vec<u64>,
    final_at: Vec<(usize, usize)>,
    final_masks: Vec<u8>,
    final_states: Vec<f32>,
    episodes: Vec<Episode>,
    n_unreported: usize,
    learnt: Vec<u64>,
    faults: FaultCounts,
    dropped: u64,
    calls: Calls,
    anomalies: Anomalies,
}

/// Returns the message of a rollout.
pub(super) fn encode(filled: &mut Filled) -> Result<Vec<u8>, Error> {
    let Filled { rollout, episodes, n_unreported, learnt, faults, dropped, calls, anomalies, .. } = filled;
    let head = RolloutHead {
        contiguous: rollout.contiguous,
        cut_before: rollout.cut_before,
        continues: rollout.continues.clone(),
        env_idx: rollout.env_idx().into(),
        policy_version: rollout.policy_version().into(),
        final_at: rollout.final_at().into(),
        final_masks: rollout.final_masks().into(),
        final_states: rollout.final_states().into(),
        episodes: std::mem::take(episodes),
        n_unreported: *n_unreported,
        learnt: learnt.clone(),
        faults: *faults,
        dropped: *dropped,
        calls: std::mem::take(calls),
        anomalies: anomalies.clone(),
    };
    let mut message = MessageKind::Rollout.encode(&head)?;
    match rollout.final_obs() {
        ObsSlice::F32(obs) => append_floats(&mut message, obs)?,
        ObsSlice::U8(obs) => message.extend_from_slice(obs),
    }
    rollout.columns().each_row(&mut |row| message.extend_from_slice(row));
    Ok(message)
}

/// Adds the number of processes that were replaced to a rollout's message.
pub(super) fn replaced(mut message: Vec<u8>, n: u64) -> Vec<u8> {
    message.extend_from_slice(&n.to_le_bytes());
    message
}

/// Fills `filled` from the contents of a rollout's message.
///
/// The message is one that [`replaced`] returned.
///
/// # Errors
/// [`rl_envs::Error::BadState`] if the message is of another shape; `filled` is not valid then.
pub(super) fn decode(contents: &[u8], filled: &mut Filled) -> Result<(), Error> {
    let bad = |what: &str| rl_envs::Error::BadState(format!("a rollout's message has {what}"));
    let (contents, replaced) = contents.split_last_chunk().ok_or_else(|| bad("no end"))?;
    let (head, left) = codec::decode_from::<RolloutHead>(contents, contents.len() as u64)?;
    let rollout = &mut filled.rollout;
    let shape = rollout.shape();
    let n = shape.n_envs;
    let continues = head.continues.len() == n || head.continues.is_empty();
    if !continues || [head.env_idx.len(), head.policy_version.len(), head.learnt.len()] != [n; 3] {
        return Err(bad("another number of columns").into());
    }
    if head.env_idx.iter().any(|&env_idx| env_idx as usize >= n) {
        return Err(bad("a column of an unknown environment").into());
    }
    rollout.clear();
    rollout.env_idx_mut().copy_from_slice(&head.env_idx);
    rollout.policy_version_mut().copy_from_slice(&head.policy_version);
    let mut rest = &contents[contents.len() - left as usize..];
    finals(rollout, &head, &mut rest).ok_or_else(|| bad("impossible ends of episodes"))?;
    (rollout.contiguous, rollout.cut_before, rollout.continues) = (head.contiguous, head.cut_before, head.continues);
    let mut whole = true;
    rollout.columns().each_row(&mut |row| match rest.split_at_checked(row.len()) {
        Some((first, others)) => {
            row.copy_from_slice(first);
            rest = others;
        }
        None => whole = false,
    });
    if !whole || !rest.is_empty() {
        return Err(bad("columns of another size").into());
    }
    (filled.episodes, filled.n_unreported, filled.learnt) = (head.episodes, head.n_unreported, head.learnt);
    (filled.faults, filled.dropped) = (head.faults, head.dropped);
    filled.faults.actors = u64::from_le_bytes(*replaced);
    (filled.calls, filled.anomalies) = (head.calls, head.anomalies);
    Ok(())
}

/// Records the ends of episodes; returns `None` if they do not fit.
///
/// `rest` begins with their final observations.
fn finals(rollout: &mut Rollout, head: &RolloutHead, rest: &mut &[u8]) -> Option<()> {
    let RolloutHead { final_at: at, final_masks: masks, final_states: states, .. } = head;
    let (shape, s) = (rollout.shape(), rollout.shape().state_len);
    let a = masks.len().checked_div(at.len()).unwrap_or(0);
    let inside = at.iter().all(|&(t, n)| t < shape.n_steps && n < shape.n_envs);
    (inside && masks.len() == at.len() * a && states.len() == at.len() * s).then_some(())?;
    let bytes = rest.split_off(..at.len() * shape.obs_len * shape.obs.size())?;
    let mut obs = ObsRows::zeros(shape.obs, at.len() * shape.obs_len);
    match obs.as_mut_slice() {
        ObsSliceMut::F32(obs) => codec::copy_floats(bytes, obs),
        ObsSliceMut::U8(obs) => obs.copy_from_slice(bytes),
    }
    for (i, &(t, n)) in at.iter().enumerate() {
        let (mask, state) = (&masks[i * a..(i + 1) * a], &states[i * s..(i + 1) * s]);
        rollout.push_final(t, n, obs.as_slice().row(i, shape.obs_len), mask, state);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rl_agents::{Acted, Acting, ActorCritic, Collector, NetConfig, Scratch};
    use rl_envs::Pool;
    use rl_envs::cartpole::CartPole;

    use super::*;

    /// Returns a collector of three CartPoles, and a policy for them.
    fn fixture() -> (Collector, ActorCritic) {
        let collector = Collector::new(3, &CartPole::default(), &Pool::new(1).unwrap(), 5).unwrap();
        let net = NetConfig::default();
        let policy = ActorCritic::new(collector.observation_space(), collector.action_space(), &net, 5).unwrap();
        (collector, policy)
    }

    /// Policy that counts the steps of an episode.
    #[derive(Clone)]
    struct Counting(ActorCritic);

    impl Policy for Counting {
        fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), rl_agents::Error> {
            acted.states.iter_mut().for_each(|count| *count += 1.0);
            self.0.act(acting, Acted { states: &mut [], ..acted }, scratch)
        }

        fn values(
            &self,
            obs: ObsSlice<'_>,
            masks: &[u8],
            _: &[f32],
            values: &mut [f32],
            scratch: &mut Scratch,
        ) -> Result<(), rl_agents::Error> {
            self.0.values(obs, masks, &[], values, scratch)
        }

        fn state_len(&self) -> usize {
            2
        }

        fn weights(&self) -> Weights<'_> {
            self.0.weights()
        }
    }

    #[test]
    fn a_rollout_arrives_as_it_was_sent() {
        let (mut collector, policy) = fixture();
        collector.remember(2);
        let mut sent = Filled::new(collector.rollout(40).unwrap());
        collector.collect(&Counting(policy.clone()), &mut sent.rollout).unwrap();
        sent.episodes = collector.collect(&Counting(policy), &mut sent.rollout).unwrap();
        assert!(sent.rollout.first_states().iter().all(|&count| count > 0.0));
        sent.calls.step(2, Duration::from_millis(3));
        (sent.learnt, sent.dropped, sent.n_unreported) = (vec![4, 5, 6], 7, 8);
        (sent.rollout.contiguous, sent.rollout.cut_before, sent.rollout.continues) = (false, true, vec![true, false, true]);
        sent.rollout.env_idx_mut().copy_from_slice(&[2, 0, 1]);
        (sent.faults.timeouts, sent.anomalies.outside) = (1, 2);
        let (expected, episodes, anomalies) = (sent.rollout.clone(), sent.episodes.clone(), sent.anomalies.clone());
        let message = replaced(encode(&mut sent).unwrap(), 9);
        let Some((MessageKind::Rollout, contents)) = MessageKind::split(&message) else { panic!("another kind") };

        let mut found = Filled::new(collector.rollout(40).unwrap());
        found.rollout.push_final(0, 0, ObsSlice::F32(&[0.0; 4]), &[], &[0.0; 2]);
        decode(contents, &mut found).unwrap();
        assert!(expected.final_at().len() > 1 && found.rollout.final_at() == expected.final_at());
        assert_eq!(found.rollout.final_obs(), expected.final_obs());
        assert_eq!(found.rollout.final_states(), expected.final_states());
        assert_eq!(found.rollout.first_states(), expected.first_states());
        assert_eq!(found.rollout.obs(), expected.obs());
        assert_eq!(found.rollout.actions(), expected.actions());
        assert_eq!(found.rollout.rewards(), expected.rewards());
        assert_eq!(found.rollout.terminated(), expected.terminated());
        assert_eq!(found.rollout.truncated(), expected.truncated());
        assert_eq!(found.rollout.log_probs(), expected.log_probs());
        assert_eq!(found.rollout.values(), expected.values());
        assert_eq!(found.rollout.last_values(), expected.last_values());
        assert_eq!(found.rollout.policy_version(), expected.policy_version());
        assert_eq!(found.rollout.env_idx(), [2, 0, 1]);
        assert_eq!((found.rollout.contiguous, found.rollout.cut_before), (false, true));
        assert_eq!(found.rollout.continues, [true, false, true]);
        assert_eq!(found.episodes, episodes);
        assert_eq!((found.learnt, found.dropped, found.n_unreported), (vec![4, 5, 6], 7, 8));
        let faults = FaultCounts { timeouts: 1, actors: 9, ..FaultCounts::default() };
        assert_eq!((found.faults, found.anomalies), (faults, anomalies));
        let rows: Vec<_> = found.calls.rows(0, 0).map(|row| (row.value("env"), row.value("steps"))).collect();
        assert_eq!(rows, [(2.0, 1.0)]);
    }

    #[test]
    fn a_message_that_is_cut_or_of_another_shape_is_refused() {
        let (mut collector, policy) = fixture();
        collector.remember(2);
        let mut sent = Filled::new(collector.rollout(40).unwrap());
        sent.episodes = collector.collect(&Counting(policy.clone()), &mut sent.rollout).unwrap();
        let message = replaced(encode(&mut sent).unwrap(), 0);
        let contents = &message[1..];
        let mut to = Filled::new(collector.rollout(40).unwrap());
        decode(contents, &mut to).unwrap();
        let cuts = (0..contents.len()).step_by(7).chain([contents.len() - 1]);
        cuts.for_each(|n| assert!(decode(&contents[..n], &mut to).is_err(), "{n} bytes"));
        assert!(decode(&[contents, &[0]].concat(), &mut to).is_err(), "a byte more");
        let mut shorter = Filled::new(collector.rollout(20).unwrap());
        assert!(decode(contents, &mut shorter).is_err(), "ends of episodes behind the last step, or columns of another size");
        let mut other = Collector::new(4, &CartPole::default(), &Pool::new(1).unwrap(), 5).unwrap();
        let mut wider = Filled::new(other.rollout(40).unwrap());
        assert!(other.collect(&policy, &mut wider.rollout).is_ok() && decode(contents, &mut wider).is_err());
    }

    #[test]
    fn an_order_holds_the_policy() {
        let (_, policy) = fixture();
        let message = RolloutOrder::new(&policy, 3, 0.25).message().unwrap();
        let Some((MessageKind::Order, contents)) = MessageKind::split(&message) else { panic!("another kind") };
        assert!(RolloutOrder::decode(&contents[..contents.len() - 1]).is_err(), "a part of a number");
        let order = RolloutOrder::decode(contents).unwrap();
        assert_eq!((order.learnt, order.remaining, learnt(&message)), (3, 0.25, 3));
        assert_eq!(order.snapshot(), Snapshot::from(policy.weights()));
        assert!(MessageKind::split(&[]).is_none() && MessageKind::split(&[9]).is_none());
        for byte in 0..9 {
            assert_eq!(MessageKind::split(&[byte]).map(|(kind, _)| kind as u8), Some(byte));
        }
    }
}
