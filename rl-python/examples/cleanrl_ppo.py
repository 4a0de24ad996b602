"""CleanRL's PPO loop, in PyTorch, on our environments: python cleanrl_ppo.py [STEPS] [gymnasium]

Prints env steps per second, alone and with the updates, and the mean return of the latest episodes; with `gymnasium`, of the same loop on
Gymnasium's vector environments.
"""

import sys
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import samebits

NUM_ENVS, NUM_STEPS, TOTAL, EPOCHS, MINIBATCH = 64, 32, int(sys.argv[1]) if len(sys.argv) > 1 else 300_000, 8, 256

torch.manual_seed(1)
envs = samebits.make_vec("cartpole", NUM_ENVS)
if "gymnasium" in sys.argv:
    same_step = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
    envs = gymnasium.make_vec("CartPole-v1", NUM_ENVS, vectorization_mode="sync", vector_kwargs=same_step)


def network(outputs, gain):
    layers = [nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs)]
    for layer, std in zip(layers[::2], (2**0.5, 2**0.5, gain)):
        nn.init.orthogonal_(layer.weight, std)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


actor, critic = network(2, 0.01), network(1, 1.0)
params = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(params, lr=1e-3, eps=1e-5)

obs, _ = envs.reset(seed=1)
returns, latest, stepped, begin = np.zeros(NUM_ENVS), [], 0.0, time.perf_counter()
updates = TOTAL // (NUM_ENVS * NUM_STEPS)
for update in range(updates):
    optimizer.param_groups[0]["lr"] = 1e-3 * (1 - update / updates)
    steps = {name: [] for name in ("obs", "actions", "log_probs", "rewards", "values", "next_values", "terminated", "truncated")}
    for _ in range(NUM_STEPS):
        seen = torch.from_numpy(obs)
        with torch.no_grad():
            policy, values = Categorical(logits=actor(seen)), critic(seen)[:, 0]
            actions = policy.sample()
        before = time.perf_counter()
        obs, rewards, terminated, truncated, info = envs.step(actions.numpy())
        stepped += time.perf_counter() - before
        after = obs.copy()
        for i in np.flatnonzero(terminated | truncated):  # an episode's last observation has the value, not the next one's first
            after[i] = info["final_obs"][i]
        with torch.no_grad():
            next_values = critic(torch.from_numpy(after))[:, 0]
        row = (seen, actions, policy.log_prob(actions), rewards, values, next_values, terminated, truncated)
        for column, value in zip(steps.values(), row):
            column.append(np.asarray(value))
        returns += rewards
        ended = terminated | truncated
        latest = [*latest, *returns[ended]][-100:]
        returns[ended] = 0
    steps = {name: np.stack(column) for name, column in steps.items()}
    outcomes = (steps[name] for name in ("rewards", "values", "next_values", "terminated", "truncated"))
    advantages, targets = samebits.gae(*outcomes, 0.99, 0.95)
    batch = [torch.from_numpy(a.reshape(-1, *a.shape[2:])) for a in (steps["obs"], steps["actions"], steps["log_probs"], advantages, targets)]
    for _ in range(EPOCHS):
        for rows in torch.randperm(NUM_ENVS * NUM_STEPS).split(MINIBATCH):
            seen, actions, log_probs, adv, target = (column[rows] for column in batch)
            policy = Categorical(logits=actor(seen))
            ratio = (policy.log_prob(actions) - log_probs).exp()
            adv = (adv - adv.mean()) / (adv.std() + 1e-8)
            loss = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
            loss = loss + 0.5 * (critic(seen)[:, 0] - target).square().mean() - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(params, 0.5)
            optimizer.step()
taken = updates * NUM_ENVS * NUM_STEPS
alone, all_of_it = taken / stepped, taken / (time.perf_counter() - begin)
print(f"{taken} env steps, {alone:.0f} per second alone, {all_of_it:.0f} with the updates, mean return {np.mean(latest):.1f}")
