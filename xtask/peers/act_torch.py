"""Environment steps per second that PyTorch could act for: what `rl bench act` does, without environments.

    python act_torch.py ENVS THREADS SECONDS HIDDEN

Forward passes of a tanh network on one observation of 4 numbers from each environment, an action drawn, its log-probability; after
each 64 of these steps, those of another such network on all of their observations. Prints the median of five parts of the time.
"""

import sys
import time

import torch
from torch import nn

n, threads, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
hidden = [int(size) for size in sys.argv[4].split(",")]
torch.set_num_threads(threads)
torch.manual_seed(0)


def net(n_out):
    layers = [layer for n_in, n_out in zip([4, *hidden], hidden) for layer in (nn.Linear(n_in, n_out), nn.Tanh())]
    return nn.Sequential(*layers, nn.Linear(hidden[-1], n_out))


actor, critic = net(2), net(1)
obs = torch.randn(n, 4)


@torch.no_grad()
def act():
    log_probs = torch.log_softmax(actor(obs), 1)
    actions = torch.multinomial(log_probs.exp(), 1)
    return actions, log_probs.gather(1, actions)


@torch.no_grad()
def rollout():
    for _ in range(64):
        act()
    critic(seen)


seen = obs.repeat(64, 1)
rollout()
rates = []
for _ in range(5):
    begin, steps = time.perf_counter(), 0
    while steps == 0 or time.perf_counter() - begin < seconds / 5:
        rollout()
        steps += 64
    rates.append(steps * n / (time.perf_counter() - begin))
print(sorted(rates)[2])
