"""Have a vLLM server load an adapter, through the faults that a server under load shows.

Stands alone: it needs httpx and tenacity, and a callable that says how the server's process is. Connection errors and
502, 503 and 504 are tried again until a total limit; a process that is gone is not waited for; a lost reply is followed
by a look at the model list, since the load may have worked; any other refusal is final.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx
import tenacity

RETRIED_STATUS = frozenset({502, 503, 504})
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
ATTEMPT_TIMEOUT_S = 60.0  # one load takes milliseconds to seconds; a large adapter from a slow disk longer
SHORTEST_ATTEMPT_S = 1.0  # the last attempt gets this much, however little is left of the limit
LOOKUP_TIMEOUT_S = 5.0  # the model list is answered at once, or by nobody
_BAD_REQUEST = 400
_NOT_FOUND = 404


class ServerGoneError(Exception):
    """The server's process has ended: waiting for it is no use.

    Attributes:
        attempts: How often it was tried.
        waited_s: For how long.
    """

    attempts: int = 0
    waited_s: float = 0.0


class ReloadRefusedError(Exception):
    """The server refused the adapter.

    Attributes:
        status: HTTP status.
        body: The server's own words.
    """

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"server answered {status} ({body})")
        self.status = status
        self.body = body


class ReloadFailedError(Exception):
    """The server could not be reached, or did not answer, within the limit.

    Attributes:
        last: What became of the last attempt.
        attempts: How often it was tried.
        waited_s: For how long.
    """

    def __init__(self, attempts: int, waited_s: float, cause: BaseException | None) -> None:
        last = f"{type(cause).__name__.strip('_')} {cause}".rstrip()
        super().__init__(f"{attempts} attempts in {waited_s:.1f} s, last: {last}")
        self.last = last
        self.attempts = attempts
        self.waited_s = waited_s


@dataclass(frozen=True)
class ReloadReport:
    """How a load went.

    Attributes:
        attempts: Requests sent.
        took_s: Seconds in all.
        found_in_list: The reply was lost, but the server listed the adapter.
    """

    attempts: int
    took_s: float
    found_in_list: bool


class _RetryableStatusError(Exception):
    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"server answered {status} ({body})")


_TRANSIENT = (httpx.TransportError, _RetryableStatusError)


async def load_adapter_with_retry(
    client: httpx.AsyncClient,
    root_url: str,
    *,
    name: str,
    path: str,
    total_timeout_s: float,
    require_process: Callable[[], Awaitable[None]],
    on_retry: Callable[[int, BaseException], None] | None = None,
) -> ReloadReport:
    """Load an adapter under a fresh name.

    `load_inplace` is never sent: it sticks to the stored request, and vLLM would read the adapter from disk at every
    step.

    Args:
        client: With the server's credentials.
        root_url: The server's address without `/v1`.
        name: What requests will ask for.
        path: The adapter's folder, as the server sees it.
        total_timeout_s: Limit over all attempts; the time that `require_process` takes does not count.
        require_process: Awaited before every attempt; raises `ServerGoneError` when the process is gone (it may first
            wait for a restart).
        on_retry: Told about each failed attempt that is followed by another.

    Raises:
        ServerGoneError: From `require_process`.
        ReloadRefusedError: The server refused; trying again is no use.
        ReloadFailedError: It could not be reached within the limit; chained to the last error.
    """
    started = time.monotonic()
    attempts = 0
    deadline = started + total_timeout_s

    async def wait_for_process() -> None:
        nonlocal deadline
        asked = time.monotonic()
        await require_process()
        deadline += time.monotonic() - asked

    backoff = tenacity.wait_exponential(multiplier=FIRST_WAIT_S, max=LONGEST_WAIT_S)
    jitter = tenacity.wait_random(0, FIRST_WAIT_S)

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if on_retry is not None and error is not None:
            on_retry(state.attempt_number, error)

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(_TRANSIENT),
        wait=lambda state: max(0.0, min(backoff(state) + jitter(state), deadline - time.monotonic())),
        stop=lambda state: time.monotonic() >= deadline,
        before_sleep=before_sleep,
        reraise=True,
    )
    try:
        async for attempt in retrying:
            with attempt:
                await wait_for_process()
                attempts += 1
                timeout_s = min(ATTEMPT_TIMEOUT_S, max(SHORTEST_ATTEMPT_S, deadline - time.monotonic()))
                found = await _attempt(client, root_url, name, path, timeout_s)
    except ServerGoneError as err:
        err.attempts, err.waited_s = attempts, time.monotonic() - started
        raise
    except _TRANSIENT as err:
        raise ReloadFailedError(attempts, time.monotonic() - started, err) from err
    return ReloadReport(attempts, time.monotonic() - started, found)


async def _attempt(client: httpx.AsyncClient, root_url: str, name: str, path: str, timeout_s: float) -> bool:
    """Send one load request; return whether it was the model list that told of its success."""
    body = {"lora_name": name, "lora_path": path}
    try:
        response = await client.post(f"{root_url}/v1/load_lora_adapter", json=body, timeout=timeout_s)
    except (httpx.ConnectError, httpx.ConnectTimeout):
        raise  # nothing was sent
    except httpx.TransportError:
        if _is_among(path, await listed_paths(client, root_url, name, min(timeout_s, LOOKUP_TIMEOUT_S))):
            return True
        raise
    if response.is_success:
        return False
    message = error_message(response)
    if response.status_code in RETRIED_STATUS:
        raise _RetryableStatusError(response.status_code, message)
    if response.status_code == _BAD_REQUEST:
        listed = await listed_paths(client, root_url, name)
        if _is_among(path, listed):
            return True  # an earlier attempt whose reply was lost got through after all
        if listed:
            # An earlier publication of this name was given up, and then got through.
            await client.post(f"{root_url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=LOOKUP_TIMEOUT_S)
            raise _RetryableStatusError(response.status_code, message)
    if response.status_code == _NOT_FOUND and not _is_about_adapter(response, message):
        message += "; the server has no such route: it must be started with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
    raise ReloadRefusedError(response.status_code, message)


async def listed_paths(
    client: httpx.AsyncClient, root_url: str, name: str, timeout_s: float = LOOKUP_TIMEOUT_S
) -> list[str | None]:
    """Return the folder under which the server lists a name; nothing where it does not, or does not answer."""
    try:
        response = await client.get(f"{root_url}/v1/models", timeout=timeout_s)
        response.raise_for_status()
        return [card.get("root") for card in response.json()["data"] if card["id"] == name]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []


def _is_among(path: str, listed: list[str | None]) -> bool:
    return path in listed or None in listed  # some servers do not tell the folder


def _is_about_adapter(response: httpx.Response, message: str) -> bool:
    """Tell a 404 for the adapter from one for the route."""
    return response.headers.get("content-type", "").startswith("application/json") and message != "Not Found"


def error_message(response: httpx.Response) -> str:
    """Return the server's own words about an error."""
    try:
        body = response.json()
    except ValueError:
        return response.text.strip()[:2000]
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict) and "message" in error:
            return str(error["message"])
        for key in ("message", "detail"):
            if key in body:
                return str(body[key])
    return str(body)[:2000]
