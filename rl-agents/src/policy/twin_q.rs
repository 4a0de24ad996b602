//! Action-value functions of observations and actions, one or two.

use std::ops::Range;

use candle_core::Tensor;
use rl_buffer::ObsSlice;
use rl_envs::{Part, Pool, Space};

use crate::kernel::samples::TILE;
use crate::kernel::tile::{self, InputPass, Tile, Workspace};
use crate::policy::network::{HeadLayers, Network, NetworkShape, TileScratch};
use crate::{Error, NetConfig, Scratch};

/// Q1(s, a) and Q2(s, a), two separate networks `q1` and `q2`, or Q1 alone.
///
/// A row of their inputs is an observation (D) and an action (A) between -1 and 1. Both read the same convolutions.
/// Default initialization: orthogonal, gain sqrt(2) in hidden layers, 1 in the last; biases 0.
#[derive(Clone, Debug)]
pub(crate) struct TwinQ {
    network: Network,
    n_actions: usize,
    /// Kernel's chains of the functions.
    chains: Vec<usize>,
}

/// Space of the rows: observations, of which bytes are scaled, and actions.
fn rows_of(obs: &Space, n_actions: usize, convolves: bool) -> Space {
    let n = obs.len() + n_actions;
    let mut categories = obs.categories().to_vec();
    categories.resize(n, 0);
    let space = Space::vector(&vec![-1.0; n], &vec![1.0; n]).with_categories(&categories);
    if !convolves {
        return space;
    }
    let whole = || vec![Part { name: "observation".into(), shape: obs.shape().into() }];
    let mut parts = if obs.parts().is_empty() { whole() } else { obs.parts().to_vec() };
    parts.push(Part { name: "action".into(), shape: vec![n_actions] });
    space.with_parts(&parts)
}

/// Value to take of two functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    First,
    Least,
}

/// Memory of a thread that computes gradients of the inputs.
#[derive(Default)]
struct InputScratch(Option<Workspace>);

impl TwinQ {
    /// Creates `n` networks, one or two, with random parameters.
    ///
    /// # Errors
    /// Errors of [`NetConfig::check`].
    pub(crate) fn new(obs: &Space, n_actions: usize, n: usize, net: &NetConfig, seed: u64) -> Result<Self, Error> {
        let space = rows_of(obs, n_actions, !net.conv.is_empty());
        let heads = ["q1", "q2"].map(|name| HeadLayers { name, hidden: net.hidden_of_critic(), n_out: 1 });
        let mut shape = NetworkShape::new(&space, net, &heads[..n], false)?;
        shape.encoder.make_one_hot();
        let mut network = Network::unset(shape, &space, net);
        network.init(&[1.0, 1.0][..n], seed);
        let chains = (0..n).map(|head| network.chain(head)).collect();
        Ok(Self { network, n_actions, chains })
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    pub(crate) fn network_mut(&mut self) -> &mut Network {
        &mut self.network
    }

    /// Kernel's chains of the functions.
    pub(crate) fn chains(&self) -> &[usize] {
        &self.chains
    }

    /// Computes the values, (B) each, of rows (B, D + A) with candle operations.
    ///
    /// Gradients flow to `params` (P) and to the rows.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn forward(&self, params: &Tensor, rows: &Tensor) -> candle_core::Result<Vec<Tensor>> {
        self.network.forward(params, rows)?.iter().map(|output| output.squeeze(1)).collect()
    }

