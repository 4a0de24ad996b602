//! Two action-value functions of observations and actions.

use std::ops::Range;

use candle_core::Tensor;
use rl_buffer::ObsSlice;
use rl_envs::{Pool, Space};

use crate::kernel::samples::TILE;
use crate::kernel::tile::{self, Tile, Workspace};
use crate::policy::network::{Network, NetworkShape, TileScratch, each_slice};
use crate::{Error, NetConfig, Scratch};

/// Q1(s, a) and Q2(s, a), two separate networks `q1` and `q2`.
///
/// A row of their inputs is an observation (D) and an action (A) between -1 and 1. Initialization: orthogonal, gain sqrt(2) in
/// hidden layers, 1 in the last; biases 0.
#[derive(Clone, Debug)]
pub(crate) struct TwinQ {
    network: Network,
    n_actions: usize,
}

/// Memory of a thread that computes gradients of the inputs.
#[derive(Default)]
struct InputScratch(Option<Workspace>);

impl TwinQ {
    /// Creates networks with random parameters.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub(crate) fn new(obs: &Space, n_actions: usize, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let n_in = obs.len() + n_actions;
        let space = Space::vector(&vec![-1.0; n_in], &vec![1.0; n_in]);
        let mut network = Network::unset(NetworkShape::new(&space, net, &[("q1", 1), ("q2", 1)], false)?, &space, net);
        network.init(&[1.0, 1.0], seed);
        Ok(Self { network, n_actions })
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Kernel's chains of the two functions.
    pub(crate) fn chains(&self) -> [usize; 2] {
        [0, 1].map(|head| self.network.chain(head))
    }

    /// Computes both values, (B) each, of rows (B, D + A) with candle operations.
    ///
    /// Gradients flow to `params` (P) and to the rows.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn forward(&self, params: &Tensor, rows: &Tensor) -> candle_core::Result<[Tensor; 2]> {
        let outputs = self.network.forward(params, rows)?;
        Ok([outputs[0].squeeze(1)?, outputs[1].squeeze(1)?])
    }

    /// Writes the smaller value (n) of each row (n, D + A).
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn least(&self, rows: &[f32], pool: &Pool, scratches: &mut Vec<Scratch>, q: &mut [f32]) -> Result<(), Error> {
        let Some(kernel) = self.network.kernel() else {
            let obs = self.network.features(ObsSlice::F32(rows))?;
            let [one, two] = self.forward(&self.network.params_tensor()?, &obs)?;
            q.copy_from_slice(&one.minimum(&two)?.to_vec1::<f32>()?);
            return Ok(());
        };
        let (d, chains, n, mut q) = (self.network.obs_len(), self.chains(), q.len(), q);
        let part = |len: usize| {
            let of_slice;
            (of_slice, q) = std::mem::take(&mut q).split_at_mut(len);
            of_slice
        };
        each_slice(n, pool, scratches, part, &|range, q, scratch| {
            let TileScratch { workspace, .. } = self.network.tile_scratch(scratch, 1);
            let Some(workspace) = workspace else { return Ok(()) };
            let samples = self.network.samples(ObsSlice::F32(&rows[range.start * d..range.end * d]), None);
            tile::forward(kernel, samples, range.len(), None, workspace, |tile: &mut Tile<'_>| {
                let [one, two] = both(tile, chains);
                for (s, i) in tile.samples().enumerate() {
                    q[i] = one[s].min(two[s]);
                }
            });
            Ok(())
        })
    }

    /// Writes the smaller value (n) of each row (n, D + A).
    ///
    /// Also writes its gradient with respect to the action, (n, A).
    ///
    /// # Errors
    /// [`Error::Setting`] for the reference learner, which has no kernel.
    pub(crate) fn least_gradient(
        &self,
        rows: &[f32],
        pool: &Pool,
        scratches: &mut Vec<Scratch>,
        q: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<(), Error> {
        let not_here = || Error::Setting { name: "learner", value: "reference".into(), allowed: "only fused has a kernel" };
        let kernel = self.network.kernel().ok_or_else(not_here)?;
        let (d, a, chains) = (self.network.obs_len(), self.n_actions, self.chains());
        let (n, mut q, mut d_actions) = (q.len(), q, d_actions);
        let part = |len: usize| {
            let of_q;
            (of_q, q) = std::mem::take(&mut q).split_at_mut(len);
            let of_actions;
            (of_actions, d_actions) = std::mem::take(&mut d_actions).split_at_mut(len * a);
            (of_q, of_actions)
        };
        each_slice(n, pool, scratches, part, &|range: Range<usize>, (q, d_actions), scratch| {
            let workspace = scratch.get::<InputScratch>().0.get_or_insert_with(|| Workspace::of_inputs(kernel.net));
            let samples = self.network.samples(ObsSlice::F32(&rows[range.start * d..range.end * d]), None);
            let loss = |tile: &mut Tile<'_>| {
                let ([one, two], m) = (both(tile, chains), tile.samples().len());
                let first: [f32; TILE] = std::array::from_fn(|s| f32::from(one[s] <= two[s]));
                let second = first.map(|x| 1.0 - x);
                for (s, i) in tile.samples().enumerate() {
                    q[i] = one[s].min(two[s]);
                }
                tile.set_grad(chains[0], 0, &first[..m]);
                tile.set_grad(chains[1], 0, &second[..m]);
            };
            tile::input_gradient(kernel, samples, range.len(), workspace, loss, |samples, j, numbers| {
                if let Some(j) = j.checked_sub(d - a) {
                    samples.zip(numbers).for_each(|(i, &number)| d_actions[i * a + j] = number);
                }
            });
            Ok(())
        })
    }
}

/// Reads both values of a tile.
#[inline(always)]
pub(crate) fn both(tile: &Tile<'_>, chains: [usize; 2]) -> [[f32; TILE]; 2] {
    chains.map(|chain| {
        let mut q = [0.0; TILE];
        tile.column(chain, 0, &mut q[..tile.samples().len()]);
        q
    })
}
