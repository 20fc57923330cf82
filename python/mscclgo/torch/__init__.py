"""The backend "mscclgo" of torch.distributed.

    import mscclgo.torch

    torch.distributed.init_process_group("mscclgo")

Ranks, addresses and the store are PyTorch's, so torchrun and the like start such programs. On GPUs a rank uses the
current device, or the one of LOCAL_RANK where the program has chosen none. Where PyTorch sees no GPU, and where the
variable MSCCLGO_DEVICE is "emu", tensors of the host are reduced and moved on an emulated device.

Calls are ordered by streams as those of PyTorch's backend for NCCL: what async_op=True starts runs beside the current
stream, which waits for it in wait(). Of a group that failed all calls raise torch.distributed.DistBackendError, with
the rank to blame.
"""

from __future__ import annotations

import torch.distributed as dist

from . import _ops as _ops
from ._process_group import ProcessGroup, create

__all__ = ["ProcessGroup"]

if "mscclgo" not in dist.Backend.backend_list:
    dist.Backend.register_backend("mscclgo", create, devices=["cpu", "cuda"])
