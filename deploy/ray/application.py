"""flashmoe servers as replicas of a Ray Serve application.

    serve run application:application

Each replica starts a server of its own on a free port (FLASHMOE, MODEL: the binary and the folder of the model) and
passes requests to it, streams as they come. Ray restarts a replica whose /livez fails.
"""

import asyncio
import os
import re

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@serve.deployment(
    num_replicas=int(os.environ.get("REPLICAS", "3")),
    max_ongoing_requests=12,
    ray_actor_options={"num_cpus": 0.1},
    health_check_period_s=2,
    graceful_shutdown_timeout_s=600,
)
class Replica:
    async def __init__(self):
        arguments = [os.environ["FLASHMOE"], "serve", os.environ["MODEL"], "--port", "0"]
        arguments += os.environ.get("SERVE_ARGUMENTS", "").split()
        self.server = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        line = (await self.server.stdout.readline()).decode()
        self.url = re.search(r"http://\S+", line).group()
        self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_read=600))

    async def check_health(self):
        async with self.session.get(f"{self.url}/livez") as answer:
            answer.raise_for_status()

    async def __call__(self, request: Request):
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        path = f"{self.url}{request.url.path}"
        answer = await self.session.request(request.method, path, headers=headers, data=await request.body())
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
        if "event-stream" not in answer.headers.get("content-type", ""):
            return Response(await answer.read(), answer.status, kept)

        async def pieces():
            # A client that leaves cancels this, which closes the connection and ends the job.
            try:
                async for piece in answer.content.iter_any():
                    yield piece
            finally:
                answer.close()

        return StreamingResponse(pieces(), answer.status, kept)

    async def __del__(self):
        self.server.terminate()
        await self.server.wait()


application = Replica.bind()
