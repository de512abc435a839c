"""Builds the documentation as a site of files: ``make docs``.

The pages are those of ``docs/``, as they are read beside the source. Where a page links to something outside that
folder, its copy links to a copy: a document of the project becomes a page, a folder a page that lists its files, and a
record or a configuration is laid beside the pages as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "zensical.toml"
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
# Documents at the root of the project, and where their pages are. The README's reader is at the landing page already.
DOCUMENTS = {
    "README.md": "README.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
# What is laid beside the pages of a linked folder; rows of predictions stay with the source.
READABLE = (".json", ".jsonl", ".yaml")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


class BrokenLinkError(Exception):
    """A page links to nothing."""


def place(path: PurePosixPath, root: Path = ROOT) -> PurePosixPath:
    """Where the copy of a file or folder of the project lies.

    Args:
        path: Path from the root of the project.
        root: Root of the project.

    Returns:
        Path from the folder of pages.
    """
    if path.as_posix() in DOCUMENTS:
        return PurePosixPath(DOCUMENTS[path.as_posix()])
    inside = path.relative_to("docs") if path.is_relative_to("docs") else "files" / path
    return inside / "README.md" if (root / path).is_dir() else inside


def relink(text: str, page: PurePosixPath, root: Path = ROOT) -> tuple[str, set[PurePosixPath]]:
    """Makes the links of a page those of its copy.

    Args:
        text: The page.
        page: Its path from the root of the project.
        root: Root of the project.

    Returns:
        The text of the copy, and what the page links to outside ``docs/``.

    Raises:
        BrokenLinkError: A link leads nowhere.
    """
    outside = set()
    home = place(page, root).parent

    def target(match: re.Match[str]) -> str:
        path = PurePosixPath(os.path.normpath(page.parent / match[1]))
        if not (root / path).exists() or path.parts[:1] in ((), ("..",)):
            raise BrokenLinkError(f"{page} links to {match[1]}, which does not exist or is no page; correct the link")
        if not path.is_relative_to("docs") and path.as_posix() not in DOCUMENTS:
            outside.add(path)
        return f"]({os.path.relpath(place(path, root), home)}{match[2] or ''})"

    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(target, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(target, text[end:])]), outside


def listing(folder: PurePosixPath, listed: set[PurePosixPath], root: Path = ROOT) -> tuple[str, set[PurePosixPath]]:
    """Writes the page of a folder outside ``docs/``.

    Args:
        folder: Its path from the root of the project.
        listed: All folders that have a page.
        root: Root of the project.

    Returns:
        The page, and the files that it links to.
    """
    inner = sorted(path for path in listed if folder in path.parents)
    found = sorted(path for path in (root / folder).rglob("*") if path.is_file() and path.suffix in READABLE)
    files = [PurePosixPath(path.relative_to(root).as_posix()) for path in found]
    files = [path for path in files if not any(path.is_relative_to(other) for other in inner)]
    lines = [
        f"* [{path.relative_to(folder)}]({place(path, root).relative_to(place(folder, root).parent)})"
        for path in [*inner, *files]
    ]
    head = ["---", "search:", "  exclude: true", "---", f"# {folder}", "", "Files of the project as they are.", ""]
    return "\n".join([*head, *lines, ""]), set(files)


def stage(pages: Path = PAGES, root: Path = ROOT) -> None:
    """Lays out what the site is built from.

    Args:
        pages: Folder to write; what was in it is removed.
        root: Root of the project.

    Raises:
        BrokenLinkError: A link leads nowhere.
    """
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(root / "docs", pages, ignore=shutil.ignore_patterns("site", "*.md", "__pycache__"))
    shutil.copytree(root / "docs" / "site" / "assets", pages / "assets")
    outside: set[PurePosixPath] = set()
    for source in [*sorted((root / "docs").rglob("*.md")), *(root / name for name in DOCUMENTS if name != "README.md")]:
        page = PurePosixPath(source.relative_to(root).as_posix())
        text, linked = relink(source.read_text(encoding="utf-8"), page, root)
        write(pages / place(page, root), text)
        outside |= linked
    folders = {path for path in outside if (root / path).is_dir()}
    files = outside - folders
    for folder in folders:
        text, linked = listing(folder, folders, root)
        write(pages / place(folder, root), text)
        files |= linked
    for path in files:
        copy = pages / place(path, root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, copy)


def write(path: Path, text: str) -> None:
    """Writes a page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def main() -> int:
    """Builds the site into ``build/site``; a warning, such as of a broken link or anchor, is an error."""
    stage()
    return subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "--config-file", str(CONFIGURATION)],
        cwd=ROOT, check=False,
    ).returncode  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
