"""The miniature's policy server: OpenAI chat completions from a tiny model on the CPU.

    python -m lightning_smith.miniature.policy.server --model DIR --model-name NAME --port P
        [--dtype bfloat16] [--routed-experts]

| endpoint | answer |
|---|---|
| `POST /v1/chat/completions` | one choice, with `prompt_token_ids`, `token_ids`, `logprobs`, `routed_experts` |
| `GET /v1/models`, `GET /health` | the served name; `{"status": "ok", "version": ...}` |
| `POST /weights {"path", "version"}` | loads a Hugging Face folder between two batches |
| `GET /stats` | requests, batches, tokens, seconds in the model |

Requests that arrive within a few milliseconds, and all that wait while a batch is computed, form the next
batch. Log-probabilities are those of the plain softmax (temperature 1), whatever temperature was sampled
at, as vLLM's are.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import itertools
import queue
import random
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from lightning_smith.core.errors import UserError, run_script
from lightning_smith.miniature.policy.sampling import Completion, Sampler, SamplingRequest

DEFAULT_MAX_TOKENS = 64
MAX_BATCH = 64
WINDOW_S = 0.005
"""How long the first request of an idle server waits for company."""


@dataclass(frozen=True)
class _Job:
    """One answer wanted; `deliver` takes a Completion or the exception that came instead."""

    request: SamplingRequest
    deliver: Callable[[Completion | Exception], object]


@dataclass(frozen=True)
class _Swap:
    """New weights wanted; `deliver` takes the seconds that it took or the exception that came instead."""

    folder: str
    version: str | int
    deliver: Callable[[float | Exception], object]


class _Stop:
    """The end of the queue."""


class Batcher(threading.Thread):
    """The one thread that touches the model: works through a queue of answers and weight swaps."""

    def __init__(self, sampler: Sampler, *, window_s: float = WINDOW_S, max_batch: int = MAX_BATCH) -> None:
        super().__init__(name="model", daemon=True)
        self.sampler = sampler
        self.version: str | int = 0
        self.stats: dict[str, float] = {
            "requests": 0,
            "batches": 0,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "forwarded_tokens": 0,
            "model_s": 0.0,
        }
        self._window_s, self._max_batch = window_s, max_batch
        self._queue: queue.SimpleQueue[_Job | _Swap | _Stop] = queue.SimpleQueue()

    def submit(self, item: _Job | _Swap) -> None:
        """Queue an item; never blocks."""
        self._queue.put(item)

    def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        self._queue.put(_Stop())
        self.join()

    def run(self) -> None:
        torch.set_num_threads(1)
        following: _Job | _Swap | _Stop | None = None
        while True:
            item = following or self._queue.get()
            following = None
            if isinstance(item, _Stop):
                return
            if isinstance(item, _Swap):
                self._swap(item)
            else:
                jobs, following = self._gather(item)
                self._answer(jobs)

    def _gather(self, first: _Job) -> tuple[list[_Job], _Swap | _Stop | None]:
        """Return a batch that starts with `first`, and the queued swap or stop that ended it, if one did."""
        jobs = [first]
        time.sleep(self._window_s)
        while len(jobs) < self._max_batch:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(item, _Job):
                return jobs, item
            jobs.append(item)
        return jobs, None

    def _answer(self, jobs: list[_Job]) -> None:
        started, before = time.monotonic(), self.sampler.forwarded_tokens
        waiting = dict(enumerate(jobs))

        def deliver(index: int, completion: Completion) -> None:
            self.stats["completion_tokens"] += len(completion.tokens)
            waiting.pop(index).deliver(completion)

        try:
            self.sampler.sample([job.request for job in jobs], deliver)
        except Exception as error:  # one bad batch must not end the server; every client of it is told
            traceback.print_exc()
            for job in waiting.values():
                job.deliver(error)
        self.stats["requests"] += len(jobs)
        self.stats["batches"] += 1
        self.stats["prompt_tokens"] += sum(len(job.request.prompt) for job in jobs)
        self.stats["forwarded_tokens"] += self.sampler.forwarded_tokens - before
        self.stats["model_s"] += time.monotonic() - started

    def _swap(self, swap: _Swap) -> None:
        started = time.monotonic()
        try:
            self.sampler.load_weights(swap.folder)
        except Exception as error:  # the old weights stay in place; the client is told
            swap.deliver(error)
            return
        self.version = swap.version
        swap.deliver(time.monotonic() - started)


class BadRequestError(Exception):
    """What a client asked for cannot be done; its sentence becomes the body of a 400 (or `status`)."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


