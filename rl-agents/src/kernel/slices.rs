//! Slices of a batch, whatever the number of threads.

use std::ops::Range;

/// Maximum number of slices of a batch: enough for that many threads.
pub const MAX_SLICES: usize = 16;
/// Minimum environments of a slice; fewer make too little use of the weights read.
pub const MIN_SLICE: usize = 4;

/// Minimum samples of a slice of a minibatch.
///
/// Below, its gradient costs more than another thread gains.
const MIN_SAMPLES: usize = 64;
/// Minimum samples of each of two slices that pass convolutions.
///
/// Those are more work than their gradient.
const MIN_PICTURES: usize = 16;
/// Maximum number of floats in the gradients of all slices.
///
/// [`FEW_SLICES`] may have more.
const MAX_GRADIENT_FLOATS: usize = 1 << 24;
/// Slices that a minibatch of enough samples gets for any network.
const FEW_SLICES: usize = 4;

/// A slice of a batch.
pub(crate) struct BatchSlice<S> {
    /// Samples of the batch.
    pub(crate) range: Range<usize>,
    pub(crate) stats: S,
}

/// Number of slices of a minibatch of `n` samples.
///
/// `n_params` is the number of parameters of the networks; `convolves` is true if they have convolutions.
/// A power of two, so that two, four or eight threads get equal work and sums over slices are whole trees. It is part of the
/// order of summation: results depend on it.
pub(crate) fn of_minibatch(n: usize, n_params: usize, convolves: bool) -> usize {
    let most = (MAX_GRADIENT_FLOATS / n_params.max(1)).clamp(FEW_SLICES, MAX_SLICES);
    1 << (n / least(n, convolves)).clamp(1, most).ilog2()
}

/// Minimum samples of a slice of `n`; with convolutions, few enough for two slices.
pub(crate) fn least(n: usize, convolves: bool) -> usize {
    if convolves { (n / 2).clamp(MIN_PICTURES, MIN_SAMPLES) } else { MIN_SAMPLES }
}

