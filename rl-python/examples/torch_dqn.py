"""DQN in PyTorch with our prioritized replay memory: python torch_dqn.py"""

import sys

import numpy as np
import torch
from torch import nn

import samebits

NUM_ENVS, TOTAL, BATCH, GAMMA = 8, int(sys.argv[1]) if len(sys.argv) > 1 else 60_000, 256, 0.99

torch.manual_seed(1)
rng = np.random.default_rng(1)
envs = samebits.make_vec("cartpole", NUM_ENVS)
replay = samebits.PrioritizedReplayBuffer(50_000, (4,), n_envs=NUM_ENVS, n_step=3, gamma=GAMMA, seed=1)
online, target = (nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)) for _ in range(2))
target.load_state_dict(online.state_dict())
optimizer = torch.optim.Adam(online.parameters(), lr=5e-4)

obs, _ = envs.reset(seed=1)
returns, latest = np.zeros(NUM_ENVS), []
for step in range(TOTAL // NUM_ENVS):
    with torch.no_grad():
        greedy = online(torch.from_numpy(obs)).argmax(1).numpy()
    epsilon = max(0.02, 1 - step * NUM_ENVS / 10_000)
    actions = np.where(rng.random(NUM_ENVS) < epsilon, rng.integers(2, size=NUM_ENVS), greedy)
    next_obs, rewards, terminated, truncated, info = envs.step(actions)
    after = np.where(info["_final_obs"][:, None], info["final_obs"], next_obs) if "final_obs" in info else next_obs
    replay.add(obs, actions, rewards, after, terminated, truncated)
    obs = next_obs
    returns += rewards
    ended = terminated | truncated
    latest = [*latest, *returns[ended]][-100:]
    returns[ended] = 0
    if len(replay) < 1000:
        continue
    batch = {name: torch.from_numpy(column) for name, column in replay.sample(BATCH, beta=0.4 + 0.6 * step * NUM_ENVS / TOTAL).items()}
    with torch.no_grad():
        best = online(batch["next_obs"]).argmax(1, keepdim=True)
        goal = batch["rewards"] + batch["discounts"] * target(batch["next_obs"]).gather(1, best)[:, 0]
    errors = goal - online(batch["obs"]).gather(1, batch["actions"].long()[:, None])[:, 0]
    loss = (batch["weights"] * nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    replay.update_priorities(batch["indices"].numpy(), errors.detach().numpy())
    if step % 50 == 0:
        target.load_state_dict(online.state_dict())
print(f"mean return of the latest 100 episodes: {np.mean(latest):.1f}")
