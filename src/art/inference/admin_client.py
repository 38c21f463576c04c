"""Ask a local inference server about itself over the address that rollouts use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx

REQUEST_TIMEOUT_S = 60.0  # a probe waits behind the engine's running batch, never behind a whole generation
_TOKEN_COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
CONNECT_TIMEOUT_S = 5.0  # loopback: longer means that nobody accepts


class AdminClient:
    """A keep-alive client for one server. Proxy variables are ignored: the server is on this machine.

    Args:
        base_url: The address with `/v1`.
        api_key: Sent as bearer token.
    """

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url = base_url.rstrip("/")
        self.root_url = self.base_url.removesuffix("/v1")
        self.http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {api_key}"},
            timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=False,
        )

    async def list_models(self, timeout_s: float | None = None) -> set[str]:
        """Return the names that the server answers to.

        Raises:
            httpx.HTTPError: It does not answer, or not with success.
        """
        response = await self._idempotent("GET", f"{self.base_url}/models", timeout_s=timeout_s)
        return {str(card["id"]) for card in response.json()["data"]}

    async def score(self, model_name: str, token_ids: Sequence[int], positions: Sequence[int]) -> list[float]:
        """Return the logprobs of one token at several places of a sequence, under a model or adapter.

        The token is sampled there, being the only one allowed; its reported logprob is that of the unrestricted
        distribution. `prompt_logprobs` would say the same, but with an adapter and another request in the same batch it
        brings vLLM's engine down on a CPU (0.20.2: the LoRA logits kernel is handed an index of the wrong length).

        Args:
            model_name: A name that the server lists.
            token_ids: T tokens.
            positions: Indices i for which `token_ids[i + 1]`, the same token for all, is predicted from
                `token_ids[: i + 1]`.

        Returns:
            One natural logprob for each position.

        Raises:
            httpx.HTTPError: It does not answer, or not with success.
            ValueError: The positions do not share one next token, or the answer holds another number of values.
        """
        (target,) = {token_ids[index + 1] for index in positions}
        body = {
            "model": model_name,
            "prompt": [list(token_ids[: index + 1]) for index in positions],
            "max_tokens": 1,
            "allowed_token_ids": [target],
            "ignore_eos": True,
            "logprobs": 0,
        }
        response = await self._idempotent("POST", f"{self.base_url}/completions", json=body)
        choices = sorted(response.json()["choices"], key=lambda choice: choice["index"])
        if len(choices) != len(positions):
            raise ValueError(f"{len(choices)} answers to {len(positions)} prompts")
        return [float(choice["logprobs"]["token_logprobs"][0]) for choice in choices]

    async def complete_one_token(self, model_name: str, timeout_s: float) -> None:
        """Have one token generated: the only sign of life that includes the engine.

        Raises:
            httpx.HTTPError: It does not answer, or not with success, or with something else than a completion.
        """
        body = {"model": model_name, "prompt": "Hi", "max_tokens": 1}
        response = await self._idempotent("POST", f"{self.base_url}/completions", json=body, timeout_s=timeout_s)
        try:
            _ = response.json()["choices"][0]["text"]
        except (ValueError, KeyError, IndexError, TypeError) as err:
            raise httpx.DecodingError(f"the answer is no completion: {response.text[:100]!r}") from err

    async def health(self, timeout_s: float = 5.0) -> str:
        """Say in words what `/health` answers; never raises an HTTP error."""
        try:
            response = await self.http.get(f"{self.root_url}/health", timeout=timeout_s)
        except httpx.HTTPError as err:
            return f"no answer ({type(err).__name__}{f': {err}' if str(err) else ''})"
        return f"HTTP {response.status_code}"

    async def tokens_processed(self, timeout_s: float = 5.0) -> float | None:
        """Return how many tokens the engine has read and written so far; None where the server does not tell."""
        try:
            response = await self.http.get(f"{self.root_url}/metrics", timeout=timeout_s)
        except httpx.HTTPError:
            return None
        if not response.is_success:
            return None
        return sum_of_metrics(response.text, _TOKEN_COUNTERS)

    async def get(self, path: str, timeout_s: float | None = None) -> Any:
        """GET a path below the server's root and return its JSON."""
        return (await self._idempotent("GET", f"{self.root_url}{path}", timeout_s=timeout_s)).json()

    async def post(self, path: str, json: dict[str, Any], timeout_s: float | None = None) -> httpx.Response:
        """POST what may be sent twice, whatever comes back; the caller judges the status."""
        return await self._send("POST", f"{self.root_url}{path}", json=json, timeout_s=timeout_s)

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()

    async def _idempotent(
        self, method: str, url: str, *, json: dict[str, Any] | None = None, timeout_s: float | None = None
    ) -> httpx.Response:
        return (await self._send(method, url, json=json, timeout_s=timeout_s)).raise_for_status()

    async def _send(
        self, method: str, url: str, *, json: dict[str, Any] | None, timeout_s: float | None
    ) -> httpx.Response:
        timeout = httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            return await self.http.request(method, url, json=json, timeout=timeout)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
            # vLLM 0.20 drops the connection after some error replies; the next request on it is reset. Once more,
            # fresh.
            return await self.http.request(method, url, json=json, timeout=timeout)


def sum_of_metrics(text: str, names: tuple[str, ...]) -> float | None:
    """Add up Prometheus samples of these names over all their labels; None when there is none."""
    values = []
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in names:
            values.append(float(line.rpartition(" ")[2]))
    return sum(values) if values else None
