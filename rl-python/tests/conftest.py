"""Shared parts of the tests."""

import pytest

import samebits


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A short run on CartPole."""
    path = tmp_path_factory.mktemp("runs") / "cartpole"
    return samebits.train("cartpole", steps=4096, seed=3, num_envs=8, device="cpu", run_dir=path, progress=False)
