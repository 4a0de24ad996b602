//! Sequences through networks with memory, and the gradient back through time.
//!
//! A minibatch is cut into slices of columns, and a slice into blocks of [`BLOCK`] columns. The samples of a block stand in the
//! order of time, those of a step in the order of the columns. A block's features are computed first, then its steps one after
//! the other; then its samples pass through dense layers and loss [tile by tile](crate::kernel::tile), which leaves the gradient
//! of the memory's outputs; then the steps are taken back; last, tiles give the gradient of the memory's layers.

use std::ops::Range;

use rl_envs::isa::{Set, Work, dispatch};

use crate::kernel::encoder::memory::{MemoryStage, MemoryWorkspace};
use crate::kernel::gemm::Init;
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::samples::{Samples, Sequences, TILE};
use crate::kernel::slices::{self, BatchSlice};
use crate::kernel::tile::{REMEMBERS, SliceLoss, Stats, TileBackward, TileForward, TileInputs, TileLoss, Workspace, visit};
use crate::probe::{Probe, Stage, report};

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Minimum columns of a slice.
const MIN_COLUMNS: usize = 4;

/// Number of slices of a minibatch of `columns` of `n_steps` steps.
///
/// `n_params` is the number of parameters of the networks.
pub(crate) fn n_slices(columns: usize, n_steps: usize, n_params: usize) -> usize {
    slices::of_minibatch(columns * n_steps, n_params, false).min(1 << (columns / MIN_COLUMNS).max(1).ilog2())
}

/// Appends the rows of a minibatch of whole columns, in the order of its samples.
///
/// `n_slices` is that of the minibatch; the rollout has `n_steps` steps of `n_envs` columns.
fn push_rows(columns: &[u32], n_slices: usize, n_steps: usize, n_envs: usize, rows: &mut Vec<u32>) {
    let n = columns.len();
    for slice in (0..n_slices).map(|i| &columns[i * n / n_slices..(i + 1) * n / n_slices]) {
        for block in slice.chunks(BLOCK) {
            for t in 0..n_steps as u32 {
                rows.extend(block.iter().map(|column| t * n_envs as u32 + column));
            }
        }
    }
}

/// Writes the rows of a pass, whose minibatches have `width` columns each.
///
/// `columns` are all columns of the rollout, `n_steps` its steps, `n_params` the parameters of the networks.
pub(crate) fn set_rows(columns: &[u32], width: usize, n_steps: usize, n_params: usize, rows: &mut Vec<u32>) {
    rows.clear();
    for minibatch in columns.chunks(width) {
        push_rows(minibatch, n_slices(minibatch.len(), n_steps, n_params), n_steps, columns.len(), rows);
    }
}

/// Runs a slice of columns forward, through the loss and backward.
///
/// Writes its gradient to `grads`, as the layers compute it.
#[expect(clippy::too_many_arguments, reason = "those of a slice of tiles")]
pub(crate) fn backward<S: Stats, L: TileLoss<S>>(
    PackedNet { isa, net, packed }: PackedNet<'_>,
    stage: &MemoryStage,
    samples: Samples<'_>,
    BatchSlice { range, stats }: &mut BatchSlice<S>,
    workspace: &mut Workspace,
    grads: &mut [f32],
    loss: &L,
    probe: Option<&Probe>,
) {
    let sequences = samples.sequences.expect("a network with memory learns from sequences");
    grads.fill(0.0);
    for start in range.clone().step_by(BLOCK * sequences.n_steps) {
        let range = start..(start + BLOCK * sequences.n_steps).min(range.end);
        let block = Block { stage, samples, sequences, range };
        workspace.reserve(stage, block.range.len());
        for range in block.tiles() {
            dispatch(isa, TileInputs { net, packed, samples, range: range.clone(), workspace, learning: false, probe });
            dispatch(isa, Read { packed, rows: block.rows_of(&range), workspace, stage });
        }
        dispatch(isa, ThroughTime { packed, block: &block, workspace, back: false });
        report(probe, Stage::Forward);
        for range in block.tiles() {
            let rows = block.rows_of(&range);
            workspace.read_memory(stage, &rows);
            dispatch(isa, TileForward { net, packed, m: range.len(), workspace, skip: None, probe });
            visit(isa, workspace.tile(net, range.clone()), &mut SliceLoss { loss, stats });
            report(probe, Stage::Loss);
            dispatch(isa, TileBackward { net, packed, m: range.len(), workspace, init: Init::Add, grads: &mut *grads });
            workspace.set_memory_grads(stage, &rows);
            report(probe, Stage::Backward);
        }
        dispatch(isa, ThroughTime { packed, block: &block, workspace, back: true });
        for range in block.tiles() {
            if net.convolves() {
                // The activations of this tile again.
                dispatch(isa, TileInputs { net, packed, samples, range: range.clone(), workspace, learning: true, probe });
            }
            dispatch(isa, Grads { net, packed, block: &block, range, workspace, grads: &mut *grads });
        }
        report(probe, Stage::Backward);
    }
}

