"""A rank: makes a tiny model of transformers from a configuration, takes one step, and writes the
time of its end.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    dist.init_process_group("gloo")
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.randint(0, 256, (2, 16))
    model(input_ids=words, labels=words).loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimiser.step()
    moment = time.time()
    folder = Path(os.environ["BENCH_MOMENTS"])
    (folder / f"rank-{dist.get_rank()}").write_text(repr(moment))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
