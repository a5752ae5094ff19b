"""Scripts set the number of threads of their process; here that is the process of all tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def number_of_threads() -> Iterator[None]:
    """As before, whatever a script did: the last digits of a sum depend on it."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
