"""CartPole on a GPU by others, and by processes: device_cartpole.py torch|numba|gymnax|gymnasium; one JSON object a line.

Environment steps a second with random actions drawn inside the clock, episodes begun anew where they end (at 500 steps or by falling),
observations, rewards and flags kept as tensors; against the number of environments, and of 65,536 against the work of a step, which is
done `repeat` times with the same action and counted once. The clock stops after the device is done.
"""

import json
import math
import sys
import time

SIZES = [2**power for power in range(0, 23, 2)]
CASES = [(n, 1) for n in SIZES] + [(65536, repeat) for repeat in (4, 16, 64, 256)]
SECONDS = 1.0


def report(peer, n, rate, repeat=1):
    row = {"name": "peer", "peer": peer, "envs": n, "repeat": repeat, "value": rate, "unit": "env_steps/s"}
    print(json.dumps(row), flush=True)


def timed(work, steps, wait):
    work()
    wait()
    rounds, begin = 0, time.perf_counter()
    while rounds == 0 or time.perf_counter() - begin < SECONDS:
        work()
        wait()
        rounds += 1
    return rounds * steps / (time.perf_counter() - begin)


def torch_tensors():
    import torch

    device = torch.device("cuda")

    def fresh(n):
        return torch.rand(n, 4, device=device) * 0.1 - 0.05

    for n, repeat in CASES:
        state, elapsed = fresh(n), torch.zeros(n, dtype=torch.int32, device=device)

        def step(action):
            nonlocal state, elapsed
            x, x_dot, theta, theta_dot = state.unbind(1)
            force = torch.where(action == 1, 10.0, -10.0)
            sin, cos = torch.sin(theta), torch.cos(theta)
            temp = (force + 0.05 * theta_dot**2 * sin) / 1.1
            theta_acc = (9.8 * sin - cos * temp) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
            x_acc = temp - 0.05 * theta_acc * cos / 1.1
            state = torch.stack([x + 0.02 * x_dot, x_dot + 0.02 * x_acc, theta + 0.02 * theta_dot, theta_dot + 0.02 * theta_acc], 1)
            elapsed = elapsed + 1
            terminated = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * 2 * math.pi / 360)
            truncated = elapsed >= 500
            done = terminated | truncated
            state = torch.where(done[:, None], fresh(n), state)
            elapsed = torch.where(done, 0, elapsed)
            return torch.ones(n, device=device), terminated, truncated

        steps = max(1, 64 // repeat)

        def work():
            for _ in range(steps):
                action = torch.randint(0, 2, (n,), device=device)
                for _ in range(repeat):
                    step(action)

        report("torch", n, timed(work, steps * n, torch.cuda.synchronize), repeat)


def numba_kernel():
    import numba
    import numpy as np
    from numba import cuda
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    f32 = numba.float32

    @cuda.jit
    def step(state, elapsed, forces, drawn, obs, rewards, terminated, truncated, rng):
        i = cuda.grid(1)
        if i >= state.shape[1]:
            return
        x, x_dot, theta, theta_dot = state[0, i], state[1, i], state[2, i], state[3, i]
        if drawn:
            forces[i] = f32(10.0) if xoroshiro128p_uniform_float32(rng, i) < f32(0.5) else f32(-10.0)
        force = forces[i]
        sin, cos = math.sin(theta), math.cos(theta)
        temp = (force + f32(0.05) * theta_dot * theta_dot * sin) / f32(1.1)
        theta_acc = (f32(9.8) * sin - cos * temp) / (f32(0.5) * (f32(4.0 / 3.0) - f32(0.1) * cos * cos / f32(1.1)))
        x_acc = temp - f32(0.05) * theta_acc * cos / f32(1.1)
        x += f32(0.02) * x_dot
        x_dot += f32(0.02) * x_acc
        theta += f32(0.02) * theta_dot
        theta_dot += f32(0.02) * theta_acc
        elapsed[i] += 1
        fell = abs(x) > f32(2.4) or abs(theta) > f32(12 * 2 * math.pi / 360)
        late = elapsed[i] >= 500
        rewards[i], terminated[i], truncated[i] = f32(1.0), fell, late
        if fell or late:
            x = xoroshiro128p_uniform_float32(rng, i) * f32(0.1) - f32(0.05)
            x_dot = xoroshiro128p_uniform_float32(rng, i) * f32(0.1) - f32(0.05)
            theta = xoroshiro128p_uniform_float32(rng, i) * f32(0.1) - f32(0.05)
            theta_dot = xoroshiro128p_uniform_float32(rng, i) * f32(0.1) - f32(0.05)
            elapsed[i] = 0
        state[0, i], state[1, i], state[2, i], state[3, i] = x, x_dot, theta, theta_dot
        obs[i, 0], obs[i, 1], obs[i, 2], obs[i, 3] = x, x_dot, theta, theta_dot

    for n, repeat in CASES:
        state, elapsed = cuda.to_device(np.zeros((4, n), np.float32)), cuda.to_device(np.zeros(n, np.int32))
        obs, rewards = cuda.device_array((n, 4), np.float32), cuda.device_array(n, np.float32)
        terminated, truncated = cuda.device_array(n, np.uint8), cuda.device_array(n, np.uint8)
        forces, rng = cuda.device_array(n, np.float32), create_xoroshiro128p_states(n, seed=1)
        steps = max(1, 64 // repeat)

        def work():
            for _ in range(steps):
                for j in range(repeat):
                    step[(n + 127) // 128, 128](state, elapsed, forces, j == 0, obs, rewards, terminated, truncated, rng)

        report("numba", n, timed(work, steps * n, cuda.synchronize), repeat)


def gymnax_scan():
    import gymnax
    import jax

    env, params = gymnax.make("CartPole-v1")
    for n, repeat in CASES:
        steps = max(1, 64 // repeat)

        def one(carry, _):
            key, state = carry
            key, key_action = jax.random.split(key)
            action = jax.random.randint(key_action, (n,), 0, 2)

            def again(carry, _):
                key, state = carry
                key, key_step = jax.random.split(key)
                obs, state, reward, *flags, _ = jax.vmap(env.step, (0, 0, 0, None))(
                    jax.random.split(key_step, n), state, action, params
                )
                return (key, state), (obs, reward, flags)

            carry, kept = jax.lax.scan(again, (key, state), None, repeat)
            return carry, jax.tree.map(lambda rows: rows[-1], kept)

        rollout = jax.jit(lambda carry: jax.lax.scan(one, carry, None, steps))
        _, state = jax.vmap(env.reset, (0, None))(jax.random.split(jax.random.PRNGKey(0), n), params)
        carry, out = (jax.random.PRNGKey(1), state), None

        def work():
            nonlocal carry, out
            carry, out = rollout(carry)

        report("gymnax", n, timed(work, steps * n, lambda: jax.block_until_ready((carry, out))), repeat)


def gymnasium_processes():
    import gymnasium
    import numpy as np

    for n in [16, 64]:
        envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * n)
        envs.reset(seed=0)
        random = np.random.default_rng(0)

        def work():
            for _ in range(64):
                envs.step(random.integers(0, 2, n))

        report("gymnasium-async", n, timed(work, 64 * n, lambda: None))
        envs.close()


{"torch": torch_tensors, "numba": numba_kernel, "gymnax": gymnax_scan, "gymnasium": gymnasium_processes}[sys.argv[1]]()
