//! An ONNX model of a policy: from the environment's observation to its action.
//!
//! Operators of ONNX 1.8 (set 13), which ONNX Runtime, onnxruntime-web and tract read.

mod graph;
mod proto;

use std::ops::Range;

use prost::Message;

use crate::exported::{Activation, Exported, Head, Input, Layer, LayerKind, Part};
use crate::format::{EPSILON, LIMIT, LOG_STD_RANGE, MASKED};
use crate::math::GELU;

use self::graph::{Builder, Value, int, ints};
use self::proto::{BOOL, FLOAT, INT64, Model, OperatorSet, Property, UINT8};

/// Version of the format: ONNX 1.8.
const IR_VERSION: i64 = 7;
/// Version of the operators: ONNX 1.8.
const OPERATORS: i64 = 13;

/// Returns the policy as an ONNX model.
///
/// The first dimension of inputs and outputs is the batch, of any length. Inputs:
///
/// - `obs`: an observation as the environment gives it, f32 or uint8, in the shape of [`Input::shape`]; categories are numbers.
/// - `mask`: uint8, 1 for each legal action, if the head is masked.
/// - `state`: f32, (batch, S), if the policy remembers: zeros at the first step of an episode, then the `next_state` of the step
///   before.
///
/// Outputs:
///
/// - `action`: the greedy action. int64, (batch) for one head and (batch, heads) for several; f32, (batch, A), within the bounds,
///   for continuous actions.
/// - `logits`: logits, head after head, before the mask.
/// - `q`: action values, before the mask.
/// - `mean`: means of continuous actions, before they are clipped, or before their tanh.
/// - `log_std`: logarithms of the standard deviations; deterministic policies have none.
/// - `next_state`: f32, (batch, S), if the policy remembers.
///
/// Metadata: `frames`, the number of stacked frames, and `head`: categorical, values, gaussian, squashed or deterministic.
///
/// # Panics
/// If the parts of the policy do not fit together.
#[must_use]
pub fn onnx(policy: &Exported) -> Vec<u8> {
    let Exported { about, input, parts, layers, head } = policy;
    let mut builder = Builder::default();
    let mut features = observation(&mut builder, input, parts);
    let mut states = States::of(&mut builder, layers);
    let n_before = policy.all_layers().count() - layers.len();
    for (i, layer) in (n_before..).zip(layers) {
        features = match layer.kind {
            LayerKind::Gru | LayerKind::Lstm => states.step(&mut builder, i, layer, features),
            _ => add_layer(&mut builder, i, layer, features),
        };
    }
    states.finish(&mut builder);
    let outputs = features.flat(&mut builder);
    let kind = match head {
        Head::Categorical { sizes, masked } => {
            categorical(&mut builder, &outputs, sizes, *masked);
            "categorical"
        }
        Head::Values { n, masked, dueling } => {
            values(&mut builder, &outputs, *n as usize, *masked, *dueling);
            "values"
        }
        Head::Gaussian { log_std, bounds } => {
            let mean = builder.output("mean", &outputs, FLOAT, &[log_std.len()], "means before they are clipped");
            let row = builder.floats("log_std_row", &[log_std.len()], log_std.iter().copied());
            let shape = builder.node("Shape", &[&mean], &[]);
            let rows = builder.node("Expand", &[&row, &shape], &[]);
            log_stds(&mut builder, &rows, log_std.len());
            vector(&mut builder, mean, bounds);
            "gaussian"
        }
        Head::Squashed { bounds } => {
            let n = bounds[0].len();
            let parts = builder.split(&outputs, &[n, n]);
            let [low, high] = LOG_STD_RANGE;
            let limits = [("log_std_low", low), ("log_std_high", high)].map(|(name, limit)| builder.floats(name, &[], [limit]));
            let log_std = builder.node("Clip", &[&parts[1], &limits[0], &limits[1]], &[]);
            squashed(&mut builder, &parts[0], bounds);
            log_stds(&mut builder, &log_std, n);
            "squashed"
        }
        Head::Deterministic { bounds } => {
            squashed(&mut builder, &outputs, bounds);
            "deterministic"
        }
    };
    let property = |key: &str, value: String| Property { key: Some(key.into()), value: Some(value) };
    let model = Model {
        ir_version: Some(IR_VERSION),
        producer_name: Some("rl".into()),
        producer_version: Some(env!("CARGO_PKG_VERSION").into()),
        doc_string: Some(about.clone()),
        graph: Some(builder.finish("policy")),
        opset_import: vec![OperatorSet { domain: Some(String::new()), version: Some(OPERATORS) }],
        metadata_props: vec![property("frames", input.frames.to_string()), property("head", kind.into())],
    };
    model.encode_to_vec()
}

