"""lm-evaluation-harness' own command line, with the model ``recurra``: ``python -m recurra.study.harness run ...``.

The harness knows a model by name only once its module is imported, and imports none but its own.
"""

from __future__ import annotations

import sys

from recurra.core.errors import RecurraError


def main() -> int:
    """Runs the command line on this process's arguments; what is wrong with the model is one line, exit code 2."""
    try:
        from recurra.study.harness import RecurraLM  # noqa: F401 - registers the model
    except RecurraError as error:
        return _fail(error)
    from lm_eval.__main__ import cli_evaluate

    from recurra.models.quiet import quieten_libraries

    quieten_libraries()
    try:
        cli_evaluate()
    except RecurraError as error:
        return _fail(error)
    return 0


def _fail(error: RecurraError) -> int:
    sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
