# A script as people write them: no guard around the main part, a synchronous `with` or none at all.
# `careless.py PATH BASE_MODEL MODE ENDING`; MODE is "child" or "thread", for where the service runs.
import asyncio
import sys
import threading

from art.local import LocalBackend
from tests.support.local_run import fixed_logprobs, listed_names, make_model, train_step
from tests.support.script_run import emit, wait_for_test

path, base_model, mode, ending = sys.argv[1:]
own_threads = set(threading.enumerate())


async def run(local: LocalBackend) -> None:
    model = make_model(base_model)
    await model.register(local)
    emit("registered", url=model.inference_base_url)
    result = await train_step(local, model)
    emit("trained", step=result.step, name=model.get_inference_name(), listed=sorted(await listed_names(model)))
    if ending == "waits":
        await asyncio.to_thread(wait_for_test)
        before = await fixed_logprobs(model)
        result = await train_step(local, model)
        emit("trained again", step=result.step, changed=before != await fixed_logprobs(model))
    await model.openai_client().close()


def tell_threads() -> None:
    emit("threads", left=sorted(thread.name for thread in threading.enumerate() if thread not in own_threads))


if ending == "never closes":
    asyncio.run(run(LocalBackend(path=path, in_process=mode == "thread")))
elif ending == "raises":
    with LocalBackend(path=path, in_process=mode == "thread") as backend:
        asyncio.run(run(backend))
        raise KeyError("the script's own mistake")
elif ending == "closes twice":
    with LocalBackend(path=path, in_process=mode == "thread") as backend:
        asyncio.run(run(backend))
        asyncio.run(backend.close())
    tell_threads()
else:

    async def main() -> None:
        async with LocalBackend(path=path, in_process=mode == "thread") as backend:
            await run(backend)

    asyncio.run(main())
    tell_threads()
