"""An episode's tokens as turns: sums, first and last tokens, and back to tokens. Turns are read off turn ids."""

from __future__ import annotations

import torch

__all__ = ["Turns"]


class Turns:
    """The turns of E episodes of at most L tokens, numbered from 0; K is the greatest number of turns.

    A turn is the masked tokens of one turn id; an id without any is no turn of its own, and rewards under it count to
    the turn before it (to the first turn, where there is none before).

    Args:
        mask: (E, L), non-zero on the tokens of a turn.
        turn_ids: (E, L) int64, never falling along an episode where the mask is set.
    """

    def __init__(self, mask: torch.Tensor, turn_ids: torch.Tensor):
        self._sampled = sampled = mask.bool()
        # the id of the last masked token to the left of each token; -1 at the left end
        seen = torch.cummax(torch.where(sampled, turn_ids, -1), dim=1).values
        left = torch.cat([torch.full_like(seen[:, :1], -1), seen[:, :-1]], dim=1)
        #: (E, L) bool. True on the first masked token of each turn.
        self.is_start = sampled & (turn_ids != left)
        #: (E, L) int64. The turn of each token, counted from 0; of tokens without mask, the turn before them.
        self.number = (self.is_start.cumsum(dim=1) - 1).clamp(min=0)
        self.count = int(self.number.max()) + 1
        positions = torch.arange(mask.shape[1]).expand_as(self.number)
        last = torch.full((len(mask), self.count), -1)
        last.scatter_reduce_(1, self.number, torch.where(sampled, positions, -1), "amax")
        #: (E, K) bool. Whether the episode has the turn.
        self.exists = last >= 0
        #: (E, L) bool. True on the last masked token of each turn.
        self.is_end = sampled & (last.gather(1, self.number) == positions)

    def sum(self, tokens: torch.Tensor) -> torch.Tensor:
        """(E, L) → (E, K), the sum over a turn, tokens without mask that follow it included."""
        return tokens.new_zeros(len(tokens), self.count).scatter_add(1, self.number, tokens)

    def at_start(self, tokens: torch.Tensor) -> torch.Tensor:
        """(E, L) → (E, K), what stands at each turn's first masked token; 0 where there is no such turn."""
        return self.sum(torch.where(self.is_start, tokens, torch.zeros_like(tokens)))

    def at_end(self, tokens: torch.Tensor) -> torch.Tensor:
        """(E, L) → (E, K), what stands at each turn's last masked token; 0 where there is no such turn."""
        return self.sum(torch.where(self.is_end, tokens, torch.zeros_like(tokens)))

    def next(self, turns: torch.Tensor) -> torch.Tensor:
        """(E, K) → (E, K), each turn's successor; 0 after the last."""
        return torch.cat([turns[:, 1:], torch.zeros_like(turns[:, :1])], dim=1)

    def discount(self, turns: torch.Tensor, factor: float) -> torch.Tensor:
        """(E, K) → (E, K), x_k + factor · x_{k+1} + factor² · x_{k+2} + …"""
        sums, running = torch.zeros_like(turns), turns.new_zeros(len(turns))
        for k in reversed(range(self.count)):
            running = turns[:, k] + factor * running
            sums[:, k] = running
        return sums

    def spread(self, turns: torch.Tensor) -> torch.Tensor:
        """(E, K) → (E, L), each turn's number on its masked tokens, 0 elsewhere."""
        return turns.gather(1, self.number) * self._sampled

    def place_at_end(self, turns: torch.Tensor) -> torch.Tensor:
        """(E, K) → (E, L), each turn's number on its last masked token, 0 elsewhere."""
        return turns.gather(1, self.number) * self.is_end
