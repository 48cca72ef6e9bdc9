"""Lines as NCCL writes them, made from its format strings; addresses and hosts are nobody's."""

from __future__ import annotations

HOST = "gpu-07"


def info(text: str, pid: int = 4711, device: int = 0) -> str:
    return f"{HOST}:{pid}:{pid + 88} [{device}] NCCL INFO {text}\n"


def warn(where: str, text: str) -> str:
    return f"\n{HOST}:4711:4799 [0] {where} NCCL WARN {text}\n"


def channels(network: str, count: int = 4, gdr: bool = True) -> str:
    suffix = "/GDRDMA" if gdr else ""
    return "".join(
        info(f"Channel {n:02d}/0 : 0[0] -> 8[0] [send] via NET/{network}/{n % 8}{suffix}")
        for n in range(count)
    )


IB_2_18 = (
    f"{HOST}:4711:4711 [0] NCCL INFO NCCL version 2.18.6+cuda12.1\n"
    + info("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/IB [RO]; OOB eth0:192.0.2.7<0>")
    + info("Using network IB")
    + channels("IB")
)
# Two ports of a card, merged into one device.
IB_2_21 = (
    info("NCCL_IB_HCA set to =mlx5_0:1,mlx5_1:1")
    + info("NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:192.0.2.7<0>")
    + info("Using non-device net plugin version 0")
    + info("Using network IB")
    + info("Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0(3)/GDRDMA(PCI)/Shared")
)
IB_2_27 = (
    info("Initialized NET plugin IB")
    + info("Assigned NET plugin IB to comm")
    + info("Using network IB")
    + warn("misc/mlx5dvwrap.cc:83", "Call to mlx5dv_get_data_direct_sysfs_path failed, errno 19")
    + channels("IB", gdr=False)
)
# The first plugin that is asked has none; the second is InfiniBand all the same.
IB_EXT = (
    info("NET/IB : No device found.")
    + info("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:192.0.2.7<0>")
    + info("Using network IBext_v8")
    + channels("IBext_v8", gdr=False)
)
EFA = info("Using network AWS Libfabric") + channels("AWS Libfabric")
OLD_2_4 = info("Ring 00 : 15 -> 0 [receive] via NET/IB/0/GDRDMA")
SOCKET_2_18 = (
    info("NET/IB : No device found.")
    + info("NET/Socket : Using [0]eth0:192.0.2.7<0>")
    + info("Using network Socket")
    + info("Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0")
)
# Since 2.24 the list is printed when it is empty, too.
SOCKET_2_24 = (
    info("NCCL_IB_HCA set to =mlx5_9:1")
    + info("NET/IB : No device found.")
    + info("NET/IB : Using [RO]; OOB eth0:192.0.2.7<0>")
    + info("Using network Socket")
)
SOCKET_2_27 = (
    info("Failed to initialize NET plugin IB")
    + info("Initialized NET plugin Socket")
    + info("Assigned NET plugin Socket to comm")
    + info("Using network Socket")
)
NO_LIBRARY = info("Failed to open libibverbs.so[.1]") + info("Using network Socket")
FORBIDDEN = (
    warn("net_ib.cc:212", "NET/IB : Unable to open device mlx5_0")
    + info("NET/IB : No device found.")
    + info("Using network Socket")
)
SWITCHED_OFF = info("NCCL_IB_DISABLE set by environment to 1.") + info("Using network Socket")
FAILING = IB_2_18 + warn(
    "net_ib.cc:1296",
    "NET/IB : Got completion from peer 192.0.2.8<43210> with status=12 opcode=0 len=0 "
    "vendor err 129",
)
NVLINK = info("Using network IB") + info("Channel 00/0 : 0[0] -> 4[0] via P2P/CUMEM/MNNVL")
INSIDE = info("Bootstrap: Using eth0:192.0.2.7<0>") + info(
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read"
)
