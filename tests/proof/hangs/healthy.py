"""Healthy programs that stand still for a while: the rows of the matrix, in which ftrun may never find a hang."""

from __future__ import annotations

from proof.hangs.healthy_torch import WITH_TORCH
from proof.hangs.waits import WAITS

ROWS = {row.name: row for row in (*WAITS, *WITH_TORCH)}
