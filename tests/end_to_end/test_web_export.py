"""A web export in a real browser: the cleaning, the tokens and the labels are those of the Python engine."""

from __future__ import annotations

import contextlib
import csv
import itertools
import json
import platform
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from benchmarks.browser import ARGUMENTS, find_browser, served
from tokenizers import Tokenizer

from recurra import Classifier
from recurra.cli.main import main
from recurra.data.cleaning import CAREFUL, browser_steps, clean_text
from recurra.data.encoding import encode_windows
from recurra.deployment.export.build import export_run
from recurra.deployment.export.manifest import ExportOptions
from reviews import Command, review_rows, train_tiny

# What two languages may read in two ways: white space, case, words, tags, accents, special tokens.
AWKWARD = [
    "İstanbul ẞ ΟΔΟΣ ΣΊΣΥΦΟΣ ǅ",
    "e\u0301 é \u1e9b\u0323 ﬁn",
    "a\x1cb\x85c\u2028d\u3000e \ufeff f",
    "<b>bold</b> List<String> a<b x <br/> <!-- no --> <p class='x'>",
    "https://example.org/a?b=c",
    "see www.example.org, myhttp://x or _www.y",
    "so good!!! why??? ...",
    "🙂🙃👩‍👩‍👧 ok",
    "日本語のテキスト 한국어 ไทย हिन्दी עברית",
    "[SEP] and [MASK] are words here",
    "word" * 60,
    "warm " * 60,
    "   ",
]
STEPS = """async ([texts, exits]) => {
  const { Classifier } = await import("./recurra.mjs");
  const model = await Classifier.load(new URL("./", location));
  const cleaned = texts.map((text) => model.clean(text));
  const answers = await model.classify(texts, { exits });
  return { cleaned, ids: cleaned.map((text) => model.encode(text)), answers };
}"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys = ("max_epochs=3", "learning_rate=5e-3", "batch_size=8", "data.max_length=24", "model.exits=[1]")
    return train_tiny(tmp_path_factory.mktemp("web"), *keys)


@pytest.fixture(scope="module")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_web(run, tmp_path_factory.mktemp("exports") / "web")


def as_web(run: Path, output: Path) -> Path:
    export_run(run, output, ExportOptions("web", "fp32"))
    return output


@pytest.fixture(scope="module")
def page(browser: Any, folder: Path) -> Iterator[Any]:
    with opened_page(browser, folder) as opened:
        yield opened


@contextlib.contextmanager
def opened_page(browser: Any, folder: Path) -> Iterator[Any]:
    with served(folder) as address:
        opened = browser.new_page()
        opened.requested = []
        opened.on("request", lambda request: opened.requested.append(request.url))
        opened.goto(address)
        opened.wait_for_selector("#classify:not([disabled])")
        yield opened
        opened.close()


def test_a_browser_answers_as_the_engine_does(page: Any, folder: Path) -> None:
    texts = [text for text, _ in review_rows(1000, seed=9)] + AWKWARD
    classifier = Classifier.from_export(folder)
    for early in (False, True):
        if early:
            classifier.stop_early()
        answers = page.evaluate(STEPS, [texts, early])
        assert 0 < assert_reads_alike(answers, texts, folder) < len(texts)
        assert [answer["label"] for answer in answers["answers"]] == classifier.predict(texts).tolist()
        probabilities = [list(answer["probabilities"].values()) for answer in answers["answers"]]
        assert np.abs(np.array(probabilities) - classifier.predict_proba(texts)).max() < 1e-4
        left = {answer["recurrences"] for answer in answers["answers"]}
        assert (min(left) == 1) is early


def assert_reads_alike(answers: dict[str, Any], texts: list[str], folder: Path) -> int:
    """Cleaned texts, ids and cuts of a page are those of Python; returns how many texts are cut."""
    manifest = json.loads((folder / "export.json").read_text())
    cleaned = [clean_text(text, manifest["cleaning"]) for text in texts]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids, offsets, _ = encode_windows(cleaned, tokenizer, manifest["max_length"], 1)
    tokenizer.no_truncation()
    too_long = [len(tokenizer.encode(text).ids) > manifest["max_length"] for text in cleaned]
    assert answers["cleaned"] == cleaned
    rows = [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]
    assert [row for text in answers["ids"] for row in text] == rows
    assert [answer["cut"] for answer in answers["answers"]] == too_long
    return sum(too_long)


@pytest.fixture(scope="module")
def small_run(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of the package after one pass over a thousand rows of SST-2."""
    folder = tmp_path_factory.mktemp("small") / "run"
    words = ["train", "--model", "recurra-small", "--data", "sst2", "--data-root", str(data_root), "--threads", "1"]
    words += ["--output", str(folder), "--no-latency", "--quiet", "data.rows_per_label=500", "max_epochs=1"]
    assert main(words) == 0
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("precision", "least"), [("fp32", 1), ("int8", 0.95)])
def test_real_sentences_and_25_mib(
    precision: str, least: float, small_run: Path, data_root: Path, browser: Any, tmp_path: Path, command: Command
) -> None:
    folder = tmp_path / "web"
    words = ["export", small_run, "--format", "web", "--precision", precision, "--output", folder]
    said = command(*words, "--data-root", data_root).out
    too_large = sum(path.stat().st_size for path in folder.iterdir()) > 25 * 2**20
    assert too_large is ("size: the page has " in said) is (precision == "fp32")
    # Of FP32 every label must be the same, and each takes long: fewer do as well.
    count = 250 if precision == "fp32" else 1000
    texts = pq.read_table(data_root / "sst2" / "test_labeled.parquet")["sentence"].to_pylist()[:count]
    with opened_page(browser, folder) as page:
        answers = page.evaluate(STEPS, [texts, False])
    assert_reads_alike(answers, texts, folder)
    labels = [answer["label"] for answer in answers["answers"]]
    assert set(labels) == {"negative", "positive"}
    assert (Classifier.from_export(folder).predict(texts) == labels).mean() >= least


