"""flashmoe servers as replicas of a Ray Serve application.

    serve run application:application

Each replica owns a server on a free port (FLASHMOE, MODEL: the binary and the folder of the model) and passes requests
to it, streams as they come. A server that ends is started again, and what it refused or had not begun to answer waits
for that. Ray replaces a replica whose /livez fails.
"""

import asyncio
import os
import re

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
ATTEMPTS = 8


@serve.deployment(
    num_replicas=int(os.environ.get("REPLICAS", "3")),
    # The server has the queue.
    max_ongoing_requests=64,
    ray_actor_options={"num_cpus": 0.1},
    health_check_period_s=2,
    graceful_shutdown_timeout_s=600,
)
class Replica:
    async def __init__(self):
        self.ready, self.ending = asyncio.Event(), False
        timeout = aiohttp.ClientTimeout(total=None, sock_read=600)
        # A kept connection may belong to a server that is gone.
        self.session = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0, force_close=True))
        self.keeper = asyncio.create_task(self.keep())
        await self.ready.wait()

    async def keep(self):
        arguments = [os.environ["FLASHMOE"], "serve", os.environ["MODEL"], "--port", "0"]
        arguments += os.environ.get("SERVE_ARGUMENTS", "").split()
        while not self.ending:
            self.server = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
            line = (await self.server.stdout.readline()).decode()
            if found := re.search(r"http://\S+", line):
                self.url = found.group()
                self.ready.set()
            code = await self.server.wait()
            self.ready.clear()
            print(f"the server ended with {code}", flush=True)
            if not found:
                await asyncio.sleep(1)

    async def check_health(self):
        if self.ready.is_set():
            try:
                async with self.session.get(f"{self.url}/livez") as answer:
                    answer.raise_for_status()
            except aiohttp.ClientConnectionError:
                pass  # It has just ended, and is started again.

    async def ask(self, request, body):
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        for attempt in range(1, ATTEMPTS + 1):
            await self.ready.wait()
            server = self.server
            try:
                answer = await self.session.request(request.method, f"{self.url}{target}", headers=headers, data=body)
            except aiohttp.ClientConnectionError:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(0.1)
                continue
            # It drains: its successor takes the request.
            if answer.status == 503 and attempt < ATTEMPTS:
                answer.close()
                await asyncio.wait([asyncio.create_task(server.wait())], timeout=60)
                await asyncio.sleep(0.1)
                continue
            return answer

    async def __call__(self, request: Request):
        answer = await self.ask(request, await request.body())
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
        self.ending = True
        self.server.terminate()
        await self.server.wait()


application = Replica.bind()
