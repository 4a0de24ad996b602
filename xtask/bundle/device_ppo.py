"""PPO on CartPole by JAX, jitted whole: device_ppo.py [ENVS..]; one JSON object a line.

The settings of the bundle's trainings: rollouts of 32 steps, minibatches of a quarter of a rollout, 4 epochs, two networks of two layers
of WIDTH, 64 by default, with tanh, Adam, normalized advantages, clipped surrogate. An iteration (acting, environments, advantages, 16 steps of the optimizer) is
one compiled program, and 10 iterations are one call. Environment steps a second, the median of 5 calls after one that compiles.
"""

import functools
import json
import math
import os
import sys
import time

import jax
import jax.numpy as jnp

N_STEPS, N_EPOCHS, N_MINIBATCHES, ITERATIONS = 32, 4, 4, 10
WIDTH = int(os.environ.get("WIDTH", "64"))
GAMMA, LAMBDA, CLIP, VF_COEF, MAX_NORM, RATE = 0.99, 0.95, 0.2, 0.5, 0.5, 3e-4


def dense(key, n_in, n_out, gain):
    return {"w": jax.nn.initializers.orthogonal(gain)(key, (n_in, n_out)), "b": jnp.zeros(n_out)}


def network(key, n_out, gain):
    keys = jax.random.split(key, 3)
    return [dense(keys[0], 4, WIDTH, math.sqrt(2)), dense(keys[1], WIDTH, WIDTH, math.sqrt(2)), dense(keys[2], WIDTH, n_out, gain)]


def forward(layers, x):
    for layer in layers[:-1]:
        x = jnp.tanh(x @ layer["w"] + layer["b"])
    return x @ layers[-1]["w"] + layers[-1]["b"]


def fresh(key, n):
    return jax.random.uniform(key, (n, 4), minval=-0.05, maxval=0.05)


def step_envs(state, elapsed, action, key):
    x, x_dot, theta, theta_dot = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(theta), jnp.cos(theta)
    temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
    theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    x_acc = temp - 0.05 * theta_acc * cos / 1.1
    after = jnp.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], 1)
    elapsed = elapsed + 1
    terminated = (jnp.abs(after[:, 0]) > 2.4) | (jnp.abs(after[:, 2]) > 12 * 2 * math.pi / 360)
    truncated = elapsed >= 500
    done = terminated | truncated
    begun = jnp.where(done[:, None], fresh(key, len(state)), after)
    return begun, jnp.where(done, 0, elapsed), after, terminated, done


def act(carry, _):
    params, state, elapsed, key = carry
    key, of_action, of_envs = jax.random.split(key, 3)
    logits, value = forward(params["actor"], state), forward(params["critic"], state)[:, 0]
    action = jax.random.categorical(of_action, logits)
    log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), action[:, None], 1)[:, 0]
    begun, elapsed, after, terminated, done = step_envs(state, elapsed, action, of_envs)
    # The value of the observation after the step, which bootstraps steps that were cut off by the time limit.
    next_value = jnp.where(terminated, 0.0, forward(params["critic"], after)[:, 0])
    return (params, begun, elapsed, key), (state, action, log_prob, value, next_value, done)


def loss(params, batch):
    obs, action, old, advantage, target = batch
    log_probs = jax.nn.log_softmax(forward(params["actor"], obs))
    log_prob = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
    value = forward(params["critic"], obs)[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob - old)
    policy = -jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage).mean()
    return policy + VF_COEF * ((value - target) ** 2).mean()


def adam(params, gradient, m, v, n):
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    gradient = jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_NORM / (norm + 1e-6)), gradient)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, gradient)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, gradient)
    rate, root = RATE / (1 - 0.9**n), jnp.sqrt(1 - 0.999**n)
    return jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) / root + 1e-5), params, m, v), m, v


def iteration(carry, _):
    params, m, v, n, state, elapsed, key = carry
    (_, state, elapsed, key), columns = jax.lax.scan(act, (params, state, elapsed, key), None, N_STEPS)
    obs, action, old, value, next_value, done = columns

    def gae(next_advantage, row):
        value, next_value, done = row
        advantage = 1.0 + GAMMA * next_value - value + GAMMA * LAMBDA * (1.0 - done) * next_advantage
        return advantage, advantage

    _, advantage = jax.lax.scan(gae, jnp.zeros_like(value[0]), (value, next_value, done.astype(jnp.float32)), reverse=True)
    samples = [column.reshape(-1, *column.shape[2:]) for column in (obs, action, old, advantage, advantage + value)]

    def minibatch(carry, rows):
        params, m, v, n = carry
        gradient = jax.grad(loss)(params, [column[rows] for column in samples])
        return (*adam(params, gradient, m, v, n + 1), n + 1), None

    def epoch(carry, key):
        order = jax.random.permutation(key, len(samples[0])).reshape(N_MINIBATCHES, -1)
        return jax.lax.scan(minibatch, carry, order)

    key, *keys = jax.random.split(key, 1 + N_EPOCHS)
    (params, m, v, n), _ = jax.lax.scan(epoch, (params, m, v, n), jnp.stack(keys))
    return (params, m, v, n, state, elapsed, key), done.sum()


@functools.partial(jax.jit, donate_argnums=0)
def train(carry):
    return jax.lax.scan(iteration, carry, None, ITERATIONS)


for n_envs in [int(arg) for arg in sys.argv[1:]] or [1024, 4096, 16384, 65536]:
    of_actor, of_critic, of_envs, key = jax.random.split(jax.random.key(0), 4)
    params = {"actor": network(of_actor, 2, 0.01), "critic": network(of_critic, 1, 1.0)}
    zeros = jax.tree.map(jnp.zeros_like, params)
    carry = (params, zeros, jax.tree.map(jnp.zeros_like, params), jnp.float32(0), fresh(of_envs, n_envs), jnp.zeros(n_envs, jnp.int32), key)
    rates, lengths = [], []
    for call in range(6):
        begin = time.perf_counter()
        carry, ended = train(carry)
        ended = ended.sum().block_until_ready().item()
        rate = ITERATIONS * N_STEPS * n_envs / (time.perf_counter() - begin)
        rates.append(rate)
        lengths.append(ITERATIONS * N_STEPS * n_envs / max(1, ended))
    rates = sorted(rates[1:])
    precision = os.environ.get("JAX_DEFAULT_MATMUL_PRECISION", "default")
    row = {"name": "peer", "peer": "jax-ppo", "precision": precision, "envs": n_envs, "hidden": [WIDTH, WIDTH], "value": rates[2], "least": rates[0], "most": rates[4], "unit": "env_steps/s"}
    print(json.dumps({**row, "episode_lengths": [round(length, 1) for length in lengths]}), flush=True)
