"""A sum over all ranks, in a script that uses only `env://`.

It reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its environment, as on Azure ML,
whichever launcher has set them:

  muster submit -f processes.yaml    Muster starts the ranks
  muster submit -f torchrun.yaml     a torchrun of your own does
"""

import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Join, sum, check."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend=backend, init_method="env://")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    total = torch.tensor([float(rank)], device=device)
    dist.all_reduce(total)
    wanted = ranks * (ranks - 1) / 2
    if float(total) != wanted:
        raise SystemExit(f"rank {rank}: the sum is {float(total)} and should be {wanted}")
    where = f"rank {rank} of {ranks} on node {os.environ['NODE_RANK']}, local rank {local_rank}"
    # Ranks of your own torchrun share its stdout. `print` writes a text and its newline separately,
    # so another rank's line may come between. A single write stays whole.
    sys.stdout.write(f"{where}: sum {float(total):g}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
