"""Trains in an environment of one's own, which runs in processes: python own_env.py

Its class is in walk.py, because processes import it by its name.
"""

from walk import Walk

import samebits

run = samebits.train(Walk, steps=20_000, num_envs=8, env_kwargs={"length": 5}, settings={"ppo.n_steps": 64})
policy, env = run.policy(trust=True), Walk(length=5)
obs, over = env.reset(seed=0)[0], False
while not over:
    action, _ = policy.predict(obs)
    obs, reward, over, _, _ = env.step(action)
    print(f"at {env.at}, reward {reward:+.0f}")
