//! The gradient of a minibatch.
//!
//! [Tiles](crate::kernel::tile) leave a gradient for each slice, and a tree sums them. Wide networks pass
//! [layer by layer](crate::kernel::layered), those with memory
//! [step by step](crate::kernel::sequences). [Ranks](crate::ranks) compute some slices each.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use rl_envs::isa::{Set, Work, dispatch};

use crate::Error;
use crate::kernel::aligned::Aligned;
use crate::kernel::gemm::pad;
use crate::kernel::layered::{self, Layered};
use crate::kernel::net::{Net, PackedNet};
use crate::kernel::samples::{Samples, Sequences};
use crate::kernel::sequences;
use crate::kernel::slices::{self, BatchSlice, MAX_SLICES};
use crate::kernel::tile::{self, Stats, TileLoss, Workspace};
use crate::probe::{Stage, Threads};
use crate::ranks::{Exchange, Ranks};

/// Minimum numbers of a part of a gradient that a thread sums.
const MIN_PART: usize = 2048;

/// Slices of a batch for parallel threads, each with statistics `S` of its loss.
pub(crate) struct Slices<S> {
    slices: Vec<BatchSlice<S>>,
    /// Gradients of the slices, as the layers compute them.
    grads: Vec<Aligned>,
    /// One for each thread.
    ///
    /// One for each slice would not fit into the cache of a core.
    workspaces: Vec<Mutex<Workspace>>,
    layered: Layered,
    /// Exchange with other ranks that compute some of the slices, if there are any.
    exchange: Option<Exchange>,
}

impl<S: Stats> Slices<S> {
    /// Creates an empty list; [`Slices::gradient`] adds the slices that a batch needs.
    pub(crate) fn new() -> Self {
        Self { slices: Vec::new(), grads: Vec::new(), workspaces: Vec::new(), layered: Layered::default(), exchange: None }
    }

    /// Returns what runs `n` samples forward before their gradient.
    ///
    /// [`Slices::gradient`] is then the second half. `None` for networks that pass in tiles, minibatches of several chunks, and
    /// with other ranks: their outputs are not kept.
    pub(crate) fn forward_first(&mut self, net: &Net, n: usize) -> Option<&mut Layered> {
        let keeps = layered::suits(net) && n <= layered::CHUNK && self.exchange.is_none();
        keeps.then_some(&mut self.layered)
    }

    /// Computes later gradients together with other ranks.
    pub(crate) fn share(&mut self, ranks: Arc<dyn Ranks>) {
        self.exchange = Some(Exchange::new(ranks));
    }

