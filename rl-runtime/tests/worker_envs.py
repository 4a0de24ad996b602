"""Environments for tests of worker processes: every space, and every fault."""

import ctypes
import os
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Spaces(gym.Env):
    """Random observations of a space, and random ends, from the seed."""

    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, space):
        self.observation_space = space

    def observe(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.observation_space.sample()

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        assert isinstance(action, int) and -1 <= action <= 1
        terminated, truncated = self.np_random.random(2) < 0.2
        return self.observe(), float(self.np_random.normal()) + action, bool(terminated), bool(truncated), {}


MIXED = spaces.Dict(
    {
        "z": spaces.Box(-1, 1, (2, 2), np.float64),
        "a": spaces.Tuple((spaces.Discrete(3, start=2), spaces.MultiBinary(2))),
        "m": spaces.MultiDiscrete([2, 3]),
    }
)
for name, space in {
    "f32": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "i64": spaces.Box(-5, 5, (2,), np.int64),
    "one_hot": spaces.Discrete(4),
    "mixed": MIXED,
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
}.items():
    gym.register(f"Spaces-{name}-v0", lambda space=space: Spaces(space), disable_env_checker=True)


def mixed():
    """An environment whose observations have categories among numbers."""
    return gym.make("Spaces-mixed-v0")


class Table(gym.Env):
    """A table of n states, whose observation is the number of a state; the fifth is the first of `bad` if there is one."""

    action_space = spaces.Discrete(4)

    def __init__(self, n, bad=()):
        self.observation_space = spaces.MultiDiscrete(n) if isinstance(n, list) else spaces.Discrete(n)
        self.bad = bad

    def observe(self):
        self.observation_space.seed(int(self.np_random.integers(1 << 30)))
        return self.bad[0] if self.bad and self.t == 5 else self.observation_space.sample()

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), float(action == 1), False, self.t == 10, {}


class Faulty(gym.Env):
    """An environment whose step 20 has a fault, in one process of a run at least."""

    observation_space = spaces.Box(0, 100, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how, once=None):
        self.how, self.once, self.t = how, once, 0

    def observe(self):
        return np.array([self.t, 1], np.float32)

    def reset(self, seed=None, options=None):
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        obs, reward = self.observe(), 1.0
        if self.t == 20 and not (self.once and os.path.exists(self.once)):
            if self.once:
                open(self.once, "w").close()
            if self.how == "raise":
                raise ValueError("the ball left the table")
            if self.how == "exit":
                sys.exit(7)
            if self.how == "interrupt":
                raise KeyboardInterrupt
            if self.how == "kill":
                os.kill(os.getpid(), 9)
            if self.how == "crash":
                ctypes.string_at(0)
            if self.how == "child":
                subprocess.Popen(["sleep", "600"])
                os.kill(os.getpid(), 9)
            if self.how == "fork":
                if os.fork() == 0:
                    time.sleep(600)
                os.kill(os.getpid(), 9)
            if self.how == "shape":
                obs = obs[:1]
            if self.how == "reward":
                reward = None
            if self.how == "hang":
                subprocess.Popen(["sleep", "600"])
                time.sleep(600)
            if self.how == "hang_in_c":
                ctypes.PyDLL(None).sleep(600)
        print("noise on stdout")
        return obs, reward, np.bool_(self.t % 7 == 0), False, {}


for how in "raise exit interrupt kill crash child fork shape reward hang hang_in_c none".split():
    gym.register(f"Faulty-{how}-v0", lambda how=how, **kwargs: Faulty(how, **kwargs), disable_env_checker=True)


class Multi(gym.Env):
    """An environment that shows its last action, of several choices, as its observation."""

    def __init__(self, space):
        self.action_space = space
        self.observation_space = spaces.Box(-10, 10, (int(np.prod(space.shape)),), np.float32)
        self.t = 0

    def reset(self, seed=None, options=None):
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.t += 1
        chosen = np.asarray(action, np.float32).ravel()
        return chosen, float(chosen[0] == 1) + float(chosen[1] == 1), self.t % 9 == 0, False, {}


for name, space in {
    "discrete": spaces.MultiDiscrete([2, 3, 4], start=[0, -1, 5]),
    "table": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "binary": spaces.MultiBinary(5),
    "huge": spaces.MultiBinary(32),
}.items():
    gym.register(f"Multi-{name}-v0", lambda space=space: Multi(space), disable_env_checker=True)


class Slow(gym.Env):
    """An environment that takes 5 ms for a step, sleeping or computing."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, how):
        self.how, self.t = how, 0

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        end, self.t = time.perf_counter() + 0.005, self.t + 1
        if self.how == "sleeps":
            time.sleep(0.005)
        while time.perf_counter() < end:
            pass
        return np.zeros(1, np.float32), 1.0, self.t % 9 == 0, False, {}


class Undrawn(Slow):
    """An environment whose drawing needs a package that is missing."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode=None):
        super().__init__("sleeps")
        self.render_mode = render_mode

    def render(self):
        raise ModuleNotFoundError("No module named 'pygame'")


gym.register("Undrawn-v0", Undrawn, disable_env_checker=True)

for how in "sleeps computes".split():
    gym.register(f"Slow-{how}-v0", lambda how=how: Slow(how), disable_env_checker=True)


class Unfit(gym.Env):
    """An environment that breaks one clause of the contract."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    shared = 0

    def __init__(self, how):
        self.how, self.t = how, 0

    def observe(self):
        if self.how == "same_seed":
            return np.random.uniform(-1, 1, 1).astype(np.float32)
        x = {"finite": np.nan, "observations_in_space": 3}.get(self.how, 0) if self.t == 9 else self.start
        return np.array([x], np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.start, Unfit.shared = 0, self.np_random.uniform(-1, 1), 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        if self.how == "steps" and self.t == 9:
            raise ValueError("no")
        Unfit.shared += 1
        reward = Unfit.shared if self.how == "batch" else 1
        return self.observe(), reward, False, self.t == 30 and self.how != "episodes_end", {}


for how in "steps finite observations_in_space episodes_end same_seed batch none".split():
    gym.register(f"Unfit-{how}-v0", lambda how=how: Unfit(how), disable_env_checker=True)


def wrapped():
    """A maker of environments, which needs no registration."""
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2 * reward)
