"""How fast a Loader delivers batches to a GPU: JPEGs decoded by its workers, and by the GPU.

    python benchmarks/gpu_read.py OUT

OUT is a dataset that `presize build` made of class folders. Each variant (who decodes, processes or threads, how
many of them) runs once a round, in random order, in a process of its own, with the page cache warm. Prints a
table; asserts nothing. Where nothing is installed that decodes on the GPU, its workers' variants run alone.
`--device cpu` shows whether all of it runs: simplejpeg then takes the place of the GPU.
"""

from __future__ import annotations

import argparse
import datetime
import random
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rates
import torch
from conditions import machine
from read import measure

from presize.datasets.reading.device_decode import find_decoder
from presize.errors import PresizeError
from presize.store.dataset import Dataset

_HERE = Path(__file__).parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, metavar="OUT")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--workers", type=_numbers, default=[1, 2, 4, 8, 16], metavar="N,N", help="1,2,4,8,16 by default"
    )
    parser.add_argument(
        "--modes", type=lambda text: text.split(","), default=["processes", "threads"], metavar="MODE,MODE"
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=2, help="that a run times, after one that it does not")
    parser.add_argument("--limit", type=int, default=None, metavar="N", help="end epochs after N batches, for a try")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the runs")
    parser.add_argument("--csv", type=Path, default=_HERE / "results" / "gpu-read.csv", help="replaced")
    options = parser.parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {options.device}: torch sees no CUDA here; --device cpu shows whether all runs")
    return options


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def facts(options: argparse.Namespace) -> dict[str, object]:
    """What the times depend on, beside the versions that each run prints."""
    try:
        data = Dataset(options.dataset)
    except PresizeError as error:
        raise SystemExit(str(error)) from None
    if data.manifest.classes is None:
        raise SystemExit(f"{options.dataset} has no labels, and the scripts in peers/ count batches with labels")
    on_cuda = options.device.startswith("cuda")
    found = {"device": torch.cuda.get_device_name(options.device) if on_cuda else "cpu, simplejpeg"}
    for name in ("torchcodec", "torchvision"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    means = {f"mean_{name}": round(float(data.numbers(name).mean())) for name in ("width", "height")}
    kilobytes = {"samples": len(data), "mean_kb": round(float(data.numbers("nbytes").mean()) / 1e3, 1)}
    return {**found, **machine(options.dataset), **means, **kilobytes}


def table(rows: list[rates.Row]) -> str:
    """Markdown: images/s, medians, and least and most in brackets; and times the workers' within rounds."""
    lines = ["| workers | decoded by workers: images/s | by the device: images/s | times |", "|---|---|---|---|"]
    for mode, workers in sorted({(row["mode"], int(row["workers"])) for row in rows}):
        chosen = [row for row in rows if (row["mode"], int(row["workers"])) == (mode, workers)]
        by = {
            where: [float(row["images_per_s"]) for row in chosen if row["decode_on"] == where]
            for where in ("workers", "device")
        }
        rounds = min(map(len, by.values()))
        times = rates.ratios(by["device"][:rounds], by["workers"][:rounds]).format(".2f") if rounds else ""
        cells = [rates.Spread.of(values).format(".0f") if values else "" for values in by.values()]
        lines.append(f"| {workers} {mode} | {' | '.join(cells)} | {times} |")
    return "\n".join(lines)


def decoders(options: argparse.Namespace) -> list[str]:
    """Who can decode: the workers, and the device where something is installed for that."""
    if options.device.startswith("cuda"):
        try:
            find_decoder(torch.device(options.device), 3)
        except PresizeError as error:
            print(f"without the variants decoded by the device: {error}", file=sys.stderr)
            return ["workers"]
    return ["workers", "device"]


def main() -> None:
    options = parse()
    conditions = facts(options)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    order = random.Random(options.seed)
    runs = [(on, mode, n) for on in decoders(options) for mode in options.modes for n in options.workers]
    rows: list[dict[str, object]] = []
    for number in range(options.rounds):
        for decode_on, mode, workers in order.sample(runs, len(runs)):
            command = [sys.executable, str(_HERE / "peers" / "presize_read.py"), str(options.dataset)]
            command += ["--device", options.device, "--decode-on", decode_on, "--mode", mode]
            command += ["--workers", str(workers), "--batch", str(options.batch), "--epochs", str(options.epochs)]
            command += [] if options.limit is None else ["--limit", str(options.limit)]
            measured = measure(command)
            variant = {"decode_on": decode_on, "mode": mode, "workers": workers, "batch": options.batch}
            rows.append({"date": date, "round": number, **variant, **measured, **conditions})
            print(f"round {number + 1}: {variant}: {measured['images_per_s']} images/s", file=sys.stderr)
            rates.write(options.csv, rows)
    print(table(rates.read(options.csv)))


if __name__ == "__main__":
    main()
