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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from kitlib.rollout.admission import Admission
from kitlib.rollout.engine import DecodingEngine, Finished
from kitlib.rollout.protocol import RolloutError, ServerClosedError, TokenOutput
from kitlib.rollout.request_log import RequestLog
from kitlib.rollout.tickets import Ticket, answer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Result = TypeVar("Result")


class TransformersServer:
    """LLMServer over `model`; see kitlib.rollout.protocol.LLMServer for the verbs.

    Args:
        model: owned by the server from here on; hand it a copy if something else trains or reads it.
        eos_token_id: the token that ends a request and is part of its output; one, several or none.
        max_model_len: prompt and output together. A longer prompt is refused, an output ends there ("length").
        max_num_seqs: rows decoded at once; further requests wait.
        max_num_batched_tokens: prompt tokens computed at once.
        enable_prefix_caching: compute a prompt that several waiting requests share once, and keep the keys and values
            of a finished request for the next turn of the same request_id, until the weights change.
        prompt_length, response_length: a request without max_tokens gets min(response_length, prompt_length +
            response_length - tokens of its prompt), as in verl; without these, all that max_model_len leaves.
        device: where to move the model; None leaves it.
        seed: with the order of arrival it fixes every draw, whatever is decoded beside a request.
        global_steps: version of the weights that `model` has.
        name: for error messages and the thread.
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
        self.name = name
        self._engine = DecodingEngine(
            model if device is None else model.to(device),  # type: ignore[arg-type]
            eos_token_ids,
            max_model_len,
            max_num_seqs,
            max_num_batched_tokens,
            enable_prefix_caching,
            global_steps,
        )
        self.request_log = RequestLog(name)
        self._engine.on_join = self.request_log.begin
        self._admission = Admission(self._engine.runner.vocab_size, max_model_len, prompt_length, response_length, seed)
        self._paused = self._rejecting = self._asleep = False  # written by the server's thread
        self._unanswered: set[Ticket] = set()  # all that the thread has taken in; touched by the thread alone
        self._mail = threading.Condition()  # guards the five fields below
        self._verbs: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._arrivals: list[Ticket] = []
        self._cancelled: set[Ticket] = set()
        self._closing = False
        self._failure: BaseException | None = None
        self._staged: dict[asyncio.AbstractEventLoop, list[Ticket]] = {}  # each list is touched by its loop alone
        self._thread = threading.Thread(target=self._run, name=f"kitlib-{name}", daemon=True)
        self._thread.start()
        _LIVE_SERVERS.add(self)

    # ---- verbs: any thread -----------------------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str
    ) -> TokenOutput:
        """Continue `prompt_ids`. RolloutError if that cannot be served, the thread's exception if it has failed."""
        request = self._admission.request(prompt_ids, sampling_params, request_id)
        loop = asyncio.get_running_loop()
        ticket = Ticket(loop, loop.create_future(), request)
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
        """Answer every request with what it has, start none until resume_generation, return how many there were."""
        return self._ask(lambda: self._abort(reject_request))

    def resume_generation(self) -> None:
        self._ask(lambda: self._set_state(paused=False, rejecting=False))

    def sleep(self) -> None:
        """Free the KV cache; requests wait until wake_up. RolloutError while requests are being decoded."""
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

    @property
    def num_arrivals(self) -> int:
        """Requests taken in so far; with `seed` it decides the draws of the next one."""
        return self._admission.num_arrivals

    @num_arrivals.setter
    def num_arrivals(self, value: int) -> None:
        self._admission.num_arrivals = value

    # ---- the way in ------------------------------------------------------------------------------------------------

    def _stage(self, ticket: Ticket) -> None:
        """Hold a request back until the loop has run all that is ready: sessions that start together join together."""
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
        answer([(ticket, error) for ticket in tickets])

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
            self.request_log.end([(ticket.request, None) for ticket in cancelled])
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
            self.request_log.end(finished)
            answer([(request.owner, output) for request, output in finished])

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
        answer([(ticket, reason) for ticket in (*self._unanswered, *arrivals)])
        self.request_log.end_all()
        for _, future in verbs:
            future.set_exception(reason)
        self._engine.free_cache()


_LIVE_SERVERS: weakref.WeakSet[TransformersServer] = weakref.WeakSet()


@atexit.register
def _close_live_servers() -> None:
    """A daemon thread inside the model while the interpreter is taken down would crash it, so end them all before."""
    for server in list(_LIVE_SERVERS):
        server.close()
