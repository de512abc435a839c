"""Everything from the folders of a command line to a server that has ended."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recurra.core.environment import available_cores
from recurra.core.errors import UnavailableError
from recurra.core.memory import limit_fragmentation
from recurra.deployment.serving.clients import read_keys
from recurra.deployment.serving.log import EventLog
from recurra.deployment.serving.settings import ServerLimits


@dataclass(frozen=True)
class ServeOptions:
    """How a server is started.

    Attributes:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        threads: Threads of a computation of ONNX Runtime; 0 takes all cores.
        api_key_file: File with API keys.
        api_key_env: Environment variable with API keys.
        quiet: Log errors only.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    threads: int = 0
    api_key_file: Path | None = None
    api_key_env: str | None = None
    quiet: bool = False


def serve(
    arguments: Sequence[str],
    limits: ServerLimits,
    options: ServeOptions,
    *,
    started: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Serves models until a signal ends it.

    Args:
        arguments: ``FOLDER`` or ``NAME=FOLDER`` each.
        limits: What it takes on.
        options: Where and how.
        started: Called with address and models when requests are taken.

    Raises:
        UnavailableError: If a package is missing, or the address cannot be had.
        ConfigurationError: If a name or a key is wrong.
        CheckpointError: If a folder is not a run or an export of ours, or was changed.
    """
    limit_fragmentation()
    try:
        from recurra.deployment.serving.application import create_application
        from recurra.deployment.serving.server import listen, make_server
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("recurra"):
            raise
        raise UnavailableError(f"the server needs the package {error.name}; pip install 'recurra[serve]'") from error
    from recurra.deployment.serving.served import name_folders, open_models

    log = EventLog(quiet=options.quiet)
    keys = read_keys(options.api_key_file, options.api_key_env)
    folders = name_folders(arguments)
    with listen(options.host, options.port) as taken:
        models = open_models(folders, threads=options.threads or available_cores())
        limit_fragmentation()
        for name, note in [(model.name, model.note) for model in models if model.note]:
            log.write("recommended", model=name, message=note)
        application = create_application(models, limits, keys=keys, log=log)
        # A model that is replaced must not be kept here.
        models.clear()
        host, port = taken.getsockname()[:2]
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        names = list(folders)

        def say() -> None:
            log.write("ready", url=url, models=names, key=keys is not None)
            if keys is None and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
                log.write(
                    "open", level="warning", message="anyone who reaches this address can use it; see --api-key-file"
                )
            if started is not None:
                started({"url": url, "models": names})

        make_server(application, limits, log, started=say).run(sockets=[taken])
        log.write("stopped")
