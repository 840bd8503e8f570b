"""What a healthy program of the matrix is: its text, what acts from outside, how much it computes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from proof.hangs.actors import Actor, nobody
from support.runs import HOUSE

HEAD = f"""
import http.client, os, signal, socket, subprocess, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
sys.path.insert(0, {str(HOUSE / "hooks")!r})
import ftrun_hooks as ft
port, database, seconds, folder, moment = (kind(word) for kind, word in zip((int, int, float, str, str), sys.argv[1:]))
first, pause = {{'before': (0, 0), 'early': (5, 0.2), 'learned': (120, 0.02), 'silent': (0, 0)}}[moment]
def steps(begin, count):
    for step in range(begin, begin + count):
        if moment != 'silent':
            ft.beat(step)
        time.sleep(pause)
def waits():
    with open(folder + '/waiting', 'w') as file:
        file.write(str(os.getpid()))
    os.rename(folder + '/waiting', folder + '/waits')
def until_done():
    waits()
    while not os.path.exists(folder + '/done'):
        time.sleep(0.2)
def ask(path, body=None):
    connection = http.client.HTTPConnection('127.0.0.1', port)
    connection.request('PUT', path, body)
    reply = connection.getresponse()
    reply.read()
    return reply.status
def upload(rate):
    return ask('/%d' % rate, bytes(int(rate * seconds)))
def asked(path):
    '''The words of a program that makes this request.'''
    code = 'import http.client; c = http.client.HTTPConnection("127.0.0.1", %d); '
    code += 'c.request("PUT", "%s"); r = c.getresponse(); r.read(); print(r.status)'
    return [sys.executable, '-c', code % (port, path)]
def number(name):
    while not os.path.exists(folder + '/' + name):
        time.sleep(0.01)
    with open(folder + '/' + name) as file:
        return int(file.read())
def long_enough(compute, small):
    '''Compute for about as long as is asked: `compute(n)` takes a time in proportion to n.'''
    begun = time.monotonic()
    compute(small)
    compute(int(small * 1.3 * seconds / (time.monotonic() - begun)))
def publish(name, value):
    with open(folder + '/' + name + '.new', 'w') as file:
        file.write(str(value))
    os.rename(folder + '/' + name + '.new', folder + '/' + name)
"""
MAIN = """
def main():
    steps(0, first)
"""
TAIL = """
    steps(first, 20)
    if moment != 'silent':
        ft.done()
if __name__ == '__main__':
    main()
"""
MOMENTS = ("learned", "before", "early", "silent")  # `silent`: it never gives a heartbeat


class Row(NamedTuple):
    """`cores`: how much it computes; `words`: another command than the program of `text`; `lacks`: why it cannot run
    here, or nothing; `head`: what the text uses."""

    group: str
    name: str
    text: str = ""
    actor: Actor = nobody
    seconds: float | None = None
    cores: float = 0.05
    words: Callable[[Path, list[str]], list[str]] | None = None
    moments: tuple[str, ...] = MOMENTS
    lacks: Callable[[], str] = str
    head: str = ""

    def command(self, folder: Path, arguments: list[str]) -> list[str]:
        if self.words is not None:
            return self.words(folder, arguments)
        text = "".join(f"    {line}\n" for line in self.text.strip().splitlines())
        (folder / "train.py").write_text(f"{HEAD}{self.head}{MAIN}{text}{TAIL}")
        return [sys.executable, str(folder / "train.py"), *arguments]
