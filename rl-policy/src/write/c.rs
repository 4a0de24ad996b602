//! A policy in C99, without libraries and without allocation.
//!
//! The directory `c` holds the functions; a policy's file has those that it needs, its tables, and the calls of its layers.

use std::fmt::Write as _;

use crate::exported::{Activation, Exported, Head, Input, Layer, LayerKind, Part};
use crate::format::{LIMIT, LOG_STD_RANGE, MASKED, checksum};
use crate::write::file;

/// Length of a line of a table.
const LINE: usize = 120;

/// A header and a source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sources {
    /// Text of `name.h`.
    pub header: String,
    /// Text of `name.c`.
    pub source: String,
    /// Bytes of the memory, which the caller owns.
    pub memory_bytes: usize,
}

/// Test observations of one episode, in order, with their outputs.
#[derive(Clone, Copy, Debug)]
pub struct TestVectors<'a> {
    /// Number of observations.
    pub n: usize,
    /// Observations (n, D) of f32, or empty.
    pub floats: &'a [f32],
    /// Observations (n, D) of bytes, or empty.
    pub bytes: &'a [u8],
    /// Outputs of the network, (n, outputs).
    pub outputs: &'a [f32],
}

/// Returns `name` as an identifier of C: letters, digits and underscores.
#[must_use]
pub fn identifier(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name: String = name.chars().map(plain).collect();
    if name.starts_with(|c: char| c.is_ascii_lowercase()) { name } else { format!("policy_{name}") }
}

/// A number of C with the same bits; infinities become the greatest finite number.
fn number(x: f32) -> String {
    format!("{:e}f", x.clamp(f32::MIN, f32::MAX))
}

/// Appends a table with its numbers.
fn table(text: &mut String, of: &str, name: &str, numbers: impl Iterator<Item = String>) {
    let mut body = String::new();
    let mut line = String::from("   ");
    for number in numbers {
        if line.len() + number.len() + 2 > LINE {
            let _ = writeln!(body, "{line}");
            line = String::from("   ");
        }
        let _ = write!(line, " {number},");
    }
    let _ = writeln!(text, "static const {of} {name}[] = {{\n{body}{line}\n}};\n");
}

fn floats(text: &mut String, name: &str, numbers: &[f32]) {
    table(text, "float", name, numbers.iter().map(|&x| number(x)));
}

fn words(text: &mut String, name: &str, numbers: &[u32]) {
    table(text, "uint32_t", name, numbers.iter().map(u32::to_string));
}

/// Numbers that a policy's memory holds.
struct Sizes {
    /// Greatest number of inputs or outputs of a layer.
    widest: usize,
    /// Numbers under the kernel of a convolution.
    patch: usize,
    /// Rows of categories.
    rows: usize,
    /// Elements of an observation that is made of frames.
    stacked: usize,
    /// Elements of the state.
    state: usize,
    /// Greatest number of outputs of a part's layer that is not its last.
    of_part: usize,
}

impl Sizes {
    fn of(policy: &Exported) -> Self {
        let Exported { input, parts, layers, .. } = policy;
        let widest = layers.iter().map(Layer::n_out).max().unwrap_or(0).max(input.len()).max(policy.n_features());
        let hidden = |part: &Part| part.layers.iter().rev().skip(1).map(Layer::n_out).max().unwrap_or(0);
        let patch = |layer: &Layer| if matches!(layer.kind, LayerKind::Conv { .. }) { layer.n_terms() } else { 0 };
        Self {
            widest,
            patch: policy.all_layers().map(patch).max().unwrap_or(0),
            rows: if policy.gathers() { input.categories.len() } else { 0 },
            stacked: if input.frames > 1 { input.len() } else { 0 },
            state: policy.state_len(),
            of_part: parts.iter().map(hidden).max().unwrap_or(0),
        }
    }

