"""Environment steps per second of RLlib's PPO on CartPole, everything included.

    python train_rllib.py ENVS STEPS BATCH EPOCHS RUNNERS LEARNERS ITERATIONS

RUNNERS processes collect, LEARNERS processes learn; 0 learners: the main process learns. The first iteration does not count.
"""

import os
import sys
import time

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_DEDUP_LOGS", "1")

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


def main():
    envs, steps, batch, epochs, runners, learners, iterations = map(int, sys.argv[1:])
    ray.init(num_cpus=runners + learners + 2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    of_learner = envs * steps // max(learners, 1)
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=runners, num_envs_per_env_runner=envs // runners, rollout_fragment_length=steps)
        .learners(num_learners=learners, num_gpus_per_learner=0)
        .training(
            train_batch_size_per_learner=of_learner,
            minibatch_size=batch // max(learners, 1),
            num_epochs=epochs,
            lr=3e-4,
            use_kl_loss=False,
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], vf_share_layers=False))
    )
    algo = config.build_algo()
    algo.train()
    begin, before = time.perf_counter(), sampled(algo)
    for _ in range(iterations):
        algo.train()
    rate = (sampled(algo) - before) / (time.perf_counter() - begin)
    algo.stop()
    print(rate)


def sampled(algo):
    """Environment steps so far."""
    return algo.metrics.peek(("env_runners", "num_env_steps_sampled_lifetime"))


if __name__ == "__main__":
    main()