/// Inputs of a layer.
struct Features {
    value: Value,
    /// Dimensions behind the batch.
    dims: Vec<usize>,
    /// True for the planes of a convolution.
    ///
    /// A next layer reads their elements as (rows, columns, channels).
    are_planes: bool,
}

impl Features {
    /// Number of elements of a row.
    fn value_len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Returns (batch, elements) in the order in which a dense layer reads them.
    fn flat(self, builder: &mut Builder) -> Value {
        match (self.are_planes, self.dims.len()) {
            (true, _) => {
                let last = builder.node("Transpose", &[&self.value], &[ints("perm", &[0, 2, 3, 1])]);
                builder.node("Flatten", &[&last], &[int("axis", 1)])
            }
            (false, 1) => self.value,
            (false, _) => builder.node("Flatten", &[&self.value], &[int("axis", 1)]),
        }
    }

    /// Returns (batch, channels, rows, columns) for a convolution.
    ///
    /// The convolution is number `i` of the layers.
    fn planes(self, builder: &mut Builder, i: usize, [channels, rows, columns]: [usize; 3], planes: bool) -> Value {
        match (self.are_planes, planes) {
            (true, false) => self.value,
            (false, true) if self.dims == [channels, rows, columns] => self.value,
            _ => {
                let dims = if planes { [channels, rows, columns] } else { [rows, columns, channels] };
                let dims = dims.map(|n| n as i64);
                let shape = builder.list(&format!("layer{i}.shape"), &[-1, dims[0], dims[1], dims[2]]);
                let flat = self.flat(builder);
                let value = builder.node("Reshape", &[&flat, &shape], &[]);
                if planes { value } else { builder.node("Transpose", &[&value], &[ints("perm", &[0, 3, 1, 2])]) }
            }
        }
    }
}

/// Adds the observation, up to the first layer that reads all of it.
fn observation(builder: &mut Builder, input: &Input, parts: &[Part]) -> Features {
    let elem_type = if input.bytes.is_some() { UINT8 } else { FLOAT };
    let mut value = builder.input("obs", elem_type, &input.shape, "observation, as the environment gives it");
    if let Some(scale) = input.bytes {
        let scale = builder.floats("scale", &[], [scale]);
        let numbers = builder.node("Cast", &[&value], &[int("to", FLOAT.into())]);
        value = builder.node("Mul", &[&numbers, &scale], &[]);
    }
    let all = Features { value, dims: input.shape.clone(), are_planes: false };
    if parts.is_empty() && input.categories.is_empty() {
        let value = normalized(builder, all.value, input, &input.shape, <[f32]>::to_vec);
        return Features { value, ..all };
    }
    let elements = all.flat(builder);
    if parts.is_empty() {
        return one_hot(builder, &elements, input, 0..input.len());
    }
    let numbers = normalized(builder, elements.clone(), input, &[input.len()], <[f32]>::to_vec);
    let sizes: Vec<_> = parts.iter().map(|part| part.len).collect();
    let numbers = if let [_] = sizes[..] { vec![numbers] } else { builder.split(&numbers, &sizes) };
    let (mut first, mut i, mut outputs) = (0, 0, Vec::new());
    for (part, value) in parts.iter().zip(numbers) {
        let range = first..first + part.len;
        first = range.end;
        let mut features = Features { value, dims: vec![part.len], are_planes: false };
        if part.layers.is_empty() && input.categories.get(range.clone()).is_some_and(|of| of.iter().any(|n| *n > 0)) {
            features = one_hot(builder, &elements, input, range);
        }
        for layer in &part.layers {
            features = add_layer(builder, i, layer, features);
            i += 1;
        }
        outputs.push((features.value_len(), features.flat(builder)));
    }
    let values: Vec<_> = outputs.iter().map(|(_, value)| &**value).collect();
    let value = builder.node("Concat", &values, &[int("axis", 1)]);
    Features { value, dims: vec![outputs.iter().map(|(len, _)| len).sum()], are_planes: false }
}

