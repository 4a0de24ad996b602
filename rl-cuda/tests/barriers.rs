//! Each barrier of the kernels is necessary.
//!
//! Without it the stand-in finds a race between threads.
#![allow(clippy::unwrap_used, reason = "tests")]

use standin::{Fault, Machine};

/// A parameter's bytes.
fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// One slice of `n` samples, with `groups` rows of `len` partial gradients.
fn slices(len: u32, n: u32, groups: u32) -> Vec<u8> {
    let tiles = n.div_ceil(96);
    bytes(&[len, 0, n, 1, 1, 96 * tiles, groups, tiles / groups])
}

/// Allocates `n` numbers of 4 bytes.
fn floats(machine: &mut Machine, n: usize) -> Vec<u8> {
    machine.upload(&vec![0; 4 * n]).to_le_bytes().into()
}

/// Runs a kernel with one block of `threads` threads.
fn run(machine: &mut Machine, kernel: &str, threads: u32, params: &[Vec<u8>]) -> Result<(), Fault> {
    let params: Vec<&[u8]> = params.iter().map(|param| &param[..]).collect();
    machine.run(kernel, [1, 1, 1], [threads, 1, 1], &params)
}

/// Removes each barrier of a kernel in turn; returns how many it has.
fn check(ptx: &str, kernel: &str, launch: impl Fn(&mut Machine) -> Result<(), Fault>) -> usize {
    launch(&mut Machine::new(ptx).unwrap()).unwrap_or_else(|fault| panic!("{kernel}: {fault}"));
    let begin = ptx.find(&format!(".entry {kernel}(")).unwrap();
    let end = ptx[begin + 1..].find(".entry ").map_or(ptx.len(), |len| begin + 1 + len);
    let places: Vec<usize> = ptx[begin..end].match_indices("bar.sync").map(|(at, _)| begin + at).collect();
    for &at in &places {
        let line = at + ptx[at..].find('\n').unwrap();
        let without = format!("{}{}", &ptx[..at], &ptx[line..]);
        assert!(launch(&mut Machine::new(&without).unwrap()).is_err(), "{kernel} does not need its barrier at byte {at}");
    }
    places.len()
}

#[test]
fn a_product_without_one_of_its_barriers_is_a_race() {
    let ptx = include_str!("../ptx/dense.ptx");
    // Two rounds of 32 terms in shared memory.
    let (m, n_in, n_out) = (40, 40, 40);
    // Two rounds of eight tiles.
    let launch = |machine: &mut Machine| {
        let params = [floats(machine, 1000), floats(machine, 1), bytes(&[1000, 1, 1, 0]), slices(1, 1000, 1)];
        run(machine, "dense_bias_gradient", 256, &params)
    };
    assert!(check(ptx, "dense_bias_gradient", launch) >= 2);
    // Two rounds of eight samples, of 4 positions and one channel.
    let launch = |machine: &mut Machine| {
        let shape = bytes(&[16, 9, 1, 1, 2, 1, 3, 3, 2, 2, 0, 1]);
        let params = [floats(machine, 64), floats(machine, 1), shape, slices(1, 16, 1)];
        run(machine, "conv_bias_gradient", 256, &params)
    };
    assert!(check(include_str!("../ptx/conv.ptx"), "conv_bias_gradient", launch) >= 2);
    for kernel in ["dense_forward", "dense_input_gradient", "dense_weight_gradient"] {
        assert!(check_product(ptx, kernel, [m, n_in, n_out]) >= 2, "{kernel}");
    }
    // Two rounds of 32 terms, and a rest that takes two steps.
    let ptx = include_str!("../ptx/wide.ptx");
    for kernel in ["wide_forward", "wide_input_gradient", "wide_weight_gradient"] {
        assert!(check_product(ptx, kernel, [88, 88, 88]) >= 5, "{kernel}");
    }
    // Two rounds of eight tiles.
    let launch = |machine: &mut Machine| {
        let [x, dz, partial] = [3000, 1000, 4].map(|n| floats(machine, n));
        let params = [x, dz, partial, bytes(&[1000, 3, 1, 0]), slices(4, 1000, 1)];
        run(machine, "few_weight_gradient", 256, &params)
    };
    assert!(check(include_str!("../ptx/few.ptx"), "few_weight_gradient", launch) >= 2);
}

/// Removes each barrier of a product in turn; returns how many it has.
fn check_product(ptx: &str, kernel: &str, [m, n_in, n_out]: [u32; 3]) -> usize {
    let n = (m.max(n_in) * n_in.max(n_out) + n_out) as usize;
    check(ptx, kernel, |machine| {
        let pointers = if kernel.ends_with("weight_gradient") { 3 } else { 4 };
        let mut params: Vec<_> = (0..pointers).map(|_| floats(machine, n)).collect();
        params.push(bytes(&[m, n_in, n_out, 1]));
        if kernel.ends_with("input_gradient") {
            params.push(bytes(&[0]));
        } else if kernel.ends_with("weight_gradient") {
            params.push(slices((n_in + 1) * n_out, m, 1));
        }
        run(machine, kernel, 128, &params)
    })
}

