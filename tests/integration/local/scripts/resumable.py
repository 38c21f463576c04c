"""A training script that a test stops in the middle of something: `resumable.py PATH BASE_MODEL MODE STAGE`.

MODE is "child" or "thread", for where the service runs. STAGE says what it is doing when it is stopped: "sampling",
"training" or "saving" (which the test holds up there), or "nothing": it then ends by itself.
"""

import asyncio
import sys

from art.local import LocalBackend, backend
from tests.support.faulty_service import FaultyService, wait_for_order
from tests.support.local_run import fixed_logprobs, make_model, sample, train_step
from tests.support.script_run import emit

PATH, BASE_MODEL, MODE, STAGE = sys.argv[1:]
backend.UnslothService = FaultyService  # type: ignore[misc]


async def main() -> None:
    async with LocalBackend(path=PATH, in_process=MODE == "thread") as local:
        model = make_model(BASE_MODEL)
        await model.register(local)
        name, step = model.get_inference_name(), await model.get_step()
        emit("registered", name=name, step=step, url=model.inference_base_url, logprobs=await fixed_logprobs(model))
        result = await train_step(local, model)
        name = model.get_inference_name()
        emit("trained", name=name, step=result.step, logprobs=await fixed_logprobs(model))
        if STAGE == "sampling":
            await sample_on_and_on(model)
        elif STAGE != "nothing":
            groups = await sample(model)
            emit("sampled")
            await asyncio.to_thread(wait_for_order)
            await train_step(local, model, groups)
    emit("finished")


async def sample_on_and_on(model: object) -> None:
    async def ask(index: int) -> None:
        stream = await model.openai_client().chat.completions.create(  # type: ignore[attr-defined]
            model=model.get_inference_name(),  # type: ignore[attr-defined]
            messages=[{"role": "user", "content": f"say it again {index}"}],
            max_tokens=900,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for _ in stream:
            if index == 0:
                emit("reached")

    await asyncio.gather(*(ask(index) for index in range(8)))


asyncio.run(main())
