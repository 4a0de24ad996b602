//! An action-value function, a head of a network, and its policy.

use candle_core::Tensor;
use rl_buffer::ObsSlice;
use rl_envs::{ActionSpace, Actions, Pool, Purpose, Space, Spaces, math, rng};
use rl_policy::{Exported, Head};

use crate::kernel::samples::TILE;
use crate::kernel::tile;
use crate::network::params::Layout;
use crate::policy::network::{HeadLayers, NO_MEMORY, Network, NetworkShape, TileScratch, each_reference_tile};
use crate::policy::{is_among_first, mask_rows};
use crate::{Acted, Acting, Choice, Error, LearnerKind, NetConfig, NetSize, Policy, Scratch, Snapshot, Weights};

/// Q(s, a) for each of A discrete actions.
///
/// It is a network `q`, or a dueling one (Wang et al., 2016), where the networks `advantage` and `value` after a shared `trunk`
/// give `Q = V + A - mean A`.
///
/// Convolutions come first, if there are any. A share epsilon of the actions is uniform over the legal ones, as are all of an
/// agent's before learning starts; the others are greedy. Default initialization: orthogonal, gain sqrt(2) in hidden layers, 1 in
/// the last; biases 0.
#[derive(Debug)]
pub struct QNetwork {
    network: Network,
    n_actions: usize,
    /// Epsilon of the first environment, and growth of its exponent per environment.
    epsilon: (f32, f32),
    /// Index of the first environment among those that epsilon is spread over.
    first_env: usize,
    /// Number of lifetime steps in which all actions of an environment are random.
    random_steps: u64,
}

/// Index of Q, or of a dueling network's advantages, among the heads.
const Q: usize = 0;
/// Index of a dueling network's value among the heads.
const VALUE: usize = 1;

over_network!(QNetwork: n_actions, epsilon, first_env, random_steps);