    /// Bytes of the memory, where frames are of `size` bytes an element.
    fn bytes(&self, n_outputs: usize, size: usize) -> usize {
        let stack = if self.stacked > 0 { (self.stacked * size).next_multiple_of(4) + 4 } else { 0 };
        4 * (2 * (self.widest + self.of_part) + self.patch + self.rows + n_outputs + self.state) + stack
    }
}

/// Returns a policy in C, whose functions begin with `name`.
///
/// `name` is an [`identifier`]. With the macro `NAME_TEST` the source has a function that checks `vectors`.
#[must_use]
pub fn c(policy: &Exported, name: &str, vectors: &TestVectors<'_>) -> Sources {
    let element = if policy.input.bytes.is_some() { "uint8_t" } else { "float" };
    let memory = Sizes::of(policy);
    let memory_bytes = memory.bytes(policy.head.n_outputs(), if policy.input.bytes.is_some() { 1 } else { 4 });
    let id = checksum(&file(policy));
    let writer = Writer { policy, name, upper: name.to_ascii_uppercase(), element, id, memory_bytes };
    Sources { header: writer.header(&memory), source: writer.source(vectors), memory_bytes }
}

/// The call of a convolution, layer `i` of all.
fn convolve(layer: &Layer, i: usize, from: &str, to: &str) -> String {
    let LayerKind::Conv { input: [channels, rows, columns], kernel, stride, planes } = layer.kind else {
        unreachable!("a convolution")
    };
    let shape = format!("{channels}, {rows}, {columns}, {kernel}, {stride}, {}", u32::from(planes));
    format!("convolve(chosen, {from}, {shape}, memory->patch, weights_{i}, biases_{i}, {}, {to});", layer.bias.len())
}

/// The line that applies a layer's activation to its outputs.
fn activate(layer: &Layer, to: &str) -> String {
    let activation = match layer.activation {
        Activation::Identity => return String::new(),
        Activation::Tanh => "tanh(chosen, ",
        Activation::Relu => "relu(",
        Activation::Elu => "elu(chosen, ",
        Activation::Silu => "silu(chosen, ",
        Activation::Gelu => "gelu(chosen, ",
    };
    format!("    activate_{activation}{to}, {});\n", layer.n_out())
}

/// A policy with its names.
struct Writer<'a> {
    policy: &'a Exported,
    name: &'a str,
    upper: String,
    /// Type of an observation's elements.
    element: &'static str,
    /// Checksum that header and source share.
    id: u32,
    memory_bytes: usize,
}

