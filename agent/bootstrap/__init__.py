"""Programs that the job's own interpreter runs for Muster.

`main` runs torchrun behind the start gate. `fork_server`, `fork_safety` and `forked_rank` start its
ranks by fork. Each file stands alone: the shim sends their text, and no import finds them there.
"""
