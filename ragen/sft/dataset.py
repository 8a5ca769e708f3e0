"""veRL's dataset door (`data.custom_cls`) for rows whose tokens and loss mask are known."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset


class TokenRows(Dataset):
    """A parquet with the columns input_ids and loss_mask (`ragen.sft.data.write_rows`).

    A row of T tokens is {input_ids (T,) int64, position_ids (T,) int64, loss_mask (T,) int64}. veRL's loss shifts the
    mask by one place over the whole batch: a row's first token must not be trained.

    Raises:
        ValueError: a row without a trained token, or whose first token is one.
    """

    def __init__(self, parquet_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1):
        table = pq.read_table(parquet_files)
        self._ids = table["input_ids"].to_pylist()
        self._masks = table["loss_mask"].to_pylist()
        for number, mask in enumerate(self._masks):
            if not any(mask) or mask[0]:
                raise ValueError(f"{parquet_files}: row {number} trains nothing, or its first token")

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        ids = torch.tensor(self._ids[row], dtype=torch.int64)
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(self._masks[row], dtype=torch.int64),
        }
