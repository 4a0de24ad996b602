"""Writes pendulum.json: steps of Gymnasium 1.3's Pendulum-v1, to compare with.

    python3 -m venv /tmp/gym && /tmp/gym/bin/pip install gymnasium==1.3.0
    /tmp/gym/bin/python rl-envs/tests/recorders/pendulum.py > rl-envs/tests/golden/pendulum.json

Each row: the state before the step (f32 values, so that both start from the same), the action (f32), and what followed.
Random and constant torques up to the time limit, a policy that swings up and balances, states near the bound of the
speed and where the angle wraps in the reward, and angles many turns away.
"""

import json
from math import pi

import gymnasium
import numpy as np

assert gymnasium.__version__ == "1.3.0"
rng = np.random.default_rng(0)
env = gymnasium.make("Pendulum-v1")
rows = []


def short(value):
    """The shortest decimal that reads back as the same f32."""
    return float(str(np.float32(value)))


def step(state, elapsed, action):
    """One step from a given state; the environment's own rules and the time limit's."""
    state = np.asarray(state, dtype=np.float32)
    action = np.array([action], dtype=np.float32)
    env.unwrapped.state = state.astype(np.float64)
    env._elapsed_steps = elapsed
    obs, reward, terminated, truncated, _ = env.step(action)
    rows.append({
        "init": {"theta": short(state[0]), "theta_dot": short(state[1]), "elapsed": elapsed},
        "action": [short(action[0])],
        "obs": [short(v) for v in obs],
        "reward": short(reward),
        "terminated": bool(terminated),
        "truncated": bool(truncated),
    })
    return env.unwrapped.state, terminated or truncated


for episode in range(4):
    env.reset(seed=episode)
    state, done, elapsed = env.unwrapped.state, False, 0
    while not done:
        theta, theta_dot = state
        if episode < 2:
            action = rng.uniform(-2.0, 2.0)
        elif episode == 2:  # adds energy until the pendulum is up, then balances
            if np.cos(theta) > 0.9 and abs(theta_dot) < 3.0:
                action = np.clip(-20.0 * np.sin(theta) - 4.0 * theta_dot, -2.0, 2.0)
            else:
                action = 2.0 if theta_dot >= 0 else -2.0
        else:  # turns round and round
            action = 2.0 if theta_dot >= 0 else -2.0
        state, done = step(state, elapsed, action)
        elapsed += 1
for _ in range(150):  # many turns away
    step([rng.uniform(-50.0, 50.0), rng.uniform(-8.0, 8.0)], int(rng.integers(200)), rng.uniform(-2.0, 2.0))
for _ in range(60):  # the bound of the speed
    theta_dot = rng.choice([-8.0, 8.0]) * rng.uniform(0.95, 1.0)
    step([rng.uniform(-pi, pi), theta_dot], int(rng.integers(200)), rng.uniform(-2.0, 2.0))
for turn in [-15, -3, -1, 1, 3, 15]:  # hanging straight down, to either side of where the angle wraps
    for offset in [-0.1, -0.01, 0.01, 0.1]:
        step([turn * pi + offset, rng.uniform(-1.0, 1.0)], int(rng.integers(200)), rng.choice([-2.0, 0.0, 2.0]))
for action in [-2.0, -1.0, 0.0, 1.0, 2.0]:  # in the last step allowed
    step([rng.uniform(-pi, pi), rng.uniform(-8.0, 8.0)], 199, action)

print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