/// Adds numbers among elements (batch, D), and one-hot vectors of the others.
///
/// Inputs of a layer are pairs (element, category), with category 0 of a number.
fn one_hot(builder: &mut Builder, all: &str, input: &Input, elements: Range<usize>) -> Features {
    let inputs: Vec<_> = elements.flat_map(|i| (0..input.categories[i].max(1)).map(move |category| (i, category))).collect();
    let is_category: Vec<_> = inputs.iter().map(|&(i, _)| input.categories[i] > 0).collect();
    let indices: Vec<_> = inputs.iter().map(|&(i, _)| i as i64).collect();
    let indices = builder.list("elements", &indices);
    let categories = builder.floats("categories", &[inputs.len()], inputs.iter().map(|&(_, category)| category as f32));
    let is_category = builder.flags("is_category", &is_category);
    let of_inputs = builder.node("Gather", &[all, &indices], &[int("axis", 1)]);
    let is_equal = builder.node("Equal", &[&of_inputs, &categories], &[]);
    let one_hot = builder.node("Cast", &[&is_equal], &[int("to", FLOAT.into())]);
    let dims = vec![inputs.len()];
    let numbers = normalized(builder, of_inputs, input, &dims, |element| inputs.iter().map(|&(i, _)| element[i]).collect());
    Features { value: builder.node("Where", &[&is_category, &one_hot, &numbers], &[]), dims, are_planes: false }
}

/// Normalizes numbers of a shape, where observations are normalized.
///
/// `of_inputs` selects the statistics of the numbers from those of all elements.
fn normalized(
    builder: &mut Builder,
    value: Value,
    input: &Input,
    dims: &[usize],
    of_inputs: impl Fn(&[f32]) -> Vec<f32>,
) -> Value {
    let Some([mean, inv_std]) = &input.normalize else { return value };
    let mean = builder.floats("obs_mean", dims, of_inputs(mean));
    let inv_std = builder.floats("obs_inv_std", dims, of_inputs(inv_std));
    let [low, high] = [("obs_low", -LIMIT), ("obs_high", LIMIT)].map(|(name, limit)| builder.floats(name, &[], [limit]));
    let centred = builder.node("Sub", &[&value, &mean], &[]);
    let scaled = builder.node("Mul", &[&centred, &inv_std], &[]);
    builder.node("Clip", &[&scaled, &low, &high], &[])
}

/// Adds layer `i`.
fn add_layer(builder: &mut Builder, i: usize, layer: &Layer, features: Features) -> Features {
    let (terms, n) = (layer.n_terms(), layer.bias.len());
    let bias = builder.floats(&format!("layer{i}.bias"), &[n], layer.bias.iter().copied());
    let name = format!("layer{i}.weight");
    let (value, dims, are_planes) = match layer.kind {
        LayerKind::Dense { .. } => {
            let weight = builder.floats(&name, &[terms, n], layer.weight.iter().copied());
            let flat = features.flat(builder);
            (builder.node("Gemm", &[&flat, &weight, &bias], &[]), vec![n], false)
        }
        LayerKind::Conv { input: [channels, rows, columns], kernel, stride, planes } => {
            let square = kernel * kernel;
            // Element (channel, row, column) of the kernel, which ONNX has in this order.
            let term = |element: usize| {
                if planes { element } else { element % square * channels + element / square }
            };
            let numbers = (0..n).flat_map(|o| (0..terms).map(move |element| layer.weight[term(element) * n + o]));
            let weight = builder.floats(&name, &[n, channels, kernel, kernel], numbers);
            let x = features.planes(builder, i, [channels, rows, columns], planes);
            let attributes = [ints("kernel_shape", &[kernel, kernel]), ints("strides", &[stride, stride])];
            let dims = [rows, columns].map(|size| (size - kernel) / stride + 1);
            (builder.node("Conv", &[&x, &weight, &bias], &attributes), vec![n, dims[0], dims[1]], true)
        }
        LayerKind::Norm => {
            let gains = builder.floats(&name, &[n], layer.weight.iter().copied());
            let epsilon = builder.floats("epsilon", &[], [EPSILON]);
            let x = features.flat(builder);
            let mean_of =
                |builder: &mut Builder, x: &str| builder.node("ReduceMean", &[x], &[ints("axes", &[1]), int("keepdims", 1)]);
            let mean = mean_of(builder, &x);
            let mut distances = builder.node("Sub", &[&x, &mean], &[]);
            let squares = builder.node("Mul", &[&distances, &distances], &[]);
            let squares = mean_of(builder, &squares);
            let sum = builder.node("Add", &[&squares, &epsilon], &[]);
            let deviation = builder.node("Sqrt", &[&sum], &[]);
            for (op, operand) in [("Div", deviation), ("Mul", gains), ("Add", bias)] {
                distances = builder.node(op, &[&distances, &operand], &[]);
            }
            (distances, vec![n], false)
        }
        LayerKind::Gru | LayerKind::Lstm => unreachable!("a memory takes a step"),
    };
    let value = match layer.activation {
        Activation::Identity => value,
        Activation::Tanh => builder.node("Tanh", &[&value], &[]),
        Activation::Relu => builder.node("Relu", &[&value], &[]),
        Activation::Elu => builder.node("Elu", &[&value], &[]),
        Activation::Silu => gated(builder, &value, &value),
        Activation::Gelu => {
            let [a, b] = [("gelu_linear", GELU[0]), ("gelu_cubic", GELU[1])].map(|(name, x)| builder.floats(name, &[], [x]));
            let square = builder.node("Mul", &[&value, &value], &[]);
            let square = builder.node("Mul", &[&square, &b], &[]);
            let slope = builder.node("Add", &[&square, &a], &[]);
            let gate = builder.node("Mul", &[&value, &slope], &[]);
            gated(builder, &value, &gate)
        }
    };
    Features { value, dims, are_planes }
}