#[test]
fn a_narrow_network_without_one_of_its_barriers_is_a_race() {
    let ptx = include_str!("../ptx/narrow.ptx");
    // A chain of three layers of 40 inputs and outputs, with tanh; 100 samples, two tiles.
    let (m, width) = (100, 40);
    let layer = |l: u32| [width, width, 1, l * 1640, l * 4000, 0];
    let chain: Vec<u32> = [3].into_iter().chain((0..3).flat_map(layer)).chain([0; 6]).collect();
    let launch = |machine: &mut Machine, kernel: &str| {
        let mut params: Vec<_> = vec![machine.upload(&bytes(&chain)).to_le_bytes().into()];
        params.extend([3 * 1640, 4000, 3 * 4000].map(|n| floats(machine, n)));
        match kernel {
            "narrow_forward" | "narrow_forward_many" => {
                params.extend([(); 2].map(|()| vec![0; 8]));
                params.extend([m, 0, 0, 1, 1].map(|word| bytes(&[word])));
            }
            _ => {
                params.extend([4000, 3 * 1640].map(|n| floats(machine, n)));
                params.push(slices(3 * 1640, m, 2));
                params.extend([0, 0, 1].map(|word| bytes(&[word])));
            }
        }
        run(machine, kernel, 128, &params)
    };
    for kernel in ["narrow_forward", "narrow_forward_many", "narrow_gradient"] {
        assert!(check(ptx, kernel, |machine| launch(machine, kernel)) >= 2, "{kernel}");
    }
}

#[test]
fn a_convolution_without_one_of_its_barriers_is_a_race() {
    let ptx = include_str!("../ptx/conv.ptx");
    // Two rounds of 32 terms: 40 inputs under a kernel of one cell, 40 positions.
    let (m, n_in, n_out, columns) = (1, 40, 40, 40);
    let shape = bytes(&[m, n_in * columns, n_in, n_out, 1, 1, 1, columns, 1, columns, 1, 1]);
    for kernel in ["conv_forward", "conv_weight_gradient"] {
        let launch = |machine: &mut Machine| {
            let numbers = if kernel == "conv_forward" { 4 } else { 3 };
            let mut params: Vec<_> = (0..numbers).map(|_| floats(machine, 1640)).collect();
            let offsets = bytes(&(0..40).collect::<Vec<u32>>());
            params.extend((0..3).map(|_| machine.upload(&offsets).to_le_bytes().into()));
            params.push(shape.clone());
            if kernel == "conv_weight_gradient" {
                params.push(slices(1640, m, 1));
            }
            run(machine, kernel, 128, &params)
        };
        assert!(check(ptx, kernel, launch) >= 2, "{kernel}");
    }
}

#[test]
fn a_sum_without_one_of_its_barriers_is_a_race() {
    let ptx = include_str!("../ptx/sums.ptx");
    let n = bytes(&[256, 0]);
    let of = |machine: &mut Machine| {
        let (x, to) = (floats(machine, 256), floats(machine, 2));
        let none = vec![0; 8];
        run(machine, "sums_of", 128, &[x, none.clone(), n.clone(), n.clone(), none, bytes(&[1]), to])
    };
    assert!(check(ptx, "sums_of", of) >= 2);
    let fold = |machine: &mut Machine| {
        let (x, to) = (floats(machine, 512), floats(machine, 2));
        run(machine, "sums_fold", 128, &[x, n.clone(), to])
    };
    assert!(check(ptx, "sums_fold", fold) >= 2);
}

#[test]
fn the_parts_of_a_loss_without_one_of_their_barriers_are_a_race() {
    let launch = |machine: &mut Machine| {
        let [tiles, settings, counters, totals] = [2 * 5 * 2, 10, 14, 20].map(|n| floats(machine, n));
        run(machine, "learner_loss", 128, &[tiles, bytes(&[100, 2, 1, 96, 1]), settings, counters, totals])
    };
    assert!(check(include_str!("../ptx/learner.ptx"), "learner_loss", launch) >= 2);
}

#[test]
fn the_explained_variance_without_one_of_its_barriers_is_a_race() {
    let launch = |machine: &mut Machine| {
        let (returns, values, parts) = (floats(machine, 300), floats(machine, 300), floats(machine, 8));
        run(machine, "targets_variance_parts", 256, &[returns, values, bytes(&[300, 0]), parts])
    };
    assert!(check(include_str!("../ptx/targets.ptx"), "targets_variance_parts", launch) >= 2);
}