/// Adds numbers by a tree: neighbours, then neighbouring sums, until one is left.
///
/// N is a power of two.
#[inline(always)]
pub(crate) fn tree<T: Copy, const N: usize>(mut numbers: [T; N], add: impl Fn(T, T) -> T) -> T {
    let mut stride = 1;
    while stride < N {
        let mut i = 0;
        while i < N {
            numbers[i] = add(numbers[i], numbers[i + stride]);
            i += 2 * stride;
        }
        stride *= 2;
    }
    numbers[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::gradient::Slices;
    use crate::kernel::samples::TILE;
    use crate::kernel::tile::{self, Tile, TileLoss, Workspace};
    use crate::probe::Threads;
    use crate::{ActorCritic, NetConfig};
    use rl_buffer::ObsSlice;
    use rl_envs::{ActionSpace, Pool, Purpose, Rng, Space};

    /// Half the sum of the squared outputs.
    struct Squares {
        chains: (usize, usize),
        n_actions: usize,
    }

    impl TileLoss<()> for Squares {
        #[inline(always)]
        fn tile(&self, tile: &mut Tile<'_>, (): &mut ()) {
            let mut column = [0.0; TILE];
            for j in 0..=self.n_actions {
                let (chain, output) = if j < self.n_actions { (self.chains.0, j) } else { (self.chains.1, 0) };
                tile.column(chain, output, &mut column);
                tile.set_grad(chain, output, &column);
            }
        }
    }

    fn halves(numbers: &[Vec<f32>]) -> Vec<f32> {
        let (a, b) = numbers.split_at(numbers.len() / 2);
        if a.is_empty() { b[0].clone() } else { halves(a).iter().zip(&halves(b)).map(|(a, b)| a + b).collect() }
    }

    #[test]
    fn a_gradient_is_the_tree_of_its_slices_which_add_their_tiles_for_any_number_of_threads() {
        let (space, d) = (Space::bytes(&[2, 5, 6], 255, 1.0 / 255.0), 60);
        let actions = ActionSpace::Discrete { n: 3, masked: false };
        let obs: Vec<u8> = (0..1100 * d as u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
        let mut n_slices = std::collections::BTreeSet::new();
        for (conv, hidden, shared_trunk) in
            [(vec![], vec![33, 65], false), (vec![], vec![17], true), (vec![[7, 3, 1], [20, 2, 1]], vec![31], true)]
        {
            let net = NetConfig { conv, hidden, shared_trunk, ..NetConfig::default() };
            let policy = ActorCritic::new(&space, &actions, &net, 1).unwrap();
            let (kernel, loss) = (policy.network().kernel().unwrap(), Squares { chains: policy.chains(), n_actions: 3 });
            let gradient = |n: usize, threads| {
                let samples = policy.network().samples(ObsSlice::U8(&obs[..n * d]), None);
                let (pool, mut gradient) = (Pool::new(threads).unwrap(), vec![f32::NAN; policy.params().len()]);
                Slices::new().gradient(kernel, samples, n, Threads::of(&pool), &loss, &mut gradient).map(drop).unwrap();
                gradient
            };
            for n in [1, 31, 33, 97, 129, 300, 600, 1100] {
                let count = of_minibatch(n, policy.params().len(), kernel.net.convolves());
                n_slices.insert(count);
                let slice = |i: usize| {
                    let range = i * n / count..(i + 1) * n / count;
                    let (samples, mut sum) =
                        (policy.network().samples(ObsSlice::U8(&obs), None), vec![0.0; policy.params().len()]);
                    for start in range.clone().step_by(TILE) {
                        let mut only = BatchSlice { range: start..(start + TILE).min(range.end), stats: () };
                        let mut grads = vec![0.0; kernel.net.grad_len];
                        let (mut tile, mut workspace) = (vec![0.0; sum.len()], Workspace::learning(kernel.net));
                        tile::backward(kernel, samples, &mut only, &mut workspace, &mut grads, &loss, None);
                        kernel.net.unpack_gradient(&grads, &mut tile);
                        sum.iter_mut().zip(tile).for_each(|(sum, x)| *sum += x);
                    }
                    sum
                };
                let expected = halves(&(0..count).map(slice).collect::<Vec<_>>());
                let bits = |x: Vec<f32>| x.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                let expected = bits(expected);
                for threads in [1, 2, 3, 8] {
                    assert!(bits(gradient(n, threads)) == expected, "{n} samples, {threads} threads, {net:?}");
                }
            }
        }
        assert!(n_slices.into_iter().eq([1, 2, 4, 8, 16]));
    }

    #[test]
    fn a_tree_adds_the_sums_of_its_halves() {
        let sum = |numbers: &[f32]| halves(&numbers.iter().map(|&x| vec![x]).collect::<Vec<_>>())[0];
        let mut rng = Rng::new(1, 0, 0, Purpose::Init);
        for _ in 0..100 {
            let numbers: [f32; 16] = std::array::from_fn(|_| rng.normal());
            assert_eq!(tree(numbers, |a, b| a + b), sum(&numbers));
            // Absent slices are zeros.
            let eight: [f32; 16] = std::array::from_fn(|i| if i < 8 { numbers[i] } else { 0.0 });
            assert_eq!(tree(eight, |a, b| a + b), sum(&numbers[..8]));
        }
    }

    #[test]
    fn a_minibatch_has_as_many_slices_as_its_samples_and_its_network_allow() {
        let dense = |n, n_params| of_minibatch(n, n_params, false);
        // 9,155 parameters: two networks of 64-64. 3,417,603: two of 1024-1024-512-256, of which 2^24 numbers hold four.
        for (n, small, large) in [(1, 1, 1), (127, 1, 1), (128, 2, 2), (512, 8, 4), (1000, 8, 4), (1024, 16, 4), (65_536, 16, 4)]
        {
            assert_eq!((dense(n, 9_155), dense(n, 3_417_603)), (small, large), "{n} samples");
        }
        assert_eq!((dense(1024, 1 << 20), dense(1024, (1 << 20) + 1), dense(256, usize::MAX)), (16, 8, 4));
        let convolutions = [31, 32, 63, 127, 128, 255, 256].map(|n| of_minibatch(n, 1 << 20, true));
        assert_eq!(convolutions, [1, 2, 2, 2, 2, 2, 4]);
    }
}