impl QNetwork {
    /// Checks that these settings and spaces allow a network.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`]; [`Error::ActionKind`] for continuous actions; [`Error::Setting`] for a dueling network
    /// without a hidden layer, for normalized observations, and for memory.
    pub fn check(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<(), Error> {
        let refuse = |name, value: String, allowed| Err(Error::Setting { name, value, allowed });
        if !matches!(actions, ActionSpace::Discrete { .. }) {
            return Err(Error::ActionKind);
        }
        net.check(obs)?;
        net.check_no_memory(NO_MEMORY)?;
        if net.normalize_obs {
            return refuse("normalize_obs", "true".into(), "DQN does not normalize observations");
        }
        if let Some(sizes) = &net.critic_hidden {
            return refuse("critic_hidden", format!("{sizes:?}"), "DQN has one network; set hidden");
        }
        if dueling && net.hidden.is_empty() {
            return refuse("hidden", "[]".into(), "a dueling network needs a hidden layer");
        }
        Ok(())
    }

    /// Memory of a network with these settings, computed without allocating parameters.
    ///
    /// # Errors
    /// Errors of [`QNetwork::check`].
    pub fn size(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<NetSize, Error> {
        Ok(Self::shape(obs, actions, net, dueling)?.size(net, actions.len()))
    }

    /// Lays out the networks without parameters.
    fn shape(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<NetworkShape, Error> {
        Self::check(obs, actions, net, dueling)?;
        let head = |name, n_out| HeadLayers { name, hidden: &net.hidden, n_out };
        let (plain, parts) = ([head("q", actions.len())], [head("advantage", actions.len()), head("value", 1)]);
        NetworkShape::new(obs, net, if dueling { &parts[..] } else { &plain }, dueling)
    }

    /// Creates a network with random parameters.
    ///
    /// # Errors
    /// Errors of [`QNetwork::check`].
    pub fn new(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool, seed: u64) -> Result<Self, Error> {
        let mut network = Self::unset(obs, actions, net, dueling)?;
        network.network.init(&[1.0, 1.0], seed);
        Ok(network)
    }

    /// Creates a network with parameters still to be loaded: all are 0.
    ///
    /// # Errors
    /// Errors of [`QNetwork::check`].
    pub fn unset(obs: &Space, actions: &ActionSpace, net: &NetConfig, dueling: bool) -> Result<Self, Error> {
        let network = Network::unset(Self::shape(obs, actions, net, dueling)?, obs, net);
        Ok(Self { network, n_actions: actions.len(), epsilon: (0.0, 0.0), first_env: 0, random_steps: 0 })
    }

    /// Implementation of losses, gradients and acting.
    #[must_use]
    pub fn learner(&self) -> LearnerKind {
        self.network.learner()
    }

    /// Number of changes of the parameters so far.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.network.version()
    }

    /// Sets exploration: environment i of N acts randomly with its own probability.
    ///
    /// It is `epsilon^(1 + spread i / (N - 1))`, where actions are sampled. The policy acts in the environments from `first_env`
    /// on.
    pub fn explore(&mut self, epsilon: f32, spread: f32, n_envs: usize, first_env: usize) {
        self.epsilon = (epsilon, if n_envs > 1 { spread / (n_envs - 1) as f32 } else { 0.0 });
        self.first_env = first_env;
    }

    /// Makes all actions random in the first `steps` lifetime steps of an environment.
    pub fn act_randomly_until(&mut self, steps: u64) {
        self.random_steps = steps;
    }

    /// Probability of a random action of an environment at a lifetime step.
    fn epsilon_of(&self, env_idx: u32, step: u64) -> f32 {
        match self.epsilon {
            _ if is_among_first(self.random_steps, step) => 1.0,
            (epsilon, 0.0) => epsilon,
            (epsilon, growth) => math::exp(math::ln(epsilon) * (1.0 + growth * (self.first_env + env_idx as usize) as f32)),
        }
    }

    pub(crate) fn n_actions(&self) -> usize {
        self.n_actions
    }

    /// Computes Q (B, A) of scaled observations (B, D) with candle operations.
    ///
    /// Gradients flow to `params` (P).
    ///
    /// # Errors
    /// Errors of candle.
    pub fn forward(&self, params: &Tensor, obs: &Tensor) -> candle_core::Result<Tensor> {
        let outputs = self.network.forward(params, obs)?;
        let Some(value) = outputs.get(VALUE) else { return Ok(outputs[Q].clone()) };
        let centered = outputs[Q].broadcast_sub(&outputs[Q].mean_keepdim(1)?)?;
        centered.broadcast_add(value)
    }

    /// True if Q is the sum of a value and advantages.
    pub(crate) fn is_dueling(&self) -> bool {
        self.network.has_trunk()
    }

    /// Returns the kernel's chain of Q, or of the advantages, and that of the value.
    pub(crate) fn chains(&self) -> (usize, Option<usize>) {
        (self.network.chain(Q), self.is_dueling().then(|| self.network.chain(VALUE)))
    }

    /// Reads Q from a tile, as columns (A, m).
    #[inline(always)]
    pub(crate) fn read(&self, tile: &tile::Tile<'_>, q: &mut [f32]) {
        let m = tile.samples.len();
        let advantage = self.network.chain(Q);
        q.chunks_exact_mut(m).enumerate().for_each(|(j, column)| tile.column(advantage, j, column));
        if self.is_dueling() {
            let mut offset = [0.0; TILE];
            let offset = &mut offset[..m];
            for column in q.chunks_exact(m) {
                offset.iter_mut().zip(column).for_each(|(sum, x)| *sum += x);
            }
            let mut value = [0.0; TILE];
            tile.column(self.network.chain(VALUE), 0, &mut value[..m]);
            let share = 1.0 / self.n_actions as f32;
            offset.iter_mut().zip(&value).for_each(|(offset, value)| *offset = value - *offset * share);
            for column in q.chunks_exact_mut(m) {
                column.iter_mut().zip(&*offset).for_each(|(q, offset)| *q += offset);
            }
        }
    }

    /// Sets the gradient of a tile from the gradient with respect to Q, columns (A, m).
    #[inline(always)]
    pub(crate) fn write_gradient(&self, tile: &mut tile::Tile<'_>, d_q: &[f32]) {
        let m = tile.samples.len();
        if !self.is_dueling() {
            d_q.chunks_exact(m).enumerate().for_each(|(j, column)| tile.set_grad(self.network.chain(Q), j, column));
            return;
        }
        // dQ_k/dA_j = [j = k] - 1 / A, dQ_k/dV = 1.
        let mut total = [0.0; TILE];
        for column in d_q.chunks_exact(m) {
            total.iter_mut().zip(column).for_each(|(sum, x)| *sum += x);
        }
        tile.set_grad(self.network.chain(VALUE), 0, &total[..m]);
        let share = 1.0 / self.n_actions as f32;
        let mut d = [0.0; TILE];
        for (j, column) in d_q.chunks_exact(m).enumerate() {
            d.iter_mut().zip(column).zip(&total).for_each(|((d, x), total)| *d = x - total * share);
            tile.set_grad(self.network.chain(Q), j, &d[..m]);
        }
    }

    /// Passes Q of all observations to `choose`, tile by tile, as columns (A, m).
    fn each_tile(
        &self,
        obs: ObsSlice<'_>,
        n: usize,
        scratch: &mut Scratch,
        choose: &mut impl FnMut(std::ops::Range<usize>, &mut [f32]),
    ) -> Result<(), Error> {
        let TileScratch { workspace, outputs, .. } = self.network.tile_scratch(scratch, self.n_actions);
        if let (Some(kernel), Some(workspace)) = (self.network.kernel(), workspace) {
            tile::forward(kernel, self.network.samples(obs, None), n, None, &mut [], workspace, |tile: &mut tile::Tile<'_>| {
                let range = tile.samples.clone();
                let q = &mut outputs[..self.n_actions * range.len()];
                self.read(tile, q);
                choose(range, q);
            });
        } else if n > 0 {
            let q = self.forward(&self.network.params_tensor()?, &self.network.features(obs)?)?;
            each_reference_tile(&q, n, choose)?;
        }
        Ok(())
    }

    /// Writes Q (n, A) of n observations, on the threads of `pool`.
    ///
    /// `scratches` keeps memory from call to call.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn q_values(
        &self,
        obs: ObsSlice<'_>,
        pool: &Pool,
        scratches: &mut Vec<Scratch>,
        q: &mut [f32],
    ) -> Result<(), Error> {
        let (a, d) = (self.n_actions, self.network.obs_len());
        let (n, mut rest) = (q.len() / a, q);
        let part = |len: usize| {
            let part;
            (part, rest) = std::mem::take(&mut rest).split_at_mut(len * a);
            part
        };
        self.network.each_slice(n, pool, scratches, part, &|range, part, scratch| {
            self.each_tile(obs.rows(range.clone(), d), range.len(), scratch, &mut |samples, columns| {
                let m = samples.len();
                for (s, row) in part[samples.start * a..samples.end * a].chunks_exact_mut(a).enumerate() {
                    row.iter_mut().zip(columns[s..].iter().step_by(m)).for_each(|(to, &q)| *to = q);
                }
            })
        })
    }
}

