"""Samples per second of PyTorch for what `rl bench update` does: PPO's update of two tanh networks on 8,192 samples.

    python update_torch.py MINIBATCH THREADS SECONDS [HIDDEN] [plain]

HIDDEN are the sizes of the hidden layers, by default 64,64.
Forward, clipped loss with advantages normalized per minibatch, backward, clipping of the gradient's norm, Adam. With `plain`
neither the normalization nor the clipping of the norm, which `rl` always does.
Prints the median of five parts of the time.
"""

import sys
import time

import torch
from torch import nn

minibatch, threads, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
plain = "plain" in sys.argv[4:]
hidden = [int(size) for arg in sys.argv[4:] if arg != "plain" for size in arg.split(",")] or [64, 64]
torch.set_num_threads(threads)
torch.manual_seed(0)


def net(n_out):
    layers = [layer for n_in, n_out in zip([4, *hidden], hidden) for layer in (nn.Linear(n_in, n_out), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], n_out))


actor, critic = net(2), net(1)
params = [*actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(params, lr=3e-4, eps=1e-5)
n = 8192
obs, actions = torch.randn(n, 4), torch.randint(2, (n,))
advantages, returns = torch.randn(n), torch.randn(n)
with torch.no_grad():
    old = torch.log_softmax(actor(obs), 1).gather(1, actions[:, None])[:, 0]


def update():
    order = torch.randperm(n)
    for start in range(0, n, minibatch):
        rows = order[start:start + minibatch]
        advantage = advantages[rows]
        if not plain:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_probs = torch.log_softmax(actor(obs[rows]), 1)
        ratio = (log_probs.gather(1, actions[rows, None])[:, 0] - old[rows]).exp()
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = (critic(obs[rows])[:, 0] - returns[rows]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        optimizer.zero_grad()
        (policy + 0.5 * value - 0.0 * entropy).backward()
        if not plain:
            nn.utils.clip_grad_norm_(params, 0.5)
        optimizer.step()


update()
rates = []
for _ in range(5):
    begin, updates = time.perf_counter(), 0
    while updates == 0 or time.perf_counter() - begin < seconds / 5:
        update()
        updates += 1
    rates.append(updates * n / (time.perf_counter() - begin))
print(sorted(rates)[2])