    /// Writes the smaller value (n) of each row (n, D + A).
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn least(&self, rows: &[f32], pool: &Pool, scratches: &mut Vec<Scratch>, q: &mut [f32]) -> Result<(), Error> {
        let Some(kernel) = self.network.kernel() else {
            let obs = self.network.features(ObsSlice::F32(rows))?;
            let all = self.forward(&self.network.params_tensor()?, &obs)?;
            q.copy_from_slice(&all[0].broadcast_minimum(&all[all.len() - 1])?.to_vec1::<f32>()?);
            return Ok(());
        };
        let (d, chains, n, mut q) = (self.network.obs_len(), &self.chains, q.len(), q);
        let part = |len: usize| {
            let of_slice;
            (of_slice, q) = std::mem::take(&mut q).split_at_mut(len);
            of_slice
        };
        self.network.each_slice(n, pool, scratches, part, &|range, q, scratch| {
            let TileScratch { workspace, .. } = self.network.tile_scratch(scratch, 1);
            let Some(workspace) = workspace else { return Ok(()) };
            let samples = self.network.samples(ObsSlice::F32(&rows[range.start * d..range.end * d]), None);
            tile::forward(kernel, samples, range.len(), None, &mut [], workspace, |tile: &mut Tile<'_>| {
                let all = columns(tile, chains);
                for (s, i) in tile.samples.clone().enumerate() {
                    q[i] = all[0][s].min(all[chains.len() - 1][s]);
                }
            });
            Ok(())
        })
    }

    /// Writes a value (n) of each row (n, D + A).
    ///
    /// Also writes its gradient with respect to the action, (n, A).
    ///
    /// # Errors
    /// [`Error::Setting`] for the reference learner, which has no kernel.
    pub(crate) fn gradient(
        &self,
        value: Value,
        rows: &[f32],
        pool: &Pool,
        scratches: &mut Vec<Scratch>,
        q: &mut [f32],
        d_actions: &mut [f32],
    ) -> Result<(), Error> {
        let not_here = || Error::Setting { name: "learner", value: "reference".into(), allowed: "only fused has a kernel" };
        let kernel = self.network.kernel().ok_or_else(not_here)?;
        let (d, a, chains) = (self.network.obs_len(), self.n_actions, &self.chains);
        let (n, mut q, mut d_actions) = (q.len(), q, d_actions);
        let part = |len: usize| {
            let of_q;
            (of_q, q) = std::mem::take(&mut q).split_at_mut(len);
            let of_actions;
            (of_actions, d_actions) = std::mem::take(&mut d_actions).split_at_mut(len * a);
            (of_q, of_actions)
        };
        self.network.each_slice(n, pool, scratches, part, &|range: Range<usize>, (q, d_actions), scratch| {
            let workspace = scratch.get::<InputScratch>().0.get_or_insert_with(|| Workspace::of_inputs(kernel.net));
            let samples = self.network.samples(ObsSlice::F32(&rows[range.start * d..range.end * d]), None);
            let needed = if value == Value::First { &chains[..1] } else { chains };
            let loss = |tile: &mut Tile<'_>| {
                let (all, m) = (columns(tile, needed), tile.samples.len());
                let [one, other] = [all[0], all[needed.len() - 1]];
                let is_first = |s: usize| one[s] <= other[s] || needed.len() == 1;
                for (s, i) in tile.samples.clone().enumerate() {
                    q[i] = if is_first(s) { one[s] } else { other[s] };
                }
                let first: [f32; TILE] = std::array::from_fn(|s| f32::from(is_first(s)));
                tile.set_grad(chains[0], 0, &first[..m]);
                if let Some(&second) = needed.get(1) {
                    tile.set_grad(second, 0, &first.map(|x| 1.0 - x)[..m]);
                }
            };
            // The last inputs are the action.
            let pass = InputPass { first: kernel.net.n_in - a, skip: chains[needed.len()..].first().copied() };
            tile::input_gradient(kernel, samples, range.len(), pass, workspace, loss, |samples, j, numbers| {
                samples.iter().zip(numbers).for_each(|(i, number)| d_actions[i * a + j] = *number);
            });
            Ok(())
        })
    }
}

/// Reads the values of a tile, of one chain or two.
#[inline(always)]
pub(crate) fn columns(tile: &Tile<'_>, chains: &[usize]) -> [[f32; TILE]; 2] {
    let mut q = [[0.0; TILE]; 2];
    for (q, &chain) in q.iter_mut().zip(chains) {
        tile.column(chain, 0, &mut q[..tile.samples.len()]);
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::bits;
    use rl_envs::{Purpose, Rng};

    #[test]
    fn gradients_of_many_rows_are_those_of_each_row() {
        let (a, mut rng) = (2, Rng::new(5, 0, 0, Purpose::Init));
        let cases = [(3, 1, Value::First), (3, 2, Value::First), (3, 2, Value::Least)];
        // The action is in two panels, and in the second.
        for (d, n_networks, value) in cases.into_iter().chain([(63, 2, Value::Least), (65, 2, Value::Least)]) {
            let obs = Space::vector(&vec![-1.0; d], &vec![1.0; d]);
            let critics = TwinQ::new(&obs, a, n_networks, &NetConfig { hidden: vec![70, 9], ..NetConfig::default() }, 7).unwrap();
            let gradient = |rows: &[f32]| {
                let n = rows.len() / (d + a);
                let (mut q, mut d_actions) = (vec![0.0; n], vec![f32::NAN; n * a]);
                critics.gradient(value, rows, &Pool::default(), &mut Vec::new(), &mut q, &mut d_actions).unwrap();
                (q, d_actions)
            };
            for n in [1, 2, 96, 200] {
                let rows: Vec<f32> = (0..n * (d + a)).map(|_| rng.uniform_in(-1.0, 1.0)).collect();
                let (q, d_actions) = gradient(&rows);
                let each: Vec<_> = rows.chunks(d + a).map(gradient).collect();
                assert_eq!(bits(&q), each.iter().map(|(q, _)| q[0].to_bits()).collect::<Vec<_>>());
                let each: Vec<f32> = each.into_iter().flat_map(|(_, d_actions)| d_actions).collect();
                assert_eq!(bits(&d_actions), bits(&each), "{n_networks} networks, {value:?}, {n} rows");
            }
            let (mut least, row) = ([0.0], (0..d + a).map(|i| 0.1 * i as f32 - 0.2).collect::<Vec<_>>());
            critics.least(&row, &Pool::default(), &mut Vec::new(), &mut least).unwrap();
            let (q, _) = gradient(&row);
            assert!(if value == Value::Least { q == least } else { q[0] >= least[0] });
        }
    }
}
