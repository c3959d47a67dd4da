"""One nursery of warm kernels for all tests of notebooks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notebooks.warm import Nursery, kernel_manager_class


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    started = Nursery()
    yield started
    started.close()


@pytest.fixture
def kernels(nursery: Nursery) -> Any:
    """A class of kernel managers whose kernels start warm."""
    return kernel_manager_class(nursery)
