#!/usr/bin/env python3
"""Plays a trained policy in Gymnasium's own environment, with numpy alone.

    python3 tools/play_in_gymnasium.py runs/cartpole-ppo-seed0-1 CartPole-v1

Reads config.toml and params.safetensors of a checkpoint, or of a run's newest one, and plays greedy episodes: dense networks, with or without
memory, without normalized observations, which read a one-hot vector for each category of an observation. Prints the mean return and its
standard deviation, as `rl eval RUN` does for our environment.

Needs Python 3.11 with gymnasium and numpy.
"""

import argparse
import json
import struct
import tomllib
from pathlib import Path

import gymnasium
import numpy as np


def newest(path):
    """Returns a checkpoint, or a run's newest one."""
    if (path / "params.safetensors").exists():
        return path
    checkpoints = sorted(path for path in (path / "checkpoints").glob("ckpt-*") if path.suffix != ".tmp")  # while it is written
    if not checkpoints:
        raise SystemExit(f"{path}: no checkpoint")
    return checkpoints[-1]


def tensors(path):
    """Reads a file of f32 tensors."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        for name, entry in header.items()
    }


def flat(space, obs):
    """Returns an observation as the inputs of a network, with a one-hot vector for each category."""
    kinds = gymnasium.spaces
    if isinstance(space, (kinds.Dict, kinds.Tuple)):
        parts = space.spaces.items() if isinstance(space, kinds.Dict) else enumerate(space.spaces)
        return np.concatenate([flat(part, obs[key]) for key, part in parts])
    if isinstance(space, (kinds.Discrete, kinds.MultiDiscrete)):
        return kinds.flatten(space, obs).astype(np.float32)
    if isinstance(space, kinds.Box) and len(space.shape) in (2, 3) and np.all(space.low == 0):
        most = 255 if space.dtype == np.uint8 else 1 if len(space.shape) == 3 else np.nan
        if np.all(space.high == most):
            raise SystemExit("this script does not play pictures")
    return np.asarray(obs, np.float32).ravel()


ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: x * sigmoid(1.5957692 * (x + 0.044715 * x**3)),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Policy:
    """Greedy policy of a checkpoint."""

    def __init__(self, checkpoint):
        config = tomllib.loads((checkpoint / "config.toml").read_text())
        for key, plain in (("conv", []), ("normalize_obs", False)):
            if config.get(key, plain) != plain:
                raise SystemExit(f"{checkpoint}: {key} is {config[key]}, which this script does not play")
        if config["algo"] not in ("ppo", "a2c", "dqn"):
            raise SystemExit(f"{checkpoint}: algo is {config['algo']}, which this script does not play; `rl export` and tools/play_onnx.py do")
        env = config["env"] if isinstance(config["env"], dict) else {}
        for key, plain in (("keys", ""), ("action_repeat", 1), ("time_limit", 0), ("frame_stack", 1), ("pixels", 0)):
            if env.get(key, plain) != plain:
                raise SystemExit(f"{checkpoint}: env.{key} is {env[key]}, which this script does not play")
        self.hides = env.get("hide", "nothing") != "nothing"
        self.params = tensors(checkpoint / "params.safetensors")
        self.activation = ACTIVATIONS[config["activation"]]
        self.head = "actor" if config["algo"] in ("ppo", "a2c") else "advantage" if config["dqn"]["dueling"] else "q"
        self.is_continuous = "log_std" in self.params
        self.memory, self.cell = config.get("memory", "none"), "memory" if config["shared_trunk"] else f"{self.head}.memory"
        self.forget = lambda: setattr(self, "state", np.zeros((2, config.get("memory_size", 0)), np.float32))
        self.forget()

    def layer(self, name, x):
        return x @ self.params[f"{name}.weight"] + self.params[f"{name}.bias"]

    def normalize(self, name, x):
        """Normalizes the sums of a layer, if the policy does."""
        if f"{name}.weight" not in self.params:
            return x
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * self.params[f"{name}.weight"] + self.params[f"{name}.bias"]

    def chain(self, name, x, ends):
        """Passes x through the layers of a network; the last one of a head has no activation."""
        i = 0
        while f"{name}.{i}.weight" in self.params:
            x, i = self.normalize(f"{name}.{i}.norm", self.layer(f"{name}.{i}", x)), i + 1
            x = x if ends and f"{name}.{i}.weight" not in self.params else self.activation(x)
        return x

    def remember(self, x):
        """Takes a step of the memory, and returns its outputs."""
        if self.memory == "none":
            return x
        h, c = self.state
        a, u = [
            {gate: self.layer(f"{self.cell}.{part}.{gate}", x) for gate in ("rzn" if self.memory == "gru" else "ifgo")}
            for part, x in (("input", x), ("hidden", h))
        ]
        if self.memory == "gru":
            r, z = [sigmoid(a[gate] + u[gate]) for gate in "rz"]
            n = np.tanh(a["n"] + r * u["n"])
            h = n + z * (h - n)
        else:
            i, f, o = [sigmoid(a[gate] + u[gate]) for gate in "ifo"]
            c = f * c + i * np.tanh(a["g"] + u["g"])
            h = o * np.tanh(c)
        self.state = np.stack([h, c])
        return h

    def act(self, obs, env, hidden):
        """Returns the mean, clipped to the space, or the action of the greatest logit or value."""
        inputs, space = flat(env.observation_space, obs).copy(), env.action_space
        inputs[hidden] = 0
        features = self.chain("trunk", self.remember(inputs), ends=False)
        outputs = self.chain(self.head, features, ends=True)
        return np.clip(outputs, space.low, space.high) if self.is_continuous else int(space.start + np.argmax(outputs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="run directory or checkpoint")
    parser.add_argument("env", help="id of a Gymnasium environment, for instance CartPole-v1")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hide", type=int, nargs="*", default=[], help="elements of observations that are 0, as with env.hide")
    args = parser.parse_args()
    policy, env = Policy(newest(args.path)), gymnasium.make(args.env)
    if policy.hides and not args.hide:
        raise SystemExit("env.hide is set: name the indices of the velocities with --hide")
    returns = []
    for episode in range(args.episodes):
        obs, info = env.reset(seed=args.seed + episode)
        if "action_mask" in info or isinstance(obs, dict) and "action_mask" in obs or env.has_wrapper_attr("action_masks"):
            raise SystemExit(f"{args.env} tells which actions are legal, which this script ignores; tools/play_onnx.py does not")
        total, ended = 0.0, False
        policy.forget()
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs, env, args.hide))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"{args.env}: {len(returns)} greedy episodes, return {np.mean(returns):.1f} +- {np.std(returns):.1f}")


if __name__ == "__main__":
    main()
