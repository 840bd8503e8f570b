"""All sockets of a network namespace: which are connected, and how many bytes they have transferred.

In the own namespace the source is sock_diag(7), because only that has the other end of a Unix socket and the bytes that
TCP has transferred (send(2) and recv(2) are not in /proc/<pid>/io); elsewhere it is /proc/<pid>/net, without these.
"""

import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

from waitproof import procfs
from waitproof.world import Socket

ANSWER: Final = 2.0  # s to wait for the kernel
_STATES: Final = {1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 6: "TIME_WAIT"} | {
    7: "CLOSE",
    8: "CLOSE_WAIT",
    9: "LAST_ACK",
    10: "LISTEN",
    11: "CLOSING",
}  # include/net/tcp_states.h of Linux; Unix sockets have these states as well
_CONNECTED: Final = ("ESTABLISHED", "CLOSE_WAIT")
_SOCK_DIAG: Final = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_ERROR, _DONE = 2, 3
_TCP_INFO: Final = 2  # INET_DIAG_INFO
_NAME, _PEER, _WAITING, _QUEUES = 0, 2, 3, 4  # UNIX_DIAG_NAME, UNIX_DIAG_PEER, UNIX_DIAG_ICONS, UNIX_DIAG_RQLEN
_SHOW: Final = 1 | 4 | 8 | 16  # UDIAG_SHOW_NAME, UDIAG_SHOW_PEER, UDIAG_SHOW_ICONS, UDIAG_SHOW_RQLEN
_BYTES: Final = 120  # offset of tcpi_bytes_acked in struct tcp_info; tcpi_bytes_received follows it
_TABLE: Final = 8 << 20  # bytes of /proc/<pid>/net/*
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"


def list_all(pid: int) -> dict[str, Socket]:
    """The sockets in the network namespace of that process, by the key of their `Descriptor`; a connection that is not
    accepted yet has a key of its own.  Sockets that the kernel does not list are left out."""
    if not _in_own_namespace(pid):
        return _tables(pid)
    found: dict[str, Socket] = {}
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            found |= _inet(family, socket.IPPROTO_TCP, "tcp")
            found |= _inet(family, socket.IPPROTO_UDP, "udp")
        found |= _unix()
    except (OSError, struct.error, ValueError):  # no such module, or forbidden: seccomp, SELinux
        return _tables(pid) | found
    return found


def _key(inode: int, sockets: dict[str, Socket]) -> str:
    return f"socket:[{inode}]" if inode else f"not accepted:{len(sockets)}"


def _in_own_namespace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _inet(family: int, protocol: int, kind: str) -> dict[str, Socket]:
    """struct inet_diag_req_v2, struct inet_diag_msg (linux/inet_diag.h)."""
    request = struct.pack("=BBBxI48x", family, protocol, 1 << (_TCP_INFO - 1), 0xFFFFFFFF)
    found: dict[str, Socket] = {}
    for body in _dump(request):
        ports, addresses = struct.unpack_from("!HH", body, 4), (body[8:24], body[24:40])
        local, remote = (address(family, a, p) for a, p in zip(addresses, ports, strict=True))
        received, sent, _, inode = struct.unpack_from("=IIII", body, 56)
        info = dict(_attributes(body, 72)).get(_TCP_INFO, b"")
        moved = sum(struct.unpack_from("=QQ", info, _BYTES)) if len(info) >= _BYTES + 16 else None
        seen = Socket(kind, local, remote, _STATES.get(body[1], ""), moved=moved)
        if inode or seen.state in _CONNECTED:
            found[_key(inode, found)] = seen if seen.listens else seen._replace(queued=received + sent, unsent=sent)
    return found


def _unix() -> dict[str, Socket]:
    """struct unix_diag_req, struct unix_diag_msg (linux/unix_diag.h).  A listening socket has the sockets that wait to
    be accepted: it is the other end of theirs until then, since the kernel has made none of their own yet."""
    request = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW, 0, 0)
    found, waiting = dict[str, Socket](), dict[str, str]()
    for body in _dump(request):
        (inode,) = struct.unpack_from("=I", body, 4)
        attributes = dict(_attributes(body, 16))
        peer = f"socket:[{struct.unpack('=I', attributes[_PEER][:4])[0]}]" if _PEER in attributes else ""
        queues = struct.unpack("=II", attributes[_QUEUES][:8]) if _QUEUES in attributes else (0, 0)
        name = os.fsdecode(attributes.get(_NAME, b"").rstrip(b"\0").replace(b"\0", b"@"))
        seen = Socket("unix", name, state=_STATES.get(body[2], ""), peer=peer, stream=body[1] != socket.SOCK_DGRAM)
        key = _key(inode, {})
        found[key] = seen if seen.listens else seen._replace(queued=queues[0])
        if seen.listens:
            clients = struct.iter_unpack("=I", attributes.get(_WAITING, b""))
            waiting |= {f"socket:[{client}]": key for (client,) in clients if client}
    return found | {client: found[client]._replace(peer=key) for client, key in waiting.items() if client in found}


def _dump(request: bytes) -> Iterator[bytes]:
    """The bodies of the answer; OSError if the kernel refuses the request."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as netlink:
        netlink.settimeout(ANSWER)
        netlink.send(struct.pack("=IHHII", 16 + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        while True:
            content, at = netlink.recv(1 << 18), 0
            while at + 16 <= len(content):
                length, kind = struct.unpack_from("=IH", content, at)
                body = content[at + 16 : at + length]
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", body)[0], "sock_diag")
                if length < 16:
                    raise ValueError("not a netlink message")
                yield body
                at += (length + 3) & ~3


def _attributes(body: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    while at + 4 <= len(body):
        length, kind = struct.unpack_from("=HH", body, at)
        if length < 4:
            return
        yield kind, body[at + 4 : at + length]
        at += (length + 3) & ~3


def address(family: int, packed: bytes, port: int) -> str:
    """The address as text; an IPv4 address of an IPv6 socket is written as an IPv4 address."""
    if family == socket.AF_INET6 and packed[:12] == _MAPPED:
        family, packed = socket.AF_INET, packed[12:]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(socket.AF_INET, packed[:4])}:{port}"
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]:{port}"


def _tables(pid: int) -> dict[str, Socket]:
    """The sockets in /proc/<pid>/net (proc_pid_net(5)); Unix sockets are left out, because their peer is unknown."""
    found: dict[str, Socket] = {}
    for name in ("tcp", "tcp6", "udp", "udp6"):
        family = socket.AF_INET6 if name.endswith("6") else socket.AF_INET
        content = procfs.read(f"/proc/{pid}/net/{name}", _TABLE) or b""
        for line in content.decode("ascii", "replace").splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9:
                local, remote = (address(family, *_unpacked(field)) for field in fields[1:3])
                seen = Socket(name[:3], local, remote, _STATES.get(int(fields[3], 16), ""))
                sent, received = (0 if seen.listens else int(part, 16) for part in fields[4].split(":"))
                if fields[9] != "0" or seen.state in _CONNECTED:
                    found[_key(int(fields[9]), found)] = seen._replace(queued=sent + received, unsent=sent)
    return found


def _unpacked(text: str) -> tuple[bytes, int]:
    """The bytes and the port of `0100007F:1F90`: the address is in 32-bit numbers of the machine's byte order."""
    digits, _, port = text.partition(":")
    return b"".join(struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8)), int(port, 16)
