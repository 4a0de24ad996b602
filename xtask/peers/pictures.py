"""Environments that only show pictures, to measure how these travel: bytes, channels first, as PyTorch reads them."""

import gymnasium
import numpy as np


class Pictures(gymnasium.Env):
    """Two pictures in turn, 1,000 steps an episode."""

    def __init__(self, *shape):
        self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.pictures = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
        self.elapsed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed = 0
        return self.pictures[0], {}

    def step(self, action):
        self.elapsed += 1
        return self.pictures[self.elapsed % 2], 1.0, False, self.elapsed == 1000, {}


def atari():
    return Pictures(4, 84, 84)


def camera():
    return Pictures(3, 256, 256)


def megabyte():
    return Pictures(4, 512, 512)