class PolicyServer:
    """The HTTP side: reads requests, hands them to the batcher, writes OpenAI's shapes."""

    def __init__(self, sampler: Sampler, model_name: str, *, window_s: float = WINDOW_S) -> None:
        self.sampler, self.model_name = sampler, model_name
        self.batcher = Batcher(sampler, window_s=window_s)
        self._pieces = [sampler.text.piece(token) for token in range(sampler.network.shape.vocabulary)]
        self._numbers = itertools.count(1)

    def app(self) -> Starlette:
        """Return the ASGI application; its lifespan starts and stops the model thread."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            self.batcher.start()
            yield
            await asyncio.to_thread(self.batcher.stop)

        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/weights", self._weights, methods=["POST"]),
                Route("/stats", self._stats),
            ],
            exception_handlers={BadRequestError: _bad_request, UserError: _bad_request},
            lifespan=lifespan,
        )

    async def _models(self, _: Request) -> JSONResponse:
        entry = {"id": self.model_name, "object": "model", "max_model_len": self.sampler.max_positions}
        return JSONResponse({"object": "list", "data": [entry]})

    async def _health(self, _: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", "version": self.batcher.version})

    async def _stats(self, _: Request) -> JSONResponse:
        return JSONResponse({**self.batcher.stats, "version": self.batcher.version})

    async def _weights(self, request: Request) -> JSONResponse:
        body = await _read_json(request)
        if not isinstance(body.get("path"), str) or not isinstance(body.get("version"), str | int):
            raise BadRequestError('weights are given as {"path": FOLDER, "version": TEXT OR NUMBER}')
        seconds = await self._wait(lambda deliver: _Swap(body["path"], body["version"], deliver))
        return JSONResponse({"version": self.batcher.version, "seconds": seconds})

    async def _chat(self, request: Request) -> JSONResponse:
        body = await _read_json(request)
        sampling = self._parse(body)
        completion = await self._wait(lambda deliver: _Job(sampling, deliver))
        return JSONResponse(self._render(body, sampling, completion))

    def _parse(self, body: dict[str, Any]) -> SamplingRequest:
        if body.get("model") != self.model_name:
            raise BadRequestError(
                f"model {body.get('model')!r} is not served here, {self.model_name!r} is", 404
            )
        for key, only in (("stream", False), ("n", 1), ("top_p", 1), ("top_k", -1), ("min_p", 0)):
            if body.get(key) not in (None, only):
                raise BadRequestError(f"{key}={body[key]!r} is not supported: leave it out or give {only!r}")
        messages = body.get("messages")
        if (
            not isinstance(messages, list)
            or not messages
            or not all(_is_message(message) for message in messages)
        ):
            raise BadRequestError("messages must be a list of {role, content} with text contents")
        prompt = self.sampler.encode(messages)
        if len(prompt) >= self.sampler.max_positions:
            raise BadRequestError(
                f"the conversation has {len(prompt)} tokens and the model's context is "
                f"{self.sampler.max_positions}: no room for an answer"
            )
        seed = body.get("seed")
        return SamplingRequest(
            prompt=prompt,
            max_tokens=int(_number(body, ("max_completion_tokens", "max_tokens"), DEFAULT_MAX_TOKENS, low=1)),
            temperature=_number(body, ("temperature",), 1.0, low=0),
            seed=random.getrandbits(31) if seed is None else int(_number(body, ("seed",), 0)),
        )

    def _render(
        self, body: dict[str, Any], sampling: SamplingRequest, completion: Completion
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": self.sampler.decode(completion.tokens)},
            "finish_reason": "stop" if completion.finished else "length",
            "token_ids": completion.tokens,
        }
        if body.get("logprobs"):
            pairs = zip(completion.tokens, completion.log_probs, strict=True)
            choice["logprobs"] = {"content": [{"token": self._pieces[t], "logprob": lp} for t, lp in pairs]}
        if body.get("return_routed_experts") and completion.routes is not None:
            choice["routed_experts"] = encode_routes(completion.routes)
        prompt_tokens, completion_tokens = len(sampling.prompt), len(completion.tokens)
        return {
            "id": f"chatcmpl-{next(self._numbers)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model_name,
            "prompt_token_ids": list(sampling.prompt),
            "choices": [choice],
            "usage": {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": prompt_tokens + completion_tokens,
            },
        }

    async def _wait(self, job: Callable[[Callable[[Any], object]], _Job | _Swap]) -> Any:
        """Submit a job and await what the model thread delivers; its exceptions are raised here."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any) -> None:
            if future.done():  # the client went away
                return
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.batcher.submit(job(lambda result: loop.call_soon_threadsafe(settle, result)))
        return await future


def encode_routes(routes: np.ndarray) -> str:
    """base64 of `numpy.save`, as vLLM sends routed experts."""
    buffer = io.BytesIO()
    np.save(buffer, routes, allow_pickle=False)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


async def _read_json(request: Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError:
        raise BadRequestError("the body is not valid JSON") from None
    if not isinstance(body, dict):
        raise BadRequestError("the body is not a JSON object")
    return body


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("role"), str)
        and isinstance(value.get("content"), str)
    )


def _number(body: dict[str, Any], keys: tuple[str, ...], default: float, low: float | None = None) -> float:
    """Return the first of `keys` in the body, or `default`; BadRequestError if no number or below `low`."""
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or (low is not None and value < low):
            raise BadRequestError(
                f"{key}={value!r} is not a number" + (f" of at least {low}" if low is not None else "")
            )
        return value
    return default


async def _bad_request(_: Request, error: Exception) -> JSONResponse:
    status = error.status if isinstance(error, BadRequestError) else 400
    return JSONResponse({"error": {"message": str(error), "code": status}}, status_code=status)


def main(argv: list[str] | None = None) -> None:
    """Parse the command line and serve until SIGTERM or SIGINT; requests in flight are answered first."""
    parser = argparse.ArgumentParser(description="Serve the miniature's policy as OpenAI chat completions.")
    parser.add_argument("--model", required=True, help="folder of the policy: config, weights, tokenizer")
    parser.add_argument("--model-name", required=True, help="name that clients must ask for")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, required=True, help="port to listen on")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="of weights and cache"
    )
    parser.add_argument(
        "--routed-experts", action="store_true", help="record experts, return them when asked"
    )
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads (default: %(default)s)")
    parser.add_argument(
        "--max-model-len", type=int, help="tokens of prompt and answer (default: what the model holds)"
    )
    options = parser.parse_args(argv)

    torch.set_num_threads(options.threads)
    sampler = Sampler(options.model, getattr(torch, options.dtype), record_routes=options.routed_experts)
    if options.max_model_len is not None:
        sampler.limit_positions(options.max_model_len)
    app = PolicyServer(sampler, options.model_name).app()
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning", timeout_graceful_shutdown=10)


if __name__ == "__main__":
    run_script(main)
