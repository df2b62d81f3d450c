"""The page at /: what it is served with, and what a person does with it in a real browser."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from gemwright.server.page import page_files
from gemwright.server.settings import ReasoningField, ServerSettings
from gemwright.testing import write_tiny_checkpoint
from gemwright.testing.scripted import answers, scripted_llm
from tests.serving import Served, serving

CHROMIUM = shutil.which("chromium")
in_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="the page was not tested in a browser: there is no chromium (apt-get install chromium)"
)
KEY = "a-key"
THOUGHT = "<|channel>thought\nThe sky must be asked.<channel|>"
CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
EVIL = '<img src="x" onerror="document.title = \'taken\'"><script>document.title = "taken"</script><b>bold</b>'
LONG = "and on " * 500
REPLIES = {
    "Greet": "Hello there.\n\n```html\n<p>code</p>\n```\n\nThat was it.",
    "Think": f"{THOUGHT}It is blue.",
    "Weather": f"{THOUGHT}I will ask.{CALL}",
    "sunny": "So it is warm in Paris.",
    "Evil": EVIL,
    "Go on": LONG,
}
TOOLS = """[{"type": "function", "function": {"name": "get_weather", "description": "Tells of the sky.",
"parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("page")
    folder = write_tiny_checkpoint("gemma4-e", path, overrides={"max_position_embeddings": 4096})
    llm = scripted_llm(
        folder,
        answers(REPLIES),
        seconds_per_step=0.002,
        threads=1,
        max_model_len=4096,
        max_num_seqs=4,
        chat_template="gemma4",
    )
    with serving(llm, ServerSettings(api_keys=(KEY,))) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        expect.set_options(timeout=15_000)
        yield found
        found.close()


@dataclass
class Watched:
    """A tab, and what must not happen in it."""

    page: Page
    origin: str
    problems: list[str] = field(default_factory=list)

    def note_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def note_request(self, request: Request) -> None:
        if not request.url.startswith(f"{self.origin}/"):
            self.problems.append(f"asked for {request.url}")

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def forgive(self, text: str) -> None:
        """Strike a problem that a test provoked; it must be there."""
        assert self.problems, "nothing went wrong"
        assert all(text in problem for problem in self.problems), self.problems
        self.problems.clear()


def open_tab(browser: Browser, served: Served, key: str | None = KEY) -> Iterator[Watched]:
    context = browser.new_context()
    context.set_default_timeout(15_000)
    if key is not None:
        context.add_init_script(f"sessionStorage.setItem('gemwright-api-key', '{key}')")
    tab = Watched(context.new_page(), served.url)
    tab.page.on("console", tab.note_console)
    tab.page.on("pageerror", lambda error: tab.problems.append(str(error)))
    tab.page.on("request", tab.note_request)
    tab.page.goto(served.url)
    yield tab
    context.close()
    assert not tab.problems


@pytest.fixture
def tab(browser: Browser, served: Served) -> Iterator[Watched]:
    """The page with its key."""
    yield from open_tab(browser, served)


@pytest.fixture
def keyless(browser: Browser, served: Served) -> Iterator[Watched]:
    yield from open_tab(browser, served, key=None)


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def test_browsers_get_the_page_and_everybody_else_a_line(served: Served) -> None:
    page = httpx.get(served.url, headers={"accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == page_files()["index.html"]
    for accept in ("*/*", "application/json", ""):
        line = httpx.get(served.url, headers={"accept": accept})
        assert (line.status_code, line.text) == (200, "Gemwright is running")
        assert line.headers["content-type"].startswith("text/plain")
        assert line.headers["vary"] == page.headers["vary"] == "accept"


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/favicon.ico"])
def test_head_says_what_get_would(served: Served, path: str) -> None:
    for accept in ("text/html", "*/*"):
        got = httpx.get(served.url + path, headers={"accept": accept})
        head = httpx.head(served.url + path, headers={"accept": accept})
        assert (head.status_code, head.content) == (200, b"")
        for name in ("content-type", "content-length"):
            assert head.headers[name] == got.headers[name]


def test_every_file_is_served_without_a_key_under_a_strict_policy(served: Served) -> None:
    assert set(page_files()) == {
        *("index.html", "page.css", "icon.svg"),
        *("page.js", "chat.js", "ledger.js", "dom.js", "server.js"),
    }
    for name, content in page_files().items():
        response = httpx.get(f"{served.url}/page/{name}")
        assert (response.status_code, response.content) == (200, content)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["other.js", "..%2Fapp.py", "page.py", "%2e%2e%2fapp.py"])
def test_nothing_else_is_served(served: Served, name: str) -> None:
    assert httpx.get(f"{served.url}/page/{name}").status_code == 404


def test_page_names_no_other_origin_and_has_no_inline_script() -> None:
    for name, content in page_files().items():
        text = content.decode().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "http://" not in text, name
        assert "https://" not in text, name
        assert "innerHTML" not in text, name
        assert "style=" not in text, name
    html = page_files()["index.html"].decode()
    assert html.count("<script") == html.count('<script type="module" src="page/') == 1
    assert " onclick" not in html


@in_browser
def test_an_answer_streams_in_with_its_code_apart(tab: Watched) -> None:
    expect(tab.page.locator("#model")).to_have_text("gemma, 4,096 tokens of context")
    tab.say("Greet me")
    answer = tab.page.get_by_role("article", name="Model")
    expect(answer.locator(".content > *")).to_have_text(["Hello there.", "<p>code</p>", "That was it."])
    assert answer.locator("pre").count() == 1
    expect(tab.page.get_by_role("status")).to_have_text("Done.")
    expect(answer.locator(".note")).to_contain_text("tokens after")
    tab.say("Think of the sky")
    expect(tab.page.get_by_role("article", name="Model").nth(1).locator(".content")).to_have_text("It is blue.")
    tab.page.get_by_role("button", name="New chat").click()
    expect(tab.page.get_by_role("article")).to_have_count(0)


@in_browser
def test_a_thought_folds_and_unfolds(tab: Watched) -> None:
    tab.page.get_by_text("Settings", exact=True).click()
    tab.page.get_by_label("Thinking").select_option("on")
    tab.say("Think of the sky")
    answer = tab.page.get_by_role("article", name="Model")
    expect(answer.locator(".content")).to_have_text("It is blue.")
    expect(tab.page.get_by_role("status")).to_have_text("Done.")
    thought = answer.get_by_text("The sky must be asked.")
    expect(thought).to_be_hidden()
    answer.get_by_text("Thought", exact=True).click()
    expect(thought).to_be_visible()
    answer.get_by_text("Thought", exact=True).press("Enter")
    expect(thought).to_be_hidden()


@in_browser
def test_a_call_is_shown_and_the_typed_result_leads_to_the_answer(tab: Watched) -> None:
    tab.page.get_by_text("Settings", exact=True).click()
    tab.page.get_by_label("Tools, as a JSON list").fill(TOOLS)
    tab.say("Weather in Paris?")
    call = tab.page.locator("details.call")
    expect(call).to_contain_text("Call: get_weather")
    expect(call.locator("pre")).to_have_text('{\n  "city": "Paris"\n}')
    call.get_by_text("Call: get_weather").click()
    expect(call.locator("pre")).to_be_hidden()
    result = tab.page.locator("textarea[aria-label='Result of get_weather']").last
    result.fill("sunny, 20 degrees")
    tab.page.get_by_role("button", name="Send result").click()
    expect(tab.page.get_by_role("article", name="Model").nth(1).locator(".content")).to_have_text(
        "So it is warm in Paris."
    )
    expect(tab.page.get_by_role("article", name="Result of get_weather")).to_contain_text("sunny, 20 degrees")
    expect(tab.page.get_by_role("status")).to_have_text("Done.")
    tab.say("Weather again?")
    expect(result).to_be_visible()
    tab.say("Greet me instead")
    expect(result).to_be_hidden()
    expect(tab.page.get_by_role("article", name="Model").last).to_contain_text("That was it.")


@in_browser
def test_html_in_an_answer_is_text(tab: Watched) -> None:
    tab.say("Evil, please")
    answer = tab.page.get_by_role("article", name="Model")
    expect(answer.locator(".content")).to_have_text(EVIL)
    assert answer.locator("img, script, b").count() == 0
    assert tab.page.title() == "Gemwright"


@in_browser
def test_the_key_is_asked_for_and_used(keyless: Watched) -> None:
    page = keyless.page
    key = page.get_by_label("API key")
    expect(key).to_be_focused()
    expect(page.locator("#key-note")).to_contain_text("no API key came with the request")
    keyless.say("Greet me")
    expect(page.locator("#error")).to_contain_text("What helps: send one of the server's keys")
    expect(page.get_by_label("Message", exact=True)).to_have_value("Greet me")
    key.fill("wrong")
    key.press("Enter")
    expect(page.locator("#key-note")).to_contain_text("the API key is wrong")
    keyless.forgive("401")
    key.fill(KEY)
    key.press("Enter")
    expect(key).to_be_hidden()
    expect(page.locator("#model")).to_contain_text("gemma")
    keyless.say("Greet me")
    expect(page.get_by_role("article", name="Model")).to_contain_text("Hello there.")
    assert page.evaluate("[localStorage.length, document.cookie, sessionStorage.length]") == [0, "", 1]


@in_browser
def test_stop_ends_the_request_in_the_engine(tab: Watched, served: Served) -> None:
    tokenizer = served.engine.llm.tokenizer
    assert tokenizer is not None
    whole = len(tokenizer.encode(LONG))
    for stop in (
        lambda: tab.page.get_by_role("button", name="Stop").click(),
        lambda: tab.page.keyboard.press("Escape"),
    ):
        begun = served.engine.counters.completion_tokens
        tab.say("Go on")
        expect(tab.page.get_by_role("article", name="Model").last).to_contain_text("and on and on")
        assert served.engine.num_running == 1
        stop()
        expect(tab.page.get_by_role("status")).to_have_text("Stopped.")
        wait_until(lambda: served.engine.num_running == 0)
        assert served.engine.counters.completion_tokens - begun < whole
    expect(tab.page.get_by_role("article", name="Model").last).to_contain_text("cut off here")
    tab.say("Greet me")
    expect(tab.page.get_by_role("article", name="Model").last).to_contain_text("That was it.")


@in_browser
def test_what_cannot_be_sent_or_is_refused_is_said_and_the_message_stays(tab: Watched) -> None:
    page = tab.page
    page.get_by_text("Settings", exact=True).click()
    message, error = page.get_by_label("Message", exact=True), page.locator("#error")
    page.get_by_label("Tools, as a JSON list").fill("[{")
    tab.say("Greet me")
    expect(error).to_contain_text("the tools are no JSON")
    expect(message).to_have_value("Greet me")
    page.get_by_label("Tools, as a JSON list").fill('[{"type": "function"}]')
    tab.say("Greet me")
    expect(error).to_contain_text("tools[0]")
    expect(error).to_contain_text("What helps: ")
    tab.forgive("400")
    expect(page.get_by_role("article")).to_have_count(0)
    page.get_by_label("Tools, as a JSON list").fill("")
    page.get_by_label("Max tokens").fill("0")
    tab.say("Greet me")
    expect(error).to_contain_text("a setting is out of its range")
    page.get_by_label("Max tokens").fill("3")
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("System prompt").fill("Be brief.")
    tab.say("Greet me")
    expect(error).to_be_hidden()
    expect(page.get_by_role("article", name="Model")).to_contain_text("cut off at the limit of tokens")


@in_browser
@pytest.mark.parametrize("name", ["both", "reasoning", "reasoning_content"])
def test_thoughts_are_read_under_either_name(
    tab: Watched, served: Served, monkeypatch: pytest.MonkeyPatch, name: ReasoningField
) -> None:
    settings = dataclasses.replace(served.service.settings, reasoning_field=name)
    monkeypatch.setattr(served.service, "settings", settings)
    tab.say("Think of the sky")
    thought = tab.page.get_by_role("article", name="Model").locator("details.thought p")
    expect(tab.page.get_by_role("status")).to_have_text("Done.")
    expect(thought).to_have_text("The sky must be asked.")


@in_browser
@pytest.mark.parametrize(("status", "words"), [("429", "too many requests wait"), ("503", "the server is going down")])
def test_a_server_that_takes_no_more_says_why(
    tab: Watched, served: Served, monkeypatch: pytest.MonkeyPatch, status: str, words: str
) -> None:
    expect(tab.page.locator("#model")).to_contain_text("gemma")
    with contextlib.ExitStack() as busy:
        if status == "503":
            monkeypatch.setattr(served.service, "state", "draining")
        else:
            settings = dataclasses.replace(served.service.settings, max_num_queued_requests=1)
            monkeypatch.setattr(served.service, "settings", settings)
            body = {"messages": [{"role": "user", "content": "Go on"}], "max_tokens": 2000, "stream": True}
            for _ in range(5):  # four run, one waits
                headers = {"Authorization": f"Bearer {KEY}"}
                busy.enter_context(
                    httpx.stream("POST", f"{served.url}/v1/chat/completions", json=body, headers=headers)
                )
            wait_until(lambda: served.engine.num_waiting == 1)
        tab.say("Greet me")
        expect(tab.page.locator("#error")).to_contain_text(words)
        expect(tab.page.locator("#error")).to_contain_text("What helps: ")
        expect(tab.page.get_by_label("Message", exact=True)).to_have_value("Greet me")
        tab.forgive(status)


@in_browser
def test_the_ledger_shows_planned_beside_live_and_what_runs(tab: Watched, served: Served) -> None:
    page, started = tab.page, served.engine.llm.engine
    tab.say("Go on")
    page.get_by_role("tab", name="Chat").press("ArrowRight")
    expect(page.get_by_role("tab", name="Ledger")).to_be_focused()
    rows = page.get_by_role("table", name="Planned, allocated").get_by_role("row")
    expect(rows).to_have_count(len(started.lines) + 2)
    expect(rows.nth(1)).to_contain_text(started.lines[0].name)
    for bar in ("planned", "allocated", "in use", "resident"):
        expect(page.get_by_role("img", name=f"{bar}:").first).to_be_visible()
    for place in (0, 1):
        parts = page.locator(".bars").first.locator(".bar").nth(place).locator(".part")
        widths = parts.evaluate_all("parts => parts.map((part) => part.getBoundingClientRect().width)")
        assert len(widths) == len(started.lines)
        planned = [line.planned_bytes for line in started.lines]
        assert [width / sum(widths) for width in widths] == pytest.approx(
            [size / sum(planned) for size in planned], abs=0.01
        )
    requests = page.get_by_role("table", name="Requests being answered").get_by_role("row")
    expect(requests).to_have_count(2)
    expect(requests.nth(1)).to_contain_text("answering")
    page.get_by_role("tab", name="Chat").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped.")
    wait_until(lambda: served.engine.num_running == 0)
    page.get_by_role("tab", name="Ledger").click()
    expect(page.get_by_text("None at the moment.")).to_be_visible()


@in_browser
def test_it_follows_the_colors_of_the_system_and_fits_a_narrow_screen(tab: Watched) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    tab.page.emulate_media(color_scheme="light")
    light = tab.page.evaluate(color)
    tab.page.emulate_media(color_scheme="dark")
    assert tab.page.evaluate(color) != light
    tab.page.set_viewport_size({"width": 320, "height": 600})
    for name in ("Ledger", "Chat"):
        tab.page.get_by_role("tab", name=name).click()
        expect(tab.page.get_by_role("tabpanel", name=name)).to_be_visible()
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= 320
