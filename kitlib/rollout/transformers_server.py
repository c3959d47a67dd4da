"""A rollout server over any Hugging Face causal LM: continuous batching on a background thread.

verl 0.9.1: workers/rollout/vllm_rollout/vllm_async_server.py, vLLMHttpServer (generate, abort_all_requests,
resume_generation, sleep, wake_up, set_global_steps). Here the engine runs in this process, so that a notebook can
look at it and no GPU is needed. Left out: the HTTP endpoint, tensor parallelism, LoRA adapters, sleep levels (the
weights stay, the KV cache goes).

Callers live on any number of event loops; the model is touched by the server's thread alone. Between two decode steps
the thread takes its mail: verbs (each a function to run and a future for its result), new requests, and requests
nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from kitlib.rollout.engine import DecodingEngine, Finished
from kitlib.rollout.protocol import RolloutError, ServerClosedError, TokenOutput
from kitlib.rollout.sampling import SamplingParams, noise_key
from kitlib.rollout.slot_table import Request

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")


@dataclass(eq=False, slots=True)
class _Ticket:
    """A caller that waits for its request on its event loop."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[TokenOutput]
    request: Request


class TransformersServer:
    """LLMServer over `model`; see kitlib.rollout.protocol.LLMServer for the verbs.

    `eos_token_id`            one id or several; the token that ends a request, included in its output.
    `max_model_len`           prompt and output together; a longer prompt is refused, an output ends there ("length").
    `prompt_length`, `response_length`   a request without max_tokens gets min(response_length, prompt_length + response_length -
                              its prompt), as in verl, or all that max_model_len leaves if they are None.
    `max_num_seqs`            rows decoded at once, further requests wait; `max_num_batched_tokens` prompt tokens computed at once.
    `enable_prefix_caching`   compute a prompt that several waiting requests share once, and keep the keys and values of a finished
                              request for the next turn of the same request_id, until the weights change.
    `seed`                    with the order of arrival it fixes every draw, whatever is decoded beside a request.

    The server owns `model` from here on: hand it a copy if something else trains or reads it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        eos_token_id: int | Iterable[int] | None,
        max_model_len: int,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        enable_prefix_caching: bool = True,
        prompt_length: int | None = None,
        response_length: int | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        global_steps: int = 0,
        name: str = "transformers-server",
    ) -> None:
        eos_token_ids = [] if eos_token_id is None else np.atleast_1d(np.array(eos_token_id)).tolist()
        self.name, self.max_model_len = name, max_model_len
        self._prompt_length, self._response_length, self._seed = prompt_length, response_length, seed
        self._engine = DecodingEngine(
            model if device is None else model.to(device),  # type: ignore[arg-type]
            eos_token_ids,
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            enable_prefix_caching,
            global_steps,
        )
        self._paused = self._rejecting = self._asleep = False  # written by the server's thread
        self._num_arrivals = 0
        self._unanswered: set[_Ticket] = set()  # all that the thread has taken in; touched by the thread alone
        self._mail = threading.Condition()  # guards the five fields below
        self._verbs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._arrivals: list[_Ticket] = []
        self._cancelled: set[_Ticket] = set()
        self._closing = False
        self._failure: BaseException | None = None
        self._staged: dict[asyncio.AbstractEventLoop, list[_Ticket]] = {}  # each list is touched by its loop alone
        self._thread = threading.Thread(target=self._run, name=f"kitlib-{name}", daemon=True)
        self._thread.start()
        _LIVE_SERVERS.add(self)

    # ---- verbs: any thread -----------------------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str
    ) -> TokenOutput:
        """Continue `prompt_ids`. RolloutError for a request that cannot be served; the thread's exception if it has
        failed."""
        request = self._request(prompt_ids, SamplingParams.parse(sampling_params), request_id)
        loop = asyncio.get_running_loop()
        ticket = _Ticket(loop, loop.create_future(), request)
        request.owner = ticket
        self._stage(ticket)
        try:
            return await ticket.future
        except asyncio.CancelledError:
            with self._mail:
                self._cancelled.add(ticket)
                self._mail.notify()
            raise

    def update_weights(self, state_dict: Mapping[str, Tensor], global_steps: int) -> None:
        """Load `state_dict` between two tokens. Requests in flight go on, and report both versions."""
        self._ask(lambda: self._engine.load_weights(state_dict, global_steps))

    def abort_all_requests(self, reject_request: bool = False) -> int:
        """Answer every request with what it has, and start none until resume_generation. Returns how many were
        answered."""
        return self._ask(lambda: self._abort(reject_request))

    def resume_generation(self) -> None:
        self._ask(lambda: self._set_state(paused=False, rejecting=False))

    def sleep(self) -> None:
        """Free the KV cache; requests wait until wake_up. RolloutError while requests are being decoded: abort them
        first."""
        self._ask(self._fall_asleep)

    def wake_up(self) -> None:
        self._ask(lambda: self._set_state(asleep=False))

    def close(self) -> None:
        with self._mail:
            self._closing = True
            self._mail.notify()
        self._thread.join()
        _LIVE_SERVERS.discard(self)

    @property
    def global_steps(self) -> int:
        """Version of the weights in use."""
        return self._engine.global_steps

    # ---- the way in ------------------------------------------------------------------------------------------------

    def _request(self, prompt_ids: Sequence[int], params: SamplingParams, request_id: str) -> Request:
        prompt = np.array(prompt_ids, dtype=np.int64)
        room = self.max_model_len - len(prompt)
        if len(prompt) == 0 or room < 1:
            raise RolloutError(
                f"request {request_id!r}: a prompt of {len(prompt)} tokens, expected 1 to {self.max_model_len - 1} "
                "(actor_rollout_ref.rollout.max_model_len - 1)"
            )
        if prompt.min() < 0 or prompt.max() >= self._engine.vocab_size:
            bad = prompt[(prompt < 0) | (prompt >= self._engine.vocab_size)][0]
            raise RolloutError(
                f"request {request_id!r}: token id {bad} is outside the model's vocabulary of {self._engine.vocab_size}: "
                "tokenizer and model do not belong together"
            )
        max_tokens = max(1, min(self._budget(len(prompt)) if params.max_tokens is None else params.max_tokens, room))
        self._num_arrivals += 1  # not exact if two threads race, and then the order of arrival is not fixed either
        key = noise_key(self._seed, self._num_arrivals) if params.seed is None else noise_key(params.seed)
        return Request(request_id, prompt, params, max_tokens, key)

    def _budget(self, prompt_length: int) -> int:
        if self._response_length is None:
            return self.max_model_len
        if self._prompt_length is None:
            return self._response_length
        return min(self._response_length, self._prompt_length + self._response_length - prompt_length)

    def _stage(self, ticket: _Ticket) -> None:
        """Hold requests back until the event loop has run all that is ready, so that sessions that start together
        join together."""
        staged = self._staged.get(ticket.loop)
        if staged is None:
            staged = self._staged[ticket.loop] = []
            ticket.loop.call_soon(self._post, ticket.loop)
        staged.append(ticket)

    def _post(self, loop: asyncio.AbstractEventLoop) -> None:
        tickets = [ticket for ticket in self._staged.pop(loop) if not ticket.future.done()]  # done: cancelled
        with self._mail:
            error = self._reason_not_to_serve()
            if error is None:
                self._arrivals += tickets
                self._mail.notify()
                return
        _answer([(ticket, error) for ticket in tickets])

    def _reason_not_to_serve(self) -> BaseException | None:
        return self._failure or (ServerClosedError(f"server {self.name!r} is closed") if self._closing else None)

    def _ask(self, verb: Callable[[], Result]) -> Result:
        """Run `verb` on the server's thread, between two steps, and wait for its result."""
        future: Future[Result] = Future()
        with self._mail:
            error = self._reason_not_to_serve()
            if error is not None:
                raise error
            self._verbs.append((verb, future))
            self._mail.notify()
        return future.result()

    # ---- the server's thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with torch.inference_mode():
                while self._take_mail():
                    if self._may_decode:
                        self._answer(self._engine.step())
        except BaseException as caught:  # noqa: BLE001 - whatever it is, the callers must hear of it
            error = caught
        self._end(error)

    @property
    def _may_decode(self) -> bool:
        return not (self._paused or self._asleep)

    def _take_mail(self) -> bool:
        """Wait until there is something to do, do the verbs, hand new requests to the engine. False when closing."""
        with self._mail:
            self._mail.wait_for(self._has_mail)
            if self._closing:
                return False
            verbs, self._verbs = self._verbs, []
            arrivals, self._arrivals = self._arrivals, []
            cancelled, self._cancelled = self._cancelled, set()
        for ticket in arrivals:
            self._unanswered.add(ticket)
            if self._rejecting:
                self._answer([(ticket.request, self._engine.empty_output())])
            else:
                self._engine.add(ticket.request)
        for verb, future in verbs:
            try:
                future.set_result(verb())
            except Exception as error:  # noqa: BLE001 - it belongs to the caller of the verb
                future.set_exception(error)
        if cancelled:
            self._engine.remove(cancelled)
            self._unanswered -= cancelled
        return True

    def _has_mail(self) -> bool:
        return bool(
            self._closing
            or self._verbs
            or self._arrivals
            or self._cancelled
            or (self._may_decode and self._engine.has_work)
        )

    def _abort(self, reject_request: bool) -> int:
        self._set_state(paused=True, rejecting=reject_request)
        finished = self._engine.abort_all()
        self._answer(finished)
        return len(finished)

    def _fall_asleep(self) -> None:
        if self._engine.num_active:
            raise RolloutError(
                f"server {self.name!r} cannot sleep while it decodes {self._engine.num_active} requests: "
                "await them, or call abort_all_requests() first"
            )
        self._engine.free_cache()
        self._set_state(asleep=True)

    def _answer(self, finished: list[Finished]) -> None:
        if finished:
            self._unanswered.difference_update(request.owner for request, _ in finished)
            _answer([(request.owner, output) for request, output in finished])

    def _set_state(self, **flags: bool) -> None:
        for flag, value in flags.items():
            setattr(self, f"_{flag}", value)

    def _end(self, error: BaseException | None) -> None:
        """The last act of the thread: everyone who waits gets the reason."""
        with self._mail:
            self._closing, self._failure = True, error
            reason = self._reason_not_to_serve()
            assert reason is not None
            arrivals, self._arrivals = self._arrivals, []
            verbs, self._verbs = self._verbs, []
        # not what the engine knows: after an exception it may have lost the requests it was about to let in
        _answer([(ticket, reason) for ticket in (*self._unanswered, *arrivals)])
        for _, future in verbs:
            future.set_exception(reason)
        self._engine.free_cache()


def _answer(answers: list[tuple[_Ticket, TokenOutput | BaseException]]) -> None:
    """Resolve futures on their own event loops: one wake-up a loop, however many requests it waits for."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Ticket, TokenOutput | BaseException]]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_resolve, batch)
        except RuntimeError:  # the loop is closed, so nobody waits there any more
            continue


def _resolve(batch: list[tuple[_Ticket, TokenOutput | BaseException]]) -> None:
    for ticket, answer in batch:
        if ticket.future.done():  # cancelled meanwhile
            continue
        if isinstance(answer, BaseException):
            ticket.future.set_exception(answer)
        else:
            ticket.future.set_result(answer)


_LIVE_SERVERS: weakref.WeakSet[TransformersServer] = weakref.WeakSet()


@atexit.register
def _close_live_servers() -> None:
    """A daemon thread inside the model while the interpreter is taken down would crash it, so end them all before."""
    for server in list(_LIVE_SERVERS):
        server.close()
