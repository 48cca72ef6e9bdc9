"""Every node of a gang against every other: the program that `muster check` runs, once on each.

One stand-alone file, shipped inside the job: Python 3.8, the standard library, nothing of Muster's.
Rank 0 is also the hub, to which all connect. It calls the rounds of a tournament in which each pair
meets once, and waits for all before the next: so a node sends to one other at a time and is sent to
by one. In each round the one of a pair sends, then the other, on each network that both have: a
connection, the bytes, their checksum.

Rank 0 prints what was found: JSON behind `# `, and sentences for what is wrong.
"""

from __future__ import annotations

import errno
import glob
import importlib.util
import json
import os
import platform
import re
import resource
import socket
import statistics
import struct
import sys
import threading
import time
import zlib
from collections import defaultdict
from importlib import metadata
from typing import Any, Dict, List, Optional, Set, Tuple

LINE_BYTES_MAX = 1 << 22
CHUNK = 1 << 18
HELLO_S = 60.0
STALL_S = 5.0
TRANSFER_S = 60.0
NAMES_S = 20.0
# A node on whose network so many others meet nothing is left out there: each costs a time-out.
GIVE_UP = 3
AGAIN_MAX = 64

Result = List[Any]  # sender, receiver, network (indices), GB/s or None, why not
Message = Dict[str, Any]


def rounds(count: int) -> int:
    """How many rounds `count` nodes take until each has met each other."""
    return 0 if count < 2 else count - 1 + count % 2


