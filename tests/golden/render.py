"""Everything that the committed records give: identities of runs, reports, tables, figures, and digests of them all.

``python tests/golden/render.py FOLDER`` writes every document, so that those of two versions can be compared with
``diff -r``. ``python tests/golden/render.py --update`` makes ``digests.json`` anew, which `test_golden` holds them to.
What the records give to README and docs is checked by ``python -m recurra.report --check`` instead.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
DIGESTS = Path(__file__).with_name("digests.json")
RECORDS = "runs/*/record.json"
TERMINAL = "terminal.txt"

# Another processor or mathematical library may give another last digit: of long numbers, ten are kept.
_LONG_NUMBER = re.compile(r"(?<![\w.])\d+\.\d{8,}(?:e[+-]?\d+)?(?![\w.])")
# They make of any output a terminal's, with colours and its width.
_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass(frozen=True)
class Rendered:
    """What the records of a study give.

    Attributes:
        identities: Configuration hash of each run by its identifier, both computed from the configuration anew.
        documents: Every file that the report of the study writes, and what it prints, by relative path.
    """

    identities: dict[str, str]
    documents: dict[str, str]

    def digests(self) -> dict[str, Any]:
        """Plain values that a difference shows in: of a document its SHA-256 and its bytes in UTF-8."""
        encoded = {name: text.encode() for name, text in self.documents.items()}
        documents = {name: f"{hashlib.sha256(data).hexdigest()} {len(data)}" for name, data in encoded.items()}
        return {"runs": dict(sorted(self.identities.items())), "documents": dict(sorted(documents.items()))}


def study_names() -> list[str]:
    """Every study with committed records."""
    return sorted({path.parents[2].name for path in RESULTS.glob(f"*/{RECORDS}")})


def render_study(name: str) -> Rendered:
    """Renders one study of ``results/``, all of its runs, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as place:
        output = Path(place) / name
        output.mkdir()
        for item in (RESULTS / name).iterdir():
            (output / item.name).symlink_to(item)
        printed = io.StringIO()
        with patch.dict(os.environ), contextlib.redirect_stdout(printed):
            for variable in _FORCING:
                os.environ.pop(variable, None)
            identities = _report(name, output)
        written = [path for path in output.rglob("*") if path.is_file() and not path.is_symlink()]
        texts = {path.relative_to(output).as_posix(): path.read_text(encoding="utf-8") for path in written}
        texts[TERMINAL] = printed.getvalue()
        return Rendered(identities, {path: _comparable(text, output) for path, text in texts.items()})


def _report(name: str, output: Path) -> dict[str, str]:
    """Writes and prints the report of a study as ``recurra study report`` does. Nothing else here calls the package."""
    import typer

    from recurra.cli.output import present_study
    from recurra.core.record import read_any_record
    from recurra.reported_study import StudyResult, study_report
    from recurra.study.executor import Outcome
    from recurra.study.spec import load_study
    from recurra.tasks.runs import RunConfig

    # The file that the documents take as well; the one beside the records may name a part of them only.
    files = (ROOT / "configs" / "studies" / f"{name}.yaml", RESULTS / name / "study.yaml")
    spec = load_study(next(file for file in files if file.is_file()))
    records = {path.parent: read_any_record(path) for path in sorted(output.glob(RECORDS))}
    outcomes = [Outcome(RunConfig.parse(record.config), folder, record) for folder, record in records.items()]
    page, summary = study_report(spec, output, command="", outcomes=outcomes)
    # Ends as a command does, by its exit code, where an audit failed.
    with contextlib.suppress(typer.Exit), contextlib.redirect_stderr(sys.stdout):
        present_study(StudyResult(output, outcomes, page, summary), as_json=False)
    return {outcome.config.run_id: outcome.config.config_hash for outcome in outcomes}


def _comparable(text: str, output: Path) -> str:
    """A text without what may differ from one machine or call to the next."""
    return _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.10g}", text.replace(output.as_posix(), output.name))


def write_documents(folder: Path) -> None:
    """Writes every document of every study, and the digests."""
    rendered = {name: render_study(name) for name in study_names()}
    for name, study in rendered.items():
        for path, text in study.documents.items():
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="")
    _write_json(folder / DIGESTS.name, {name: study.digests() for name, study in rendered.items()})


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description="Render everything that the records under results/ give.")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="where to write every document")
    parser.add_argument("--update", action="store_true", help=f"write {DIGESTS.name} anew")
    options = parser.parse_args(arguments)
    if options.folder is None and not options.update:
        parser.error("nothing to do; give FOLDER or --update")
    if options.folder is not None:
        write_documents(options.folder)
    if options.update:
        _write_json(DIGESTS, {name: render_study(name).digests() for name in study_names()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
