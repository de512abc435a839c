"""The page at ``/`` in a real browser: type, classify, compare, fail, go back; phone and desk, light and dark."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurra.core.errors import DataError
from recurra.data.tables import TableFile
from recurra.deployment.classifier import Classifier
from recurra.deployment.decision import AnyLabels
from recurra.deployment.serving.limits import ServerLimits
from recurra.deployment.serving.models import ServedModel
from served import Running, deep_model, prompt_model, prompt_server, running, slow_model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")

pytestmark = [pytest.mark.browser, pytest.mark.slow]

KEY = "0123456789abcdef-key"
NASTY = "<img src=x onerror=\"document.title='taken'\"> " + "Donaudampfschifffahrt" * 30
# The second and the third would end the script or the string.
EXAMPLES = ["The wings were cold. \U0001f357", "</script><b>late</b>", 'a "quoted" \\ text\u2028', "שלום, fine"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([prompt_model(name)[0] for name in ("small", "large")], examples=EXAMPLES) as found:
        yield found


@pytest.fixture(scope="module")
def deep_server() -> Iterator[Running]:
    models = [
        deep_model("reviews", ["negative", "positive"], threshold=0.6),
        deep_model("stars", [f"{number} stars" for number in ["one", "two", "three", "four", "five"]], exits=False),
        deep_model("ruleless", ["negative", "positive"]),
    ]
    with running(models) as found:
        yield found


def classify(page: Any, text: str, *, cards: int = 1) -> None:
    """Classifies a text by its button and waits for the answers."""
    page.locator("#text").fill(text)
    page.click("#classify")
    playwright.expect(page.locator("#history .text").first).to_have_text(text)
    playwright.expect(page.locator("#results .card")).to_have_count(cards)


def explain(page: Any) -> None:
    page.locator("#results .why").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#results .words")


def upload(page: Any, content: bytes) -> None:
    page.set_input_files("#file", {"name": "in.csv", "mimeType": "text/csv", "buffer": content})


def labels_file(page: Any) -> list[dict[str, str]]:
    """The rows of the file that comes back."""
    page.click("#run")
    return downloaded(page)


def downloaded(page: Any) -> list[dict[str, str]]:
    link = page.locator("#state a")
    playwright.expect(link).to_contain_text("in-labels.csv")
    with page.expect_download() as download:
        link.click()
    return list(csv.DictReader(io.StringIO(download.value.path().read_text(encoding="utf-8"), newline="")))


def shares(prediction: dict[str, Any]) -> list[str]:
    return [f"{100 * share:.1f} %" for share in sorted(prediction["probabilities"].values(), reverse=True)]


def shown(page: Any) -> list[tuple[str, str, list[str]]]:
    """Model, label and shares of each card."""
    return [
        (card.locator("h3").inner_text(), card.locator(".label").inner_text(), card.locator("b").all_inner_texts())
        for card in page.locator("#results .card").all()
    ]


def wanted(server: Running, text: str, model: str, **asked: Any) -> tuple[str, str, list[str]]:
    prediction = server.classify(text, model=model, **asked)
    return model, prediction["label"], shares(prediction)


def test_type_classify_switch_and_go_back_by_keyboard(server: Running, visit: Any) -> None:
    found = visit(server.url)
    page = found.page
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.type("a lovely film")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#results .card")
    assert shown(page) == [wanted(server, "a lovely film", name) for name in ("small", "large")]
    assert "ms" in page.locator("#results dl").first.inner_text()

    page.select_option("#first", "large")
    page.select_option("#second", "")
    page.locator("#text").fill("another")
    page.locator("#text").focus()
    # On to the button with the keyboard alone: four examples and the two choices lie between.
    for _ in range(7):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "classify"
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#results .card")).to_have_count(1)
    assert shown(page) == [wanted(server, "another", "large")]

    history = page.locator("#history button")
    assert [text.splitlines()[0] for text in history.all_inner_texts()] == ["another", "a lovely film"]
    history.nth(1).click()
    assert page.input_value("#text") == "a lovely film"
    assert page.locator("#examples button").all_text_contents() == EXAMPLES
    for example, entries in ((0, 3), (-1, 4)):
        page.locator("#examples button").nth(example).click()
        playwright.expect(page.locator("#history li")).to_have_count(entries)
        assert page.input_value("#text") == EXAMPLES[example]
    explain(page)
    for place in ("#text", "#examples :last-child", "#history .text", "#results .words"):
        assert page.locator(place).first.evaluate("element => getComputedStyle(element).direction") == "rtl", place
    assert page.locator("#alarm").is_hidden()
    assert found.complaints == []
    assert all(url.startswith(f"{server.url}/") for url in found.requests)


def thoughts(page: Any, card: int = 0) -> list[list[str]]:
    """The table of a card as a screen reader goes through it: row by row, the text of each cell."""
    rows = page.locator("#results .card").nth(card).locator("tr").all()
    return [[" ".join(cell.split()) for cell in row.locator("th, td").all_inner_texts()] for row in rows]


def stops(page: Any) -> list[str]:
    return [row[0] for row in thoughts(page) if "stop" in row[0]]


def in_table(server: Running, text: str, model: str, mark: str) -> list[list[str]]:
    """What the table should hold, from the server's answer."""
    prediction = server.classify(text, model=model, recurrences=True)
    labels = sorted(prediction["probabilities"], key=lambda name: -prediction["probabilities"][name])[:3]
    rows = [["Recurrence", *labels]]
    for step in prediction["recurrences"]:
        stopped = step["after"] == prediction.get("stops_after")
        cells = [f"{100 * step['probabilities'][name]:.1f} %" for name in labels]
        rows.append([f"{step['after']} {mark}" if stopped else str(step["after"]), *cells])
    return rows


