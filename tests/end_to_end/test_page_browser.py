"""The page at ``/`` in a real browser: type, classify, compare, fail, go back; phone and desk, light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="pip install 'recurra[serve]'")
from served import Running, running, slow_model

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")

pytestmark = pytest.mark.browser

KEY = "0123456789abcdef-key"
NASTY = "<img src=x onerror=\"document.title='taken'\"> " + "Donaudampfschifffahrt" * 30


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = []
    for name in ("small", "large"):
        model, engine = slow_model(name)
        engine.open.set()
        models.append(model)
    with running(models) as found:
        yield found


@dataclass
class Visit:
    """A page that is open, and what it complained of and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    contexts = []

    def start(server: Running, *, width: int = 1280, scheme: str = "light") -> Visit:
        contexts.append(browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme))
        found = Visit(contexts[-1].new_page())
        found.page.goto(server.url, wait_until="networkidle")
        return found

    yield start
    for context in contexts:
        context.close()


def shown(page: Any) -> list[tuple[str, str, list[str]]]:
    """Model, label and shares of each card."""
    return [
        (card.locator("h3").inner_text(), card.locator(".label").inner_text(), card.locator("b").all_inner_texts())
        for card in page.locator("#results .card").all()
    ]


def wanted(server: Running, text: str, model: str) -> tuple[str, str, list[str]]:
    prediction = server.post({"text": text, "model": model}).json["results"][0]["predictions"][0]
    shares = sorted(prediction["probabilities"].values(), reverse=True)
    return model, prediction["label"], [f"{100 * share:.1f} %" for share in shares]


def test_type_classify_switch_and_go_back_by_keyboard(server: Running, visit: Any) -> None:
    found = visit(server)
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
    page.locator("#examples button").first.click()
    playwright.expect(page.locator("#history li")).to_have_count(3)
    assert page.locator("#alarm").is_hidden()
    assert found.complaints == []
    assert all(url.startswith(f"{server.url}/") for url in found.requests)


def test_an_error_is_shown_and_goes_away(server: Running, visit: Any) -> None:
    page = visit(server).page
    page.click("#classify")
    assert "no text yet" in page.locator("#alarm").inner_text()
    page.locator("#text").fill("spoil")
    page.click("#classify")
    playwright.expect(page.locator("#alarm")).to_contain_text("500")
    assert page.locator("#answer").is_hidden()
    page.locator("#text").fill("x" * 100_001)
    page.click("#classify")
    playwright.expect(page.locator("#alarm")).to_contain_text("at most 100,000")
    page.locator("#text").fill("fine")
    page.click("#classify")
    page.wait_for_selector("#results .card")
    assert page.locator("#alarm").is_hidden()


def test_a_server_that_is_gone_is_told(visit: Any) -> None:
    model, engine = slow_model()
    engine.open.set()
    with running([model]) as server:
        page = visit(server).page
        assert page.locator("#second-choice").is_hidden()
    page.locator("#text").fill("anyone there?")
    page.click("#classify")
    playwright.expect(page.locator("#alarm")).to_contain_text("cannot be reached")
    assert page.locator("#classify").is_enabled()


def test_a_key_is_asked_for_and_kept(visit: Any) -> None:
    model, engine = slow_model()
    engine.open.set()
    with running([model], key=KEY) as server:
        page = visit(server).page
        assert "401" in page.locator("#alarm").inner_text()
        page.locator("#key").fill(KEY)
        page.locator("#text").fill("a text")
        page.click("#classify")
        page.wait_for_selector("#results .card")
        assert page.locator("#alarm").is_hidden() and KEY not in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_reads_on_any_screen(server: Running, visit: Any, width: int, scheme: str) -> None:
    found = visit(server, width=width, scheme=scheme)
    page = found.page
    page.locator("#text").fill(NASTY)
    page.click("#classify")
    page.wait_for_selector("#results .card")
    assert page.title() != "taken" and page.locator("main img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    small = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input')].filter(item => item.offsetParent
            && item.getBoundingClientRect().height < 43).map(item => item.outerHTML)"""
    )
    assert small == []
    background, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
        ".map(text => text.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 3)"
    )
    assert abs(background - ink) > 150 and (background > ink) == (scheme == "light")
    assert found.complaints == []


def test_the_policy_lets_nothing_else_run(server: Running, visit: Any) -> None:
    answer = server.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    found = visit(server)
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
