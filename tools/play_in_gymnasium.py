#!/usr/bin/env python3
"""Plays a trained policy in Gymnasium's own environment, with numpy alone.

    python3 tools/play_in_gymnasium.py runs/cartpole-ppo-seed0-1 CartPole-v1

Reads config.toml and params.safetensors of a checkpoint, or of a run's newest one, and plays greedy episodes: dense networks without
normalized observations, which read a one-hot vector for each category of an observation. Prints the mean return and its standard deviation, as
`rl eval RUN` does for our environment.

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
    checkpoints = sorted((path / "checkpoints").glob("ckpt-*"))
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
    return np.asarray(obs, np.float32).ravel()


class Policy:
    """Greedy policy of a checkpoint."""

    def __init__(self, checkpoint):
        config = tomllib.loads((checkpoint / "config.toml").read_text())
        for key, plain in (("conv", []), ("normalize_obs", False)):
            if config.get(key, plain) != plain:
                raise SystemExit(f"{checkpoint}: {key} is {config[key]}, which this script does not play")
        self.params = tensors(checkpoint / "params.safetensors")
        self.activation = np.tanh if config["activation"] == "tanh" else lambda x: np.maximum(x, 0)
        self.head = "actor" if config["algo"] in ("ppo", "a2c") else "advantage" if config["dqn"]["dueling"] else "q"
        self.is_continuous = "log_std" in self.params

    def chain(self, name, x, ends):
        """Passes x through the layers of a network; the last one of a head has no activation."""
        n = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in self.params)
        for i in range(n):
            x = x @ self.params[f"{name}.{i}.weight"] + self.params[f"{name}.{i}.bias"]
            x = x if ends and i == n - 1 else self.activation(x)
        return x

    def act(self, obs, env):
        """Returns the mean, clipped to the space, or the action of the greatest logit or value."""
        features, space = self.chain("trunk", flat(env.observation_space, obs), ends=False), env.action_space
        outputs = self.chain(self.head, features, ends=True)
        return np.clip(outputs, space.low, space.high) if self.is_continuous else int(np.argmax(outputs))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="run directory or checkpoint")
    parser.add_argument("env", help="id of a Gymnasium environment, for instance CartPole-v1")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    policy, env = Policy(newest(args.path)), gymnasium.make(args.env)
    returns = []
    for episode in range(args.episodes):
        obs, _ = env.reset(seed=args.seed + episode)
        total, ended = 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy.act(obs, env))
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"{args.env}: {len(returns)} greedy episodes, return {np.mean(returns):.1f} +- {np.std(returns):.1f}")


if __name__ == "__main__":
    main()
