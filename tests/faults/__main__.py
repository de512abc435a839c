"""Kills, starves and misleads the shipped commands: ``python -m faults [--seed N] [--only kills,storage]``.

It needs ``tests`` on ``PYTHONPATH`` and Linux. What is drawn depends on the seed; moments of kills, and so what they
meet, depend on the machine as well.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from faults.figures import Account, Budget, Figure, print_table

PARTS = ("soak", "kills", "hostile", "storage")
# Shares of the time; what a part leaves goes to those behind it. The soak takes what it is given.
_SHARES = {"soak": 1.0, "kills": 0.5, "hostile": 0.8, "storage": 1.0}


def main() -> int:
    """Runs the parts and prints the table; 1 if a bound was missed or something failed."""
    options = _options()
    root = Path(tempfile.mkdtemp(prefix="recurra-faults-"))
    start = time.perf_counter()
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    _say(f"seed {seed}; everything lies in {root}")
    account = _run(options, seed, root, start)
    account.figures.append(Figure("all", "seconds", time.perf_counter() - start, "s"))
    sys.stdout.write(f"seed {seed}\n\n{print_table(account.figures)}")
    if options.json:
        _write(options.json, seed, account)
    missed = [figure for figure in account.figures if not figure.holds]
    if not account.failures and not missed:
        import shutil

        shutil.rmtree(root, ignore_errors=True)
    return 1 if account.failures or missed else 0


def _run(options: argparse.Namespace, seed: int, root: Path, start: float) -> Account:
    from faults import forked
    from faults.hostile import attack, generate
    from faults.hostile_files import FILE_TARGETS
    from faults.hostile_requests import REQUEST_TARGETS
    from faults.jobs import Workshop
    from faults.kills import Twins, kill_commands
    from faults.soak import soak_server
    from faults.storage import starve_commands

    forked.warm_up()
    workshop = Workshop(root)
    if set(options.only) - {"soak"}:
        workshop.prepare()
    twins = Twins(workshop)
    targets = [target for target in (*FILE_TARGETS, *REQUEST_TARGETS) if options.target in (None, target.name)]
    parts: dict[str, Callable[[random.Random, Budget], Account]] = {
        "kills": lambda dice, budget: kill_commands(workshop, twins, dice, options.kills, budget),
        "storage": lambda dice, budget: starve_commands(
            workshop, twins, dice, budget, only=options.command, most=options.storage
        ),
        "hostile": lambda dice, budget: attack(workshop, targets, seed, options.cases, budget),
        "soak": lambda dice, budget: soak_server(workshop, dice, options.soak_seconds),
    }
    account = Account()
    for name in (name for name in options.only if name in parts):
        left = options.seconds - (time.perf_counter() - start)
        share = _SHARES[name] if set(PARTS) == set(options.only) else 1.0
        _say(f"{name}, at most {share * left:.0f} s ...")
        found = parts[name](generate(seed, name, 0), Budget(share * left))
        account.add(found)
        _say("\n".join([f"{name}: {len(found.failures)} failures", *found.failures]))
    return account


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="of everything that is drawn; default: a new one, which is printed")
    parser.add_argument("--seconds", type=float, default=1150, help="for all parts together (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=300, help="of commands (default: %(default)s)")
    parser.add_argument("--storage", type=int, default=1000, help="commands to starve at most (default: %(default)s)")
    parser.add_argument("--command", help="the one command whose storage fails, as the table names it")
    parser.add_argument("--cases", type=int, default=10_000, help="of hostile input (default: %(default)s)")
    parser.add_argument("--target", help="the one target of hostile input, as the table names it")
    parser.add_argument(
        "--soak-seconds", type=float, default=60, help="of asking a server without end (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, help="file for figures and failures")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=list(PARTS), help=f"some of {','.join(PARTS)}"
    )
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"unknown part {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    return options


def _write(path: Path, seed: int, account: Account) -> None:
    from dataclasses import asdict

    from recurra.core.environment import code_record, environment_record
    from recurra.core.files import write_json

    write_json(
        path,
        {
            "seed": seed,
            "code": code_record().model_dump(mode="json"),
            "environment": environment_record(threads=1, precision="fp32").model_dump(mode="json"),
            "figures": [{**asdict(figure), "holds": figure.holds} for figure in account.figures],
            "failures": account.failures,
        },
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
