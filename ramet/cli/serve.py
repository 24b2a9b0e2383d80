"""`ramet serve`: a model behind HTTP, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

from ..counted import counted
from .engine_options import (
    add_engine_arguments,
    byte_count,
    comma_separated,
    engine_options,
    model_name,
    small_cache_warning,
)
from .errors import CommandError
from .interrupts import exit_on_signals

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.server.config import ServerConfig

_SHUTDOWN_SECONDS = 10.0
EXIT_CUT_OFF = 1
_EPILOG = """\
SIGTERM and Ctrl-C end it: requests that run may go on for --drain-timeout, new ones get 503; a second signal does not
wait. Exit status: 0 if everything was answered, 1 if requests were cut off; 143 after SIGTERM and 130 after Ctrl-C if
it had not begun to serve: clients that came early get 503."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument(
        "served_model", nargs="?", metavar="MODEL", type=model_name, help="what --model takes, in fewer letters"
    )
    _add_listening(parser.add_argument_group("listening"))
    _add_access(parser.add_argument_group("who may use it"))
    _add_limits(parser.add_argument_group("limits"))
    add_engine_arguments(parser)


def execute(args: argparse.Namespace) -> int:
    with exit_on_signals():  # but while the server runs, which has handlers of its own
        return _serve(args, server_config(args))


def _serve(args: argparse.Namespace, config: ServerConfig) -> int:
    try:
        from ..runtime.server.early_clients import turn_away
        from ..runtime.server.listener import bound_socket, url_of
        from ..runtime.server.run import serve, shut_down_within
        from ..runtime.server.tenant import Tenants
    except ModuleNotFoundError as error:
        raise CommandError(
            f"the server needs packages that are not installed (no {error.name}): in ramet's checkout, "
            "pip install '.[server]'"
        ) from None
    _set_up_logging(args)
    tenants = Tenants(config)  # before a model is loaded: it may refuse what was given
    with bound_socket(config) as listening, exit_on_signals(lambda: turn_away(listening)):
        llm = _load(args)
        url = url_of(listening)
        num_cut_off = serve(llm, config, tenants, listening, lambda grpc_port: _announce(llm, config, url, grpc_port))
    status = EXIT_CUT_OFF if num_cut_off else 0
    if not shut_down_within(llm, _SHUTDOWN_SECONDS):
        _leave_at_once(status)
    _say("stopped")
    return status


def server_config(args: argparse.Namespace) -> ServerConfig:
    """The options that were given, and the rest by default.

    Raises:
        InvalidConfigError: one is out of range.
    """
    from ..runtime.config import api_keys_from_env
    from ..runtime.server.api_keys import checked_keys
    from ..runtime.server.config import ServerConfig

    names = {field.name for field in dataclasses.fields(ServerConfig)}
    given = {name: value for name, value in vars(args).items() if name in names and value is not None}
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    if "api_keys" not in options:
        options["api_keys"] = api_keys_from_env()
        checked_keys("environment variable RAMET_API_KEY", options["api_keys"], "key")  # raises under its own name
    return ServerConfig(**options)


