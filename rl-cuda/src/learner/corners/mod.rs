//! The learner's kernels on numbers and counters that learning does not reach.

mod cells;
mod layers;
mod losses;
mod replays;
mod updates;

use rl_envs::Actions;

use super::*;
use crate::Buffer;
use crate::corners::{EXP, KernelBench, LN, LOG_PROBS, agree, rounds};

impl KernelBench<'_, LearnerKernels> {
    /// Numbers within 1; with `wild`, any in every fifth place.
    fn numbers(&mut self, n: usize, wild: bool) -> Vec<f32> {
        let mut number = |_| if wild && self.corners.0.below(5) == 0 { self.any() } else { self.corners.0.uniform_in(-1.0, 1.0) };
        (0..n).map(&mut number).collect()
    }

    fn floats(&mut self, n: usize, wild: bool) -> Buffer<f32> {
        let numbers = self.numbers(n, wild);
        self.upload(&numbers)
    }

    fn any(&mut self) -> f32 {
        self.corners.float(&[0.0, 0.2, 0.5, 1.0, 10.0, 89.0, -104.0])
    }

    /// Logits or means of a sample.
    fn outputs(&mut self, a: usize, wild: bool) -> Vec<f32> {
        let mut row: Vec<f32> = (0..a).map(|_| if wild { self.any() } else { self.corners.0.uniform_in(-3.0, 3.0) }).collect();
        let (at, other) = (self.corners.0.below(a as u32) as usize, self.corners.0.below(a as u32) as usize);
        match self.corners.0.below(5) {
            _ if a == 0 => {}
            4 => row.fill(self.corners.pick(&[-1e30, -1e31, -3e38])), // as masked, or below
            0 => {
                row.iter_mut().for_each(|logit| *logit = -logit.abs());
                (row[at], row[other]) = (-self.corners.pick(&EXP).abs(), 0.0);
            }
            1 => {
                row.fill(-1000.0);
                let [of_ln, of_exp] = [self.corners.pick(&LN), self.corners.pick(&LOG_PROBS)];
                (row[at], row[other]) = (self.corners.pick(&[of_ln, of_exp]), 0.0);
            }
            2 if a > 2 => self.corners.tie(&mut row, at),
            _ => {}
        }
        row
    }

    /// Rows, some past the end.
    fn rows(&mut self, n: usize, len: usize) -> Buffer<u32> {
        let rows: Vec<u32> = (0..n)
            .map(|_| {
                let row = self.corners.0.below(len as u32);
                self.corners.pick(&[row, row, row, row, 0, len as u32 - 1, len as u32, u32::MAX])
            })
            .collect();
        self.upload(&rows)
    }

    /// Terminated and truncated flags, rare or frequent; any byte but 0 is true.
    fn flags(&mut self, len: usize) -> [Buffer<u8>; 2] {
        let of: &[u8] = self.corners.pick(&[&[0, 0, 0, 0, 0, 0, 0, 1], &[0, 1, 2, 128], &[0], &[1]]);
        [(); 2].map(|()| {
            let flags: Vec<u8> = (0..len).map(|_| self.corners.pick(of)).collect();
            self.upload(&flags)
        })
    }

    /// Adds y = f(w x) of a layer from K to N, and dx = f'(x) w dz of one from N to K.
    ///
    /// The inputs of a sample and its dz are x, and zeros.
    fn layer(&mut self, x: &[f32], [n_in, n_out]: [usize; 2], weight: f32, activation: Activation) {
        let first_of = |n: usize| x.iter().flat_map(move |&x| [x].into_iter().chain(vec![0.0; n - 1])).collect::<Vec<_>>();
        let params = [vec![weight; n_in * n_out], vec![-0.0; n_in.max(n_out)]].concat();
        let [params, inputs] = [&params, &first_of(n_in)].map(|numbers| self.upload(numbers));
        let outputs = self.upload(&x.iter().flat_map(|&x| vec![x; n_out]).collect::<Vec<_>>());
        let [mut y, mut dx] = [(); 2].map(|()| self.zeros(x.len() * n_out));
        let layer = DenseLayer { n_in, n_out, activation };
        let params = params.view();
        let of = |layer: DenseLayer| DenseParams { layer, params: params.slice(0..(layer.n_in + 1) * layer.n_out) };
        self.kernels.forward(&self.stream, of(layer), &inputs.view(), &y.view_mut()).unwrap();
        let outputs = outputs.view();
        let derive = (activation != Activation::None).then_some((activation, &outputs));
        let back = DenseLayer { n_in: n_out, n_out: n_in, activation };
        self.kernels.input_gradient(&self.stream, of(back), &inputs.view(), derive, false, &dx.view_mut()).unwrap();
        [&y, &dx].into_iter().for_each(|floats| self.digest.floats(&self.stream, floats));
    }

    fn slices(&mut self, n: usize, len: usize) -> MinibatchSlices {
        let (count, most) = (self.corners.pick(&[1, 2, 4, 8, 16]), self.corners.pick(&[0, usize::MAX]));
        MinibatchSlices::new(n, count, len, most)
    }

    /// Settings, counters and sums from anywhere.
    fn state(&mut self) -> LearnerState {
        let mut state = LearnerState::new(self.device).unwrap();
        let mut setting = |of: &[f32]| {
            let any = self.corners.float(of);
            let [one, other] = [self.corners.pick(of), self.corners.pick(of)];
            self.corners.pick(&[one, other, any])
        };
        let settings = [
            setting(&[0.1, 1e-3]),
            setting(&[0.5, 1.0, f32::INFINITY]),
            setting(&[0.01, 0.3]),
            setting(&[0.5, 1.0]),
            setting(&[0.0, 0.25]),
            setting(&[0.2, 0.5]),
            setting(&[0.25, f32::INFINITY]),
            setting(&[0.9, 0.5]),
            setting(&[0.999, 0.99]),
            setting(&[1e-5, 1e-8]),
        ];
        self.stream.upload(&state.settings.view_mut(), &settings).unwrap();
        let any = u64::from(self.corners.0.next_u32());
        let [seed, epochs] = self.corners.clock();
        let steps = [0, 1, 2, 3, 100, any, 0x7FFF_FFFD, 0x7FFF_FFFE, 0x7FFF_FFFF, 1 << 32, u64::MAX];
        let counters = [
            seed,
            epochs,
            self.corners.pick(&steps),
            self.corners.pick(&[0, 1, 2, 3, u64::MAX]),
            self.corners.pick(&steps),
            self.corners.pick(&[0, 0, 0, 1, 2, 1 << 32]),
            self.corners.pick(&[0, 0, 0, 1, 63, u64::MAX]),
        ];
        self.stream.upload(&state.counters.view_mut(), &counters).unwrap();
        let mut totals: Vec<f32> = (0..state.totals.len()).map(|_| self.corners.float(&[0.0, 1.0])).collect();
        let kind = self.corners.0.below(8);
        if kind > 0 {
            totals.iter_mut().for_each(|total| *total = total.clamp(-4.0, 4.0));
            totals[15] = if kind == 1 { 0.0 } else { 1.0 }; // whether the optimizer steps
        }
        self.stream.upload(&state.totals.view_mut(), &totals).unwrap();
        state
    }

    /// Adds the gradients and the parts of a loss.
    fn objective(
        &mut self,
        objective: Objective,
        columns: &LossColumns<'_>,
        outputs: &Buffer<f32>,
        values: &Buffer<f32>,
        distribution: ActionDistribution<'_>,
        state: &LearnerState,
    ) {
        let n = values.len();
        let [mut d_outputs, mut std_terms] = [(); 2].map(|()| self.zeros(outputs.len()));
        let (mut d_values, mut terms) = (self.zeros(n), self.zeros(PARTS * n));
        let heads = LossHeads {
            outputs: outputs.view(),
            values: values.view(),
            d_outputs: d_outputs.view_mut(),
            d_values: d_values.view_mut(),
            terms: terms.view_mut(),
            std_terms: std_terms.view_mut(),
            distribution,
        };
        self.kernels.objective(&self.stream, objective, columns, &heads, state).unwrap();
        [&d_outputs, &d_values, &terms, &std_terms].into_iter().for_each(|floats| self.digest.floats(&self.stream, floats));
    }

    fn add_state(&mut self, state: &LearnerState) {
        self.digest.add(&self.stream, &state.counters, |word| word);
        self.digest.floats(&self.stream, &state.totals);
    }
}
