"""A gripper on a line, seen by a camera: it must go to the lit column, then close."""

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 24


class Robot(gymnasium.Env):
    """A picture, a position and a category: the task needs the first two."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
            "closed": spaces.Discrete(2),
            "position": spaces.Box(-1, 1, (1,), np.float32),
        }
    )
    action_space = spaces.Discrete(3)  # right, left, close

    def observe(self):
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        picture[self.row : self.row + 3, self.column : self.column + 3, 1] = 255
        return {"camera": picture, "closed": self.closed, "position": np.array([self.x], np.float32)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.row, self.column = (int(i) for i in self.np_random.integers(SIDE - 3, size=2))
        self.x, self.closed, self.elapsed = float(self.np_random.uniform(-1, 1)), 0, 0
        return self.observe(), {}

    def step(self, action):
        self.elapsed += 1
        if action == 2:
            self.closed = 1
            is_near = abs(self.x - ((self.column + 1) / (SIDE - 1) * 2 - 1)) < 0.15
            return self.observe(), 1.0 if is_near else -1.0, True, False, {}
        self.x = float(np.clip(self.x + (0.1, -0.1)[action], -1, 1))
        return self.observe(), -0.01, False, self.elapsed >= 40, {}
