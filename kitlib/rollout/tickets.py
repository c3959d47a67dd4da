"""Callers that wait on their event loops for a server that works on its own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from kitlib.rollout.protocol import TokenOutput
from kitlib.rollout.slot_table import Request

Answer = TokenOutput | BaseException


@dataclass(eq=False, slots=True)
class Ticket:
    """A caller and what it waits for."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[TokenOutput]
    request: Request


def answer(answers: Iterable[tuple[Ticket, Answer]]) -> None:
    """Resolve each ticket on its event loop; an exception is raised there.

    One wake-up a loop, however many tickets it has. Callable from any thread. A caller that was cancelled, or whose
    loop is closed, gets nothing.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Answer]]] = {}
    for ticket, value in answers:
        by_loop.setdefault(ticket.loop, []).append((ticket, value))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, batch)
        except RuntimeError:  # the loop is closed
            continue


def _resolve(batch: list[tuple[Ticket, Answer]]) -> None:
    for ticket, value in batch:
        if ticket.future.done():  # cancelled
            continue
        if isinstance(value, BaseException):
            ticket.future.set_exception(value)
        else:
            ticket.future.set_result(value)
