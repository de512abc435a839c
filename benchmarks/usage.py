"""Times that a user waits for shipped commands: a text from the command line, a linear run, the server, the browser.

The model is MiniLM, fine-tuned for one pass on the demo corpus and exported as int8, so figures are about time alone.
The browser's first answer is also that of `recurra-small`.
Commands are timed from start to end and take turns with a script of a few lines that opens the same file.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.browser import BROWSERS, find_browser, served, started
from benchmarks.command import COMPILED, run_recurra
from benchmarks.load import beside_peer
from benchmarks.measures import Measure, Setting
from benchmarks.turns import median_ms
from recurra import Classifier
from recurra.data.configuration import DataConfig
from recurra.data.corpora import load_dataset

ENCODER, SMALL = "minilm", "recurra-small"
COMMON: dict[str, Any] = {"part": "usage", "preset": ENCODER, "ours_name": "recurra"}
SERVER_TARGETS = {"1": 1.2, "16": 1.3, "64": 1.5}
SCRIPT = """
import json, sys
import numpy as np
from onnxruntime import InferenceSession
from tokenizers import Tokenizer
row = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json").encode(sys.argv[2])
ids = np.array([row.ids], dtype=np.int64)
session = InferenceSession(sys.argv[1] + "/model.onnx")
(logits,) = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
print(json.load(open(sys.argv[1] + "/export.json"))["label_names"][logits[0].argmax()])
"""
CLASSIFY = """async (texts) => {
  const started = performance.now();
  await window.model.classify(texts);
  return performance.now() - started;
}"""
FIRST_ANSWER = """async (text) => {
  const element = (id) => document.getElementById(id);
  const until = async (holds) => {
    while (!holds()) {
      if (!element("problem").hidden) throw new Error(element("problem").textContent);
      await new Promise(requestAnimationFrame);
    }
  };
  await until(() => !element("classify").disabled);
  element("texts").value = text;
  element("classify").click();
  await until(() => element("results").tBodies[0].rows.length);
  return performance.now();  // since the page was asked for
}"""
LOAD = """async () => {
  const { Classifier } = await import("./recurra.mjs");
  window.model = await Classifier.load(new URL("./", location));
}"""


def measure(setting: Setting) -> list[Measure]:
    """Measures all four; without a browser on the machine, the first three."""
    with tempfile.TemporaryDirectory(prefix="recurra-usage-") as name:
        folder = Path(name)
        corpus = load_dataset(DataConfig(name="demo"))
        texts = corpus.splits["test"].texts
        labelled = [
            (text, corpus.label_names[label])
            for split in (corpus.splits["train"], corpus.splits["validation"])
            for text, label in zip(split.texts, split.labels, strict=True)
        ]
        file = folder / "sentences.csv"
        with file.open("w", encoding="utf-8", newline="") as stream:
            # In a quick run too: an encoder that has learned less gives int8 other labels, and its export is refused.
            csv.writer(stream).writerows([("text", "label"), *labelled[:1000]])
        export = _export(_train(ENCODER, file), "onnx")
        return [
            *_commands(export, file, texts[0], setting),
            *_server(export, setting),
            *_browser(export, file, texts, setting),
        ]


def _train(encoder: str, file: Path) -> Path:
    """Fine-tunes an encoder for one pass, into a run beside the file."""
    run = file.with_name(encoder)
    run_recurra("train", "--model", encoder, "--data", file, "-o", run, "max_epochs=1")
    return run


def _export(run: Path, kind: str) -> Path:
    """Exports a run in int8, into a folder beside it."""
    output = run.with_name(f"{run.name}-{kind}")
    run_recurra("export", run, "--format", kind, "--precision", "int8", "-o", output)
    return output


def _commands(export: Path, file: Path, text: str, setting: Setting) -> list[Measure]:
    script = [sys.executable, "-c", SCRIPT, str(export), text]
    calls: dict[str, Callable[[], object]] = {
        "predict": lambda: run_recurra("predict", export, text),
        "script": lambda: subprocess.run(script, check=True, capture_output=True, env=COMPILED),
    }
    text_ms = median_ms(calls, setting.sized(7, 1))
    runs = itertools.count()

    def train(*data: object) -> None:
        run_recurra("train", "--model", "linear", "--data", *data, "-o", file.with_name(f"linear-{next(runs)}"))

    fits: dict[str, Callable[[], object]] = {"of four classes": lambda: train(file)}
    if setting.data_root is not None:
        of_two = ("sst2", "data.rows_per_label=500", "--data-root", setting.data_root)
        fits["of two classes (SST-2)"] = lambda: train(*of_two)
    fit_ms = median_ms(fits, setting.sized(3, 1))
    return [
        Measure(
            title="one text from the command line, int8, of the 0.30 s allowed", ours=text_ms["predict"],
            other_name="a bare script", other=text_ms["script"], unit="ms", result=100 * text_ms["predict"] / 300,
            result_unit="%", target=100, at_most=True, **COMMON,
        ),
        *(
            Measure(
                title=f"a linear run of 1,000 rows {classes} from the command line, of 3 s allowed", ours=ms,
                other_name="allowed", other=3000, unit="ms", result=100 * ms / 3000, result_unit="%", target=100,
                at_most=True, **COMMON,
            )
            for classes, ms in fit_ms.items()
        ),
    ]  # fmt: skip


def _server(export: Path, setting: Setting) -> list[Measure]:
    options = argparse.Namespace(
        folder=export, threads=0, serve=[], data=None, text_column="text", texts=1,
        seconds=setting.sized(3, 1),
    )  # fmt: skip
    rows = beside_peer(options)["clients"]
    return [
        Measure(
            title=f"server, {clients} clients, against thirty lines of FastAPI", ours=row["ours_texts_s"],
            other_name="FastAPI", other=row["peer_texts_s"], unit="texts/s", result=row["ratio_texts_s"],
            result_unit="x", target=SERVER_TARGETS[clients], **COMMON,
        )
        for clients, row in rows.items()
    ]  # fmt: skip


def _browser(export: Path, file: Path, texts: list[str], setting: Setting) -> list[Measure]:
    path = find_browser()
    if path is None:
        sys.stderr.write(f"usage: no browser on PATH (looked for {', '.join(BROWSERS)}); its figures are left out\n")
        return []
    runs = {ENCODER: file.with_name(ENCODER), SMALL: _train(SMALL, file)}
    webs = {name: _export(run, "web") for name, run in runs.items()}
    engine = Classifier.from_export(export, threads=setting.threads)
    rates: dict[str, list[float]] = {"engine": [], "page": []}
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(started(path))
        addresses = {name: stack.enter_context(served(web)) for name, web in webs.items()}
        first_ms = {
            name: float(np.median([_first_answer(browser, address, texts[0]) for _ in range(setting.sized(7, 1))]))
            for name, address in addresses.items()
        }
        page = browser.new_page()
        page.goto(addresses[ENCODER])
        page.evaluate(LOAD)
        for round_ in range(setting.sized(6, 1)):
            seconds = page.evaluate(CLASSIFY, texts) / 1000
            start = time.perf_counter()
            engine.predict_proba(texts)
            if round_ or setting.quick:  # the first warms both up
                rates["engine"].append(len(texts) / (time.perf_counter() - start))
                rates["page"].append(len(texts) / seconds)
    page_rate, engine_rate = (float(np.median(rates[name])) for name in ("page", "engine"))
    return [
        Measure(
            title="a web export in Chromium, of the engine's rate", ours=page_rate, other_name="recurra's engine",
            other=engine_rate, unit="texts/s", result=page_rate / engine_rate, result_unit="x", target=1 / 3, **COMMON,
        ),
        *(
            Measure(
                title="the first answer of a web export in Chromium, of 2 s allowed", ours=ms, other_name="allowed",
                other=2000, unit="ms", result=100 * ms / 2000, result_unit="%", target=100, at_most=True,
                **{**COMMON, "preset": name},
            )
            for name, ms in first_ms.items()
        ),
    ]  # fmt: skip


def _first_answer(browser: Any, address: str, text: str) -> float:
    """Milliseconds until a page that nobody has visited shows the label of a text."""
    page = browser.new_page()
    page.goto(address)
    taken_ms: float = page.evaluate(FIRST_ANSWER, text)
    page.close()
    return taken_ms