def test_what_was_thought_after_each_recurrence_is_shown(deep_server: Running, visit: Any) -> None:
    found = visit(deep_server.url)
    page = found.page
    # One of these stops after the first exit, one after the second, one goes all the way.
    for text, after in {"a": 1, "b": 3, "d": 4}.items():
        classify(page, text, cards=2)
        assert thoughts(page) == in_table(deep_server, text, "reviews", "would stop")
        assert stops(page) == [f"{after} would stop"]
        assert thoughts(page, 1) == in_table(deep_server, text, "stars", "")
    table = page.locator("#results table").first
    assert table.locator("caption").inner_text() == "Its answer after each recurrence"
    assert table.locator("thead th[scope=col]").count() == 3 and table.locator("tbody th[scope=row]").count() == 3
    # Bars repeat the numbers beside them: a screen reader hears these once.
    assert table.locator("progress:not([aria-hidden=true])").count() == 0
    notes = page.locator("#results table + p")
    assert "confidence of at least 0.6" in notes.first.inner_text() and "99.3" in notes.first.inner_text()
    assert "only after the last recurrence" in notes.nth(1).inner_text() and "not shown: 2" in notes.nth(1).inner_text()
    assert found.complaints == [] and all(url.startswith(f"{deep_server.url}/") for url in found.requests)


def test_texts_stop_early_if_the_box_is_ticked(deep_server: Running, visit: Any) -> None:
    page = visit(deep_server.url).page
    page.locator("#classify").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "early"
    page.keyboard.press("Space")
    classify(page, "a", cards=2)
    assert shown(page)[0] == wanted(deep_server, "a", "reviews", exit_rule="calibrated")
    assert thoughts(page) == in_table(deep_server, "a", "reviews", "stopped")
    facts = page.locator("#results dl").all_inner_texts()
    assert "1 of 4" in " ".join(facts[0].split()) and "Recurrences" not in facts[1]
    page.select_option("#first", "ruleless")
    page.select_option("#second", "")
    classify(page, "b")
    assert not stops(page)
    assert "has no rule" in page.locator("#results table + p").inner_text()