/// A block of columns.
struct Block<'a> {
    stage: &'a MemoryStage,
    samples: Samples<'a>,
    sequences: Sequences<'a>,
    /// Range within the minibatch.
    range: Range<usize>,
}

impl Block<'_> {
    fn n_columns(&self) -> usize {
        self.range.len() / self.sequences.n_steps
    }

    /// Ranges of the samples of its tiles.
    fn tiles(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let end = self.range.end;
        self.range.clone().step_by(TILE).map(move |start| start..(start + TILE).min(end))
    }

    /// Rows of samples within the block.
    fn rows_of(&self, samples: &Range<usize>) -> Range<usize> {
        samples.start - self.range.start..samples.end - self.range.start
    }

    /// Rows of a step within the block.
    fn step(&self, t: usize) -> Range<usize> {
        t * self.n_columns()..(t + 1) * self.n_columns()
    }

    /// Rows of the rollout at step `t`, one for each column.
    fn rollout_rows(&self, t: usize) -> impl Iterator<Item = u32> {
        let first = self.range.start + t * self.n_columns();
        (first..first + self.n_columns()).map(|sample| self.samples.rows.map_or(sample as u32, |rows| rows[sample]))
    }

    /// Columns in which an episode begins at step `t`, which is not the first.
    fn begins(&self, t: usize) -> impl Iterator<Item = usize> {
        self.rollout_rows(t).enumerate().filter(|&(_, row)| self.sequences.begins(row)).map(|(i, _)| i)
    }

    /// Takes all steps.
    #[inline(always)]
    fn forth<S: Set>(&self, packed: &[f32], memory: &mut MemoryWorkspace) {
        let Self { stage, sequences, .. } = self;
        for t in 0..sequences.n_steps {
            let rows = self.step(t);
            if t == 0 {
                let columns = self.rollout_rows(0).enumerate();
                columns.for_each(|(i, column)| stage.set_state(i, sequences.first_state(column), memory));
            } else {
                stage.keep_states(&rows, memory);
                self.begins(t).for_each(|i| stage.forget_state(rows.start + i, memory));
            }
            stage.step::<S>(packed, &rows, memory);
        }
    }

    /// Takes all steps back.
    #[inline(always)]
    fn back<S: Set>(&self, packed: &[f32], memory: &mut MemoryWorkspace) {
        let Self { stage, sequences, .. } = self;
        stage.forget_grads(memory);
        for t in (0..sequences.n_steps).rev() {
            stage.step_back::<S>(packed, &self.step(t), memory);
            if t > 0 {
                self.begins(t).for_each(|i| stage.forget_grad(i, memory));
            }
            if sequences.horizon > 0 && t % sequences.horizon == 0 {
                stage.forget_grads(memory);
            }
        }
    }
}

/// Features of a tile on their way to the gates.
struct Read<'a> {
    packed: &'a [f32],
    rows: Range<usize>,
    workspace: &'a mut Workspace,
    stage: &'a MemoryStage,
}

