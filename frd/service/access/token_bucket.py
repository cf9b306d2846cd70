"""A token bucket: limits the rate of something."""

from __future__ import annotations


class TokenBucket:
    """`rate` a second, after a burst of up to `burst`. Time enters as an argument."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at_s = 0.0

    def take(self, amount: float, now_s: float) -> float:
        """Take `amount`, on credit if necessary; returns the seconds until the debt is paid."""
        self._left = min(self._burst, self._left + (now_s - self._at_s) * self._rate) - amount
        self._at_s = now_s
        return max(0.0, -self._left / self._rate)

    def give_back(self, amount: float) -> None:
        """Undo a `take`."""
        self._left = min(self._burst, self._left + amount)
