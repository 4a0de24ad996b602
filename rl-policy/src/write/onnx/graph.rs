//! An ONNX graph, as it grows.

use super::proto::{self, Attribute, Dimension, Node, Shape, Tensor, TensorType, Type, ValueInfo};

/// Name of a value of the graph.
pub(crate) type Value = String;

/// Nodes, constants, inputs and outputs.
///
/// The batch is the first dimension of each input and output.
#[derive(Default)]
pub(crate) struct Builder {
    graph: proto::Graph,
}

/// Returns an attribute that is one integer.
pub(crate) fn int(name: &str, i: i64) -> Attribute {
    Attribute { name: Some(name.into()), i: Some(i), ints: Vec::new(), kind: Some(proto::INT) }
}

/// Returns an attribute that is a list of integers.
pub(crate) fn ints(name: &str, ints: &[usize]) -> Attribute {
    let ints = ints.iter().map(|&n| n as i64).collect();
    Attribute { name: Some(name.into()), i: None, ints, kind: Some(proto::INTS) }
}

/// Returns the type of an input or output: (batch), followed by `dims`.
fn info(name: &str, elem_type: i32, dims: &[usize], about: &str) -> ValueInfo {
    let batch = Dimension { dim_value: None, dim_param: Some("batch".into()) };
    let dims = dims.iter().map(|&n| Dimension { dim_value: Some(n as i64), dim_param: None });
    let shape = Shape { dim: std::iter::once(batch).chain(dims).collect() };
    let kind = Type { tensor_type: Some(TensorType { elem_type: Some(elem_type), shape: Some(shape) }) };
    ValueInfo { name: Some(name.into()), kind: Some(kind), doc_string: Some(about.into()) }
}

impl Builder {
    /// Adds an input.
    pub(crate) fn input(&mut self, name: &str, elem_type: i32, dims: &[usize], about: &str) -> Value {
        self.graph.input.push(info(name, elem_type, dims, about));
        name.into()
    }

    /// Makes `value` an output with this name.
    pub(crate) fn output(&mut self, name: &str, value: &str, elem_type: i32, dims: &[usize], about: &str) -> Value {
        let mut declared = self.graph.input.iter().chain(&self.graph.output);
        let keeps_its_name = declared.any(|other| other.name.as_deref() == Some(value));
        let copy = keeps_its_name.then(|| self.node("Identity", &[value], &[]));
        let value = copy.as_deref().unwrap_or(value);
        let names = self.graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
        names.filter(|other| *other == value).for_each(|other| *other = name.into());
        self.graph.output.push(info(name, elem_type, dims, about));
        name.into()
    }

    /// Adds a constant of little-endian `data`.
    ///
    /// A name that is taken gets a number.
    fn constant(&mut self, name: &str, data_type: i32, dims: &[usize], data: Vec<u8>) -> Value {
        let constants = &self.graph.initializer;
        let is_taken = constants.iter().any(|other| other.name.as_deref() == Some(name));
        let name = if is_taken { format!("{name}_{}", constants.len()) } else { name.into() };
        let dims = dims.iter().map(|&n| n as i64).collect();
        let tensor = Tensor { dims, data_type: Some(data_type), name: Some(name.clone()), raw_data: Some(data) };
        self.graph.initializer.push(tensor);
        name
    }

    /// Adds a constant of f32.
    pub(crate) fn floats(&mut self, name: &str, dims: &[usize], numbers: impl IntoIterator<Item = f32>) -> Value {
        self.constant(name, proto::FLOAT, dims, numbers.into_iter().flat_map(f32::to_le_bytes).collect())
    }

    /// Adds a list of i64.
    pub(crate) fn list(&mut self, name: &str, numbers: &[i64]) -> Value {
        self.constant(name, proto::INT64, &[numbers.len()], numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
    }

    /// Adds a list of flags.
    pub(crate) fn flags(&mut self, name: &str, flags: &[bool]) -> Value {
        self.constant(name, proto::BOOL, &[flags.len()], flags.iter().map(|&flag| u8::from(flag)).collect())
    }

    /// Adds a node, and returns its output.
    pub(crate) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute]) -> Value {
        let [output] = self.outputs(op, inputs, attributes, 1).try_into().expect("one output");
        output
    }

    /// Adds a node of `n` outputs, and returns them.
    fn outputs(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute], n: usize) -> Vec<Value> {
        let name = format!("{op}_{}", self.graph.node.len());
        let output: Vec<_> = (0..n).map(|i| if n == 1 { name.clone() } else { format!("{name}_{i}") }).collect();
        self.graph.node.push(Node {
            input: inputs.iter().map(|&input| input.into()).collect(),
            output: output.clone(),
            name: Some(name),
            op_type: Some(op.into()),
            attribute: attributes.to_vec(),
        });
        output
    }

    /// Splits the columns of a matrix into parts of these `sizes`.
    pub(crate) fn split(&mut self, matrix: &str, sizes: &[usize]) -> Vec<Value> {
        let sizes: Vec<_> = sizes.iter().map(|&n| n as i64).collect();
        let parts = self.list("parts", &sizes);
        self.outputs("Split", &[matrix, &parts], &[int("axis", 1)], sizes.len())
    }

    /// Returns the graph, with a `name`.
    pub(crate) fn finish(self, name: &str) -> proto::Graph {
        proto::Graph { name: Some(name.into()), ..self.graph }
    }
}