impl Work for Read<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { packed, rows, workspace: Workspace { features, memory, .. }, stage } = self;
        stage.read::<S>(packed, features, rows, memory.as_mut().expect(REMEMBERS));
    }
}

/// A block on its way through time.
struct ThroughTime<'a> {
    packed: &'a [f32],
    block: &'a Block<'a>,
    workspace: &'a mut Workspace,
    back: bool,
}

impl Work for ThroughTime<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { packed, block, workspace, back } = self;
        let memory = workspace.memory.as_mut().expect(REMEMBERS);
        if back { block.back::<S>(packed, memory) } else { block.forth::<S>(packed, memory) }
    }
}

/// A tile of a block whose steps have been taken back.
struct Grads<'a> {
    net: &'a Net,
    packed: &'a [f32],
    block: &'a Block<'a>,
    range: Range<usize>,
    workspace: &'a mut Workspace,
    grads: &'a mut [f32],
}

impl Work for Grads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        let Self { net, packed, block, range, workspace, grads } = self;
        let Workspace { features, feature_grads, memory, encoder, .. } = workspace;
        let memory = memory.as_mut().expect(REMEMBERS);
        feature_grads.fill(0.0);
        block.stage.grads::<S>(packed, block.rows_of(&range), memory, grads, feature_grads);
        if let (Some(stage), Some(encoder)) = (&net.encoder, encoder) {
            stage.backward::<S>(&block.samples, range, packed, features, feature_grads, encoder, grads);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{self, Case, bits};
    use crate::learner::batch::{Minibatch, TensorBatch};
    use crate::learner::targets::Targets;
    use crate::ranks::tests::on_ranks;
    use crate::{
        A2c, A2cConfig, ActorCritic, Agent, Collector, Error, LearnerKind, MemoryKind, NetConfig, Policy as _, Ppo, PpoConfig,
        Scratch,
    };
    use rl_buffer::Rollout;
    use rl_envs::repeat_first::RepeatFirst;
    use rl_envs::snake::{self, Snake};
    use rl_envs::{Env, Isa, Pool, Purpose, Rng, cartpole::CartPole};

    const T: usize = 12;

    fn nets() -> impl Iterator<Item = NetConfig> {
        let sizes = [(5, vec![7], false), (64, vec![], false), (80, vec![16, 9], true), (3, vec![], true)];
        [MemoryKind::Gru, MemoryKind::Lstm].into_iter().flat_map(move |memory| {
            sizes.clone().into_iter().map(move |(memory_size, hidden, shared_trunk)| NetConfig {
                hidden,
                shared_trunk,
                memory,
                memory_size,
                ..NetConfig::default()
            })
        })
    }

    /// The policy that acted, moved, with a learner.
    fn moved(acted: &ActorCritic, rollout: &Rollout, case: Case, net: &NetConfig, learner: LearnerKind) -> ActorCritic {
        let net = NetConfig { learner, ..net.clone() };
        let (mut policy, ..) = fixture::rollout_with(case, &net, 1, [1]);
        assert_eq!(rollout.shape().state_len, policy.state_len());
        let mut rng = Rng::new(5, 0, 0, Purpose::Init);
        let params: Vec<f32> = acted.params().iter().map(|p| p + 0.1 * rng.normal()).collect();
        policy.set_params(&params, 3).unwrap();
        policy
    }

    /// Rows of a minibatch of some columns, in the order of its samples.
    fn rows(columns: &[u32], n_envs: usize, policy: &ActorCritic) -> Vec<u32> {
        let mut rows = Vec::new();
        push_rows(columns, n_slices(columns.len(), T, policy.params().len()), T, n_envs, &mut rows);
        rows
    }

    fn with<R>(rollout: &Rollout, targets: &Targets, rows: &[u32], f: impl FnOnce(&Minibatch<'_>) -> R) -> R {
        let mut advantages = Vec::new();
        targets.advantages_of(rows, true, &mut advantages);
        f(&Minibatch { rollout, targets, rows, advantages: &advantages, ent_coef: 0.1 })
    }

    #[test]
    fn the_gradient_through_time_is_candle_s() {
        for net in nets() {
            for (case, n_envs, horizon) in [(Case::Discrete, 9, 0), (Case::Continuous, 40, 0), (Case::Heads, 9, 5)] {
                let net = NetConfig { memory_horizon: horizon, ..net.clone() };
                let (acted, rollout, targets) = fixture::rollout_with(case, &net, n_envs, [7, T]);
                assert!(rollout.first_states().iter().any(|x| *x != 0.0), "episodes go on from an earlier rollout");
                let columns: Vec<u32> = (1..n_envs as u32).rev().collect();
                let rows = rows(&columns, n_envs, &acted);
                with(&rollout, &targets, &rows, |minibatch| {
                    let agent = |learner| {
                        let policy = moved(&acted, &rollout, case, &net, learner);
                        let config = PpoConfig { ent_coef: 0.1, n_steps: T, batch_size: 0, ..PpoConfig::default() };
                        Ppo::new(policy, config, n_envs, 0).unwrap()
                    };
                    let mut reference = agent(LearnerKind::Reference);
                    let expected = reference.reference(minibatch, 1.0).unwrap();
                    let mut fused = agent(LearnerKind::Fused);
                    let parts = fused.fused(minibatch, 1.0, &Pool::new(2).unwrap()).unwrap();
                    fixture::assert_near(&fused.descent.gradient, &reference.descent.gradient);
                    assert!((parts.policy - expected.policy).abs() < 1e-5 && (parts.value - expected.value).abs() < 1e-4);
                });
            }
        }
    }

    /// Compares the gradient of the whole of a second rollout with candle's.
    fn compare<E: Env + 'static>(env: &E, net: &NetConfig, n_envs: usize, n_steps: usize) {
        let pool = Pool::new(2).unwrap();
        let mut collector = Collector::new(n_envs, env, &pool, 1).unwrap();
        let policy = |learner| {
            let net = NetConfig { learner, ..net.clone() };
            ActorCritic::new(&env.observation_space(), &env.action_space(), &net, 1).unwrap()
        };
        let acted = policy(LearnerKind::Fused);
        collector.remember(acted.state_len());
        let mut rollout = collector.rollout(n_steps).unwrap();
        for _ in 0..2 {
            collector.collect(&acted, &mut rollout).unwrap();
        }
        let targets = Targets::new(&acted, &rollout, rollout.rewards(), 0.99, 0.95).unwrap();
        let (columns, mut rows) = ((0..n_envs as u32).rev().collect::<Vec<_>>(), Vec::new());
        push_rows(&columns, n_slices(n_envs, n_steps, acted.params().len()), n_steps, n_envs, &mut rows);
        with(&rollout, &targets, &rows, |minibatch| {
            let config = A2cConfig { ent_coef: 0.1, n_steps, ..A2cConfig::default() };
            let mut reference = A2c::new(policy(LearnerKind::Reference), config.clone(), n_envs, 0).unwrap();
            reference.reference(minibatch, 1.0).unwrap();
            let mut fused = A2c::new(policy(LearnerKind::Fused), config, n_envs, 0).unwrap();
            fused.fused(minibatch, 1.0, &pool).unwrap();
            fixture::assert_near(&fused.descent.gradient, &reference.descent.gradient);
        });
    }

    #[test]
    fn a_slice_of_several_blocks_and_features_of_pictures_and_categories_have_candle_s_gradient() {
        for (memory, shared_trunk) in [(MemoryKind::Gru, false), (MemoryKind::Lstm, true)] {
            let net = NetConfig { memory, memory_size: 9, hidden: vec![7], shared_trunk, ..NetConfig::default() };
            // Four slices of 37 or 38 columns, of which a block has 32.
            assert_eq!(n_slices(150, 2, 1000), 4);
            compare(&CartPole::default(), &net, 150, 2);
            compare(&RepeatFirst::default(), &net, 9, T);
            let snake = snake::Params { rows: 5, columns: 5, max_steps: 9 };
            for conv in [vec![], vec![[3, 2, 1], [17, 2, 2]]] {
                compare(&Snake::new(snake), &NetConfig { conv, ..net.clone() }, 9, T);
            }
        }
    }

    #[test]
    fn samples_that_are_no_whole_columns_are_refused() {
        let net = NetConfig { memory: MemoryKind::Gru, ..NetConfig::default() };
        let (policy, rollout, targets) = fixture::rollout_with(Case::Discrete, &net, 4, [T]);
        let gather = |rows: &[u32]| TensorBatch::gather(&policy, &rollout, &targets, rows, &vec![0.0; rows.len()]).map(drop);
        let n = 4 * T as u32;
        assert!(gather(&(0..n).rev().filter(|row| row % 4 != 1).collect::<Vec<_>>()).is_ok());
        for rows in
            [vec![], (0..n - 1).collect(), (4..n).collect(), (0..T as u32).collect(), (0..n).map(|row| row % 12).collect()]
        {
            assert!(matches!(gather(&rows), Err(Error::Sequences)), "{rows:?}");
        }
        // A rollout of another number of steps than the settings'.
        let config = PpoConfig { n_steps: 8, batch_size: 16, ..PpoConfig::default() };
        let refused = Ppo::new(policy, config, 6, 0).unwrap().update(&rollout, 1.0, &Pool::new(1).unwrap());
        assert!(matches!(refused, Err(Error::BatchSize { batch_size: 16, n_steps: T, .. })));
    }

    #[test]
    fn a_policy_learns_with_the_bits_that_it_acted_with() {
        for net in nets() {
            for (case, learner) in [
                (Case::Discrete, LearnerKind::Fused),
                (Case::Continuous, LearnerKind::Fused),
                (Case::Heads, LearnerKind::Reference),
            ] {
                let net = NetConfig { learner, ..net.clone() };
                let (policy, rollout, _) = fixture::rollout_with(case, &net, 9, [7, 5, T]);
                let config = PpoConfig { n_steps: T, batch_size: 0, n_epochs: 1, ..PpoConfig::default() };
                let metrics = Ppo::new(policy, config, 9, 0).unwrap().update(&rollout, 1.0, &Pool::new(2).unwrap()).unwrap();
                // The ratios of a policy to itself are 1.
                let kl = metrics.get("train/approx_kl").unwrap();
                assert!(if learner == LearnerKind::Fused { kl == 0.0 } else { kl.abs() < 1e-9 }, "{kl}, {case:?}, {net:?}");
            }
        }
    }

    #[test]
    fn a_stale_rollout_has_the_targets_of_the_policy_that_acted_if_it_is_the_same() {
        use crate::learner::targets::Refresh;
        for net in nets() {
            for case in [Case::Discrete, Case::Continuous] {
                let (policy, rollout, expected) = fixture::rollout_with(case, &net, 9, [7, T]);
                assert!(!rollout.final_at().is_empty() && rollout.final_states().iter().any(|x| *x != 0.0));
                for (refresh, threads) in [(Refresh::LogProbs, 1), (Refresh::Values, 3)] {
                    let pool = Pool::new(threads).unwrap();
                    let rewards = rollout.rewards();
                    let found = Targets::off_policy(&policy, &rollout, rewards, 0.99, 0.95, refresh, &pool).unwrap();
                    assert_eq!(bits(&found.values), bits(&expected.values));
                    fixture::assert_near(&found.advantages, &expected.advantages);
                    let acted = rollout.log_probs().to_slice().unwrap().to_vec();
                    assert!(found.log_probs.is_empty() || bits(&found.log_probs) == bits(&acted));
                }
                // A final observation is valued with the state of its episode.
                let mut without = vec![0.0; rollout.final_at().len()];
                let zeros = vec![0.0; rollout.final_states().len()];
                policy.values(rollout.final_obs(), &[], &zeros, &mut without, &mut Scratch::default()).unwrap();
                let mut with = without.clone();
                policy.values(rollout.final_obs(), &[], rollout.final_states(), &mut with, &mut Scratch::default()).unwrap();
                assert_ne!(with, without);
            }
        }
    }

    #[test]
    fn an_update_has_the_same_bits_for_any_number_of_threads_and_every_instruction_set_that_fuses() {
        let (n_envs, case) = (40, Case::Discrete);
        for net in nets() {
            let (acted, rollout, _) = fixture::rollout_with(case, &net, n_envs, [7, T]);
            let learnt = |threads, isa| {
                let policy = moved(&acted, &rollout, case, &net, LearnerKind::Fused).with_isa(isa);
                let config = PpoConfig { n_steps: T, batch_size: 20 * T, n_epochs: 2, ..PpoConfig::default() };
                let mut agent = Ppo::new(policy, config, n_envs, 0).unwrap();
                agent.update(&rollout, 1.0, &Pool::new(threads).unwrap()).unwrap();
                bits(&agent.save().unwrap().params)
            };
            let expected = learnt(1, Isa::best());
            assert_ne!(expected, bits(acted.params()));
            for threads in [2, 3, 8] {
                assert!(learnt(threads, Isa::best()) == expected, "{threads} threads, {net:?}");
            }
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported() && *isa != Isa::Plain && Isa::best() != Isa::Plain) {
                assert!(learnt(1, isa) == expected, "{isa:?}, {net:?}");
            }
        }
    }

    #[test]
    fn ranks_that_share_the_slices_of_sequences_learn_as_one() {
        let (n_envs, case) = (24, Case::Continuous);
        for net in nets().take(5) {
            let (acted, rollout, _) = fixture::rollout_with(case, &net, n_envs, [7, T]);
            let learnt = |ranks| {
                let policy = moved(&acted, &rollout, case, &net, LearnerKind::Fused);
                let mut agent = A2c::new(policy, A2cConfig { n_steps: T, ..A2cConfig::default() }, n_envs, 0).unwrap();
                Option::into_iter(ranks).for_each(|ranks| agent.shared().unwrap().share(ranks));
                agent.update(&rollout, 1.0, &Pool::new(1).unwrap()).unwrap();
                agent.save().unwrap()
            };
            let alone = learnt(None);
            assert_eq!(n_slices(n_envs, T, acted.params().len()), 4);
            for n_ranks in [2, 3] {
                assert!(on_ranks(n_ranks, |ranks| learnt(Some(ranks))).into_iter().all(|snapshot| snapshot == alone));
            }
        }
    }

    #[test]
    fn a_minibatch_is_made_of_whole_columns() {
        let mut rows = Vec::new();
        push_rows(&[4, 0, 2], 2, 3, 5, &mut rows);
        assert_eq!(rows, [4, 9, 14, 0, 2, 5, 7, 10, 12]);
        assert_eq!([(1, 64), (7, 64), (8, 64), (40, 4), (64, 128)].map(|(n, t)| n_slices(n, t, 9_155)), [1, 1, 2, 2, 16]);
        let net = NetConfig { memory: MemoryKind::Gru, ..NetConfig::default() };
        let (policy, ..) = fixture::rollout_with(Case::Discrete, &net, 4, [8]);
        let config = |batch_size| PpoConfig { n_steps: 8, batch_size, ..PpoConfig::default() };
        let refused = Ppo::new(policy.clone(), config(4), 4, 0).err().unwrap().to_string();
        assert!(refused.contains("batch_size is 4, but with memory a minibatch is made of whole columns"), "{refused}");
        assert!(Ppo::new(policy.clone(), config(16), 4, 0).is_ok() && Ppo::new(policy, config(0), 4, 0).is_ok());
    }
}