/// Multiplies numbers by the logistic function of a gate.
fn gated(builder: &mut Builder, value: &str, gate: &str) -> Value {
    let share = builder.node("Sigmoid", &[gate], &[]);
    builder.node("Mul", &[value, &share], &[])
}

/// The state of a policy that remembers: vectors (batch, H) of each layer.
struct States {
    before: std::vec::IntoIter<Value>,
    after: Vec<Value>,
    state_len: usize,
}

impl States {
    /// Adds the input `state`, if layers remember.
    fn of(builder: &mut Builder, layers: &[Layer]) -> Self {
        let vectors = |layer: &Layer| std::iter::repeat_n(layer.n_out(), layer.state_len() / layer.n_out().max(1));
        let sizes: Vec<_> = layers.iter().flat_map(vectors).collect();
        let state_len = sizes.iter().sum();
        let mut input = || builder.input("state", FLOAT, &[state_len], "state; zeros at the first step of an episode");
        let before = match sizes.len() {
            0 => Vec::new(),
            1 => vec![input()],
            _ => {
                let state = input();
                builder.split(&state, &sizes)
            }
        };
        Self { before: before.into_iter(), after: Vec::new(), state_len }
    }

    /// Adds a step of layer `i`, whose inputs are the gates' sums of the features.
    fn step(&mut self, builder: &mut Builder, i: usize, layer: &Layer, sums: Features) -> Features {
        let (n, n_gates) = (layer.n_out(), layer.bias.len() / layer.n_out());
        let mut before = || self.before.next().expect("a vector of the state");
        let h = before();
        let weight = builder.floats(&format!("layer{i}.weight"), &[n, n_gates * n], layer.weight.iter().copied());
        let bias = builder.floats(&format!("layer{i}.bias"), &[n_gates * n], layer.bias.iter().copied());
        let of_h = builder.node("Gemm", &[&h, &weight, &bias], &[]);
        let sizes = vec![n; n_gates];
        let sums = sums.flat(builder);
        let (a, u) = (builder.split(&sums, &sizes), builder.split(&of_h, &sizes));
        let mut of = |op: &str, inputs: &[&str]| builder.node(op, inputs, &[]);
        let (value, c) = if layer.kind == LayerKind::Gru {
            let [r, z] = [0, 1].map(|gate| {
                let sum = of("Add", &[&a[gate], &u[gate]]);
                of("Sigmoid", &[&sum])
            });
            let of_new = of("Mul", &[&r, &u[2]]);
            let sum = of("Add", &[&a[2], &of_new]);
            let new = of("Tanh", &[&sum]);
            let difference = of("Sub", &[&h, &new]);
            let kept = of("Mul", &[&z, &difference]);
            (of("Add", &[&new, &kept]), None)
        } else {
            let c = before();
            let [i, f, g, o] = [("Sigmoid", 0), ("Sigmoid", 1), ("Tanh", 2), ("Sigmoid", 3)].map(|(function, gate)| {
                let sum = of("Add", &[&a[gate], &u[gate]]);
                of(function, &[&sum])
            });
            let (kept, new) = (of("Mul", &[&f, &c]), of("Mul", &[&i, &g]));
            let c = of("Add", &[&kept, &new]);
            let shown = of("Tanh", &[&c]);
            (of("Mul", &[&o, &shown]), Some(c))
        };
        self.after.push(value.clone());
        self.after.extend(c);
        Features { value, dims: vec![n], are_planes: false }
    }

