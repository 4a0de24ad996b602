"""Environments for tests of worker processes: every space, and every fault."""

import ctypes
import multiprocessing
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


class MissionSpace(spaces.Space):
    """Texts of a fixed vocabulary, as MiniGrid has them."""

    def __init__(self, mission_func, ordered_placeholders):
        super().__init__(dtype=str)
        self.mission_func, self.ordered_placeholders = mission_func, ordered_placeholders

    def sample(self, mask=None, probability=None):
        return self.mission_func(*(str(self.np_random.choice(words)) for words in self.ordered_placeholders))


class Freely(MissionSpace):
    """Texts that the vocabulary does not tell."""


def go_to(color, thing):
    return f"go to the {color} {thing}"


COLORS_AND_THINGS = [["red", "green"], ["door", "ball", "key"]]
PARTS = {
    "view": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "depth": spaces.Box(0, 1, (2, 7, 8), np.float32),
    "mission": MissionSpace(go_to, COLORS_AND_THINGS),
    "arm": spaces.Dict(joints=spaces.Box(-1, 1, (2,), np.float32), closed=spaces.Discrete(2)),
}
for name, space in {
    "parts": spaces.Dict(PARTS),
    "freely": spaces.Dict({**PARTS, "mission": Freely(go_to, COLORS_AND_THINGS)}),
    "empty": spaces.Dict(none=spaces.Box(-1, 1, (0,)), flat=spaces.Box(0, 255, (0, 5), np.uint8), x=spaces.Box(-1, 1, (2,))),
    "twice": spaces.Dict({"a": spaces.Dict(b=spaces.Box(-1, 1, (1,))), "a.b": spaces.Box(-1, 1, (2,))}),
    "depth": PARTS["depth"],
    "frame": spaces.Box(0, 255, (84, 84), np.uint8),
    "f32": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "i64": spaces.Box(-5, 5, (2,), np.int64),
    "one_hot": spaces.Discrete(4),
    "mixed": MIXED,
    "image": spaces.Box(0, 255, (6, 5, 3), np.uint8),
    "planes": spaces.Box(0, 255, (3, 6, 5), np.uint8),
    "counts": spaces.Box(0, 3, (4,), np.uint8),
    "board": spaces.Box(0, 7, (3, 2), np.uint8),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "among": spaces.Dict(counts=spaces.Box(0, 3, (2,), np.uint8), image=spaces.Box(0, 255, (4, 5, 3), np.uint8)),
    "text": spaces.Dict(place=spaces.Discrete(4), words=spaces.Text(8), speed=spaces.Box(-1, 1, (2,))),
    "words": spaces.Text(8),
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


def without_words():
    return gym.wrappers.FilterObservation(Spaces(spaces.Dict(place=spaces.Discrete(4), words=spaces.Text(8))), ["place"])


class Counts(gym.Env):
    """Four counts; a reward for naming the place of the largest."""

    action_space = spaces.Discrete(4)

    def __init__(self, dtype):
        self.observation_space = spaces.Box(0, 3, (4,), np.dtype(dtype))

    def deal(self):
        counts = self.np_random.integers(0, 3, 4)
        self.best = self.np_random.integers(4)
        counts[self.best] = 3
        return counts.astype(self.observation_space.dtype)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.deal(), {}

    def step(self, action):
        self.t += 1
        reward = float(action == self.best)
        return self.deal(), reward, False, self.t == 16, {}


class Bounded(gym.Env):
    """An environment that takes only actions of its space, as arrays of its shape and type."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, dtype, shape, low, high):
        low, high = (float(text) for text in (low, high))
        self.action_space = spaces.Box(low, high, tuple(shape), np.dtype(dtype))

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert isinstance(action, np.ndarray) and action.dtype == self.action_space.dtype, action
        assert self.action_space.contains(action), (action, self.action_space)
        return np.zeros(1, np.float32), 1.0, False, False, {}


class Answers(gym.Env):
    """An environment that returns something unusual at its second step."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    ANSWERS = {
        "reward_of_shape_1": {"reward": np.array([2.0])},
        "reward_of_shape_0": {"reward": np.array(2)},
        "numpy": {"reward": np.float64(2), "terminated": np.bool_(False), "truncated": np.array([False])},
        "zeros": {"reward": 2, "terminated": 0, "truncated": None, "info": None},
        "list": {"obs": [0.5, 0.5], "reward": 2},
        "list_of_flag": {"reward": 2, "terminated": [False]},
        "two_rewards": {"reward": np.array([1.0, 2.0])},
        "no_reward": {"reward": None},
        "reward_in_words": {"reward": "1"},
        "rewards_of_agents": {"reward": {"a": 1.0}},
        "flag_in_words": {"truncated": "False"},
        "two_flags": {"terminated": np.array([True, False])},
        "flag_of_2": {"terminated": 2},
        "no_obs": {"obs": None},
        "obs_of_shape_1_2": {"obs": np.zeros((1, 2), np.float32)},
        "last_obs": {"obs": np.zeros(3), "terminated": True},
    }

    def __init__(self, what):
        self.what, self.t = what, 0

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), None if self.what == "zeros" else {}

    def step(self, action):
        self.t += 1
        answer = {"obs": np.full(2, 0.5, np.float32), "reward": 1.0, "terminated": False, "truncated": False, "info": {}}
        if self.t == 2:
            answer.update(self.ANSWERS.get(self.what, {}))
        return tuple(answer.values())[: 4 if self.what == "four" else 5]


