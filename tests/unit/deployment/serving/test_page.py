"""The page of the server: examples of the user's own, and a policy that lets its own script alone run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from recurra.deployment.serving.application import read_examples, read_page


@given(st.lists(st.one_of(st.text(), st.sampled_from(["</script>", "<!--<script>", '"];alert(1);//', "\\"]))))
def test_no_example_leaves_its_string_and_the_policy_names_the_script(examples: list[str]) -> None:
    examples = [text.encode("utf-8", "ignore").decode("utf-8") for text in examples]
    content, headers = read_page(examples)
    page = content.decode("utf-8")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1 and "addEventListener" in scripts[0]
    stated = re.search(r"^const EXAMPLES = (.*);$", scripts[0], re.MULTILINE)
    assert stated is not None and json.loads(stated[1]) == examples
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    for tag, blocks in (("script", scripts), ("style", re.findall(r"<style>(.*?)</style>", page, re.DOTALL))):
        digests = [base64.b64encode(hashlib.sha256(block.encode("utf-8")).digest()).decode("ascii") for block in blocks]
        assert digests and policy.pop(f"{tag}-src") == " ".join(f"'sha256-{digest}'" for digest in digests)
    nothing = dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert policy == {**nothing, "connect-src": "'self'", "img-src": "data:"}
    assert headers["Cache-Control"] == "no-cache"


def test_six_texts_of_a_file_are_offered_and_empty_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "examples.txt"
    path.write_text("\ufeffone\n\n  two \n" + "x" * 5000 + "\n" + "more\n" * 9, encoding="utf-8")
    assert read_examples(path) == ["one", "two", "x" * 1000, "more", "more", "more"]


def test_no_more_of_a_huge_file_is_read_than_can_be_offered(tmp_path: Path) -> None:
    path = tmp_path / "examples.txt"
    path.write_bytes(b"y" * 2**21 + b"\nlate\n\xff")
    assert read_examples(path) == ["y" * 1000]
    lines = [f"{number}\u2028{'y' * 20_000}" for number in range(7)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert read_examples(path) == [line[:1000] for line in lines[:6]]