def test_the_slider_says_after_which_recurrence_texts_of_one_model_stop(deep_server: Running, visit: Any) -> None:
    page = visit(deep_server.url).page
    page.select_option("#second", "ruleless")
    slider, said = page.locator("#depth"), page.locator("#depth-said")
    assert slider.get_attribute("max") == slider.input_value()
    assert said.inner_text() == "Recurrences of reviews: 4 of 4"
    box = slider.bounding_box()
    assert box is not None and box["width"] > 100
    slider.focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert said.inner_text() == "Recurrences of reviews: 3 of 4" and slider.get_attribute("aria-valuetext") == "3 of 4"
    page.check("#early")
    assert said.inner_text() == "Recurrences of reviews: 3 of 4, in place of its rule"
    classify(page, "a", cards=2)
    answers = deep_server.classify("a", exit_after=3), deep_server.classify("a", model="ruleless")
    assert [card[2] for card in shown(page)] == [shares(answer) for answer in answers]
    assert stops(page) == ["3 stopped"]
    upload(page, b"text\na\n")
    for after in ({"exit_after": 3}, {"exit_rule": "calibrated"}):
        with page.expect_request("**/v1/classify") as request:
            page.click("#run")
        assert request.value.post_data_json == {"text": ["a"], "model": "reviews", "cut": True, **after}
        playwright.expect(page.locator("#state a")).to_be_visible()
        slider.focus()
        page.keyboard.press("End")
    page.select_option("#first", "stars")
    assert said.inner_text() == "Recurrences of ruleless: 4 of 4"


@pytest.mark.parametrize("width", [360, 1280])
def test_words_are_shaded_by_what_they_do(server: Running, visit: Any, width: int) -> None:
    found = visit(server.url, width=width)
    page = found.page
    text = "a 👍 lovely <b>film</b>, not bad"
    page.select_option("#second", "")
    classify(page, text)
    assert page.locator("#results .why").bounding_box()["height"] >= 43
    explain(page)
    prediction = server.classify(text, model="small", explain=True)
    assert page.locator("#results .words").inner_text() == text and page.locator("#results .words b").count() == 0
    most = max(abs(word["effect"]) for word in prediction["words"])
    marks = page.locator("#results .words mark").all()
    assert [
        (mark.inner_text(), mark.get_attribute("title"), mark.get_attribute("class") == "against") for mark in marks
    ] == [
        (word["text"], f"{word['effect']:+.3f}".replace("-", "−"), word["effect"] < 0)
        for word in prediction["words"]
        if abs(word["effect"]) >= 0.1 * most
    ]
    strongest = max(prediction["words"], key=lambda word: word["effect"])
    note = page.locator("#results .words + p").inner_text()
    assert f"For {prediction['label']}: {strongest['text']} ({strongest['effect']:+.3f})" in note
    remainder = f"{prediction['remainder']:+.3f}".replace("-", "−")
    assert (f"words do {remainder} together" in note) == (abs(prediction["remainder"]) >= 0.0005)
    found.reads_well(width, "light")


def test_words_of_several_labels_are_shaded_label_by_label(visit: Any) -> None:
    model, engine = prompt_model("several")
    for thresholds, given in (([0.1, 0.1], True), ([0.99, 0.98], False)):
        decision = AnyLabels(["no", "yes"], thresholds, ";")
        several = ServedModel(Classifier(engine, ["no", "yes"], decision=decision), model.description)
        with running([several]) as server:
            found = visit(server.url)
            page = found.page
            classify(page, "a lovely film")
            explain(page)
            told = server.classify("a lovely film", explain=True)
            texts, notes = page.locator("#results .words"), page.locator("#results .words + p").all_inner_texts()
            assert texts.all_inner_texts() == ["a lovely film"] * len(told["words_by_label"])
            assert len(notes) == (2 if given else 1)
            assert ("none of the labels" in page.locator("#results").inner_text()) != given
            for note, one in zip(notes, told["words_by_label"], strict=True):
                assert f"For {one['label']}: " in note
                assert note.startswith("No label is given") != given and one["given"] == given
            assert found.complaints == []


def test_a_file_is_classified_in_parts_and_comes_back(visit: Any) -> None:
    rows = [(f'text {number}, with a "quote"\nand a line', str(number)) for number in range(23)]
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=";", lineterminator="\r\n")
    writer.writerows([("label", "Text", "number"), *(("mine", text, number) for text, number in rows)])
    model, engine = prompt_model()
    with running([model], ServerLimits(max_texts=5)) as server:
        found = visit(server.url, width=360)
        page = found.page
        transfer = page.evaluate_handle(
            """text => {
                const transfer = new DataTransfer();
                transfer.items.add(new File([text], 'in.csv', { type: 'text/csv' }));
                return transfer;
            }""",
            stream.getvalue(),
        )
        page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})
        playwright.expect(page.locator("#state")).to_contain_text("in.csv: 23 rows")
        assert page.locator("#column option:checked").inner_text() == "Text"
        found.reads_well(360, "light")
        engine.batches.clear()
        written = labels_file(page)
        assert len(engine.batches) == 5 and max(map(len, engine.batches)) == 5
        answers = [server.classify(text) for text, _ in rows]
    assert [(row["Text"], row["number"], row["label"]) for row in written] == [(*row, "mine") for row in rows]
    for row, one in zip(written, answers, strict=True):
        assert row["label_predicted"] == one["label"]
        assert float(row["probability"]) == pytest.approx(one["probabilities"][one["label"]], abs=1e-6)
    assert found.complaints == []


