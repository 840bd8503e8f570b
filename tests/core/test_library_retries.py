"""How long a communication library repeats by itself, from its variables."""

import pytest

from ftrun.core.rules.library_retries import of_environment


@pytest.mark.parametrize(
    ("environment", "library", "seconds"),
    [
        ({}, "NCCL", 30.06),
        ({"NCCL_IB_TIMEOUT": "18", "NCCL_IB_RETRY_CNT": "7"}, "NCCL", 7.52),
        ({"NCCL_IB_TIMEOUT": "many", "NCCL_IB_RETRY_CNT": "99"}, "NCCL", 30.06),
        ({"ASCEND_HOME_PATH": "/usr/local/Ascend"}, "HCCL", 30.06),
        ({"HCCL_RDMA_TIMEOUT": "6", "HCCL_RDMA_RETRY_CNT": "5"}, "HCCL", 0.00131),
        ({"HCCL_OP_RETRY_ENABLE": "L0:0, L1:0, L2:0"}, "HCCL", 30.06),
        ({"HCCL_OP_RETRY_ENABLE": "L0:0, L1:1, L2:1"}, "HCCL", 30.06 + 5 + 30.06),
        (
            {"HCCL_OP_RETRY_ENABLE": "L2:1", "HCCL_OP_RETRY_PARAMS": "MaxCnt:3, HoldTime:2000, IntervalTime:500"},
            "HCCL",
            30.06 + 2 + 3 * 30.06 + 2 * 0.5,
        ),
    ],
)
def test_the_time_follows_from_the_variables(environment: dict[str, str], library: str, seconds: float) -> None:
    found = of_environment(environment)
    assert found.library == library
    assert found.seconds == pytest.approx(seconds, rel=0.05)
    assert all(f"{name}={text}" in found.settings for name, text in environment.items() if name != "ASCEND_HOME_PATH")