    /// Writes the gradient (P) of the summed loss of `n` samples.
    ///
    /// Parameters that belong to no layer are left to the caller. Returns each slice's statistics, in order.
    ///
    /// # Errors
    /// [`Error::PeerEnded`].
    pub(crate) fn gradient<'s, L: TileLoss<S>>(
        &'s mut self,
        PackedNet { isa, net, packed }: PackedNet<'_>,
        samples: Samples<'_>,
        n: usize,
        threads: Threads<'_>,
        loss: &L,
        gradient: &mut [f32],
    ) -> Result<impl Iterator<Item = &'s S> + Clone + use<'s, S, L>, Error> {
        // A slice is of whole sequences.
        let (len, count) = match samples.sequences {
            Some(Sequences { n_steps, .. }) => (n_steps, sequences::n_slices(n / n_steps, n_steps, gradient.len())),
            None => (1, slices::of_minibatch(n, gradient.len(), net.convolves())),
        };
        let range = |i: usize| i * (n / len) / count * len..(i + 1) * (n / len) / count * len;
        while self.slices.len() < count {
            self.slices.push(BatchSlice { range: 0..0, stats: S::default() });
        }
        let slices = &mut self.slices[..count];
        for (i, slice) in slices.iter_mut().enumerate() {
            slice.range = range(i);
            slice.stats.reset();
        }
        if let Some(mut exchange) = self.exchange.take_if(|_| count > 1) {
            let (own, subtrees) = exchange.begin(count);
            for subtree in subtrees {
                self.subtree(PackedNet { isa, net, packed }, samples, subtree, threads, loss, gradient);
                exchange.push(gradient);
            }
            self.slices[own].iter().for_each(|slice| slice.stats.write(exchange.stats_mut()));
            let stats_len = |i: usize| loss.stats_len(range(i).len());
            exchange.gather(count, stats_len, gradient, |i, message| self.slices[i].stats.read(message))?;
            threads.report(Stage::Sum);
            self.exchange = Some(exchange);
        } else {
            self.subtree(PackedNet { isa, net, packed }, samples, 0..count, threads, loss, gradient);
        }
        Ok(self.slices[..count].iter().map(|slice| &slice.stats))
    }

    /// Writes the gradient of neighbouring slices, whose number is a power of two.
    fn subtree<L: TileLoss<S>>(
        &mut self,
        PackedNet { isa, net, packed }: PackedNet<'_>,
        samples: Samples<'_>,
        slices: Range<usize>,
        threads: Threads<'_>,
        loss: &L,
        gradient: &mut [f32],
    ) {
        if layered::suits(net) {
            self.layered.gradient(PackedNet { isa, net, packed }, samples, &mut self.slices[slices], threads, loss, gradient);
        } else {
            self.tiles(PackedNet { isa, net, packed }, samples, slices, threads, loss, gradient);
        }
    }

    /// Writes the gradient of some slices, tile by tile.
    fn tiles<L: TileLoss<S>>(
        &mut self,
        PackedNet { isa, net, packed }: PackedNet<'_>,
        samples: Samples<'_>,
        slices: Range<usize>,
        threads: Threads<'_>,
        loss: &L,
        gradient: &mut [f32],
    ) {
        let count = slices.len();
        while self.workspaces.len() < count.min(threads.pool.n_threads()) {
            self.workspaces.push(Mutex::new(Workspace::learning(net)));
        }
        while self.grads.len() < count {
            self.grads.push(Aligned::zeros(net.grad_len));
        }
        let all_grads = &mut self.grads[..count];
        let mut passes = all_grads.iter_mut().zip(&mut self.slices[slices]);
        let mut passes: [_; MAX_SLICES] = std::array::from_fn(|_| passes.next());
        threads.each_with(Stage::Backward, &mut passes[..count], &self.workspaces, &|pass, workspace| {
            if let Some((grads, slice)) = pass {
                let kernel = PackedNet { isa, net, packed };
                match &net.memory {
                    Some(stage) => sequences::backward(kernel, stage, samples, slice, workspace, grads, loss, threads.probe),
                    None => tile::backward(kernel, samples, slice, workspace, grads, loss, threads.probe),
                }
            }
        });
        let (first, rest) = all_grads.split_at_mut(1);
        let grads = &mut first[0];
        if !rest.is_empty() {
            let len = pad(net.grad_len.div_ceil(MAX_SLICES)).max(MIN_PART);
            let mut parts = (0..).step_by(len).zip(grads.chunks_mut(len));
            let mut parts: [_; MAX_SLICES] = std::array::from_fn(|_| parts.next());
            threads.each(Stage::Sum, &mut parts, &|part| {
                if let Some((from, first)) = part {
                    dispatch(isa, TreeSum { first, rest, from: *from });
                }
            });
        }
        net.unpack_gradient(grads, gradient);
        threads.report(Stage::Sum);
    }
}

/// Sum of the slices' gradients over a part of them, left in the first slice's.
struct TreeSum<'a> {
    first: &'a mut [f32],
    rest: &'a [Aligned],
    /// Offset of the part.
    from: usize,
}

impl Work for TreeSum<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Set>(self) {
        match self.rest.len() {
            0 => {}
            1 => self.sum::<2>(),
            3 => self.sum::<4>(),
            7 => self.sum::<8>(),
            15 => self.sum::<16>(),
            more => unreachable!("1 + {more} slices are not a power of two up to 16"),
        }
    }
}

