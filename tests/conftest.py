"""What holds for every test: one torch thread, the same examples in every run, and no thread of kitlib left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault(
    "HF_HUB_OFFLINE", "1"
)  # a test that reaches for a hub is a mistake, and must not wait for a network
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A shell that starts the tests in the background makes them, and all that they start, deaf to Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may fail by chance: hypothesis draws the same examples in every run, and does not look at the clock.
settings.register_profile(
    "kitlib", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("kitlib")

GRACE_SECONDS = 60.0  # a thread that was told to stop may still be on its last instruction, on a machine that is busy


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbmake", False):
        from tests.kernels import use_for_every_notebook

        use_for_every_notebook()


def kitlib_threads() -> set[threading.Thread]:
    """Living threads that kitlib started, whichever test started them."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("kitlib")}


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Tiny tensors: more threads than one only wait for each other, and numbers stay the same on any machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_thread_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread of kitlib running (fixtures of wider scope own the ones that were there
    before)."""
    before = kitlib_threads()
    yield
    deadline = time.monotonic() + GRACE_SECONDS
    while kitlib_threads() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    left = sorted(thread.name for thread in kitlib_threads() - before)
    if left:
        pytest.fail(f"{request.node.nodeid} left threads running: {', '.join(left)}", pytrace=False)
