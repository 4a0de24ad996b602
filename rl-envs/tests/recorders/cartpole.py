"""Writes cartpole.json: steps of Gymnasium 1.3's CartPole-v1, to compare with.

    python3 -m venv /tmp/gym && /tmp/gym/bin/pip install gymnasium==1.3.0
    /tmp/gym/bin/python rl-envs/tests/recorders/cartpole.py > rl-envs/tests/golden/cartpole.json

Each row: the state before the step (f32 values, so that both start from the same), the action, and what followed.
Random actions, a policy that balances long enough to reach the time limit, and states near the limits.
"""

import json

import gymnasium
import numpy as np

assert gymnasium.__version__ == "1.3.0"
rng = np.random.default_rng(0)
env = gymnasium.make("CartPole-v1")
rows = []


def step(state, elapsed, action):
    """One step from a given state; the environment's own rules and the time limit's."""
    state = np.asarray(state, dtype=np.float32)
    env.unwrapped.state = state.astype(np.float64)
    env.unwrapped.steps_beyond_terminated = None
    env._elapsed_steps = elapsed
    obs, reward, terminated, truncated, _ = env.step(action)
    names = ["x", "x_dot", "theta", "theta_dot"]
    init = {name: float(value) for name, value in zip(names, state)} | {"elapsed": elapsed}
    rows.append({
        "init": init,
        "action": action,
        "obs": [float(v) for v in obs],
        "reward": float(reward),
        "terminated": bool(terminated),
        "truncated": bool(truncated),
    })
    return obs, terminated or truncated


for episode in range(20):
    obs, _ = env.reset(seed=episode)
    done, elapsed = False, 0
    while not done:
        if episode < 18:
            action = int(rng.integers(2))
        else:  # balances: pushes towards the side to which the pole falls and the cart drifts
            action = int(obs[2] + 0.2 * obs[3] + 0.02 * obs[0] + 0.05 * obs[1] > 0)
        obs, done = step(obs, elapsed, action)
        elapsed += 1
for _ in range(300):
    near = np.array([2.4, 1.0, 0.209, 1.0]) * rng.choice([-1.0, 1.0], 4) * rng.uniform(0.9, 1.0, 4)
    step(near, int(rng.integers(500)), int(rng.integers(2)))

print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")
