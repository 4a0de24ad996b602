#!/usr/bin/env python3
"""Plays an ONNX policy in Gymnasium's own environment, with only ONNX Runtime and numpy.

    python3 tools/play_onnx.py policy.onnx CartPole-v1 --episodes 100

The model scales, normalizes and encodes observations, and bounds actions. This script flattens observations, stacks frames, and keeps
the state of a policy that remembers.
Prints the mean return of greedy episodes and its standard deviation.

Needs Python 3.10 with gymnasium, numpy and onnxruntime.
"""

import argparse
import itertools

import gymnasium
import numpy as np
import onnxruntime
from gymnasium import spaces


class View:
    """How a training has read observations: numbers, categories from 0 on, or pictures with their channels in front."""

    def __init__(self, keys=(), raw_images=False, float_images=True, grayscale=False, resize=0):
        self.keys, self.raw_images, self.float_images = keys, raw_images, float_images
        self.grayscale, self.resize = grayscale, resize
        self.texts = {}  # numbers of all texts, by the space

    def flat(self, space, obs, keys=()):
        """Returns an observation as the model reads it."""
        if isinstance(space, (spaces.Dict, spaces.Tuple)):
            parts = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
            seen = [(key, part) for key, part in parts if key in keys] if keys else [part for part in parts if part[0] != "action_mask"]
            # A training sorts the parts of a Dict that it has taken some out of.
            parts = parts if len(seen) == len(parts) and not keys else sorted(seen, key=lambda part: part[0])
            return np.concatenate([self.numbers(part, obs[key]) for key, part in parts])
        if type(space).__name__ == "MissionSpace":
            return np.array([self.vocabulary(space)[obs]])
        if isinstance(space, spaces.Text):
            raise SystemExit("this script reads no texts but MiniGrid's missions")
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            return np.ravel(obs - space.start)
        obs = np.asarray(obs)
        if not self.is_picture(space):
            return obs
        obs = obs.transpose(2, 0, 1) if obs.ndim == 3 and obs.shape[2] < min(obs.shape[:2]) else obs
        is_changed = (self.grayscale or self.resize) and space.dtype == np.uint8
        return self.smaller(obs if obs.ndim == 3 else obs[None]) if is_changed else obs

    def numbers(self, space, obs):
        """Flattens one part of a Dict or Tuple observation; pictures are scaled unless they stay as they are."""
        is_scaled = self.is_picture(space) and space.dtype == np.uint8 and not self.raw_images
        return np.ravel(self.flat(space, obs)).astype(np.float32) / np.float32(255 if is_scaled else 1)

    def is_picture(self, space):
        """Returns true for bytes from 0 to 255 in two or three dimensions, and floats from 0 to 1 in three."""
        if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
            return False
        is_float = self.float_images and space.dtype.kind == "f" and len(space.shape) == 3
        most = 255 if space.dtype == np.uint8 else 1 if is_float else None
        return most is not None and np.all(space.low == 0) and np.all(space.high == most)

    def smaller(self, picture):
        """Returns a picture (channels, rows, columns) as env.grayscale and env.resize make it."""
        if self.grayscale and len(picture) == 3:
            picture = np.tensordot([0.2125, 0.7154, 0.0721], picture, 1).astype(np.uint8)[None]
        if self.resize:
            import cv2

            size = (self.resize, self.resize)
            picture = np.stack([cv2.resize(np.ascontiguousarray(plane), size, interpolation=cv2.INTER_AREA) for plane in picture])
        return picture

    def vocabulary(self, space):
        """Returns the numbers of all texts of a space."""
        if id(space) not in self.texts:
            texts = (space.mission_func(*words) for words in itertools.product(*space.ordered_placeholders or []))
            self.texts[id(space)] = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return self.texts[id(space)]


