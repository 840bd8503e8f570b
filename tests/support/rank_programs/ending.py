"""The end of a program that trains with gloo.

gloo's threads free the tensors of a collective after they have announced its end.  On a busy machine this may be so
late that Python has begun to finalize: then the process aborts ("terminate called without an active exception",
pytorch issue 190489), and a run that has succeeded fails.  So the programs here end these threads first.
"""

import gc

import gloo
import torch.distributed as dist

# Where these functions are loaded while there is a group, as by DDP, they keep it for ever, as a default.
import torch.distributed.nn  # noqa: F401


def end_group() -> None:
    """Destroy the process group.  Nothing may hold it any more: neither a variable nor a DDP that a variable holds."""
    gc.collect()
    dist.destroy_process_group()
    assert not gloo.has_threads(), "something holds the process group"
