"""Writes acrobot.json: steps of Gymnasium 1.3's Acrobot-v1, to compare with.

    python3 -m venv /tmp/gym && /tmp/gym/bin/pip install gymnasium==1.3.0
    /tmp/gym/bin/python rl-envs/tests/recorders/acrobot.py > rl-envs/tests/golden/acrobot.json

Each row: the state before the step (f32 values, so that both start from the same), the action, and what followed.
Random actions up to the time limit, a policy that swings up to the goal, and states near the goal's height, the wrap
of the angles and the bounds of the speeds.
"""

import json
from math import pi

import gymnasium
import numpy as np

assert gymnasium.__version__ == "1.3.0"
rng = np.random.default_rng(0)
env = gymnasium.make("Acrobot-v1")
rows = []


def short(value):
    """The shortest decimal that reads back as the same f32."""
    return float(str(np.float32(value)))


def step(state, elapsed, action, keep=True):
    """One step from a given state; the environment's own rules and the time limit's."""
    state = np.asarray(state, dtype=np.float32)
    env.unwrapped.state = state.astype(np.float64)
    env._elapsed_steps = elapsed
    obs, reward, terminated, truncated, _ = env.step(action)
    names = ["theta1", "theta2", "theta1_dot", "theta2_dot"]
    init = {name: short(value) for name, value in zip(names, state)} | {"elapsed": elapsed}
    if keep:
        rows.append({
            "init": init,
            "action": action,
            "obs": [short(v) for v in obs],
            "reward": float(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        })
    return env.unwrapped.state, terminated or truncated


for episode in range(6):
    env.reset(seed=episode)
    state, done, elapsed = env.unwrapped.state, False, 0
    while not done:
        if episode == 0:  # random; only its beginning and its end are kept
            state, done = step(state, elapsed, int(rng.integers(3)), keep=elapsed < 80 or elapsed >= 440)
        else:  # pumps: the torque follows the second joint's speed, at times at random
            action = 2 if state[3] >= 0 else 0
            if rng.random() < 0.05 * episode:
                action = int(rng.integers(3))
            state, done = step(state, elapsed, action)
        elapsed += 1


def draw(theta1, theta2, theta1_dot, theta2_dot):
    """A state with each of the four uniform between two values."""
    return [rng.uniform(*bounds) for bounds in (theta1, theta2, theta1_dot, theta2_dot)]


for _ in range(120):  # any state
    step(draw((-pi, pi), (-pi, pi), (-4 * pi, 4 * pi), (-9 * pi, 9 * pi)), int(rng.integers(500)), int(rng.integers(3)))
for _ in range(100):  # slow, near the goal's height
    state = draw((-pi, pi), (-0.3, 0.3), (-1.0, 1.0), (-1.0, 1.0))
    state[0] = rng.choice([-1.0, 1.0]) * rng.uniform(1.8, 2.6)
    step(state, int(rng.integers(500)), int(rng.integers(3)))
for _ in range(80):  # about to wrap
    state = draw((3.0, pi), (2.8, pi), (0.5, 3.0), (0.5, 3.0))
    step(rng.choice([-1.0, 1.0]) * np.array(state), int(rng.integers(500)), int(rng.integers(3)))
for i in range(80):  # the bound of one of the speeds; with both at theirs, a step is sensitive to rounding
    first, second = (0.95 * 4 * pi, 4 * pi), (0.95 * 9 * pi, 9 * pi)
    state = draw((-pi, pi), (-pi, pi), *((first, (0.0, 3.0)) if i % 2 == 0 else ((0.0, 3.0), second)))
    step(np.array(state) * rng.choice([-1.0, 1.0], 4), int(rng.integers(500)), int(rng.integers(3)))
for _ in range(20):  # in the last step allowed
    state = draw((2.0, pi), (-0.5, 0.5), (-1.0, 1.0), (-1.0, 1.0))
    step(state, 499, int(rng.integers(3)))

print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
