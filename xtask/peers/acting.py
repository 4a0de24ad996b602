"""Measures the latency of an action, one observation at a time: acting.py DIRECTORY NAME HIDDEN ACTIVATION ROUNDS

DIRECTORY has NAME.c, NAME.h and NAME.onnx of `rl export`. HIDDEN is a list such as 64,64; an LSTM comes before it if the model has a state. Compiles the C source with two sets of flags, and
acts in turn with each program, with ONNX Runtime and with a network of PyTorch of the same sizes, all on one thread. Prints nanoseconds by program.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime
import torch

SECONDS = 0.3

DRIVER = """
#include <stdio.h>
#include <time.h>
#include "NAME.h"
static NAME_memory memory;
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(void) {
    float obs[UPPER_OBS] = {0};
    ACTION action[UPPER_ACTION];
    double begin = now(), sum = 0;
    long n = 0;
    while (now() - begin < SECONDS)
        for (int i = 0; i < 100; i++, n++) {
            obs[i % UPPER_OBS] = 0.01f * (float)(i - 50);
            NAME_act(&memory, obs, action);
            sum += (double)action[0];
        }
    printf("%.3f %f\\n", 1e9 * (now() - begin) / (double)n, sum);
    return 0;
}
"""


def compiled(directory, name, flags, action):
    """Returns a function that runs the compiled policy and returns nanoseconds."""
    text = DRIVER.replace("NAME", name).replace("UPPER", name.upper()).replace("ACTION action", f"{action} action")
    (directory / "acting.c").write_text(text.replace("SECONDS", str(SECONDS)))
    program = directory / ("acting" + "".join(flags))
    subprocess.run(["gcc", *flags, f"{name}.c", "acting.c", "-o", program.name], cwd=directory, check=True)
    return lambda: float(subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()[0])


def timed(act, obs):
    """Returns a function that acts in a loop and returns nanoseconds."""

    def measure():
        begin, n = time.perf_counter(), 0
        while time.perf_counter() - begin < SECONDS:
            for i in range(100):
                obs[0, i % obs.shape[1]] = 0.01 * (i - 50)
                act()
                n += 1
        return 1e9 * (time.perf_counter() - begin) / n

    return measure


def main():
    directory, name, hidden, activation, rounds = sys.argv[1:]
    directory, hidden = Path(directory), [int(n) for n in hidden.split(",")]
    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(directory / f"{name}.onnx", options)
    obs_len = session.get_inputs()[0].shape[1]
    outputs = {output.name: output for output in session.get_outputs()}
    discrete = outputs["action"].type == "tensor(int64)"
    obs = np.zeros((1, obs_len), np.float32)
    n_out = sum(output.shape[1] for name, output in outputs.items() if name not in ("action", "next_state"))
    feed, wanted = {"obs": obs}, ["action"]
    cell, state = None, None
    if "next_state" in outputs:
        n_state = outputs["next_state"].shape[1]
        feed["state"], state = np.zeros((1, n_state), np.float32), tuple(torch.zeros(1, n_state // 2) for _ in range(2))
        cell, wanted = torch.nn.LSTMCell(obs_len, n_state // 2), ["action", "next_state"]
    sizes = [cell.hidden_size if cell else obs_len, *hidden]
    layers = []
    for n_in, n in zip(sizes, sizes[1:]):
        layers += [torch.nn.Linear(n_in, n), torch.nn.Tanh() if activation == "tanh" else torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], n_out))
    tensor = torch.from_numpy(obs)

    def with_torch():
        nonlocal state
        with torch.inference_mode():
            if cell:
                state = cell(tensor, state)
            out = network(state[0] if cell else tensor)
            return out.argmax(1).item() if discrete else torch.tanh(out).numpy()

    def with_onnx():
        _, *after = session.run(wanted, feed)
        if after:
            feed["state"] = after[0]

    action = "uint32_t" if discrete else "float"
    programs = {
        "C, -O3 -march=native": compiled(directory, name, ["-O3", "-march=native"], action),
        "C, -O2": compiled(directory, name, ["-O2"], action),
        "ONNX Runtime": timed(with_onnx, obs),
        "PyTorch": timed(with_torch, obs),
    }
    times = {program: [] for program in programs}
    for _ in range(int(rounds)):
        for program, measure in programs.items():
            times[program].append(measure())
    print(json.dumps({program: [statistics.median(all), min(all), max(all)] for program, all in times.items()}))


main()
