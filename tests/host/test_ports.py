"""The port by which the other members of a group see that PID 1 lives."""

import os
import socket
from types import SimpleNamespace
from typing import Any

from ftrun.host.ports import BACKLOG, LifeSign


def test_who_connects_again_and_again_does_not_keep_pid_1_busy() -> None:
    life, accepted = LifeSign(), list[int]()
    life.close()

    def accept() -> tuple[int, Any]:
        """There is always one more connection."""
        accepted.append(os.open(os.devnull, os.O_RDONLY))
        return accepted[-1], None

    vars(life)["_socket"] = SimpleNamespace(setblocking=lambda flag: None, _accept=accept)
    life.clear()
    assert 0 < len(accepted) <= BACKLOG + 1
    assert not [fd for fd in set(accepted) if os.path.exists(f"/proc/self/fd/{fd}")], "they are closed"


def test_it_accepts_while_it_lives_and_refuses_afterwards() -> None:
    life = LifeSign()
    for _ in range(2 * BACKLOG):
        with socket.create_connection(("127.0.0.1", life.number), timeout=60) as connection:
            connection.sendall(b"garbage")
        life.clear()
    life.close()
    with socket.socket() as refused:
        assert refused.connect_ex(("127.0.0.1", life.number)) != 0
