from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio


@pytest_asyncio.fixture
async def litellm(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The real package, which asks nobody for prices and leaves no connection open behind it."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    monkeypatch.setattr(litellm, "disable_aiohttp_transport", True)
    yield litellm
    for client in list(litellm.in_memory_llm_clients_cache.cache_dict.values()):
        await client.close()
    litellm.in_memory_llm_clients_cache.flush_cache()
