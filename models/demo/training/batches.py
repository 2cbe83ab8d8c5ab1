"""Packs tokenised documents into fixed rows and turns rows into the tensors that `model.Demo` takes.

A document starts at a multiple of the delta-rule chunk, never continues in another row, and carries one loss weight a
token (the weight of *predicting* that token).  Padding has document index -1.
"""
import numpy as np
import torch

from model import CHUNK


def aligned(length):
    return -(-length // CHUNK) * CHUNK


def pack_rows(documents, length):
    """First-fit packing.  Returns arrays ids, document, position [rows, length] (int32), weight (f32) and the
    (row, start) of each document."""
    free, places = [], []
    for document in documents:
        need = aligned(len(document["ids"]))
        assert need <= length, f"document of {len(document['ids'])} tokens in rows of {length}"
        row = next((r for r, left in enumerate(free) if left >= need), None)
        if row is None:
            row = len(free)
            free.append(length)
        places.append((row, length - free[row]))
        free[row] -= need
    shape = (len(free), length)
    rows = {"ids": np.zeros(shape, np.int32), "document": np.full(shape, -1, np.int32),
            "position": np.zeros(shape, np.int32), "weight": np.zeros(shape, np.float32)}
    for index, (document, (row, start)) in enumerate(zip(documents, places)):
        n = len(document["ids"])
        rows["ids"][row, start:start + n] = document["ids"]
        rows["weight"][row, start:start + n] = document["weights"]
        rows["document"][row, start:start + n] = index
        rows["position"][row, start:start + aligned(n)] = np.arange(aligned(n))
    return rows, places


def to_batch(rows, device):
    """Row arrays -> the model's batch plus `targets` and `weight` for the loss."""
    ids, document, position, weight = (torch.from_numpy(rows[k]).to(device, non_blocking=True)
                                       for k in ("ids", "document", "position", "weight"))
    same = document[:, :, None] == document[:, None, :]
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=device).tril()
    shifted = torch.cat([weight[:, 1:], torch.zeros_like(weight[:, :1])], 1)
    return {"ids": ids.long(), "position": position, "live": (document >= 0).float(),
            "keep": (position[:, ::CHUNK] > 0).float(), "mask": (same & causal)[:, None],
            "targets": torch.cat([ids[:, 1:], ids[:, :1]], 1).long(), "weight": shifted}
