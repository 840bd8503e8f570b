"""The step of a checkpoint file, where its path has one."""

import pytest

from ftrun.core.rules.policy import step_of


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("/c/step-100.pt", 100),
        ("/c/global_step100", 100),
        ("/c/epoch=3-step=1000.ckpt", 1000),
        ("/c/epoch_0_step_3", 3),
        ("/c/epoch_7.pt", 7),
        ("/c/iter_0000100", 100),
        ("/c/checkpoint-500/model-00001-of-00004.safetensors", 500),
        ("/c/step-12/__0_0.distcp", 12),
        ("/c/7", 7),
        ("/runs/20260101_1200/snapshot-12.pt", 12),
        ("/c/last.ckpt", None),
        ("/c/last-v2.ckpt", None),
        ("/c/llama3.pt", None),
        ("/c/model_7b.pt", None),
        ("/run2/last/__0_0.distcp", None),
        ("/c/last/mp_rank_00.pt", None),
        ("/c/latest_checkpointed_iteration.txt", None),
        ("/", None),
    ],
)
def test_the_step_of_a_path(path: str, step: int | None) -> None:
    assert step_of(path) == step
