"""An environment: walk to the right end of a line, not to the left one."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    """Walks on a line from 0 to ``length`` (reward 1) or to ``-length`` (reward -1)."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length=5):
        self.length, self.at = length, 0

    def _see(self):
        return np.array([self.at / self.length], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self._see(), {}

    def step(self, action):
        self.at += 1 if action == 1 else -1
        over = abs(self.at) >= self.length
        return self._see(), float(over) * (1 if self.at > 0 else -1), over, False, {}
