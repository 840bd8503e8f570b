"""A TCP proxy that disturbs connections: `tcp_proxy.py LISTEN TARGET`; each line on stdin is answered with `ok`.

`delay SECONDS`, `stall`, `flow`, `cut`, `count` (its connections) are as in `hosts.Proxy`.  It ends with its stdin.
"""

import asyncio
import sys
from collections import deque


class Proxy:
    def __init__(self, listen: str, target: str) -> None:
        self._listen, self._target = listen.rpartition(":"), target.rpartition(":")
        self._delay = 0.0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        await asyncio.start_server(self._accepted, self._listen[0], int(self._listen[2]))
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        print("ok", flush=True)
        while request := (await lines.readline()).decode().split():
            answer = ""
            match request:
                case ["delay", seconds]:
                    self._delay = float(seconds)
                case ["stall"]:
                    self._flowing.clear()
                case ["flow"]:
                    self._flowing.set()
                case ["cut"]:
                    for writer in self._open:
                        writer.transport.abort()
                case ["count"]:
                    answer = f" {len(self._open) // 2}"
            print(f"ok{answer}", flush=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = await asyncio.open_connection(self._target[0], int(self._target[2]))
        except OSError:
            writer.transport.abort()
            return
        pair = {writer, target[1]}
        self._open |= pair
        both = asyncio.gather(self._carry(reader, target[1]), self._carry(target[0], writer))
        try:
            await both
        except (OSError, asyncio.IncompleteReadError):
            both.cancel()
        self._open -= pair
        for one in pair:
            one.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward data until the end, or until an error, which ends both ways."""
        under_way: deque[tuple[float, bytes]] = deque()
        came = asyncio.Event()
        clock = asyncio.get_running_loop().time

        async def deliver() -> None:
            while True:
                while not under_way:
                    came.clear()
                    await came.wait()
                due, data = under_way.popleft()
                await asyncio.sleep(due - clock())
                await self._flowing.wait()
                if not data:
                    raise OSError("the end")
                writer.write(data)
                await writer.drain()

        delivering = asyncio.ensure_future(deliver())
        try:
            while True:
                data = await reader.read(65536)
                under_way.append((clock() + self._delay, data))
                came.set()
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()


if __name__ == "__main__":
    asyncio.run(Proxy(*sys.argv[1:]).serve())
