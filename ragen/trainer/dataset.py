"""veRL's dataset door: row i is environment group i. There is no data, only the seed stream.

A row carries nothing but its number; tag, seed and luck are pure functions of it (`ragen.llm_agent.es_manager`,
`ragen.llm_agent.seeds`). veRL's stateful dataloader checkpoints the position, and with it the seed stream.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import Dataset


class EnvGroupDataset(Dataset):
    """`max_samples` rows: {"row": i, "raw_prompt": ""} (veRL counts a batch by `raw_prompt`).

    Args:
        max_samples: number of rows. For training it must cover the whole run: at its end veRL starts again at row 0.

    Raises:
        ValueError: a length that is not positive.
    """

    def __init__(self, data_files: Any, tokenizer: Any, config: Any, processor: Any = None, max_samples: int = -1):
        if max_samples <= 0:
            raise ValueError(f"data.train_max_samples and data.val_max_samples must be positive, got {max_samples}")
        self._length = max_samples

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> dict[str, Any]:
        if not 0 <= row < self._length:
            raise IndexError(f"row {row} of {self._length}")
        return {"row": row, "raw_prompt": ""}