class Repeated(gymnasium.Wrapper):
    """Takes each action several times, and adds up the rewards."""

    def __init__(self, env, times):
        super().__init__(env)
        self.times = times

    def step(self, action):
        total = 0.0
        for _ in range(self.times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def legal(env, obs, info):
    """Returns the flags of the legal actions, from where a training takes them."""
    if "action_mask" in info:
        return info["action_mask"]
    if env.has_wrapper_attr("action_masks"):
        return env.get_wrapper_attr("action_masks")()
    if isinstance(obs, dict) and "action_mask" in obs:
        return obs["action_mask"]
    raise SystemExit("the policy needs a mask of the legal actions, which the environment does not give")


class Policy:
    """Greedy policy of a model."""

    def __init__(self, path, view):
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.n_frames = int(self.session.get_modelmeta().custom_metadata_map["frames"])
        inputs = {value.name: value for value in self.session.get_inputs()}
        obs, mask, state = inputs["obs"], inputs.get("mask"), inputs.get("state")
        self.shape, self.dtype = obs.shape[1:], np.uint8 if obs.type == "tensor(uint8)" else np.float32
        self.n_choices = mask.shape[1] if mask else 0
        self.state_len = state.shape[1] if state else 0
        self.frames, self.view = [], view

    def act(self, obs, info, env, first):
        """Returns the action for an observation; the first frame of an episode fills the stack, and its state is zeros."""
        frame = self.view.flat(env.observation_space, obs, self.view.keys).astype(self.dtype)
        self.frames = [frame] * self.n_frames if first else [*self.frames[1:], frame]
        feed = {"obs": np.stack(self.frames).reshape(1, *self.shape)}
        if self.n_choices:
            feed["mask"] = np.reshape(legal(env, obs, info), (1, self.n_choices)).astype(np.uint8)
        if self.state_len:
            feed["state"] = np.zeros((1, self.state_len), np.float32) if first else self.state
        (action,), *state = self.session.run(["action", "next_state"] if self.state_len else ["action"], feed)
        self.state = state[0] if state else None
        space = env.action_space
        if isinstance(space, spaces.Discrete):
            return int(action + space.start)
        action = np.reshape(action, space.shape).astype(space.dtype)
        return action + space.start if isinstance(space, spaces.MultiDiscrete) else action


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="ONNX model of a policy")
    parser.add_argument("env", help="id of a Gymnasium environment, for instance CartPole-v1")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", default="", help="parts of a Dict that are observed, with commas between them; all if left out")
    parser.add_argument("--raw-images", action="store_true", help="pictures of a Dict were not divided by 255")
    parser.add_argument("--no-float-images", action="store_true", help="floats from 0 to 1 are numbers, as by env.float_images = false")
    parser.add_argument("--action-repeat", type=int, default=1, help="times that each action is taken, as env.action_repeat")
    parser.add_argument("--time-limit", type=int, default=0, help="steps after which an episode is cut off, as env.time_limit; 0: none")
    parser.add_argument("--grayscale", action="store_true", help="pictures are made grey, as env.grayscale")
    parser.add_argument("--resize", type=int, default=0, help="rows and columns of pictures, as env.resize, which needs OpenCV; 0: theirs")
    args = parser.parse_args()
    keys = [key.strip() for key in args.keys.split(",") if key.strip()]
    if args.env.startswith("ALE/"):
        parser.error("this script does not prepare Atari's games as a training does")
    view = View(keys, args.raw_images, not args.no_float_images, args.grayscale, args.resize)
    policy, env = Policy(args.path, view), gymnasium.make(args.env)
    if args.time_limit:
        env = gymnasium.wrappers.TimeLimit(env, args.time_limit)
    if args.action_repeat > 1:
        env = Repeated(env, args.action_repeat)
    if keys and not isinstance(env.observation_space, spaces.Dict):
        parser.error(f"--keys is for observations that are a Dict; {args.env} has {env.observation_space}")
    returns = []
    for episode in range(args.episodes):
        obs, info = env.reset(seed=args.seed + episode)
        total, first, ended = 0.0, True, False
        while not ended:
            obs, reward, terminated, truncated, info = env.step(policy.act(obs, info, env, first))
            total, first, ended = total + float(reward), False, terminated or truncated
        returns.append(total)
    print(f"{args.env}: {len(returns)} greedy episodes, return {np.mean(returns):.1f} +- {np.std(returns):.1f}")


if __name__ == "__main__":
    main()
