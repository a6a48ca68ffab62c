"""``mimonets load``: open-loop load for a server.

Send requests by a schedule that was made before, and measure latency from the intended time. The
run is void, and the exit code 1, if the generator itself is over 2 ms late (p99).

Examples:
  mimonets load http://127.0.0.1:8000 --rate 50 --seconds 20
  mimonets load http://127.0.0.1:8000 --rate 200 --trace arrivals.txt --samples digits.npz
"""

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from mimonets._files import write_json
from mimonets._show import make_console, make_table, print_json
from mimonets.cli._options import Parser


def add_options(parser: Parser) -> None:
    """Take the options."""
    parser.add_argument("url", metavar="URL", help="of a server, or of a model: .../v2/models/NAME")
    parser.add_default("--rate", 20.0, "requests a second; a trace is stretched to it")
    parser.add_default("--seconds", 10.0, "how long; cuts a trace too")
    parser.add_load()
    parser.add_argument(
        "--samples", metavar="FILE", help="an .npz with inputs and labels (random inputs)"
    )
    parser.add_argument("--mode", help="fast, normal, slow or a number, for every request")
    parser.add_argument("--cascade", action="store_true", help="doubtful answers may run again")
    parser.add_argument("--key", help="the key to send")
    parser.add_out()
    parser.add_json()


def run(args: Namespace) -> None:
    """Send the load and say what came back."""
    import numpy as np

    from mimonets.loadtest.load import Samples, random_samples, send
    from mimonets.loadtest.workloads import WORKLOADS, read_trace

    url, description = _find_model(args.url.rstrip("/"), args.key)
    if args.trace is not None:
        schedule = read_trace(args.trace, rate=args.rate)
        schedule = schedule[schedule < args.seconds]
    else:
        schedule = WORKLOADS[args.workload](
            args.rate, args.seconds, np.random.default_rng(args.seed)
        )
    if len(schedule) == 0:
        raise ValueError("No request falls into that time: take a higher rate or more seconds.")
    samples = Samples.read(args.samples) if args.samples else random_samples(description)
    parameters: dict[str, Any] = {"cascade": True} if args.cascade else {}
    if args.mode:
        parameters["mode"] = int(args.mode) if args.mode.isdigit() else args.mode
    result = asyncio.run(
        send(
            url,
            schedule,
            samples,
            slo=args.slo_ms / 1000,
            key=args.key,
            parameters=parameters,
            seed=args.seed,
        )
    )
    summary = result.summary()
    if args.out:
        write_json(Path(args.out), summary)
    if args.json:
        print_json(summary)
    else:
        _show(url, summary)
    result.check()
    if summary["void"]:
        sys.exit(1)


def _show(url: str, summary: dict[str, Any]) -> None:
    title = f"{url}: {summary['offered']} requests, {summary['rate']:.1f} a second"
    table = make_table(title, ["", ""])
    shares = ("right_in_time", "in_time", "accuracy", "refused")
    for name in shares:
        if name in summary:
            table.add_row(name.replace("_", " "), f"{100 * summary[name]:.2f} %")
    for name in ("p50", "p99", "lag_p99"):
        table.add_row(f"{name.replace('_', ' ')}, ms", f"{1000 * summary[name]:.1f}")
    table.add_row("active streams, mean", f"{summary['active']:.2f}")
    table.add_row("answers by status", ", ".join(f"{k}: {v}" for k, v in summary["status"].items()))
    make_console().print(table)
    if summary["void"]:
        print("Void: the generator itself was late; use a lower rate or a core of its own.")


def _find_model(url: str, key: str | None) -> tuple[str, dict[str, Any]]:
    """Find the model's address and description; the first model of a server by default."""
    if "/v2/models/" not in url:
        index = _ask(f"{url}/v2/repository/index", key, post=True)
        if not index:
            raise ValueError(f"{url} is still loading its models: try again in a moment.")
        url = f"{url}/v2/models/{index[0]['name']}"
    return url, _ask(url, key)


def _ask(url: str, key: str | None, *, post: bool = False) -> Any:
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url} is no address: it starts with http:// or https://.")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = Request(url, headers=headers, method="POST" if post else "GET")
    try:
        with urlopen(request, timeout=10) as response:
            return json.load(response)
    except HTTPError as error:
        raise ValueError(f"{url} answers {error.code}: {error.read()[:200].decode()}") from None
    except (URLError, TimeoutError, ValueError) as error:
        raise ValueError(f"No server answers at {url}: {error}") from None
