"""Steps or transitions per second from a loop of Python: our package or a peer's.

    python from_python.py WHO steps ENV SIZE SECONDS
    python from_python.py WHO add|sample|update BATCH SECONDS

Steps: random actions from NumPy, drawn inside the clock; all columns are there after each step. Transitions: observations of four f32
numbers, a memory of a million; `update` draws by priorities and sets them anew.
"""

import sys
import time

import numpy as np

who, what = sys.argv[1:3]
seconds = float(sys.argv[-1])
rng = np.random.default_rng(0)


def rate(work, n):
    """Things per second of a function that does n at a time: the median of five parts, after a warm-up."""
    begin, rates = time.perf_counter(), []
    while time.perf_counter() - begin < min(1.0, seconds):
        work()
    for _ in range(5):
        begin, done = time.perf_counter(), 0
        while done == 0 or time.perf_counter() - begin < seconds / 5:
            work()
            done += n
        rates.append(done / (time.perf_counter() - begin))
    return sorted(rates)[2]


def envs(name, n):
    """A function that steps n environments."""
    if who.startswith("samebits"):
        import samebits

        ours = samebits.make_vec(name, n, threads=2 if n > 256 else 1, copy=who.endswith("copy"))
        ours.reset(seed=0)
        n_actions = int(ours.single_action_space.n)
        return lambda: ours.step(rng.integers(n_actions, size=n))
    if who == "envpool":
        import envpool

        task = {"cartpole": "CartPole-v1", "snake": "Jumanji/Snake-v1"}[name]
        theirs = envpool.make(task, env_type="gymnasium", num_envs=n, num_threads=min(n, 2), seed=0)
        theirs.reset()
        n_actions = int(theirs.action_space.n)
        return lambda: theirs.step(rng.integers(n_actions, size=n, dtype=np.int32))
    if who in ("sync", "vector"):
        import gymnasium

        mode = {"sync": "sync", "vector": "vector_entry_point"}[who]
        theirs = gymnasium.make_vec("CartPole-v1", num_envs=n, vectorization_mode=mode)
        theirs.reset(seed=0)
        return lambda: theirs.step(rng.integers(2, size=n))
    import gymnax
    import jax

    env, params = gymnax.make("CartPole-v1")
    step = jax.jit(lambda key, *rest: jax.vmap(env.step, in_axes=(0, 0, 0, None))(jax.random.split(key, n), *rest))
    state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(jax.random.PRNGKey(0), n), params)[1]
    held = [state, 0]

    def work():
        held[1] += 1
        out = step(jax.random.PRNGKey(held[1]), held[0], rng.integers(2, size=n), params)
        held[0] = out[1]
        return jax.device_get(jax.block_until_ready((out[0], *out[2:-1])))

    return work


def replay(n):
    """A function that adds, draws, or draws and updates n transitions of a full memory."""
    capacity, is_prioritized = 1_000_000, what == "update"
    obs, act, rew = rng.random((4096, 4), dtype=np.float32), np.ones(4096, np.uint32), rng.random(4096, dtype=np.float32)
    done, errors = rew < 0.05, rng.random(n, dtype=np.float32)
    if who == "samebits":
        from samebits import PrioritizedReplayBuffer, ReplayBuffer

        memory = (PrioritizedReplayBuffer if is_prioritized else ReplayBuffer)(capacity, (4,), n_envs=4096)
        add = lambda: memory.add(obs, act, rew, obs, done)
        draw = lambda: memory.sample(n)
        update = lambda: memory.update_priorities(draw()["indices"], errors)
    elif who == "cpprb":
        import cpprb

        fields = {"obs": {"shape": 4}, "act": {"dtype": np.uint32}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
        memory = cpprb.PrioritizedReplayBuffer(capacity, fields, alpha=0.6) if is_prioritized else cpprb.ReplayBuffer(capacity, fields)
        flags = done.astype(np.float32)
        add = lambda: memory.add(obs=obs, act=act, rew=rew, next_obs=obs, done=flags)
        draw = lambda: memory.sample(n)
        update = lambda: memory.update_priorities(draw()["indexes"], errors)
    else:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer

        torch.set_num_threads(1)
        kind = {"alpha": 0.6, "beta": 0.4, "priority_key": "error"} if is_prioritized else {}
        kind["storage"] = LazyTensorStorage(capacity)
        memory = (TensorDictPrioritizedReplayBuffer if is_prioritized else TensorDictReplayBuffer)(batch_size=n, **kind)
        columns = {"obs": obs, "act": act.astype(np.int32), "rew": rew, "next_obs": obs, "done": done}
        step = TensorDict({name: torch.from_numpy(column) for name, column in columns.items()}, batch_size=4096)
        priorities = torch.from_numpy(errors) + 1e-6
        add = lambda: memory.extend(step)
        draw = lambda: memory.sample()

        def update():
            drawn = draw()
            memory.update_priority(drawn["index"], priorities)

    for _ in range(capacity // 4096 + 1):
        add()
    return {"add": add, "sample": draw, "update": update}[what]


if what == "steps":
    print(rate(envs(sys.argv[3], int(sys.argv[4])), int(sys.argv[4])))
else:
    size = int(sys.argv[3])
    print(rate(replay(size), 4096 if what == "add" else size))
