"""The command line: parses, calls, prints. Whatever a user can do wrong ends in one message and an exit code.

Owns `main`. Exit codes: 0 done, 1 failed (or the demo's digests differ), 2 wrong arguments or configuration,
130 interrupted.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from loader_service import __version__
from loader_service.cli.output import say
from loader_service.cli.table import print_explanation, print_status
from loader_service.errors import ConfigurationError, LoaderServiceError, ServiceUnavailableError

__all__ = ["main"]

_Command = Callable[[argparse.Namespace], int]


def _serve(arguments: argparse.Namespace) -> int:
    from loader_service.daemon.config.load import Config
    from loader_service.daemon.ops import logs
    from loader_service.daemon.ops.notify import notify_ready
    from loader_service.daemon.server.service import Service
    from loader_service.daemon.workers.orphans import adopt

    as_json = logs.wants_json(os.environ.get(logs.ENVIRONMENT_VARIABLE, "")) or arguments.log_json
    config = Config.load(arguments.config)
    given = {"endpoint": arguments.endpoint, "workers": arguments.workers}
    filled = dataclasses.asdict(config.server) | {key: value for key, value in given.items() if value is not None}
    config = Config.of(config.to_mapping() | {"server": filled}, source="command line")

    def ready(endpoint: str) -> None:
        _say(f"loader-service: serving {', '.join(config.streams)} at {endpoint}\n")
        notify_ready()

    adopt()
    with closing(logs.configure(arguments.log_level, as_json=as_json)):
        return Service(config, ready).run()


def _say(text: str) -> None:
    """Write to standard output, if that can be written: a full disk is no reason for a daemon to end."""
    with suppress(OSError, ValueError):
        if sys.stdout is not None:
            os.write(sys.stdout.fileno(), text.encode(errors="backslashreplace"))


def _status(arguments: argparse.Namespace) -> int:
    import loader_client

    with loader_client.connect(arguments.endpoint, timeout_s=arguments.timeout) as client:
        status = client.status()
    if arguments.json:
        print(json.dumps(status, indent=2))
    else:
        print_status(status)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    import loader_client

    settings: dict[str, int | float | str] = {}
    for text in arguments.settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigurationError(f"{text!r} is no setting; write NAME=VALUE, such as workers=4 or prefetch=16")
        settings[name] = _number(value)
    with loader_client.connect(arguments.endpoint, timeout_s=arguments.timeout) as client:
        client.tune(_as_utf8(arguments.stream) if arguments.stream else None, **settings)
    say(f"loader-service: set {', '.join(arguments.settings)}")
    return 0


def _as_utf8(text: str) -> str:
    """Return an argument as it was typed, whatever encoding the locale says; configurations are UTF-8."""
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _stop(arguments: argparse.Namespace) -> int:
    import loader_client

    with loader_client.connect(arguments.endpoint, timeout_s=arguments.timeout) as client:
        client.stop_service()
        if not client.wait_for_end(arguments.timeout):
            raise ServiceUnavailableError(
                f"the daemon (pid {client.daemon_pid}) did not end within {arguments.timeout} s; see its log"
            )
        say(f"loader-service: the daemon (pid {client.daemon_pid}) has ended")
    return 0


def _explain(arguments: argparse.Namespace) -> int:
    from loader_service.daemon.config.load import Config
    from loader_service.daemon.workers.factory import load_stream

    config = Config.load(arguments.config)
    name = _as_utf8(arguments.stream)
    stream = config.streams.get(name)
    if stream is None:
        raise ConfigurationError(f"there is no stream {name!r}; the file has {', '.join(config.streams)}")
    sys.path[:0] = config.server.import_paths
    explanation = load_stream(name, stream.factory, stream.args).explain(arguments.step)
    place = {name: getattr(explanation, name) for name in ("step", "epoch", "step_in_epoch")}
    if arguments.json:
        print(json.dumps(place | {"slots": explanation.table()}, indent=2))
    else:
        print_explanation(place, explanation.table())
    return 0


def _has_pillow() -> bool:
    try:
        import PIL  # noqa: F401  # only to see if it is there
    except ModuleNotFoundError:
        return False
    return True


def _demo(arguments: argparse.Namespace) -> int:
    from loader_service.cli.demo.run import DemoOptions, run_demo

    if arguments.text and arguments.save_grid is not None:
        raise ConfigurationError("--save-grid draws images, and --text has none; leave one of them out")
    needs_images = not arguments.text and arguments.save_grid is None
    if needs_images and not _has_pillow():
        say("Pillow (the extra `images`) is not installed: the demo reads windows of characters instead of pictures")
        arguments.text = True
    options = DemoOptions(
        files=tuple(map(str, arguments.files)),
        steps=arguments.steps,
        workers=arguments.workers,
        prefetch=arguments.prefetch,
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        save_grid=arguments.save_grid,
        text=arguments.text,
    )
    return run_demo(options)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser("explain", help="which samples stand in a batch, and their random keys")
    explain.add_argument("config", type=Path, help="TOML file with [streams.NAME]")
    explain.add_argument("stream", help="its name")
    explain.add_argument("step", type=int, help="global step")
    explain.add_argument("--json", action="store_true", help="for programs")
    explain.set_defaults(command=_explain)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _add_client_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--endpoint", help="ipc:// and a path (default: this user's daemon)")
    command.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for an answer")


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    serve.add_argument("config", type=Path, help="TOML file with [server] and [streams.NAME]")
    serve.add_argument("--endpoint", help="instead of [server] endpoint")
    serve.add_argument("--workers", type=int, help="instead of [server] workers")
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    serve.add_argument("--log-json", action="store_true", help="log lines as JSON objects (or LOADER_SERVICE_LOG=json)")
    serve.set_defaults(command=_serve)


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    demo = commands.add_parser("demo", help="an embedded daemon on real text, two consumers, digests compared")
    demo.add_argument("files", nargs="*", type=Path, help="text files (default: the standard library's sources)")
    demo.add_argument("--steps", type=_positive, default=200, help="batches that each consumer reads")
    demo.add_argument("--workers", type=_positive, default=2)
    demo.add_argument("--prefetch", type=_positive, default=8)
    demo.add_argument("--batch-size", type=_positive, default=32, help="lines in a batch")
    demo.add_argument("--seed", type=int, default=0)
    demo.add_argument("--save-grid", type=Path, metavar="FILE.png", help="a picture of the first batch")
    demo.add_argument(
        "--text", action="store_true", help="windows of characters from a .psk.d file, through a pipeline"
    )
    demo.set_defaults(command=_demo)


def _add_data(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from loader_service.cli.data import add_data_commands

    add_data_commands(commands)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loader-service", description="Training batches from shared memory, the same bytes at every step."
    )
    parser.add_argument("--version", action="version", version=f"loader-service {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_serve(commands)
    status = commands.add_parser("status", help="streams, slots, workers and consumers of a running daemon")
    status.add_argument("--json", action="store_true", help="everything, for programs")
    _add_client_options(status)
    status.set_defaults(command=_status)
    tune = commands.add_parser("set", help="change a running daemon: workers, prefetch, limits; never the data")
    tune.add_argument(
        "settings", nargs="+", metavar="NAME=VALUE", help="workers, memory_limit, evict_after_s, prefetch, max_lanes"
    )
    tune.add_argument("--stream", help="prefetch and max_lanes of this stream only")
    _add_client_options(tune)
    tune.set_defaults(command=_set)
    stop = commands.add_parser("stop", help="end a running daemon")
    _add_client_options(stop)
    stop.set_defaults(command=_stop)
    _add_explain(commands)
    _add_demo(commands)
    _add_data(commands)
    return parser


def _missing_images() -> ConfigurationError:
    return ConfigurationError("this command draws images with Pillow; install it: pip install 'loader-service[images]'")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        command: _Command = arguments.command
        return command(arguments)
    except ModuleNotFoundError as error:
        if error.name != "PIL":
            raise
        return _report(_missing_images())
    except LoaderServiceError as error:
        return _report(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        sys.stderr.close()
        return 1


def _report(error: LoaderServiceError) -> int:
    print(f"loader-service: {error}", file=sys.stderr)
    return 2 if isinstance(error, ConfigurationError) else 1