class OldReset(Answers):
    def reset(self):
        return np.zeros(2, np.float32)


class ResetOfObs(Answers):
    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32)


class Agents:
    """The look of PettingZoo's parallel environments."""

    possible_agents = ["a", "b"]


def nothing():
    return None


def vector():
    return gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")


class Masked(gym.Env):
    """An environment whose only legal action is the number of steps modulo 3; it says so in one of several ways."""

    def __init__(self, how):
        self.how, self.t, number = how, 0, spaces.Box(0, 100, (1,), np.float32)
        self.action_space = spaces.MultiDiscrete([3, 2]) if how == "several" else spaces.Discrete(3)
        masks = spaces.Box(0, 1, (3,), np.int8)
        self.observation_space = spaces.Dict(observation=number, action_mask=masks) if how == "observation" else number
        if how == "method":
            self.action_masks = lambda: [action == self.t % 3 for action in range(3)]

    def seen(self):
        mask, number = np.eye(3, dtype=np.int8)[self.t % 3], np.array([self.t], np.float32)
        has_info = self.how in ("info", "several") or self.how == "late" and self.t or self.how == "lost" and self.t < 2
        info = {"action_mask": mask} if has_info else {}
        return {"observation": number, "action_mask": mask} if self.how == "observation" else number, info

    def reset(self, seed=None, options=None):
        self.t = 0
        return self.seen()

    def step(self, action):
        assert self.how == "late" or action == self.t % 3, action
        self.t += 1
        obs, info = self.seen()
        return obs, 1.0, False, self.t == 5, info


