"""ramet in a Ray cluster: its whole server as a Ray Serve deployment, with as many replicas as you ask for.

    pip install 'ray[serve]==2.60.*'
    python examples/ray_serve.py --model smollm2 --replicas 2        # ends with Ctrl-C
    curl -N http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \
        -d '{"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 16, "stream": true}'

Each replica is a process with a model, an engine and a cache of its own; Ray gives a request to the less busy of two,
whatever they have cached. What a replica remembers others do not know: `previous_response_id`, `/abort_request`,
`/flush_cache` and `/metrics` reach one of them. Use sglang-router where shared prefixes matter most.
"""

import argparse

from ray import serve

from ramet import LLM
from ramet.runtime.server.app import build_app
from ramet.runtime.server.config import ServerConfig
from ramet.runtime.server.service import EngineService

DRAIN_SECONDS = 30


@serve.ingress()
class Ramet:
    """One replica. Ray runs the application's lifespan, on the loop that then has its requests."""

    def __init__(self, model, num_threads, host, api_keys):
        self.llm = LLM(model, num_threads=num_threads)
        # It is Ray that listens: the host says only which names the server answers to, as it does for `ramet serve`.
        self.service = EngineService(self.llm, ServerConfig(host=host, api_keys=api_keys))

    def __serve_build_asgi_app__(self):
        """Ray asks for the application once the model is there."""
        return build_app(self.service)

    def check_health(self):
        """Ray asks every ten seconds, and replaces the replica when this raises."""
        fault = self.service.engine_fault()
        if fault is not None:
            raise RuntimeError(fault)


def deployment(model="smollm2", num_replicas=1, num_threads=1, host="127.0.0.1", api_keys=()):
    """The application for `serve.run`. Ray needs `num_threads` free CPUs for each replica."""
    ramet = serve.deployment(
        Ramet,
        num_replicas=num_replicas,
        ray_actor_options={"num_cpus": num_threads},
        # Ray's default of 5 would be the largest batch. What is too much the engine queues, or answers with 429.
        max_ongoing_requests=256,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
    )
    return ramet.bind(model, num_threads, host, tuple(api_keys))


def main():
    parser = argparse.ArgumentParser(description="Serve a model with Ray.")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each replica")
    parser.add_argument("--api-key", action="append", default=[], dest="api_keys", metavar="[NAME=]KEY")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    serve.start(http_options={"host": options.host, "port": options.port})
    application = deployment(options.model, options.replicas, options.threads, options.host, options.api_keys)
    try:
        serve.run(application, name="ramet", blocking=True)
    except KeyboardInterrupt:
        serve.delete("ramet")  # its replicas first answer what they have taken on


if __name__ == "__main__":
    main()
