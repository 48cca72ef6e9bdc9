"""Data-parallel training that resumes after any interruption.

It has no code for Muster: it is a script for torchrun, in the style of PyTorch's multi-node
tutorial. It saves a snapshot every few epochs, and each start resumes from the last one:

  muster submit -f job.yaml --set workdir=$PWD
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Trainer:
    """A single rank: its model, its share of the data, and the shared snapshot."""

    def __init__(self, data: DataLoader, save_every: int, snapshot: Path, device: torch.device):
        self.rank = int(os.environ["RANK"])
        self.data = data
        self.save_every = save_every
        self.snapshot = snapshot
        self.device = device
        self.epochs_run = 0
        model = nn.Linear(20, 1).to(device)
        if snapshot.exists():
            saved = torch.load(snapshot, map_location=device, weights_only=True)
            model.load_state_dict(saved["model"])
            self.epochs_run = saved["epochs_run"]
            print(f"rank {self.rank}: resuming from the snapshot of epoch {self.epochs_run}")
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def train(self, epochs: int, pause_s: float) -> None:
        """Train up to that many epochs, including those of earlier starts."""
        for epoch in range(self.epochs_run + 1, epochs + 1):
            loss = self._epoch(epoch)
            print(f"rank {self.rank}: epoch {epoch}, {len(self.data)} steps, loss {loss:.4f}")
            if self.rank == 0 and epoch % self.save_every == 0:
                self._save(epoch)
            time.sleep(pause_s)

    def _epoch(self, epoch: int) -> float:
        sampler = self.data.sampler
        assert isinstance(sampler, DistributedSampler)
        sampler.set_epoch(epoch)
        loss = torch.zeros(())
        for source, targets in self.data:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(
                self.model(source.to(self.device)), targets.to(self.device)
            )
            loss.backward()
            self.optimizer.step()
        return float(loss.detach())

    def _save(self, epoch: int) -> None:
        """Save atomically, because a rank may be killed at any time."""
        state = {"model": self.model.module.state_dict(), "epochs_run": epoch}
        new = self.snapshot.with_suffix(".new")
        torch.save(state, new)
        os.replace(new, self.snapshot)
        print(f"rank {self.rank}: saved epoch {epoch} in {self.snapshot}")


def main() -> None:
    """Join the group and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    parser.add_argument("--batch-size", type=int, default=32, help="of each rank")
    parser.add_argument(
        "--snapshot", type=Path, default=Path("snapshot.pt"), help="on a shared disk"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each epoch")
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    torch.manual_seed(0)
    examples = TensorDataset(torch.rand(2048, 20), torch.rand(2048, 1))
    sampler: DistributedSampler = DistributedSampler(examples)
    data = DataLoader(examples, batch_size=args.batch_size, pin_memory=gpus, sampler=sampler)
    Trainer(data, args.save_every, args.snapshot, device).train(args.total_epochs, args.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
