"""Environment steps per second of rejax's PPO on gymnax's CartPole, everything included except compilation.

    python train_rejax.py ENVS STEPS MINIBATCHES EPOCHS TOTAL
"""

import sys
import time

import jax
from rejax import PPO

envs, steps, minibatches, epochs, total = map(int, sys.argv[1:])
algo = PPO.create(
    env="CartPole-v1",
    num_envs=envs,
    num_steps=steps,
    num_minibatches=minibatches,
    num_epochs=epochs,
    total_timesteps=total,
    eval_freq=total,
    skip_initial_evaluation=True,
    agent_kwargs={"hidden_layer_sizes": (64, 64), "activation": "tanh"},
)
algo = algo.replace(eval_callback=lambda *_: ())  # ours plays one episode after training, outside of the time
train = jax.jit(algo.train)
jax.block_until_ready(train(jax.random.PRNGKey(0)))
begin = time.perf_counter()
jax.block_until_ready(train(jax.random.PRNGKey(1)))
print(total / (time.perf_counter() - begin))
