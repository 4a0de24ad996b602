"""Runs the ONNX models in a directory.

NAME.onnx reads NAME.obs and NAME.mask, and writes NAME.OUTPUT for each output: raw numbers.
Fails if the checker of ONNX refuses a model, or if its rows depend on the batch.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8}

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.producer_name == "rl" and model.producer_version, path
    assert model.doc_string == f"the policy {path.stem}", path
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert int(session.get_modelmeta().custom_metadata_map["frames"]) >= 1, path
    feed = {}
    for value in session.get_inputs():
        batch, *shape = value.shape
        assert batch == "batch", path
        data = np.fromfile(path.with_suffix(f".{value.name}"), TYPES[value.type])
        feed[value.name] = data.reshape(-1, *shape)
    outputs = session.run(None, feed)
    row = session.run(None, {name: data[7:8] for name, data in feed.items()})
    for value, data, of_row in zip(session.get_outputs(), outputs, row):
        assert data.shape == (len(feed["obs"]), *value.shape[1:]), (path, value.name, data.shape)
        if data.dtype == np.float32:
            np.testing.assert_allclose(of_row[0], data[7], rtol=1e-4, atol=1e-4, err_msg=f"{path}, {value.name}")
        data.tofile(path.with_suffix(f".{value.name}"))