def test_a_file_that_is_chosen_while_another_is_classified_waits_its_turn(visit: Any) -> None:
    model, engine = slow_model()
    with running([model]) as server:
        page = visit(server.url).page
        upload(page, b"text,x\nfirst,1\n")
        page.click("#run")
        assert engine.begun.acquire(timeout=20)
        upload(page, b"text\nsecond\nthird\n")
        playwright.expect(page.locator("#state")).to_contain_text("2 rows")
        engine.open.set()
        assert [(row["text"], row["x"]) for row in downloaded(page)] == [("first", "1")]
        page.click("#run")
        playwright.expect(page.locator("#state")).to_contain_text("2 of 2 rows")
        assert [row["text"] for row in downloaded(page)] == ["second", "third"]


def test_a_text_that_is_longer_than_the_model_reads_is_told_and_explained_as_far_as_it_is_read(visit: Any) -> None:
    model, engine = prompt_model()
    engine.max_length = model.description.max_length_tokens = 3
    engine.are_cut = lambda texts: np.array([len(text.split()) > 3 for text in texts])  # type: ignore[method-assign]
    with running([model]) as server:
        page = visit(server.url).page
        for text, told in (("a b c", 0), ("a b c d e", 1)):
            classify(page, text)
            assert page.locator("#results").get_by_text("only about its first 3 tokens").count() == told
        engine.batches.clear()
        explain(page)
        # The text, its three words left out in turn, and all of them.
        assert sum(map(len, engine.batches)) == 5 and page.locator("#results .words").inner_text() == "a b c d e"
        upload(page, b"text\na b c\na b c d\n")
        page.click("#run")
        playwright.expect(page.locator("#state")).to_contain_text(
            "2 of 2 rows by slow; longer than it reads and cut: 1"
        )


def test_a_model_that_gives_no_label_where_it_is_not_sure_says_so(visit: Any) -> None:
    model, _ = prompt_model()
    texts = [f"text {number}" for number in range(12)]
    classifier = model.classifier
    bound = float(np.median(classifier.predict_proba(texts).max(axis=1)))
    classifier.decision = classifier.decision.abstaining_below(bound)
    with running([model]) as server:
        answers = [server.classify(text) for text in texts]
        found = visit(server.url)
        page = found.page
        classify(page, next(text for text, answer in zip(texts, answers, strict=True) if answer["abstained"]))
        assert page.locator("#results .label").inner_text() == "no label: not sure enough"
        explain(page)
        assert "For null" not in page.locator("#results").inner_text()
        upload(page, "\n".join(["text", *texts]).encode())
        written = labels_file(page)
    assert [row["label"] for row in written] == [answer["label"] or "" for answer in answers]
    assert 0 < sum(row["label"] == "" for row in written) < len(texts)
    for row, answer in zip(written, answers, strict=True):
        assert float(row["probability"]) == pytest.approx(max(answer["probabilities"].values()), abs=1e-6)
    assert found.complaints == []


FILES = {
    "quotes.tsv": 'text\tx\n"great food\t1\nbad "food"\t2\n',
    "lines.tsv": 'text\tx\n"great\tfood"\t1\n"bad\nfood"\t2\n',
    "declared.csv": "sep=;\ntext;x\ngreat, food;1\n",
    "commas.csv": '"a,b, text";label\nx;good food\n',
    "asked.csv": "x,y;text\n1;great food\n",
    "bars.csv": "text|x\ngreat food|1\n",
    "empty.csv": 'text\ngreat food\n\n""\n  \nbad food\n',
    "blank.csv": "\ntext,x\r\n  \r\ngreat food,1\r\n",
    "behind.csv": 'text\n"great" food\n',
    "returns.csv": "text\rgreat food\r",
    "wide.csv": "text\ngreat, food\n",
    "lines.txt": "text\ngreat food\n",
}