def partner(count: int, number: int, index: int) -> Optional[int]:
    """Whom a node meets in a round (the circle method); None where it has a pause.

    All but the last sit on a circle of odd length: `i` meets `j` where `i + j` is the round's
    number, and the last one meets whoever would meet itself.
    """
    circle = rounds(count)
    last = circle
    if index == last:
        other = number * ((circle + 1) // 2) % circle
    else:
        other = (number - index) % circle
        if other == index:
            other = last
    return other if other < count else None


def main() -> int:
    with open(sys.argv[1]) as file:
        plan = json.load(file)
    names = os.environ["MUSTER_NODE_NAMES"].splitlines()
    rank = int(os.environ["RANK"])
    meeting = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    hub = None
    if rank == 0:
        hub = Hub(plan, names, listen(*meeting))
        hub.start()
    Node(plan, names, rank).serve(meeting)
    if hub is not None:
        hub.join()
        return 1 if hub.failed else 0
    return 0


# --- a node -------------------------------------------------------------------------------------


class Node:
    """One node's part: it answers whoever sends to it, and does what the hub says."""

    def __init__(self, plan: Message, names: List[str], rank: int) -> None:
        self._plan = plan
        self._names = names
        self._rank = rank
        self._networks = list(plan["networks"])
        self._data = _pattern(plan["bytes"], rank)
        self._crc = zlib.crc32(self._data)
        self._ports: List[int] = []
        self._listener = listen("", 0)

    def serve(self, meeting: Tuple[str, int]) -> None:
        names = NameProof(self._plan, self._names, self._rank)
        names.start()
        threading.Thread(target=self._answer_all, daemon=True).start()
        hub = _connect_patiently(meeting)
        lines = hub.makefile("rb")
        names.join(NAMES_S)
        hello = {
            "key": self._plan["key"],
            "rank": self._rank,
            "port": self._listener.getsockname()[1],
            "facts": facts(),
            "names": names.problems(),
            "wall_s": time.time(),
        }
        _tell(hub, hello)
        self._ports = json.loads(lines.readline(LINE_BYTES_MAX))["ports"]
        for line in lines:
            order = json.loads(line)
            if order["do"] == "end":
                break
            without = {tuple(pair) for pair in order["without"]}
            _tell(hub, {"found": [x for p in order["to"] for x in self._meet(p, without)]})

    def _meet(self, peer: int, without: Set[Tuple[int, ...]]) -> List[Result]:
        """Send to a node on every network that both have."""
        found: List[Result] = []
        for network, key in enumerate(self._networks):
            addresses = self._plan["networks"][key]
            own = addresses.get(self._names[self._rank])
            other = addresses.get(self._names[peer])
            if own is None or other is None or {(self._rank, network), (peer, network)} & without:
                continue
            speed, why = self._send(peer, own, other)
            found.append([self._rank, peer, network, speed, why])
        return found

    def _send(self, peer: int, own: str, other: str) -> Tuple[Optional[float], str]:
        """GB/s, or why not."""
        sock = socket.socket(_family(other), socket.SOCK_STREAM)
        sent = -1
        try:
            sock.settimeout(self._plan["timeout_s"])
            sock.bind((own, 0))
            sock.connect((other, self._ports[peer]))
            sock.settimeout(STALL_S)
            sent = 0
            about = {"key": self._plan["key"], "to": self._names[peer], "bytes": len(self._data)}
            _tell(sock, about)
            lines = sock.makefile("rb")
            answer = json.loads(lines.readline(LINE_BYTES_MAX) or b"{}")
            if answer.get("node") != self._names[peer]:
                return None, "%s answers there" % (answer.get("node") or "another program")
            until = time.monotonic() + TRANSFER_S
            view = memoryview(self._data)
            while sent < len(view):
                if time.monotonic() > until:
                    return None, "only %d of %d bytes in %g s" % (sent, len(view), TRANSFER_S)
                sent += sock.send(view[sent : sent + CHUNK])
            sock.settimeout(TRANSFER_S)  # what is on its way may take longer than the next byte
            told = json.loads(lines.readline(LINE_BYTES_MAX))
            if told["crc"] != self._crc:
                return None, "the bytes that arrive are not those that were sent"
            return len(view) / max(told["s"], 1e-9) / 1e9, ""
        except socket.timeout:
            if sent < 0:
                return None, "no answer in %g s" % self._plan["timeout_s"]
            return None, "it connects, and then nothing gets through (is its MTU smaller there?)"
        except (OSError, ValueError, KeyError) as error:
            return None, _told(error)
        finally:
            sock.close()

    def _answer_all(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock:
            try:
                sock.settimeout(STALL_S)
                about = json.loads(_line(sock))
                if about["key"] != self._plan["key"]:
                    return
                right = about["to"] == self._names[self._rank]
                began = time.perf_counter()
                _tell(sock, {"node": self._names[self._rank]})
                if right:
                    data = bytearray(min(int(about["bytes"]), self._plan["bytes"]))
                    _fill(sock, data)
                    took = time.perf_counter() - began
                    _tell(sock, {"crc": zlib.crc32(data), "s": took})
            except (OSError, ValueError, KeyError, TypeError):
                pass  # whoever sent it says what it met


class NameProof(threading.Thread):
    """Looks every name and address of the gang up, as programs here do."""

    def __init__(self, plan: Message, names: List[str], rank: int) -> None:
        super().__init__(daemon=True)
        self._names = names
        self._rank = rank
        ips = os.environ["MUSTER_NODE_IPS"].splitlines()
        self._ip = {name: ips[at] for at, name in enumerate(names)}
        self._all: Dict[str, Set[str]] = {name: {ip} for name, ip in self._ip.items()}
        for addresses in plan["networks"].values():
            for name, address in addresses.items():
                if name in self._all:
                    self._all[name].add(address)
        self._wrong: List[str] = []
        self._unknown: List[str] = []
        self._done = 0

    def run(self) -> None:
        for name in self._names:
            if name != self._names[self._rank]:
                self._look(name)
            self._done += 1

    def problems(self) -> Message:
        """`wrong` are sentences, `unknown` names and addresses that nothing is known of here."""
        late = len(self._names) - self._done
        return {"wrong": list(self._wrong), "unknown": list(self._unknown), "late": late}

    def _look(self, name: str) -> None:
        ip = self._ip[name]
        found = _addresses(name)
        if not found:
            self._unknown.append(name)
        elif found[0] not in self._all[name]:
            text = "the name %s leads to %s here, and its node is at %s"
            self._wrong.append(text % (name, ", ".join(found[:3]), ip))
        try:
            back = socket.getnameinfo((ip, 0), socket.NI_NAMEREQD)[0]
        except (OSError, UnicodeError):
            self._unknown.append(ip)
            return
        if back.lower() != name.lower() and ip not in _addresses(back):
            text = "the address %s of %s is called %s here, which leads elsewhere"
            self._wrong.append(text % (ip, name, back))


# --- the hub ------------------------------------------------------------------------------------


class Hub(threading.Thread):
    """Calls the rounds and prints what is found."""

    def __init__(self, plan: Message, names: List[str], listener: socket.socket) -> None:
        super().__init__(daemon=True)
        self._plan = plan
        self._names = names
        self._listener = listener
        self._nodes: Dict[int, Tuple[socket.socket, Any]] = {}
        self._speeds: Dict[int, Dict[Tuple[int, int], float]] = defaultdict(dict)
        self._failing: Dict[Tuple[int, int], Set[int]] = defaultdict(set)
        self._well: Set[Tuple[int, int]] = set()
        self._without: Set[Tuple[int, int]] = set()
        self.failed = False

    def run(self) -> None:
        try:
            self._gather()
            self._tournament()
            self._slow_ones_again()
            for sock, _ in self._nodes.values():
                _tell(sock, {"do": "end"})
            _print({"end": True})
        except Exception as error:  # noqa: BLE001 - whatever it is, rank 0 must not wait for it for ever
            self.failed = True
            print("the check ends: %s" % (_told(error) if isinstance(error, OSError) else error))
            sys.stdout.flush()
            os._exit(1)

    def _gather(self) -> None:
        """Until all are here; whoever knows the key is one of us."""
        until = time.monotonic() + HELLO_S
        hellos: Dict[int, Message] = {}
        while len(hellos) < len(self._names):
            self._listener.settimeout(max(until - time.monotonic(), 0.1))
            try:
                sock, _ = self._listener.accept()
                sock.settimeout(NAMES_S + HELLO_S)
                lines = sock.makefile("rb")
                hello = json.loads(lines.readline(LINE_BYTES_MAX))
                if hello["key"] == self._plan["key"]:
                    hello["clock_s"] = round(hello["wall_s"] - time.time(), 1)
                    hellos[hello["rank"]] = hello
                    self._nodes[hello["rank"]] = (sock, lines)
            except socket.timeout:
                missing = [n for r, n in enumerate(self._names) if r not in hellos]
                raise RuntimeError("%s did not come" % ", ".join(missing[:5])) from None
            except (ValueError, KeyError, TypeError):
                continue
        _print({"nodes": self._names, "networks": list(self._plan["networks"])})
        for rank, name in enumerate(self._names):
            hello = hellos[rank]
            told = {key: hello[key] for key in ("facts", "names", "clock_s")}
            _print({"node": name, **told})
            for text in hello["names"]["wrong"]:
                print("%s: %s" % (name, text))
        ports = [hellos[rank]["port"] for rank in range(len(self._names))]
        for sock, _ in self._nodes.values():
            sock.settimeout(None)
            _tell(sock, {"ports": ports})

    def _tournament(self) -> None:
        count = len(self._names)
        for number in range(rounds(count)):
            for turn in (0, 1):
                orders = {}
                for rank in range(count):
                    other = partner(count, number, rank)
                    if other is not None and (rank < other) == (turn == 0):
                        orders[rank] = [other]
                self._step("%d/%d" % (2 * number + turn + 1, 2 * rounds(count)), orders)

    def _slow_ones_again(self) -> None:
        """One pair at a time: something else may have run there when it was slow."""
        slow = []
        for speeds in self._speeds.values():
            usual = statistics.median(speeds.values())
            slow += [(speed / usual, pair) for pair, speed in speeds.items() if 3 * speed < usual]
        for _, (sender, receiver) in sorted(slow)[:AGAIN_MAX]:
            self._step("again", {sender: [receiver]})

    def _step(self, step: str, orders: Dict[int, List[int]]) -> None:
        without = sorted(self._without)
        for rank, peers in orders.items():
            _tell(self._nodes[rank][0], {"do": step, "to": peers, "without": without})
        found: List[Result] = []
        for rank in orders:
            line = self._nodes[rank][1].readline(LINE_BYTES_MAX)
            if not line:
                raise RuntimeError("%s has left" % self._names[rank])
            found += json.loads(line)["found"]
        for one in found:
            self._learn(one)
        self._leave_out()
        _print({"step": step, "found": [[*x[:3], x[3] and round(x[3], 4), x[4]] for x in found]})

    def _learn(self, one: Result) -> None:
        sender, receiver, network, speed, why = one
        ends = (sender, network), (receiver, network)
        if speed is not None:
            before = self._speeds[network].get((sender, receiver), 0.0)
            self._speeds[network][sender, receiver] = max(before, speed)
            self._well.update(ends)
            return
        names, key = self._names, list(self._plan["networks"])[network]
        print("%s to %s on %s: %s" % (names[sender], names[receiver], key, why))
        for this, other in (ends, ends[::-1]):
            self._failing[this].add(other[0])

    def _leave_out(self) -> None:
        """Who meets nobody on a network, though others do; or all, where nobody does."""
        for this in sorted(set(self._failing) - self._well - self._without):
            node, network = this
            peers = self._failing[this]
            if any(where == network for _, where in self._well):
                peers = {peer for peer in peers if (peer, network) in self._well}
            if len(peers) >= GIVE_UP:
                self._without.add(this)
                name, key = self._names[node], list(self._plan["networks"])[network]
                print("%s reaches nobody on %s: left out" % (name, key))


# --- what a node is -----------------------------------------------------------------------------


def facts() -> Dict[str, str]:
    """What may differ between nodes and should not, by name; what is unknown is left out."""
    found: Dict[str, str] = {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "CPUs": str(len(os.sched_getaffinity(0))),
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
    }
    system = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    memory = re.search(r"MemTotal:\s+(\d+)", _read("/proc/meminfo"))
    driver = re.search(r"Module\s.*?(\d+\.\d+[\d.]*)", _read("/proc/driver/nvidia/version"))
    if system:
        found["system"] = system[1]
    if memory:
        # What firmware keeps for itself differs by a little.
        found["memory"] = "%d GiB" % float("%.2g" % (int(memory[1]) / 2**20))
    if driver:
        found["NVIDIA driver"] = driver[1]
    ofed = _read("/sys/module/mlx5_core/version")
    if ofed:
        found["mlx5_core"] = ofed
    found.update(_torch())
    found.update(_gpus())
    found.update(_hcas())
    return {name: value for name, value in found.items() if value.strip()}


def _torch() -> Dict[str, str]:
    """Read and not imported: that takes seconds."""
    found = {}
    spec = importlib.util.find_spec("torch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        text = _read(os.path.join(folder, "version.py"))
        version = re.search(r"^__version__ = '([^']*)'", text, re.MULTILINE)
        cuda = re.search(r"^cuda[^=]*= '([^']*)'", text, re.MULTILINE)
        found["torch"] = version[1] if version else ""
        found["CUDA"] = cuda[1] if cuda else ""
    for package in ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"):
        try:
            found.setdefault("NCCL", metadata.version(package))
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> Dict[str, str]:
    models = []
    for path in sorted(glob.glob("/proc/driver/nvidia/gpus/*/information")):
        model = re.search(r"^Model:\s*(.*?)\s*$", _read(path), re.MULTILINE)
        models.append(model[1] if model else "?")
    return {"GPUs": _counted(models)}


def _hcas() -> Dict[str, str]:
    """Of InfiniBand and RoCE devices: how many of which kind, their firmware, rates of ports."""
    kinds, firmware, rates = [], set(), []
    for device in sorted(glob.glob("/sys/class/infiniband/*")):
        kind = _read(device + "/hca_type")
        kinds.append(kind or "?")
        if _read(device + "/fw_ver"):
            firmware.add((kind + " " + _read(device + "/fw_ver")).strip())
        for port in sorted(glob.glob(device + "/ports/*")):
            state = _read(port + "/state").partition(": ")[2] or "?"
            rate = _read(port + "/rate") if state == "ACTIVE" else ""
            rates.append((state + " " + rate).strip())
    return {
        "HCAs": _counted(kinds),
        "HCA firmware": ", ".join(sorted(firmware)),
        "HCA ports": _counted(rates),
    }


def _counted(items: List[str]) -> str:
    return ", ".join("%d x %s" % (items.count(item), item) for item in sorted(set(items)))


def _limit(number: int) -> str:
    soft = resource.getrlimit(number)[0]
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


def _read(path: str) -> str:
    """A small file's text; empty where there is none to read."""
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""


# --- sockets ------------------------------------------------------------------------------------


def listen(address: str, port: int) -> socket.socket:
    """On one address, or on all of both families."""
    family = _family(address) if address else socket.AF_INET6
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if not address and sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((address, port))
    sock.listen(1024)
    return sock


def _connect_patiently(meeting: Tuple[str, int]) -> socket.socket:
    """The hub's process may begin a little later than this one."""
    until = time.monotonic() + HELLO_S
    while True:
        try:
            sock = socket.create_connection(meeting, timeout=STALL_S)
            sock.settimeout(None)
            return sock
        except OSError as error:
            if time.monotonic() > until:
                sys.exit("the first node of the check is not reached: %s" % _told(error))
            time.sleep(0.05)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _addresses(name: str) -> List[str]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))


def _pattern(size: int, rank: int) -> bytes:
    """Bytes of which no two places a cache line apart are alike, others on each node."""
    block = os.urandom(min(size, (1 << 20) - 1))
    return struct.pack("<I", rank) + (block * (size // len(block) + 1))[: size - 4]


def _fill(sock: socket.socket, data: bytearray) -> None:
    view = memoryview(data)
    got = 0
    while got < len(view):
        more = sock.recv_into(view[got:])
        if not more:
            raise ConnectionResetError
        got += more


def _line(sock: socket.socket) -> bytes:
    """One line, and not a byte more of what follows it."""
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < 4096:
        more = sock.recv(1)
        if not more:
            break
        data += more
    return bytes(data)


def _tell(sock: socket.socket, message: Message) -> None:
    sock.sendall(json.dumps(message).encode() + b"\n")


def _told(error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.ECONNREFUSED:
        return "the connection is refused (does a firewall reject it?)"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "the connection is cut"
    return (getattr(error, "strerror", "") or str(error) or type(error).__name__).lower()


def _print(message: Message) -> None:
    print("# " + json.dumps(message, separators=(",", ":")), flush=True)


if __name__ == "__main__":
    sys.exit(main())