class Large(gym.Env):
    """Observations of 12 kB: two of a worker cross the socket, three are left in memory. Step 20 may kill the process once."""

    action_space = spaces.Discrete(3)

    def __init__(self, kind, once=None, times=1):
        self.once, self.age = once, 0
        numbers, picture = spaces.Box(-1, 1, (3000 * times,), np.float32), spaces.Box(0, 255, (3, 50, 80), np.uint8)
        self.observation_space = numbers if kind == "numbers" else picture

    def seen(self):
        drawn = self.np_random.random(self.observation_space.shape)
        obs = (255 * drawn).astype(np.uint8) if self.observation_space.dtype == np.uint8 else drawn.astype(np.float32)
        return obs, {"action_mask": np.roll(np.array([1, 1, 0], np.int8), self.t)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length = 0, int(self.np_random.integers(1, 8))
        return self.seen()

    def step(self, action):
        self.t, self.age = self.t + 1, self.age + 1
        if self.age == 20 and self.once and not os.path.exists(self.once):
            open(self.once, "w").close()
            os.kill(os.getpid(), 9)
        is_last = self.t == self.length
        obs, info = self.seen()
        return obs, float(action) + self.t, is_last and self.length % 2 == 0, is_last and self.length % 2 == 1, info


def masked_in_a_wrapper():
    return gym.wrappers.TimeLimit(Masked("method"), 100)


class Looks(Slow):
    """An environment that observes whether it has variables that decide about drawing, or children of the worker."""

    def __init__(self):
        super().__init__("sleeps")

    def step(self, action):
        _, reward, terminated, truncated, info = super().step(action)
        found = sum(name.startswith("SDL_") for name in os.environ)
        try:
            found += 10 if os.waitpid(-1, os.WNOHANG) else 0
        except ChildProcessError:
            pass
        return np.array([found], np.float32), reward, terminated, truncated, info


def simulator(conn, method):
    """Answers with squares, each of which a process of its own computes, while it has a file open."""
    context = multiprocessing.get_context(method)
    with open(__file__) as file, open(os.devnull) as other:
        while True:
            try:
                x = conn.recv()
            except EOFError:
                return
            ours, theirs = context.Pipe()
            files = [file.fileno(), other.fileno()] if method == "fork" else []
            worker = context.Process(target=square, args=(theirs, x, files))
            worker.start()
            conn.send(ours.recv() if ours.poll(60) else None)
            worker.join()


def square(conn, x, files):
    try:
        for file in files:
            os.fstat(file)
        conn.send(x * x)
    except BaseException as error:
        conn.send(str(error))


class Nested(gym.Env):
    """An environment whose simulator is a process that starts processes."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, method):
        context = multiprocessing.get_context(method)
        self.conn, theirs = context.Pipe()
        self.simulator = context.Process(target=simulator, args=(theirs, method), daemon=False)
        self.simulator.start()
        theirs.close()

    def square(self, x):
        self.conn.send(x)
        y = self.conn.recv()
        assert y == x * x, y
        return np.array([y], np.float32)

    def reset(self, seed=None, options=None):
        self.t = 1
        return self.square(self.t), {}

    def step(self, action):
        self.t += 1
        return self.square(self.t), 1.0, False, False, {}

    def close(self):
        self.conn.close()
        self.simulator.join(5)


def drawn(render_mode=None):
    return gym.make("CartPole-v1", render_mode=render_mode)


def passes_on(**kwargs):
    return gym.make("CartPole-v1", **kwargs)


class Unscaled(gym.Env):
    """Large observations and rewards, and actions far from 0."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Box(5, 10, (2,), np.float32)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def observe(self):
        return np.float32(self.np_random.normal(size=3) * 1000)

    def step(self, action):
        self.t += 1
        return self.observe(), float(self.np_random.normal() * 1000), self.t == 20, False, {}


class Grey(Unscaled):
    """Pictures without an axis of channels."""

    observation_space = spaces.Box(0, 255, (300, 240), np.uint8)
    action_space = spaces.Discrete(2)

    def observe(self):
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


class Lives(gym.Env):
    """A game of 11 steps that observes its step, with an emulator that counts three lives; for one step it knows of none."""

    observation_space = spaces.Box(0, 255, (4, 4), np.uint8)
    action_space = spaces.Discrete(2)
    LIVES = [3, 3, 3, 2, 2, 0, 2, 1, 1, 1, 1, 0]

    def __init__(self):
        self.ale, self.t = self, 0

    def lives(self):
        return self.LIVES[self.t]

    def observe(self):
        return np.full((4, 4), self.t, np.uint8)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), 2.0, self.t == 11, False, {}


gym.register("Lives-v0", Lives, disable_env_checker=True)


class Shown(gym.Env):
    """The same 32 observations in each episode; picture, mission and arm tell which action pays, and the step how much."""

    observation_space = spaces.Dict(PARTS)
    action_space = spaces.Discrete(3)

    def observe(self):
        rng = np.random.default_rng(self.t)
        words = (str(rng.choice(words)) for words in COLORS_AND_THINGS)
        self.seen = {
            "view": rng.integers(0, 128, (6, 5, 3), np.uint8) + 128 * rng.integers(2, dtype=np.uint8),
            "depth": rng.random((2, 7, 8), np.float32),
            "mission": go_to(*words),
            "arm": {"joints": rng.random(2, np.float32), "closed": rng.integers(2)},
        }
        return self.seen

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        best = (self.seen["arm"]["closed"] + ("red" in self.seen["mission"]) + (self.seen["view"].mean() > 128)) % 3
        self.t += 1
        return self.observe(), float((action == best) * self.t), False, self.t == 32, {}


gym.register("Shown-v0", Shown, disable_env_checker=True)