/// Returns the legal action of greatest value, the first of equals, and its value.
///
/// An empty `mask` allows all actions.
#[must_use]
pub(crate) fn best(q: impl Iterator<Item = f32>, mask: &[u8]) -> (usize, f32) {
    let legal = |j: usize| mask.get(j).is_none_or(|&legal| legal == 1);
    let better =
        |best: (usize, f32), (j, q): (usize, f32)| if legal(j) && (q > best.1 || best.0 == usize::MAX) { (j, q) } else { best };
    let (action, value) = q.enumerate().fold((usize::MAX, 0.0), better);
    if action == usize::MAX { (0, 0.0) } else { (action, value) }
}

impl Policy for QNetwork {
    /// Writes actions, their values Q(s, a), and the greatest action values.
    ///
    /// Q(s, a) takes the place of log-probabilities. The action of row i is random if word 0 of block 0 of stream `first_env + i`
    /// of [`Purpose::Policy`] at this step, as a uniform number, is below the environment's epsilon; word 1 selects it.
    fn act(&self, acting: Acting<'_>, acted: Acted<'_>, scratch: &mut Scratch) -> Result<(), Error> {
        let (Acting { obs, masks, choice, envs }, Acted { actions, log_probs, values, states: _ }) = (acting, acted);
        let Actions::Discrete(actions) = actions else { return Err(Error::ActionKind) };
        let a = self.n_actions;
        self.each_tile(obs, values.len(), scratch, &mut |range, q| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                let mask = mask_rows(masks, i..i + 1, a);
                let (action, value) = best(q[s..].iter().step_by(m).copied(), mask);
                (actions[i], values[i]) = (action as u32, value);
                if let Choice::Sample { seed, step, first_env } = choice {
                    let env_idx = first_env + i as u32;
                    let words = rng::block(seed, env_idx, step, Purpose::Policy, 0);
                    let explorer = if envs.is_empty() { env_idx } else { envs[i] };
                    if rng::uniform(words[0]) < self.epsilon_of(explorer, step) {
                        actions[i] = uniform_legal(words[1], a as u32, mask);
                    }
                }
                log_probs[i] = q[actions[i] as usize * m + s];
            }
        })
    }

    fn values(&self, obs: ObsSlice<'_>, masks: &[u8], _: &[f32], values: &mut [f32], scratch: &mut Scratch) -> Result<(), Error> {
        self.each_tile(obs, values.len(), scratch, &mut |range, q| {
            let m = range.len();
            for (s, i) in range.enumerate() {
                let mask = mask_rows(masks, i..i + 1, self.n_actions);
                values[i] = best(q[s..].iter().step_by(m).copied(), mask).1;
            }
        })
    }

    fn weights(&self) -> Weights<'_> {
        self.network.weights()
    }

    fn exported(&self, spaces: &Spaces) -> Option<Exported> {
        let (n, dueling) = (self.n_actions as u32, self.is_dueling());
        let head = Head::Values { n, masked: spaces.actions.masked(), dueling };
        let heads = if dueling { &[Q, VALUE][..] } else { &[Q] };
        Some(self.network.exported(&spaces.obs, heads, head))
    }
}

