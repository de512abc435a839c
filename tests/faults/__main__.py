"""Kills, starves and misleads the shipped commands: ``python -m faults [--seed N] [--only kills,storage]``.

It needs ``tests`` on ``PYTHONPATH`` and Linux. What is drawn depends on the seed; moments of kills, and so what they
meet, depend on the machine as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from faults.figures import Account, Figure, print_table

# In turn, with their shares of the time; what a part leaves goes to those behind it. The soak takes what it is given.
PARTS = {"soak": 1.0, "kills": 0.5, "hostile": 0.8, "storage": 1.0}


def main() -> int:
    """Runs the parts and prints the table; 1 if a bound was missed or something failed."""
    options = _options()
    root = Path(tempfile.mkdtemp(prefix="recurra-faults-"))
    start = time.perf_counter()
    _say(f"seed {options.seed}; everything lies in {root}")
    account = _run(options, root, start)
    account.figures.append(Figure("all", "seconds", time.perf_counter() - start, "s"))
    sys.stdout.write(f"seed {options.seed}\n\n{print_table(account.figures)}")
    if options.json:
        _write(options.json, options.seed, account)
    if account.failures or not all(figure.holds for figure in account.figures):
        return 1
    shutil.rmtree(root, ignore_errors=True)
    return 0


def _run(options: argparse.Namespace, root: Path, start: float) -> Account:
    from faults import forked
    from faults.disturbed import kill_commands, starve_commands
    from faults.hostile import attack, generate
    from faults.hostile_files import FILE_TARGETS
    from faults.hostile_requests import REQUEST_TARGETS
    from faults.jobs import Workshop
    from faults.soak import soak_server

    forked.warm_up()
    workshop = Workshop(root)
    if set(options.only) - {"soak"}:
        workshop.prepare()
    account = Account()
    for name in options.only:
        left = options.seconds - (time.perf_counter() - start)
        seconds = left * (PARTS[name] if set(PARTS) == set(options.only) else 1.0)
        _say(f"{name}, at most {seconds:.0f} s ...")
        dice, end = generate(options.seed, name, 0), time.perf_counter() + seconds
        if name == "soak":
            found = soak_server(workshop, dice, options.soak_seconds)
        elif name == "kills":
            found = kill_commands(workshop, dice, options.kills, end)
        elif name == "storage":
            found = starve_commands(workshop, dice, end, only=options.command, most=options.storage)
        else:
            targets = [one for one in (*FILE_TARGETS, *REQUEST_TARGETS) if options.target in (None, one.name)]
            found = attack(workshop, targets, options.seed, options.cases, end)
        account = Account(account.figures + found.figures, account.failures + found.failures)
        _say("\n".join([f"{name}: {len(found.failures)} failures", *found.failures]))
    return account


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m faults",
        description=(__doc__ or "").splitlines()[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**31), help="of everything that is drawn")
    parser.add_argument("--seconds", type=float, default=1150, help="for all parts together")
    parser.add_argument("--kills", type=int, default=300, help="of commands")
    parser.add_argument("--storage", type=int, default=1000, help="commands to starve at most")
    parser.add_argument("--command", help="the one command whose storage fails, as the table names it")
    parser.add_argument("--cases", type=int, default=10_000, help="of hostile input")
    parser.add_argument("--target", help="the one target of hostile input, as the table names it")
    parser.add_argument("--soak-seconds", type=float, default=60, help="of asking a server without end")
    parser.add_argument("--json", type=Path, help="file for figures and failures")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help="parts, with commas")
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    return options


def _write(path: Path, seed: int, account: Account) -> None:
    from benchmarks.measures import provenance

    from recurra.core.files import write_json

    write_json(
        path,
        {
            "seed": seed,
            **provenance(precision="fp32"),
            "figures": [{**dataclasses.asdict(figure), "holds": figure.holds} for figure in account.figures],
            "failures": account.failures,
        },
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