def _add_listening(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", help="address (default: 127.0.0.1, which only this machine reaches)")
    group.add_argument("--port", type=int, help="default: 8000; 0 takes a free one")
    group.add_argument("--grpc-port", type=int, metavar="PORT", help="speak gRPC too, there")
    group.add_argument(
        *("--served-model-name", "--served-model-names"),
        dest="served_model_names",
        action="extend",
        type=comma_separated,
        metavar="NAME",
        help="what clients may call the model; several with commas between them, or one each time the option is given "
        "(default: the name it is loaded by)",
    )
    group.add_argument(
        *("--allowed-origins", "--cors-allow-origins"),
        dest="allowed_origins",
        action="extend",
        type=comma_separated,
        metavar="ORIGIN",
        help="web pages that may call it from a browser, such as http://localhost:3000; several as for the names",
    )
    group.add_argument(
        "--log-requests", action="store_true", default=None, help="a line for each request, without its text"
    )


def _add_access(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--api-key",
        dest="api_keys",
        action="append",
        metavar="KEY",
        help="ask for it; KEY or NAME=KEY (a NAME of letters, digits, -, _ and ., a KEY of 8 characters or more), may "
        "be given several times: each key has a cache of its own (default: the environment variable RAMET_API_KEY, "
        "which `ps` does not show; it has commas between keys, so they can have none inside)",
    )
    group.add_argument(
        "--admin-api-key",
        dest="admin_api_keys",
        action="append",
        metavar="KEY",
        help="a key that may also flush the cache, read metrics and watch the engine",
    )
    group.add_argument(
        "--allow-request-template", action="store_true", default=None, help="take chat templates out of requests"
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-waiting-sequences", type=int, metavar="N", help="more get 429 (default: 512)")
    group.add_argument("--max-connections", type=int, metavar="N", help="more get 503 (default: 4096)")
    group.add_argument("--max-n", type=int, metavar="N", help="samples of one request (default: 128)")
    group.add_argument("--max-prompts", type=int, metavar="N", help="prompts of one request (default: 2048)")
    group.add_argument(
        "--max-prompt-chars", type=int, metavar="N", help="of a prompt (default: 32 for each token of the context)"
    )
    sizes = {
        "body": "of one request's body (default: 8M)",
        "header": "of one request's headers (default: 32K)",
        "total-body": "of all requests' bodies together; more get 429 (default: 64M)",
        "stored-response": "of the responses kept for each API key; 0 keeps none (default: 32M)",
    }
    for name, text in sizes.items():
        dest = f"max_{name.replace('-', '_')}_bytes"
        group.add_argument(f"--max-{name}-size", dest=dest, type=byte_count, metavar="SIZE", help=text)
    seconds = {
        "request": "a request may take; 0 for as long as it likes (default: 600)",
        "header": "a client may take to send its headers (default: 30)",
        "body": "a client may take to send its body (default: 60)",
        "write": "a client may take nothing of its answer (default: 60)",
        "drain": "what runs may go on after SIGTERM (default: 30)",
        "step": "a step of the engine may take before /health says 503 (default: 60)",
    }
    for name, text in seconds.items():
        group.add_argument(f"--{name}-timeout", dest=f"{name}_timeout_s", type=float, metavar="SECONDS", help=text)


def _load(args: argparse.Namespace) -> LLM:
    if args.served_model is not None and args.model is not None and args.served_model != args.model:
        raise CommandError(f"two models are named, {args.served_model!r} and {args.model!r}: leave one out")
    from ..runtime.llm import LLM
    from ..runtime.weights.resolve import BUNDLED_NAME

    model = args.served_model or args.model or BUNDLED_NAME
    _say(f"loading {model}")
    llm = LLM(
        model,
        device=args.device,
        kernels=args.kernels,
        num_threads=args.threads,
        **engine_options(args),
    )
    warning = small_cache_warning(llm, args)
    if warning is not None:
        _say(warning)
    return llm


def _announce(llm: LLM, config: ServerConfig, url: str, grpc_port: int | None) -> None:
    from ..runtime.server.listener import client_address, is_every_address
    from ..runtime.server.origins import is_loopback

    num_keys = len(config.api_keys) + len(config.admin_api_keys)
    is_open = not num_keys and not is_loopback(config.host)
    everywhere = f" and every address of this machine (--host {config.host})" if is_every_address(config.host) else ""
    snapshot = llm.cache_snapshot()
    cache = snapshot.num_blocks * snapshot.block_size
    lines = [
        f"ramet serves {', '.join(config.served_model_names or (llm.model_name,))} at {url}{everywhere}",
        f"  context {llm.max_context_len:,} tokens, cache {cache:,} tokens, {llm.kernels_name} kernels",
        f"  {counted(num_keys, 'API key')} known" if num_keys else "  no API key needed",
        f"  page {url}/   endpoints {url}/docs   OpenAI clients: base_url={url}/v1",
    ]
    if grpc_port is not None:
        lines.append(f"  gRPC at {client_address(config.host, grpc_port)}")
    if llm.config.prefix_cache_dir is not None:
        disk = llm.metrics().tiers.get("disk")
        found = disk.num_held_blocks * snapshot.block_size if disk is not None else 0
        lines.append(f"  prefixes are kept in {llm.config.prefix_cache_dir}, where {found:,} tokens were found")
    if is_open:
        _say(f"warning: everybody who reaches {config.host} may use this server: give it an --api-key")
    print("\n".join(lines), flush=True)


def _say(text: str) -> None:
    """To whoever watches, at once; standard output has only where the server is."""
    print(f"ramet: {text}", file=sys.stderr, flush=True)


def _set_up_logging(args: argparse.Namespace) -> None:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it warns of every malformed request
    if args.log_requests:
        logging.getLogger(__name__.partition(".")[0]).setLevel(logging.INFO)


def _leave_at_once(status: int) -> None:
    """A step hangs inside a kernel, and its thread with it, for which the interpreter would wait."""
    _say("warning: a step of the engine hangs; the process ends without it")
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
