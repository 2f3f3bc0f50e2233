"""Nodes of a cluster on one machine: network namespaces, connected by a link with a delay and a limited rate.

Each namespace has one end of a TUN device. A process forwards their packets, each after the time given by the rate and
delay of the link, as ``tc qdisc add ... netem delay D rate R`` would do for each node's outgoing packets. It runs in
user space, so it also works with kernels without netem. It needs root, /dev/net/tun, ip (Debian's iproute2), and MPICH,
whose mpiexec can start ranks by a replacement of ssh.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU, QUEUE = 9000, 5000
READY = "ready"
HEADERS = 52  # bytes of the IPv4 and TCP headers of a packet


@dataclass(frozen=True)
class Line:
    """The link from each node to the others.

    Attributes
    ----------
    delay : float
        Delay of each packet, in seconds.
    rate : float
        Maximum number of bytes per second that a node sends; 0 for no limit.
    """

    delay: float = 0.0
    rate: float = 0.0

    def __str__(self) -> str:
        rate = f"{self.rate / 1e6:g} MB/s" if self.rate else "unlimited rate"
        return f"a delay of {1e3 * self.delay:g} ms, {rate}"

    @property
    def per_byte(self) -> float:
        """Seconds per byte of a long message."""
        return MTU / (MTU - HEADERS) / self.rate if self.rate else 0.0


def unavailable() -> str:
    """Reason why this machine cannot create the nodes; empty if it can."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "no ip: apt install iproute2"
    if not Path("/dev/net/tun").exists():
        return "no /dev/net/tun"
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None or not (Path(mpiexec).resolve().parent / "hydra_pmi_proxy").exists():
        return "mpiexec is not MPICH's"
    first = [sys.executable, "-S", "-c", "import os; os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"]
    if subprocess.run(first, capture_output=True, check=False).returncode:
        return "real-time priority, which the process that forwards packets needs, is not allowed here"
    name = f"cakernels{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return ""


def _address(node: int) -> str:
    """Address of a node; 0 is this machine. 198.18.0.0/15 is reserved for benchmarks (RFC 2544)."""
    return f"198.18.{os.getpid() % 256}.{node + 1}"


@contextmanager
def nodes(count: int, line: Line) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Create `count` nodes; yield the first words of a command, up to the number of ranks, and its environment."""
    devices = [f"cak{os.getpid() % 100000}n{node}" for node in range(count + 1)]
    spaces = {node: f"cakernels-{_address(node)}" for node in range(1, count + 1)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        words = [sys.executable, "-m", "benchmarks.cluster.namespaces", str(line.delay), str(line.rate), *devices]
        relay = stack.enter_context(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        stack.callback(relay.kill)  # if the following steps fail
        assert relay.stdout is not None
        if relay.stdout.readline().strip() != READY:
            raise RuntimeError(f"{' '.join(words)}: exited with status {relay.wait()}")
        for node, device in enumerate(devices):
            if node:
                _ip("netns", "add", spaces[node])
                stack.callback(_ip, "netns", "del", spaces[node])
                _ip("link", "set", device, "netns", spaces[node])
            inside = ["-n", spaces[node]] if node else []
            _ip(*inside, "address", "add", f"{_address(node)}/24", "dev", device)
            _ip(*inside, "link", "set", device, "mtu", str(MTU), "txqueuelen", str(QUEUE), "up")
            if node:
                _ip(*inside, "link", "set", "lo", "up")
        shell = folder / "shell"
        shell.write_text('#!/bin/sh\nshift\nhost=$1\nshift\nexec ip netns exec "cakernels-$host" sh -c "$*"\n')
        shell.chmod(0o755)
        hosts = ",".join(_address(node) for node in spaces)
        launch = ["mpiexec", "-iface", devices[0], "-hosts", hosts, "-ppn", "1", "-launcher", "ssh",
                  "-launcher-exec", str(shell), "-n", str(count)]  # fmt: skip
        stack.callback(relay.kill)  # before its devices' namespaces go
        # Namespaces share memory, so UCX would detect a single node.
        yield launch, {**os.environ, "MPICH_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp"}


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _device(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def relay(line: Line, devices: list[int]) -> None:
    """Forward packets until killed. The first device belongs to this machine; its packets are not delayed."""
    node_of = {descriptor: node for node, descriptor in enumerate(devices)}
    free = [0.0] * len(devices)  # time at which each node has finished sending
    waiting: list[tuple[float, int, int, bytes]] = []  # (time, order, receiver, packet)
    order = 0
    while True:
        pause = None if not waiting else max(0.0, waiting[0][0] - time.perf_counter())
        for descriptor in select.select(devices, [], [], pause)[0]:  # to the microsecond; poll would round up to 1 ms
            source = node_of[descriptor]
            for packet in _packets(descriptor):
                dest, now = packet[19] - 1, time.perf_counter()
                if packet[0] >> 4 != 4 or not 0 <= dest < len(devices):
                    continue  # IPv6 neighbour discovery by the kernel
                if source and dest:
                    free[source] = max(free[source], now) + (len(packet) / line.rate if line.rate else 0.0)
                    now = free[source] + line.delay
                order += 1
                heapq.heappush(waiting, (now, order, dest, packet))
        while waiting and waiting[0][0] <= time.perf_counter():
            _, _, dest, packet = heapq.heappop(waiting)
            os.write(devices[dest], packet)


def _packets(descriptor: int) -> Iterator[bytes]:
    """Yield some of the available packets."""
    for _ in range(64):
        try:
            yield os.read(descriptor, MTU)
        except BlockingIOError:
            return


def main() -> None:
    """Run the process that forwards packets."""
    delay, rate, *names = sys.argv[1:]
    devices = [_device(name) for name in names]
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # packets must not wait for computations
    print(READY, flush=True)
    relay(Line(float(delay), float(rate)), devices)


if __name__ == "__main__":
    main()
