//! Messages of onnx.proto, with the fields that a policy needs.
//!
//! Tags and types are those of <https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>. Repeated numbers are not packed there.

/// Element types: `TensorProto.DataType`.
pub(crate) const FLOAT: i32 = 1;
pub(crate) const UINT8: i32 = 2;
pub(crate) const INT64: i32 = 7;
pub(crate) const BOOL: i32 = 9;

/// Types of attributes: `AttributeProto.AttributeType`.
pub(crate) const INT: i32 = 2;
pub(crate) const INTS: i32 = 7;

/// `ModelProto`: a graph, with the versions that it is written for.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Model {
    #[prost(int64, optional, tag = "1")]
    pub(crate) ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) producer_version: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub(crate) doc_string: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<Graph>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata_props: Vec<Property>,
}

/// `OperatorSetIdProto`: a version of the operators.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OperatorSet {
    #[prost(string, optional, tag = "1")]
    pub(crate) domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) version: Option<i64>,
}

/// `StringStringEntryProto`: a fact about a model.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Property {
    #[prost(string, optional, tag = "1")]
    pub(crate) key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub(crate) value: Option<String>,
}

/// `GraphProto`: nodes in the order of their computation, and constants.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Graph {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<Node>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfo>,
}

/// `NodeProto`: an operator between named values.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub(crate) name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub(crate) op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
}

/// `AttributeProto`: a parameter of an operator.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Attribute {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub(crate) ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub(crate) kind: Option<i32>,
}

/// `TensorProto`: a constant, in little-endian bytes.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub(crate) dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) data_type: Option<i32>,
    #[prost(string, optional, tag = "8")]
    pub(crate) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "9")]
    pub(crate) raw_data: Option<Vec<u8>>,
}

/// `ValueInfoProto`: the name and type of an input or output.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ValueInfo {
    #[prost(string, optional, tag = "1")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(crate) kind: Option<Type>,
    #[prost(string, optional, tag = "3")]
    pub(crate) doc_string: Option<String>,
}

/// `TypeProto`: here the type of a tensor.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Type {
    #[prost(message, optional, tag = "1")]
    pub(crate) tensor_type: Option<TensorType>,
}

/// `TypeProto.Tensor`: element type and shape.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TensorType {
    #[prost(int32, optional, tag = "1")]
    pub(crate) elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub(crate) shape: Option<Shape>,
}

/// `TensorShapeProto`: dimensions.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub(crate) dim: Vec<Dimension>,
}

/// `TensorShapeProto.Dimension`: a number, or the name of a free dimension.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Dimension {
    #[prost(int64, optional, tag = "1")]
    pub(crate) dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) dim_param: Option<String>,
}
