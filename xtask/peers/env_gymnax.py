"""Environment steps per second of an environment of gymnax with random actions, compiled by JAX: the best of several sizes.

    python env_gymnax.py NAME rollout|nothing SECONDS SIZE..

Observations, rewards and flags of 128 steps are kept, as in a rollout, or nothing but the sum of the rewards; episodes restart
where they end.
"""

import sys
import time

import gymnax
import jax

N_STEPS = 128
keep, seconds = sys.argv[2] == "rollout", float(sys.argv[3])
env, params = gymnax.make(sys.argv[1])


def rate(n_envs):
    """Environment steps per second with n_envs environments."""
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def one(carry, _):
        key, state = carry
        key, key_action, key_step = jax.random.split(key, 3)
        actions = jax.random.randint(key_action, (n_envs,), 0, env.num_actions)
        obs, state, reward, *flags, _ = step(jax.random.split(key_step, n_envs), state, actions, params)
        return (key, state), (obs, actions, reward, flags) if keep else reward.sum()

    rollout = jax.jit(lambda carry: jax.lax.scan(one, carry, None, N_STEPS))
    key = jax.random.PRNGKey(0)
    _, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(key, n_envs), params)
    carry, _ = jax.block_until_ready(rollout((key, state)))
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        carry, _ = jax.block_until_ready(rollout(carry))
        steps += N_STEPS * n_envs
    return steps / (time.perf_counter() - begin)


print(max(rate(int(size)) for size in sys.argv[4:]))