impl TreeSum<'_> {
    #[inline(always)]
    fn sum<const N: usize>(self) {
        let Self { first, rest, from } = self;
        let all: [&[f32]; N] = std::array::from_fn(|s| if s == 0 { &[][..] } else { &rest[s - 1][from..from + first.len()] });
        for (i, to) in first.as_chunks_mut::<16>().0.iter_mut().enumerate() {
            let mut sums = [*to; N];
            for (sums, all) in sums.iter_mut().zip(&all).skip(1) {
                sums.copy_from_slice(&all[16 * i..16 * i + 16]);
            }
            *to = slices::tree(sums, |a, b| std::array::from_fn(|j| a[j] + b[j]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::samples::TILE;
    use crate::kernel::tile::Tile;
    use crate::ranks::tests::on_ranks;
    use crate::{Activation, ActorCritic, NetConfig};
    use rl_buffer::ObsSlice;
    use rl_envs::Isa;
    use rl_envs::{ActionSpace, Pool, Purpose, Rng, Space};

    /// Half the sum of the squared outputs, counting the samples.
    struct Squares {
        heads: [(usize, usize); 2],
    }

    impl Stats for usize {
        fn reset(&mut self) {
            *self = 0;
        }

        fn write(&self, message: &mut Vec<u8>) {
            message.extend(self.to_le_bytes());
        }

        fn read(&mut self, message: &[u8]) {
            *self = Self::from_le_bytes(message.try_into().unwrap());
        }
    }

    impl TileLoss<usize> for Squares {
        fn stats_len(&self, _n_samples: usize) -> usize {
            size_of::<usize>()
        }

        #[inline(always)]
        fn tile(&self, tile: &mut Tile<'_>, stats: &mut usize) {
            let m = tile.samples.len();
            *stats += m;
            let mut column = [0.0; TILE];
            for (chain, n_out) in self.heads {
                for j in 0..n_out {
                    tile.column(chain, j, &mut column[..m]);
                    tile.set_grad(chain, j, &column[..m]);
                }
            }
        }
    }

    #[test]
    fn layer_by_layer_gives_the_bits_of_tiles_for_any_number_of_threads() {
        let mut rng = Rng::new(1, 0, 0, Purpose::Init);
        let d = 70;
        let obs: Vec<f32> = (0..1100 * d).map(|_| rng.normal()).collect();
        let space = Space::vector(&vec![-1.0; d], &vec![1.0; d]);
        for (hidden, n_actions, shared_trunk, activation, layer_norm) in [
            (vec![130, 33], 3, false, Activation::Tanh, false),
            (vec![65], 130, true, Activation::Tanh, true),
            (vec![200, 16, 64], 70, true, Activation::Gelu, false),
            (vec![130, 33], 3, false, Activation::Silu, true),
            (vec![], 2, false, Activation::Tanh, false),
        ] {
            let net = NetConfig { hidden, shared_trunk, activation, layer_norm, ..NetConfig::default() };
            let actions = ActionSpace::Discrete { n: n_actions, masked: false };
            let mut policy = ActorCritic::new(&space, &actions, &net, 7).unwrap();
            let params: Vec<f32> = policy.params().iter().map(|p| p + 0.1 * rng.normal()).collect();
            policy.set_params(&params, 1).unwrap();
            let (actor, critic) = policy.chains();
            let loss = Squares { heads: [(actor, policy.n_actions()), (critic, 1)] };
            let kernel = policy.network().kernel().unwrap();
            for isa in Isa::ALL.into_iter().filter(|isa| isa.supported()) {
                // Slices smaller than a tile, of several tiles, and larger than a chunk.
                for (n, count) in [(1, 1), (97, 1), (600, 8), (1100, 1)] {
                    let samples = policy.network().samples(ObsSlice::F32(&obs), None);
                    let gradient = |threads, layered| {
                        let (pool, mut gradient) = (Pool::new(threads).unwrap(), vec![f32::NAN; policy.params().len()]);
                        let mut slices = Slices::new();
                        let range = |i: usize| i * n / count..(i + 1) * n / count;
                        slices.slices = (0..count).map(|i| BatchSlice { range: range(i), stats: 0 }).collect();
                        let kernel = PackedNet { isa, ..kernel };
                        if layered {
                            let Slices { slices, layered, .. } = &mut slices;
                            layered.gradient(kernel, samples, slices, Threads::of(&pool), &loss, &mut gradient);
                        } else {
                            slices.tiles(kernel, samples, 0..count, Threads::of(&pool), &loss, &mut gradient);
                        }
                        assert!(slices.slices.iter().all(|slice| slice.stats == slice.range.len()));
                        gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                    };
                    let expected = gradient(1, false);
                    for threads in [1, 2, 3, 8] {
                        assert!(
                            gradient(threads, true) == expected,
                            "{n} samples, {count} slices, {threads} threads, {isa:?}, {net:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_minibatch_that_went_forward_before_has_the_same_gradient() {
        let (mut rng, d, n) = (Rng::new(1, 0, 0, Purpose::Init), 40, 300);
        let obs: Vec<f32> = (0..2 * n * d).map(|_| rng.normal()).collect();
        let space = Space::vector(&vec![-1.0; d], &vec![1.0; d]);
        for (hidden, wide) in [(vec![17], false), (vec![300, 400], true)] {
            let net = NetConfig { hidden, activation: Activation::Silu, layer_norm: true, ..NetConfig::default() };
            let policy = ActorCritic::new(&space, &ActionSpace::Discrete { n: 3, masked: false }, &net, 7).unwrap();
            let ((actor, critic), kernel) = (policy.chains(), policy.network().kernel().unwrap());
            let (loss, pool) = (Squares { heads: [(actor, 3), (critic, 1)] }, Pool::new(2).unwrap());
            let (threads, mut slices) = (Threads::of(&pool), Slices::new());
            let samples = |from: usize| policy.network().samples(ObsSlice::F32(&obs[from * d..]), None);
            let gradient = |slices: &mut Slices<usize>, from, n| {
                let mut gradient = vec![f32::NAN; policy.params().len()];
                let stats = slices.gradient(kernel, samples(from), n, threads, &loss, &mut gradient).unwrap();
                assert_eq!(stats.sum::<usize>(), n);
                gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            let expected = [(0, n), (n, n), (n, n - 1)].map(|(from, n)| gradient(&mut Slices::new(), from, n));
            let mut values = vec![f32::NAN; n];
            let mut rest = &mut values[..];
            let part = |len| rest.split_off_mut(..len).unwrap();
            let layered = slices.forward_first(kernel.net, n);
            assert_eq!(layered.is_some(), wide);
            if let Some(layered) = layered {
                layered.run_forward(kernel, samples(0), n, threads, part, &|tile, to| tile.column(critic, 0, to));
            }
            assert_eq!(gradient(&mut slices, 0, n), expected[0]);
            // The outputs are used once.
            assert_eq!(gradient(&mut slices, n, n), expected[1]);
            assert_eq!(gradient(&mut slices, n, n - 1), expected[2]);
            let mut alone = vec![0.0; n];
            tile::forward(kernel, samples(0), n, None, &mut [], &mut Workspace::forward(kernel.net), |tile: &mut Tile<'_>| {
                tile.column(critic, 0, &mut alone[tile.samples.clone()]);
            });
            assert!(!wide || values == alone);
        }
    }

    #[test]
    fn ranks_leave_the_gradient_and_the_statistics_of_one() {
        let mut rng = Rng::new(1, 0, 0, Purpose::Init);
        let d = 40;
        let obs: Vec<f32> = (0..1100 * d).map(|_| rng.normal()).collect();
        let space = Space::vector(&vec![-1.0; d], &vec![1.0; d]);
        // Tile by tile, and layer by layer.
        for hidden in [vec![17], vec![300, 400]] {
            let wide = hidden.len() > 1;
            let net = NetConfig { hidden, ..NetConfig::default() };
            let policy = ActorCritic::new(&space, &ActionSpace::Discrete { n: 3, masked: false }, &net, 7).unwrap();
            let (actor, critic) = policy.chains();
            let loss = Squares { heads: [(actor, 3), (critic, 1)] };
            let kernel = policy.network().kernel().unwrap();
            assert_eq!(layered::suits(kernel.net), wide);
            let work = |mut shared: Slices<usize>| {
                let pool = Pool::new(1).unwrap();
                // Small and large minibatches in turn, as buffers are kept.
                let all = [600, 97, 1100, 129].map(|n| {
                    let samples = policy.network().samples(ObsSlice::F32(&obs), None);
                    let mut gradient = vec![f32::NAN; policy.params().len()];
                    let stats = shared.gradient(kernel, samples, n, Threads::of(&pool), &loss, &mut gradient).unwrap();
                    let (stats, count) =
                        (stats.copied().collect::<Vec<_>>(), slices::of_minibatch(n, policy.params().len(), false));
                    assert!((0..count).map(|i| (i + 1) * n / count - i * n / count).eq(stats));
                    gradient.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                });
                all.concat()
            };
            let alone = work(Slices::new());
            // Shares of several subtrees; ranks without a share.
            for n_ranks in if wide { vec![2, 3] } else { vec![1, 2, 3, 5, 17] } {
                let shared = on_ranks(n_ranks, |ranks| {
                    let mut slices = Slices::new();
                    slices.share(ranks);
                    work(slices)
                });
                assert!(shared.into_iter().all(|gradient| gradient == alone), "{n_ranks} ranks, wide: {wide}");
            }
        }
    }
}
