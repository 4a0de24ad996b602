"""Samples per second of PyTorch for what `rl bench update --env snake --conv 16x3x1,32x3x1` does: PPO's update of a shared network of
convolutions and a dense layer of 128, with ReLU, on 8,192 samples of 5 planes of 12 by 12. With `nature`, what
`rl bench update --obs 84x84x4 --conv 32x8x4,64x4x2,64x3x1` does: the network of Mnih et al. (2015), without masks.

    python update_torch_conv.py MINIBATCH THREADS SECONDS [nature]

Bytes to floats, forward, masks, clipped loss with advantages normalized per minibatch, backward, clipping of the gradient's norm,
Adam. Prints the median of five parts of the time.
"""

import sys
import time

import torch
from torch import nn

minibatch, threads, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
nature = sys.argv[4:] == ["nature"]
torch.set_num_threads(threads)
torch.manual_seed(0)

if nature:
    shape, sizes, hidden = (4, 84, 84), [(32, 8, 4), (64, 4, 2), (64, 3, 1)], 512
else:
    shape, sizes, hidden = (5, 12, 12), [(16, 3, 1), (32, 3, 1)], 128
layers, n_in = [], shape[0]
for n_out, kernel, stride in sizes:
    layers += [nn.Conv2d(n_in, n_out, kernel, stride), nn.ReLU()]
    n_in = n_out
features = nn.Sequential(*layers, nn.Flatten())
n_features = features(torch.zeros(1, *shape)).shape[1]
body = nn.Sequential(features, nn.Linear(n_features, hidden), nn.ReLU())
actor, critic = nn.Linear(hidden, 4), nn.Linear(hidden, 1)
params = [*body.parameters(), *actor.parameters(), *critic.parameters()]
optimizer = torch.optim.Adam(params, lr=3e-4, eps=1e-5)
n = 8192
obs, actions = torch.randint(256, (n, *shape), dtype=torch.uint8), torch.randint(4, (n,))
masks = (torch.rand(n, 4) < 0.75).scatter(1, actions[:, None], True)
advantages, returns = torch.randn(n), torch.randn(n)


def forward(rows):
    features = body(obs[rows].float() * (1 / 255))
    logits = actor(features) if nature else actor(features).masked_fill(~masks[rows], -1e9)
    return torch.log_softmax(logits, 1), critic(features)[:, 0]


with torch.no_grad():
    old = torch.cat([forward(rows)[0] for rows in torch.arange(n).split(256)]).gather(1, actions[:, None])[:, 0]


def update():
    order = torch.randperm(n)
    for start in range(0, n, minibatch):
        rows = order[start:start + minibatch]
        advantage = advantages[rows]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        log_probs, values = forward(rows)
        ratio = (log_probs.gather(1, actions[rows, None])[:, 0] - old[rows]).exp()
        policy = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        value = (values - returns[rows]).square().mean()
        entropy = -(log_probs.exp() * log_probs).sum(1).mean()
        optimizer.zero_grad()
        (policy + 0.5 * value - 0.0 * entropy).backward()
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
