"""Writes mountain_car_continuous.json: steps of Gymnasium 1.3's MountainCarContinuous-v0, to compare with.

    python3 -m venv /tmp/gym && /tmp/gym/bin/pip install gymnasium==1.3.0
    /tmp/gym/bin/python rl-envs/tests/recorders/mountain_car_continuous.py > rl-envs/tests/golden/mountain_car_continuous.json

Each row: the state before the step (f32 values, as the reference's own state is after a step), the action (f32), and
what followed. Random actions up to the time limit, a policy that swings up to the goal, and states near the wall, the
goal and the bounds of the speed.
"""

import json

import gymnasium
import numpy as np

assert gymnasium.__version__ == "1.3.0"
rng = np.random.default_rng(0)
env = gymnasium.make("MountainCarContinuous-v0")
rows = []


def short(value):
    """The shortest decimal that reads back as the same f32."""
    return float(str(np.float32(value)))


def step(state, elapsed, action, keep=True):
    """One step from a given state; the environment's own rules and the time limit's."""
    state = np.array(state, dtype=np.float32)
    action = np.array([action], dtype=np.float32)
    env.unwrapped.state = state
    env._elapsed_steps = elapsed
    obs, reward, terminated, truncated, _ = env.step(action)
    if keep:
        rows.append({
            "init": {"position": short(state[0]), "velocity": short(state[1]), "elapsed": elapsed},
            "action": [short(action[0])],
            "obs": [short(v) for v in obs],
            "reward": short(reward),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        })
    return obs, terminated or truncated


for episode in range(5):
    obs, _ = env.reset(seed=episode)
    done, elapsed = False, 0
    while not done:
        if episode == 0:  # random; only its beginning and its end are kept
            obs, done = step(obs, elapsed, rng.uniform(-1.0, 1.0), keep=elapsed < 100 or elapsed >= 900)
        else:  # pushes the way it moves
            sign = 1.0 if obs[1] >= 0 else -1.0
            obs, done = step(obs, elapsed, sign * (1.0 if episode == 1 else rng.uniform(0.7, 1.0)))
        elapsed += 1
for _ in range(200):  # the wall, the end of the track and the goal
    position = rng.choice([-1.2, -1.2, 0.6, 0.45, 0.45]) + rng.uniform(-0.03, 0.03)
    velocity = rng.uniform(-0.05, 0.05)
    step([np.clip(position, -1.2, 0.6), velocity], int(rng.integers(999)), rng.uniform(-1.0, 1.0))
for _ in range(100):  # the bounds of the speed
    velocity = rng.choice([-0.07, 0.07]) * rng.uniform(0.97, 1.0)
    step([rng.uniform(-1.2, 0.6), velocity], int(rng.integers(999)), rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.0))
at_limits = [(-1.2, 0.0), (-1.2, -0.01), (-1.2, 0.01), (-1.19, -0.07), (0.6, 0.07), (0.6, -0.0005), (0.4, 0.07)]
for position, velocity in at_limits:
    for action in [-1.0, 0.0, 0.3, 1.0]:  # in the last step allowed
        step([position, velocity], 998, action)

print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
