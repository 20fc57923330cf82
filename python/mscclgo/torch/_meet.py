"""How the ranks of a process group meet, and on which devices."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, Optional, Tuple

import torch

import mscclgo

_KEY = "mscclgo"  # of the store


def meet(store: Any, rank: int, size: int, timeout: timedelta) -> Tuple[mscclgo.Group, Optional[mscclgo.Rendezvous]]:
    """Connects this rank, and returns its group and what rank 0 keeps open for that. The store, which only the ranks of
    this group have, passes on where they meet."""
    if rank != 0:
        return _connect(store.get(_KEY).decode(), rank, size, timeout), None
    rendezvous = open_rendezvous(size)
    try:
        store.set(_KEY, rendezvous.id)
        group = _connect(rendezvous.id, rank, size, timeout)
        store.delete_key(_KEY)  # all have read it, and another group may meet by this store
        return group, rendezvous
    except BaseException:
        rendezvous.close()
        raise


def open_rendezvous(size: int) -> mscclgo.Rendezvous:
    """Returns a rendezvous for ranks of this job: on this host alone if they all are."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", 0)) == int(os.environ.get("WORLD_SIZE", -1)) or size == 1
    return mscclgo.Rendezvous("127.0.0.1:0" if here else ":0")


def _connect(id: str, rank: int, size: int, timeout: timedelta) -> mscclgo.Group:
    group = mscclgo.connect(id, rank, size, device=device(), timeout=timeout.total_seconds())
    if size > 1:
        group.load_messages()  # now, as the ranks that send and receive first may be two of many
    return group


def device() -> str:
    """Returns the device of this rank."""
    asked = os.environ.get("MSCCLGO_DEVICE", "auto")
    if asked not in ("auto", "cuda") or not torch.cuda.is_available():
        return "emu" if asked == "auto" else asked
    number = torch.cuda.current_device()
    if number == 0 and "LOCAL_RANK" in os.environ:
        number = int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()
    return f"cuda:{number}"