/// Draws one of the legal actions of `n` uniformly; of all if none is legal.
fn uniform_legal(word: u32, n: u32, mask: &[u8]) -> u32 {
    let n_legal = mask.iter().filter(|&&legal| legal == 1).count() as u32;
    if n_legal == 0 {
        return rng::below(word, n);
    }
    let rank = rng::below(word, n_legal) as usize;
    (0..n).filter(|&j| mask[j as usize] == 1).nth(rank).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_action_is_legal_and_the_first_of_equals() {
        assert_eq!(best([1.0, 3.0, 3.0].into_iter(), &[]), (1, 3.0));
        assert_eq!(best([1.0, 3.0, 3.0].into_iter(), &[1, 0, 0]), (0, 1.0));
        assert_eq!(best([-5.0, 3.0].into_iter(), &[1, 0]), (0, -5.0));
        assert_eq!(best([-5.0, 3.0].into_iter(), &[0, 0]), (0, 0.0), "the episode is over");
    }

    #[test]
    fn exploration_is_spread_over_environments_from_any_first_one() {
        let (space, actions) = (Space::vector(&[-1.0], &[1.0]), ActionSpace::Discrete { n: 4, masked: false });
        let mut network = QNetwork::unset(&space, &actions, &NetConfig::default(), false).unwrap();
        let mut epsilons = |first_env: usize| -> Vec<f32> {
            network.explore(0.5, 7.0, 6, first_env);
            (0..6 - first_env as u32).map(|i| network.epsilon_of(i, 0)).collect()
        };
        let all = epsilons(0);
        assert_eq!(all[4..], epsilons(4));
        assert!((all[0] - 0.5).abs() < 1e-6 && (all[5] - 0.5f32.powi(8)).abs() < 1e-6, "{all:?}");
    }

    #[test]
    fn exploration_is_that_of_the_environment_that_a_row_belongs_to() {
        let (space, actions) = (Space::vector(&[-1.0], &[1.0]), ActionSpace::Discrete { n: 4, masked: false });
        let mut network = QNetwork::new(&space, &actions, &NetConfig::default(), false, 5).unwrap();
        network.explore(0.9, 100.0, 2, 0);
        // Environment 1 never explores.
        let act = |choice, envs: &[u32]| {
            let (mut actions, mut log_probs, mut values) = ([0; 64], [0.0; 64], [0.0; 64]);
            let acting = Acting { obs: ObsSlice::F32(&[0.5; 64]), masks: &[], choice, envs };
            let out = Actions::Discrete(&mut actions[..]);
            let acted = Acted { actions: out, log_probs: &mut log_probs, values: &mut values, states: &mut [] };
            network.act(acting, acted, &mut Scratch::default()).unwrap();
            actions
        };
        let (greedy, sample) = (act(Choice::Greedy, &[]), Choice::Sample { seed: 3, step: 9, first_env: 0 });
        assert_eq!(act(sample, &[1; 64]), greedy);
        let explored = act(sample, &[0; 64]).iter().zip(greedy).filter(|(a, b)| **a != *b).count();
        assert!((30..60).contains(&explored), "{explored}");
    }

    #[test]
    fn an_unset_network_is_what_a_fresh_one_s_parameters_are_loaded_into() {
        let (space, actions) = (Space::vector(&[-1.0; 3], &[1.0; 3]), ActionSpace::Discrete { n: 4, masked: false });
        let net = NetConfig { hidden: vec![17, 33], ..NetConfig::default() };
        let values = |policy: &dyn Policy| {
            let (obs, mut values) = (ObsSlice::F32(&[0.3, -0.4, 0.5, 0.6, 0.7, -0.8]), [0.0; 2]);
            policy.values(obs, &[], &[], &mut values, &mut Scratch::default()).unwrap();
            values
        };
        let fresh = crate::ActorCritic::new(&space, &actions, &net, 3).unwrap();
        let mut unset = crate::ActorCritic::unset(&space, &actions, &net).unwrap();
        assert!(unset.params().iter().all(|&x| x == 0.0), "nothing is drawn");
        unset.load(&fresh.weights().into()).unwrap();
        assert_eq!(values(&unset), values(&fresh));
        let fresh = QNetwork::new(&space, &actions, &net, true, 3).unwrap();
        let mut unset = QNetwork::unset(&space, &actions, &net, true).unwrap();
        assert!(unset.params().iter().all(|&x| x == 0.0), "nothing is drawn");
        unset.load(&fresh.weights().into()).unwrap();
        assert_eq!(values(&unset), values(&fresh));
    }

    #[test]
    fn random_actions_are_uniform_over_the_legal_ones() {
        let mut counts = [0; 5];
        for step in 0..3000 {
            let word = rng::word(0, 0, step, Purpose::Policy);
            counts[uniform_legal(word, 5, &[1, 0, 1, 0, 1]) as usize] += 1;
        }
        // Binomial with mean 1000 and standard deviation 26.
        assert!(counts[1] + counts[3] == 0 && [0, 2, 4].iter().all(|&j| (880..1120).contains(&counts[j])), "{counts:?}");
    }

    #[test]
    fn the_kernel_agrees_with_candle_for_plain_and_dueling_networks() {
        let space = Space::vector(&[-1.0; 3], &[1.0; 3]);
        let actions = ActionSpace::Discrete { n: 4, masked: false };
        for dueling in [false, true] {
            let net = |learner| NetConfig { hidden: vec![17, 33], learner, ..NetConfig::default() };
            let fused = QNetwork::new(&space, &actions, &net(LearnerKind::Fused), dueling, 3).unwrap();
            let reference = QNetwork::new(&space, &actions, &net(LearnerKind::Reference), dueling, 3).unwrap();
            assert_eq!(fused.params(), reference.params());
            let obs: Vec<f32> = (0..3 * 200).map(|i| (i as f32 * 0.37).sin()).collect();
            let pool = Pool::new(2).unwrap();
            let [a, b] = [fused, reference].map(|network| {
                let mut q = vec![0.0; 200 * 4];
                network.q_values(ObsSlice::F32(&obs), &pool, &mut Vec::new(), &mut q).unwrap();
                q
            });
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5), "dueling {dueling}");
        }
    }
}
