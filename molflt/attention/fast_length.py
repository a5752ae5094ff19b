"""Lengths of transforms."""

from __future__ import annotations


def fast_length(n: int) -> int:
    """The least number of the form 2^a 3^b 5^c that is not below ``n``: all FFT libraries are fast on it."""
    while True:
        rest = n
        for prime in (2, 3, 5):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 1