def classify(page: Any) -> list[list[str]]:
    """Classifies what stands in the box; returns the cells of the table."""
    page.click("#classify")
    page.wait_for_selector("#classify:not([disabled])")
    return [row.locator("td").all_inner_texts() for row in page.locator("#results tbody tr").all()]


def save(page: Any) -> list[dict[str, str]]:
    """The rows of the CSV file that the page gives."""
    with page.expect_download() as download:
        page.click("#save")
    with Path(download.value.path()).open(encoding="utf-8-sig", newline="") as stream:
        return list(csv.DictReader(stream))


def test_nothing_leaves_the_page(page: Any) -> None:
    page.fill("#texts", "a warm and funny film\n<b>dull</b>, and dull again")
    assert len(classify(page)) == len(save(page)) == 2
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:http://127.0.0.1:")) for url in page.requested)


def test_rows_are_the_lines_of_the_file(page: Any, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes("\ufeffa wärm film\r\n\r\n   \r\na dull one\r\n".encode())
    page.set_input_files("#file", tmp_path / "texts.txt")
    page.wait_for_function("document.getElementById('texts').value.includes('dull')")
    assert [cells[0] for cells in classify(page)] == ["a wärm film", "", "", "a dull one"]
    assert [row["text"] for row in save(page)] == ["a wärm film", "", "   ", "a dull one"]
    assert page.inner_text("#status").startswith("4 texts (2 empty) in ")
    page.fill("#texts", "short\n" + "warm " * 60)
    classify(page)
    assert page.inner_text("#status").endswith(" Too long for the model, and cut: 1.")
    # A file that the page cannot read is refused.
    for name, content, said in (
        ("latin.txt", "café déjà vu".encode("cp1252"), "latin.txt is not UTF-8; save it as UTF-8"),
        ("wide.txt", "good".encode("utf-16"), "wide.txt is not UTF-8; save it as UTF-8"),
        ("rows.CSV", b"text,label\ngood,1\n", "rows.CSV is a table, and this page reads one text a line"),
    ):
        (tmp_path / name).write_bytes(content)
        page.fill("#texts", "as before")
        page.set_input_files("#file", tmp_path / name)
        page.wait_for_selector("#problem:not([hidden])")
        assert page.inner_text("#problem").startswith(said) and page.input_value("#texts") == "as before"
        classify(page)
        assert page.is_hidden("#problem")
    page.fill("#texts", "\n  \n")
    page.click("#classify")
    assert page.inner_text("#problem") == "There is no text yet: type one."


def test_texts_stop_early_only_if_they_are_asked_to(page: Any, folder: Path) -> None:
    texts = [text for text, _ in review_rows(20, seed=9)]
    classifier = Classifier.from_export(folder)
    page.fill("#texts", "\n".join(texts))
    for early in (False, True):
        page.set_checked("#early", early)
        if early:
            classifier.stop_early()
        classify(page)
        found = [[float(row[f"probability_{name}"]) for name in classifier.classes_] for row in save(page)]
        assert np.abs(np.array(found) - classifier.predict_proba(texts)).max() < 1e-4
        assert (" of 2 recurrences." in page.inner_text("#status")) is early
    page.uncheck("#early")
    unasked = page.evaluate(STEPS.replace("{ exits }", ""), [texts, None])
    assert {answer["recurrences"] for answer in unasked["answers"]} == {2}


@pytest.mark.parametrize("separator", [";", "json"])
def test_the_page_writes_several_labels_as_the_model_does(separator: str, browser: Any, tmp_path: Path) -> None:
    rows = [(text, [label, *(["a ﬁlm"] if "film" in text else [])]) for text, label in review_rows(240)]
    cells = [(text, json.dumps(labels) if separator == "json" else ";".join(labels)) for text, labels in rows]
    training = ("max_epochs=2", "learning_rate=5e-3", "batch_size=8", f"data.label_separator={separator}")
    folder = as_web(train_tiny(tmp_path, *training, rows=cells), tmp_path / "web")
    texts = list(dict.fromkeys(text for text, _ in rows))[:20]
    classifier = Classifier.from_export(folder)
    with opened_page(browser, folder) as page:
        page.fill("#texts", "\n".join(texts))
        shown, rows_saved = classify(page), save(page)
        assert page.is_hidden("#early")
    decision = classifier.decision
    assert [row["label"] for row in rows_saved] == decision.texts(decision.of_logits(classifier.logits(texts)))
    for (_, given, shares), row in zip(shown, rows_saved, strict=True):
        probabilities = {name: float(row[f"probability_{name}"]) for name in classifier.classes_}
        # Of each label that is given, or of the nearest.
        names = [max(probabilities, key=probabilities.__getitem__)] if given == "(none)" else given.split(", ")
        assert shares == ", ".join(f"{name} {100 * probabilities[name]:.1f}\u00a0%" for name in names)


def test_the_careful_cleaning_is_the_same(page: Any) -> None:
    cleaned = page.evaluate(
        """async ([texts, settings]) => {
          const { cleaner } = await import("./recurra.mjs");
          return texts.map(cleaner(settings));
        }""",
        [AWKWARD, browser_steps(CAREFUL)],
    )
    assert cleaned == [clean_text(text, CAREFUL) for text in AWKWARD]


@pytest.mark.slow
def test_ids_of_ten_thousand_real_texts(page: Any, folder: Path, data_root: Path) -> None:
    files = {"yelp_reviews/test.parquet": "text", "sst2/train.parquet": "sentence"}
    texts = [text for name, column in files.items() for text in pq.read_table(data_root / name)[column].to_pylist()]
    cleaned = [clean_text(text) for text in texts[:10_000]]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids, offsets, _ = encode_windows(cleaned, tokenizer, 24, 1)
    found = page.evaluate(
        """async (texts) => {
          const { Classifier } = await import("./recurra.mjs");
          const model = await Classifier.load(new URL("./", location));
          return texts.map((text) => model.encode(text)[0]);
        }""",
        cleaned,
    )
    assert found == [ids[start:end].tolist() for start, end in itertools.pairwise(offsets)]


NO_SIMD = "this browser has no WebAssembly with SIMD; use a release of 2023 or later"


@pytest.mark.parametrize("script", ["WebAssembly.validate = () => false", "delete globalThis.WebAssembly"])
def test_a_program_is_told_that_simd_is_missing(script: str, browser: Any, folder: Path) -> None:
    load = """async () => {
      const { Classifier } = await import("./recurra.mjs");
      return Classifier.load(new URL("./", location)).catch((error) => error.message);
    }"""
    with served(folder) as address, browser.new_page() as page:
        page.add_init_script(script)
        page.goto(address)
        assert page.evaluate(load) == NO_SIMD


# A function that uses the instructions.
SIMD = [0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 may lack the instructions")
def test_a_user_is_told_that_simd_is_missing(browser: Any, folder: Path) -> None:
    arguments = [*ARGUMENTS, "--js-flags=--no-enable-sse4-1"]  # as on a processor without
    with (
        served(folder) as address,
        contextlib.closing(browser.browser_type.launch(executable_path=find_browser(), args=arguments)) as old,
    ):
        page = old.new_page()
        page.goto(address)
        if page.evaluate(f"WebAssembly.validate(new Uint8Array({SIMD}))"):
            pytest.skip("this browser ignores the flag")
        page.wait_for_selector("#problem:not([hidden])")
        assert page.inner_text("#problem") == NO_SIMD
        assert page.inner_text("#status") == "" and page.is_disabled("#classify")


def test_what_a_web_export_cannot_be(run: Path, linear_run: Path, tmp_path: Path, refused: Callable[..., str]) -> None:
    runs = tmp_path / "runs"
    for source in (run, linear_run):
        shutil.copytree(source, runs / source.name)
    # At once, before anything is computed or the precision is looked at.
    said = refused("export", runs / "linear", "--format", "web", "--precision", "int8", "--output", tmp_path / "web")
    assert said == (
        "error: 'linear' cannot be exported as web; take --format onnx, or export a Transformer, for example "
        f"{runs / 'tiny'}\n"
    )