def test_a_file_has_the_rows_that_predict_reads_and_one_that_cannot_be_read_is_told(
    server: Running, visit: Any, tmp_path: Path
) -> None:
    page = visit(server.url).page
    read: dict[str, list[list[Any]] | None] = {}
    for name, content in FILES.items():
        path = tmp_path / name
        path.write_bytes(content.encode())
        try:
            table = TableFile(path, ["text"])
            read[name] = [table.header, *(list(cells) for _, cells in table.rows(table.header))]
        except DataError:
            read[name] = None
    assert [name for name in read if read[name] is None] == ["behind.csv", "returns.csv", "wide.csv", "lines.txt"]
    found = page.evaluate(
        """files => Object.fromEntries(Object.entries(files).map(([name, text]) => {
            try { return [name, readTable(text, name)]; } catch { return [name, null]; }
        }))""",
        FILES,
    )
    assert found == read
    for broken, message in (
        (b"text\n", "no rows"),
        (b"text,a\nb\n", "Record 2 has 1 cells"),
        (b'text\n"a\n', "inside a quotation mark"),
        (b"text\n\xff\n", "not UTF-8"),
    ):
        upload(page, broken)
        playwright.expect(page.locator("#alarm")).to_contain_text(message)
        assert page.locator("#columns").is_hidden()


def test_an_error_is_shown_and_goes_away_and_a_server_that_is_gone_is_told(visit: Any) -> None:
    with prompt_server() as server:
        page = visit(server.url).page
        assert page.locator("#second-choice").is_hidden()
        for text, message in (("", "no text yet"), ("spoil", "500"), ("x" * 100_001, "at most 100,000")):
            page.locator("#text").fill(text)
            page.click("#classify")
            playwright.expect(page.locator("#alarm")).to_contain_text(message)
            assert page.locator("#answer").is_hidden()
        classify(page, "fine")
        assert page.locator("#alarm").is_hidden()
    page.locator("#text").fill("anyone there?")
    page.click("#classify")
    playwright.expect(page.locator("#alarm")).to_contain_text("cannot be reached")
    assert page.locator("#classify").is_enabled()


def test_a_key_is_asked_for_and_kept(visit: Any) -> None:
    with prompt_server(key=KEY) as server:
        page = visit(server.url).page
        assert "401" in page.locator("#alarm").inner_text()
        page.locator("#key").fill(KEY)
        classify(page, "a text")
        assert page.locator("#alarm").is_hidden() and KEY not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_reads_on_any_screen(deep_server: Running, visit: Any, width: int, scheme: str) -> None:
    found = visit(deep_server.url, width=width, scheme=scheme)
    page = found.page
    page.locator("#text").fill(NASTY)
    page.click("#classify")
    page.wait_for_selector("#results table")
    assert page.title() != "taken" and page.locator("main img").count() == 0
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input')].filter(item => item.offsetParent
            && (item.closest('label.check') ?? item).getBoundingClientRect().height < 43).map(item => item.outerHTML)"""
    )
    outside = page.evaluate(
        """() => [...document.querySelectorAll('#results td, #results th, .mark')].filter(item =>
            item.getBoundingClientRect().right > item.closest('.card').getBoundingClientRect().right
            || item.scrollWidth > item.clientWidth + 1).map(item => item.outerHTML)"""
    )
    assert small == outside == [] and page.locator("#early-choice").bounding_box()["height"] >= 43
    found.reads_well(width, scheme)


def test_the_policy_lets_nothing_else_run(server: Running, visit: Any) -> None:
    # What it says: tests/unit/deployment/serving/test_application.py.
    found = visit(server.url)
    found.page.evaluate(
        """() => {
            const script = document.createElement('script');
            script.textContent = "document.title = 'taken'";
            document.body.append(script);
            const image = new Image();
            image.src = 'http://192.0.2.1/pixel.png';
            document.body.append(image);
        }"""
    )
    found.page.wait_for_timeout(100)
    assert found.page.title() != "taken"
    assert len(found.complaints) >= 2 and all("Content Security Policy" in text for text in found.complaints)