    /// Adds the output `next_state`, if layers remember.
    fn finish(self, builder: &mut Builder) {
        let after: Vec<_> = self.after.iter().map(|value| &**value).collect();
        if !after.is_empty() {
            let state = builder.node("Concat", &after, &[int("axis", 1)]);
            builder.output("next_state", &state, FLOAT, &[self.state_len], "state for the next step");
        }
    }
}

/// Replaces the numbers of illegal actions by one that is below all others.
fn legal(builder: &mut Builder, numbers: &str, n: usize) -> Value {
    let mask = builder.input("mask", UINT8, &[n], "1 for each legal action");
    let illegal = builder.floats("illegal", &[], [MASKED]);
    let is_legal = builder.node("Cast", &[&mask], &[int("to", BOOL.into())]);
    builder.node("Where", &[&is_legal, numbers, &illegal], &[])
}

/// Adds an action: the index of each row's greatest number, the first of equals.
fn choice(builder: &mut Builder, numbers: &str) {
    let action = builder.node("ArgMax", &[numbers], &[int("axis", 1), int("keepdims", 0)]);
    builder.output("action", &action, INT64, &[], "most likely or best action");
}

fn categorical(builder: &mut Builder, outputs: &str, sizes: &[u32], masked: bool) {
    let sizes: Vec<_> = sizes.iter().map(|&n| n as usize).collect();
    let logits = builder.output("logits", outputs, FLOAT, &[sizes.iter().sum()], "logits, head after head, before the mask");
    match sizes[..] {
        [n] if masked => {
            let logits = legal(builder, &logits, n);
            choice(builder, &logits);
        }
        [_] => choice(builder, &logits),
        _ => {
            let heads = builder.split(&logits, &sizes);
            let best = |head: &Value| builder.node("ArgMax", &[head], &[int("axis", 1), int("keepdims", 1)]);
            let choices: Vec<_> = heads.iter().map(best).collect();
            let choices: Vec<_> = choices.iter().map(|choice| &**choice).collect();
            let action = builder.node("Concat", &choices, &[int("axis", 1)]);
            builder.output("action", &action, INT64, &[sizes.len()], "most likely choice of each head");
        }
    }
}

fn values(builder: &mut Builder, outputs: &str, n: usize, masked: bool, dueling: bool) {
    let q = if dueling {
        let parts = builder.split(outputs, &[n, 1]);
        let mean = builder.node("ReduceMean", &[&parts[0]], &[ints("axes", &[1]), int("keepdims", 1)]);
        let offset = builder.node("Sub", &[&parts[1], &mean], &[]);
        builder.node("Add", &[&parts[0], &offset], &[])
    } else {
        outputs.into()
    };
    let q = builder.output("q", &q, FLOAT, &[n], "action values, before the mask");
    let q = if masked { legal(builder, &q, n) } else { q };
    choice(builder, &q);
}

/// Adds the output of the logarithms of standard deviations.
fn log_stds(builder: &mut Builder, log_std: &str, n: usize) {
    builder.output("log_std", log_std, FLOAT, &[n], "logarithms of the standard deviations");
}

/// Adds the means, and actions that are their tanh, scaled to the bounds.
fn squashed(builder: &mut Builder, mean: &str, bounds: &[Vec<f32>; 2]) {
    let [low, high] = bounds;
    let mean = builder.output("mean", mean, FLOAT, &[low.len()], "means before their tanh");
    let pairs = || low.iter().zip(high);
    let middle = builder.floats("middle", &[low.len()], pairs().map(|(low, high)| 0.5 * (low + high)));
    let half = builder.floats("half", &[low.len()], pairs().map(|(low, high)| 0.5 * (high - low)));
    let tanh = builder.node("Tanh", &[&mean], &[]);
    let scaled = builder.node("Mul", &[&tanh, &half], &[]);
    let action = builder.node("Add", &[&scaled, &middle], &[]);
    vector(builder, action, bounds);
}

/// Adds an action that is clipped to the bounds.
fn vector(builder: &mut Builder, mut action: Value, bounds: &[Vec<f32>; 2]) {
    for (bound, op, name) in [(&bounds[0], "Max", "low"), (&bounds[1], "Min", "high")] {
        if bound.iter().any(|x| x.is_finite()) {
            let limit = builder.floats(name, &[bound.len()], bound.iter().copied());
            action = builder.node(op, &[&action, &limit], &[]);
        }
    }
    builder.output("action", &action, FLOAT, &[bounds[0].len()], "the greedy action, within its bounds");
}