impl Writer<'_> {
    fn is_discrete(&self) -> bool {
        matches!(self.policy.head, Head::Categorical { .. } | Head::Values { .. })
    }

    /// Parameters of the function that acts, or of the one that samples.
    fn parameters(&self, sampled: bool) -> String {
        let Self { name, upper, element, .. } = self;
        let mask = if self.policy.head.mask_len() > 0 { format!(", const uint8_t mask[{upper}_MASK]") } else { String::new() };
        let stream = if sampled { ", uint64_t seed, uint32_t env, uint64_t step" } else { "" };
        let action = if self.is_discrete() { "uint32_t" } else { "float" };
        format!("({name}_memory *memory, const {element} obs[{upper}_OBS]{mask}{stream},\n    {action} action[{upper}_ACTION])")
    }

    fn header(&self, memory: &Sizes) -> String {
        let Self { policy, name, upper, element, id, memory_bytes } = self;
        let Exported { about, input, head, .. } = policy;
        let about = about.replace("*/", "* /");
        let (weights, multiply_adds, n_layers) = (4 * policy.n_params(), policy.multiply_adds(), policy.all_layers().count());
        let frame = input.len() / input.frames;
        let mut members = format!("    float a[{0}], b[{0}], outputs[{upper}_OUTPUTS];\n", memory.widest);
        if memory.of_part > 0 {
            let _ = writeln!(members, "    float part_a[{0}], part_b[{0}];", memory.of_part);
        }
        if memory.patch > 0 {
            let _ = writeln!(members, "    float patch[{}];", memory.patch);
        }
        if memory.rows > 0 {
            let _ = writeln!(members, "    uint32_t rows[{}];", memory.rows);
        }
        if memory.state > 0 {
            let _ = writeln!(members, "    float state[{}];", memory.state);
        }
        if memory.stacked > 0 {
            let _ = writeln!(members, "    uint32_t started;\n    {element} frames[{}];", memory.stacked);
        }
        let outputs = match head {
            Head::Categorical { .. } => "logits",
            Head::Values { dueling: true, .. } => "action values, then the value",
            Head::Values { .. } => "action values",
            Head::Gaussian { .. } => "means",
            Head::Squashed { .. } => "means, then logarithms of standard deviations",
            Head::Deterministic { .. } => "actions before the hyperbolic tangent",
        };
        let kind = match (self.is_discrete(), head.action_len()) {
            (true, 1) => "its index",
            (true, _) => "an index for each head",
            (false, _) => "numbers within the environment's bounds",
        };
        let mask = if head.mask_len() > 0 { "\n   mask[i] is not 0 if action i is legal." } else { "" };
        let mut kept = String::new();
        if input.frames > 1 {
            kept += "\n   obs is the latest frame: each call adds it to those in the memory, so act or sample once per step.";
        }
        if memory.state > 0 {
            kept += "\n   The policy remembers: each call changes the state in the memory, so act or sample once per step.";
        }
        let sample = if self.policy.head.draws() {
            format!(
                "\n/* Samples an action from the seed, the environment and the step alone: count the steps of all episodes.\n   The \
                 training samples the same. */\nvoid {name}_sample{};\n",
                self.parameters(true)
            )
        } else {
            String::new()
        };
        let act = self.parameters(false);
        format!(
            "\
/* {about}

   C99 without libraries: {n_layers} layers, {multiply_adds} multiply-adds per action, {weights} bytes of weights, {memory_bytes} bytes of memory,
   which the caller owns, one for each agent. Outputs are bit-identical to those of `rl eval` (for a run with learner = \"reference\",
   equal up to rounding), whatever the compiler and the machine, where sums round to nearest and subnormal numbers are not flushed to
   zero. */
#ifndef {upper}_H
#define {upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {{
#endif

enum {{
    {upper}_OBS = {frame},     /* elements of an observation */
    {upper}_FRAMES = {frames}, /* observations that the policy sees at once */
    {upper}_MASK = {mask_len},
    {upper}_ACTION = {action_len},
    {upper}_OUTPUTS = {n_outputs}
}};
#define {upper}_ID {id}u

typedef struct {{
{members}}} {name}_memory;

/* Size of {name}_memory in bytes, for callers in other languages. */
uint32_t {name}_memory_bytes(void);

/* Starts an episode: call it before the first action. */
void {name}_reset({name}_memory *memory);

/* Computes the greedy action: {kind}.{mask}{kept} */
void {name}_act{act};
{sample}
/* Outputs of the network in the latest call: {outputs}. */
const float *{name}_outputs(const {name}_memory *memory);

#ifdef {upper}_TEST
/* Returns the number of built-in observations whose outputs have other bits than the exporter's: it must be 0. */
int {name}_test({name}_memory *memory);
#endif

#ifdef __cplusplus
}}
#endif
#endif
",
            frames = input.frames,
            mask_len = head.mask_len(),
            action_len = head.action_len(),
            n_outputs = head.n_outputs(),
        )
    }

    fn source(&self, vectors: &TestVectors<'_>) -> String {
        let Self { policy: policy @ Exported { input, head, .. }, name, upper, id, .. } = self;
        let mut text = format!(
            "#include \"{name}.h\"\n\n#include <float.h>\n\n/* An array of negative length: the header is of another export. */\ntypedef \
             char {name}_header_belongs_here[{upper}_ID == {id}u ? 1 : -1];\n\n"
        );
        let mut add = |wanted: bool, part: &str| {
            if wanted {
                text.push_str(part);
                text.push('\n');
            }
        };
        let is_categorical = matches!(head, Head::Categorical { .. });
        let is_squashed = matches!(head, Head::Squashed { .. } | Head::Deterministic { .. });
        let activated = |activation| policy.all_layers().any(|layer| layer.activation == activation);
        let is_conv = |layer: &Layer| matches!(layer.kind, LayerKind::Conv { .. });
        let clamps = input.normalize.is_some() || !matches!(head, Head::Values { .. });
        add(true, include_str!("c/fused.c"));
        add(true, include_str!("c/sums.c"));
        let normalizes = policy.layers.iter().any(|layer| layer.kind == LayerKind::Norm);
        let draws_normal = self.policy.head.draws() && !is_categorical;
        let scales = input.bytes.is_some() && input.normalize.is_some();
        add(normalizes || scales || !matches!(head, Head::Values { dueling: false, .. }), include_str!("c/times.c"));
        add(normalizes || draws_normal, include_str!("c/root.c"));
        add(normalizes, include_str!("c/activations/layer_norm.c"));
        add(policy.gathers(), include_str!("c/gather.c"));
        add(!input.categories.is_empty() && !policy.gathers(), include_str!("c/one_hot.c"));
        add(policy.all_layers().any(is_conv), include_str!("c/convolve.c"));
        let gates = activated(Activation::Silu) || activated(Activation::Gelu);
        let powers = activated(Activation::Tanh) || activated(Activation::Elu) || gates;
        let remembers = |kind| policy.layers.iter().any(|layer| layer.kind == kind);
        let has_state = policy.state_len() > 0;
        add(powers || has_state, include_str!("c/activations/exponential.c"));
        add(activated(Activation::Tanh) || has_state, include_str!("c/activations/tanh.c"));
        add(has_state, include_str!("c/activations/sigmoid.c"));
        add(remembers(LayerKind::Gru), include_str!("c/memory/gru.c"));
        add(remembers(LayerKind::Lstm), include_str!("c/memory/lstm.c"));
        add(activated(Activation::Relu), include_str!("c/activations/relu.c"));
        add(activated(Activation::Elu), include_str!("c/activations/elu.c"));
        add(gates, include_str!("c/activations/gated.c"));
        add(activated(Activation::Silu), include_str!("c/activations/silu.c"));
        add(activated(Activation::Gelu), include_str!("c/activations/gelu.c"));
        add(clamps, include_str!("c/clamp.c"));
        add(self.policy.head.draws() || is_squashed, include_str!("c/exponential.c"));
        add(self.policy.head.draws(), include_str!("c/logarithm.c"));
        add(is_categorical, include_str!("c/choose.c"));
        add(self.policy.head.draws(), include_str!("c/random.c"));
        add(draws_normal, include_str!("c/normal.c"));
        add(is_squashed, include_str!("c/squash.c"));
        self.tables(&mut text);
        self.forward(&mut text);
        self.act(&mut text);
        self.test(&mut text, vectors);
        text
    }

    fn tables(&self, text: &mut String) {
        let Exported { input: Input { normalize, categories, .. }, head, .. } = self.policy;
        for (i, layer) in self.policy.all_layers().enumerate() {
            floats(text, &format!("weights_{i}"), &layer.weight);
            floats(text, &format!("biases_{i}"), &layer.bias);
        }
        if let Some([mean, inv_std]) = normalize {
            floats(text, "mean", mean);
            floats(text, "inv_std", inv_std);
        }
        if !categories.is_empty() {
            words(text, "categories", categories);
        }
        match head {
            Head::Categorical { sizes, .. } => words(text, "sizes", sizes),
            Head::Values { .. } => {}
            Head::Gaussian { bounds: [low, high], log_std } => {
                floats(text, "low", low);
                floats(text, "high", high);
                floats(text, "log_std", log_std);
            }
            Head::Squashed { bounds: [low, high] } | Head::Deterministic { bounds: [low, high] } => {
                let each = |f: fn(f32, f32) -> f32| low.iter().zip(high).map(|(&low, &high)| f(low, high)).collect::<Vec<_>>();
                floats(text, "low", low);
                floats(text, "high", high);
                floats(text, "middle", &each(|low, high| 0.5 * (low + high)));
                floats(text, "half", &each(|low, high| 0.5 * (high - low)));
            }
        }
    }

    /// The network, from an observation to its outputs.
    fn forward(&self, text: &mut String) {
        let Self { policy: Exported { input, parts, layers, head, .. }, name, upper, element, .. } = self;
        let d = input.len();
        let scaled = match input.bytes {
            // Without a mean to subtract, no compiler can fuse the product.
            Some(scale) if input.normalize.is_some() => format!("times((float)obs[i], {})", number(scale)),
            Some(scale) => format!("(float)obs[i] * {}", number(scale)),
            None => "obs[i]".into(),
        };
        let _ = write!(
            text,
            "NETWORK void forward_by(int chosen, {name}_memory *memory, const {element} *obs) {{\n    uint32_t i;\n    for (i = 0; i < {d}; i++) \
             memory->a[i] = {scaled};\n"
        );
        if input.normalize.is_some() {
            let number = if input.categories.is_empty() { "" } else { "\n        if (categories[i] == 0) " };
            let _ = writeln!(
                text,
                "    for (i = 0; i < {d}; i++) {number}memory->a[i] = clamp((memory->a[i] - mean[i]) * inv_std[i], -{LIMIT}, {LIMIT});"
            );
        }
        self.parts(text);
        let (mut from, mut to, mut state) = ("memory->a", "memory->b", 0);
        if !parts.is_empty() {
            std::mem::swap(&mut from, &mut to);
        }
        let n_before = self.policy.all_layers().count() - layers.len();
        for (i, layer) in (n_before..).zip(layers) {
            let last = if i + 1 == n_before + layers.len() { "memory->outputs" } else { to };
            let (n, terms) = (layer.bias.len(), layer.n_terms());
            let ends = format!("weights_{i}, biases_{i}, {n}, {last}");
            let _ = match layer.kind {
                LayerKind::Dense { .. } if i == 0 && self.policy.gathers() => {
                    writeln!(text, "    gather(chosen, {from}, categories, {d}, {terms}, memory->rows, {ends});")
                }
                LayerKind::Dense { real, padded } => {
                    let places = terms / real * padded;
                    writeln!(text, "    dense(chosen, {from}, 0, {terms}, {places}, {real}, {padded}, {ends});")
                }
                LayerKind::Conv { .. } => writeln!(text, "    {}", convolve(layer, i, from, last)),
                LayerKind::Norm => writeln!(text, "    layer_norm(chosen, {from}, {ends});"),
                LayerKind::Gru | LayerKind::Lstm => {
                    let step = if layer.kind == LayerKind::Gru { "gru" } else { "lstm" };
                    let of = format!("memory->state + {state}, weights_{i}, biases_{i}, {}, {last}", layer.n_out());
                    state += layer.state_len();
                    writeln!(text, "    {step}(chosen, {from}, {to}, {of});")
                }
            };
            text.push_str(&activate(layer, last));
            std::mem::swap(&mut from, &mut to);
        }
        if let Head::Values { n, dueling: true, .. } = head {
            let share = number(1.0 / *n as f32);
            let _ = write!(
                text,
                "    {{\n        float sum = 0;\n        for (i = 0; i < {n}; i++) sum += memory->outputs[i];\n        sum = \
                 memory->outputs[{n}] - times(sum, {share});\n        for (i = 0; i < {n}; i++) memory->outputs[i] += sum;\n    }}\n"
            );
        }
        let parameters = format!("({name}_memory *memory, const {element} *obs)");
        let _ = write!(
            text,
            "}}

#ifdef CHOOSES
__attribute__((target(\"avx2,fma\"))) static void forward_chosen{parameters} {{ forward_by(1, memory, obs); }}
#endif

static void forward{parameters} {{
#ifdef CHOOSES
    if (__builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\")) {{
        forward_chosen(memory, obs);
        return;
    }}
#endif
    forward_by(0, memory, obs);
}}

"
        );
        let mut forgotten = String::new();
        if state > 0 {
            let _ = writeln!(forgotten, "    uint32_t i;\n    for (i = 0; i < {state}; i++) memory->state[i] = 0;");
        }
        forgotten += if input.frames > 1 { "    memory->started = 0;\n" } else { "" };
        forgotten += if forgotten.is_empty() { "    (void)memory;\n" } else { "" };
        let _ = writeln!(text, "void {name}_reset({name}_memory *memory) {{\n{forgotten}}}\n");
        let _ = writeln!(text, "uint32_t {name}_memory_bytes(void) {{ return sizeof({name}_memory); }}\n");
        let _ = writeln!(text, "const float *{name}_outputs(const {name}_memory *memory) {{ return memory->outputs; }}\n");
        let seen = if input.frames > 1 {
            let last = d - d / input.frames;
            format!(
                "    for (i = 0; i < {last}; i++) memory->frames[i] = memory->started ? memory->frames[i + {upper}_OBS] : obs[i % \
                 {upper}_OBS];\n    for (i = 0; i < {upper}_OBS; i++) memory->frames[{last} + i] = obs[i];\n    memory->started = 1;\n    \
                 forward(memory, memory->frames);\n"
            )
        } else {
            "    forward(memory, obs);\n".into()
        };
        let unused = if input.frames > 1 { "    uint32_t i;\n" } else { "" };
        let _ = writeln!(text, "static void see({name}_memory *memory, const {element} *obs) {{\n{unused}{seen}}}\n");
    }

    /// The parts of an observation, whose outputs follow each other in `memory->b`.
    fn parts(&self, text: &mut String) {
        let Exported { input, parts, .. } = self.policy;
        let (mut first, mut n, mut i) = (0, 0, 0);
        for part in parts {
            let (from, to) = (format!("memory->a + {first}"), format!("memory->b + {n}"));
            if part.layers.is_empty() {
                let len = part.len;
                let _ = if input.categories.is_empty() {
                    writeln!(text, "    for (i = 0; i < {len}; i++) memory->b[{n} + i] = memory->a[{first} + i];")
                } else {
                    writeln!(text, "    one_hot({from}, categories + {first}, {len}, {to});")
                };
            }
            let (mut from, mut spare) = (&*from, ["memory->part_a", "memory->part_b"]);
            for (j, layer) in part.layers.iter().enumerate() {
                let to = if j + 1 == part.layers.len() { &*to } else { spare[0] };
                let _ = writeln!(text, "    {}", convolve(layer, i, from, to));
                text.push_str(&activate(layer, to));
                from = to;
                spare.reverse();
                i += 1;
            }
            n += part.n_out(&input.categories, first);
            first += part.len;
        }
    }

    /// Functions that act.
    fn act(&self, text: &mut String) {
        let Self { policy: Exported { head, .. }, name, upper, .. } = self;
        let masked = head.mask_len() > 0;
        for sampled in [false, true].into_iter().take(if self.policy.head.draws() { 2 } else { 1 }) {
            let verb = if sampled { "sample" } else { "act" };
            let body = match head {
                Head::Categorical { .. } => {
                    let mask = if masked {
                        format!("mask[i] ? memory->outputs[i] : {}", number(MASKED))
                    } else {
                        "memory->outputs[i]".into()
                    };
                    let chosen = if sampled {
                        "random_words(seed, env, step >> 2, i, words), action[i] = draw(logits, sizes[i], uniform(words[step & 3]))"
                    } else {
                        "action[i] = greatest(logits, sizes[i])"
                    };
                    let words = if sampled { "    uint32_t words[4];\n" } else { "" };
                    format!(
                        "    float *logits = memory->a;\n    uint32_t i;\n{words}    see(memory, obs);\n    for (i = 0; i < {upper}_OUTPUTS; \
                         i++) logits[i] = {mask};\n    for (i = 0; i < {upper}_ACTION; logits += sizes[i++]) {{\n        \
                         log_softmax(logits, sizes[i]);\n        {chosen};\n    }}\n"
                    )
                }
                Head::Values { n, .. } => {
                    let (legal, start) = if masked { ("mask[i] && ", *n) } else { ("", 0) };
                    let first = if masked { format!("(best == {n} || ") } else { String::new() };
                    let close = if masked { ")" } else { "" };
                    let end = if masked { format!("best == {n} ? 0 : best") } else { "best".into() };
                    format!(
                        "    uint32_t i, best = {start};\n    see(memory, obs);\n    for (i = 0; i < {n}; i++)\n        if ({legal}{first}\
                         memory->outputs[i] > memory->outputs[best]{close}) best = i;\n    action[0] = {end};\n"
                    )
                }
                Head::Gaussian { .. } => {
                    let mean = if sampled {
                        "memory->outputs[i] + times(exponential(log_std[i]), normal(seed, env, step, i))"
                    } else {
                        "memory->outputs[i]"
                    };
                    format!(
                        "    uint32_t i;\n    see(memory, obs);\n    for (i = 0; i < {upper}_ACTION; i++) action[i] = clamp({mean}, low[i], \
                         high[i]);\n"
                    )
                }
                Head::Squashed { .. } | Head::Deterministic { .. } => {
                    let [low, high] = LOG_STD_RANGE.map(number);
                    let mean = if sampled {
                        format!(
                            "memory->outputs[i] + times(exponential(clamp(memory->outputs[{upper}_ACTION + i], {low}, {high})), \
                             normal(seed, env, step, i))"
                        )
                    } else {
                        "memory->outputs[i]".into()
                    };
                    format!(
                        "    uint32_t i;\n    see(memory, obs);\n    for (i = 0; i < {upper}_ACTION; i++) {{\n        float y = squash({mean});\n\
                         \x20       action[i] = clamp(middle[i] + times(half[i], y), low[i], high[i]);\n    }}\n"
                    )
                }
            };
            let parameters = self.parameters(sampled);
            let _ = writeln!(text, "void {name}_{verb}{parameters} {{\n{body}}}\n");
        }
    }

    /// The function that checks a compiled policy.
    fn test(&self, text: &mut String, TestVectors { n, floats: numbers, bytes, outputs }: &TestVectors<'_>) {
        let Self { policy: Exported { input, .. }, name, upper, element, .. } = self;
        let d = input.len();
        let _ = writeln!(text, "#ifdef {upper}_TEST");
        let memory_bytes = self.memory_bytes;
        let _ = writeln!(text, "typedef char {name}_memory_is_as_told[sizeof({name}_memory) == {memory_bytes} ? 1 : -1];\n");
        if input.bytes.is_some() {
            table(text, element, "obs_of_test", bytes.iter().map(u8::to_string));
        } else {
            floats(text, "obs_of_test", numbers);
        }
        table(text, "uint32_t", "outputs_of_test", outputs.iter().map(|x| format!("{:#x}", x.to_bits())));
        let _ = write!(
            text,
            "int {name}_test({name}_memory *memory) {{
    int differing = 0, differs;
    uint32_t i, j;
    {name}_reset(memory);
    for (i = 0; i < {n}; i++) {{
        forward(memory, obs_of_test + i * {d});
        for (j = 0, differs = 0; j < {upper}_OUTPUTS; j++) {{
            float_bits output;
            output.number = memory->outputs[j];
            differs |= output.bits != outputs_of_test[i * {upper}_OUTPUTS + j];
        }}
        differing += differs;
    }}
    return differing;
}}
#endif
"
        );
    }
}
