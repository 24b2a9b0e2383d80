"""The playground in a browser, over endpoints that do what a test wants."""

from __future__ import annotations

import time

import pytest

from .browser import Browser, Page
from .stub_api import StubApi

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e &amp; "
REPLIED = "document.querySelector('.message.assistant .figure') && !document.querySelector('.streaming')"


@pytest.fixture
def page(browser: Browser, url: str) -> Page:
    return browser.page(url)


def send(page: Page, text: str) -> None:
    page.type(text, "#prompt")
    page.press("Enter")


def test_a_conversation_is_streamed_and_measured(page: Page, stub: StubApi) -> None:
    send(page, "Hi")
    page.wait(REPLIED)
    assert page.text(".message.user .content") == "Hi"
    assert page.text(".message.assistant .content") == "Hello, world."
    figures = page.text(".message.assistant .figures")
    assert "40 prompt" in figures
    assert "32 cached" in figures
    assert "3 tokens written" in figures
    assert "ended by itself" in figures
    send(page, "More")
    page.wait("document.querySelectorAll('.message.assistant .share').length === 2")
    assert [message["content"] for message in stub.bodies[1]["messages"]] == ["Hi", "Hello, world.", "More"]
    assert stub.bodies[1]["model"] == "stub-model"
    assert stub.bodies[1]["stream_options"] == {"include_usage": True}
    assert page.complaints == []


def test_what_models_and_users_write_is_text(page: Page, stub: StubApi) -> None:
    stub.pieces = [*HOSTILE, "\n```html\n", HOSTILE]
    send(page, HOSTILE)
    page.wait(REPLIED)
    assert "<img src=x onerror=" in page.text(".message.user .content")
    assert "<script>" in page.text(".message.assistant pre")
    page.evaluate("document.activeElement.blur()")
    page.press("2")
    page.type(HOSTILE, "#text")
    page.press("Enter", modifiers=2)
    page.wait("document.querySelector('#completion-figures .share')")
    page.evaluate("document.querySelector('.token').focus()")
    assert "<b>" in page.text("#alternatives")
    assert page.evaluate("document.querySelectorAll('main img, main script, .popover b').length") == 0
    assert page.evaluate("document.title") == "ramet"
    assert page.complaints == []


def test_even_a_mistake_in_a_script_could_make_no_markup(page: Page) -> None:
    tried = "try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (error) { return error.name; }"
    assert page.evaluate(f"(() => {{ {tried} }})()") == "TypeError"


def test_the_settings_are_sent(page: Page, stub: StubApi) -> None:
    page.type("0.3", "#set-temperature")
    page.type("7", "#set-seed")
    page.type("END\n\n.", "#set-stop")
    page.type("tenant-a", "#set-cache_salt")
    page.evaluate("document.getElementById('system').value = 'Be brief.'")
    set_constraint(page, "schema")
    send(page, "Go")
    page.wait(REPLIED)
    set_constraint(page, "choice")
    page.evaluate("document.getElementById('set-grammar').value = 'yes\\nno'")
    page.evaluate("document.getElementById('set-tools').value = '[{\"type\": \"function\"}]'")
    page.click(".message:last-child .actions button:last-child")
    page.wait(
        "document.querySelectorAll('.message.assistant .share').length === 1 && !document.querySelector('.streaming')"
    )
    page.wait("true")
    body, again = stub.bodies
    assert (body["temperature"], body["seed"], body["stop"], body["cache_salt"]) == (0.3, 7, ["END", "."], "tenant-a")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["city", "population"]
    assert "max_tokens" not in body
    assert again["structured_outputs"] == {"choice": ["yes", "no"]}
    assert again["tools"] == [{"type": "function"}]
    assert again["messages"] == body["messages"]


def set_constraint(page: Page, kind: str) -> None:
    page.evaluate(
        f"(() => {{ const box = document.getElementById('set-constraint'); box.value = '{kind}';"
        "box.dispatchEvent(new Event('change')); })()"
    )


def test_a_setting_that_cannot_be_sent_is_named(page: Page, stub: StubApi) -> None:
    page.type("7", "#set-temperature")
    send(page, "Go")
    page.wait("document.getElementById('settings-error').textContent.startsWith('Temperature')")
    page.evaluate("document.getElementById('set-temperature').value = ''")
    set_constraint(page, "schema")
    page.evaluate("document.getElementById('set-grammar').value = '{'")
    send(page, "Go")
    page.wait("document.getElementById('settings-error').textContent.startsWith('JSON schema')")
    assert stub.bodies == []
    assert page.evaluate("document.activeElement.id") == "set-grammar"


def test_a_full_server_says_when_to_try_again(page: Page, stub: StubApi) -> None:
    stub.failure = (429, "the server is full", {"retry-after": "2"})
    send(page, "Go")
    page.wait("document.querySelector('.failure')")
    assert "The server is full" in page.text(".failure")
    assert page.evaluate("document.querySelector('.failure button').disabled") is True
    stub.failure = None
    page.wait("document.querySelector('.failure button').disabled === false")
    page.click(".failure button")
    page.wait(REPLIED)
    assert page.evaluate("document.querySelectorAll('.failure').length") == 0
    assert stub.bodies[0]["messages"] == stub.bodies[1]["messages"]


@pytest.mark.parametrize(
    ("field", "says"), [("failure_after", "the step failed"), ("cut_after", "ended before it was complete")]
)
def test_a_stream_that_breaks_keeps_what_came_and_says_so(page: Page, stub: StubApi, field: str, says: str) -> None:
    setattr(stub, field, 2)
    send(page, "Go")
    page.wait("document.querySelector('.failure')")
    assert says in page.text(".failure")
    assert page.text(".message.assistant .content") == "Hello, "


def test_a_refusal_names_the_field(page: Page, stub: StubApi) -> None:
    stub.failure = (400, "temperature=9 is too hot", {})  # of which the stub says that it is "temperature"
    send(page, "Go")
    page.wait("document.querySelector('.failure')")
    assert "temperature=9 is too hot" in page.text(".failure")
    assert page.evaluate("document.getElementById('set-temperature').getAttribute('aria-invalid')") == "true"


def test_stop_ends_the_request_and_keeps_the_text(page: Page, stub: StubApi) -> None:
    stub.pieces, stub.pause_s = ["word "] * 2000, 0.02
    send(page, "Go")
    page.wait("document.querySelector('.streaming .content').innerText.length > 10")
    page.press("Escape")
    page.wait("!document.querySelector('.streaming')")
    assert page.text(".message.assistant .content").startswith("word word")
    assert "stopped" in page.text(".message.assistant .figures")
    deadline = time.monotonic() + 30
    while not stub.num_left:
        assert time.monotonic() < deadline, "the server still streams"
        time.sleep(0.05)


def test_a_message_can_be_changed_and_answered_anew(page: Page, stub: StubApi) -> None:
    send(page, "First")
    page.wait(REPLIED)
    send(page, "Second")
    page.wait("document.querySelectorAll('.message.assistant .share').length === 2")
    page.evaluate("document.querySelector('.message.user .actions button:nth-child(2)').click()")
    page.evaluate("document.activeElement.select()")
    page.type("Changed")
    page.press("Enter")
    page.wait(
        "document.querySelectorAll('.message').length === 2 && document.querySelector('.message.assistant .share')"
    )
    assert stub.bodies[-1]["messages"] == [{"role": "user", "content": "Changed"}]


def test_called_tools_are_answered(page: Page, stub: StubApi) -> None:
    call = {"id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    stub.tool_calls = [{"index": 0, **call}]
    send(page, "How is it in Rome?")
    page.wait("document.querySelector('.results')")
    assert "get_weather" in page.text(".call")
    assert "calls a tool" in page.text(".message.assistant .figures")
    page.type("sunny", ".results textarea")
    page.click(".results button")
    page.wait(
        "document.querySelectorAll('.message.assistant').length === 2 && document.querySelector('.figures .share')"
    )
    _, called, result = stub.bodies[1]["messages"]
    assert called == {"role": "assistant", "content": None, "tool_calls": [{"type": "function", **call}]}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert page.evaluate("document.querySelector('.results')") is None


def test_a_key_is_asked_for_kept_in_the_tab_and_sent(page: Page, stub: StubApi, browser: Browser, url: str) -> None:
    stub.key = "sk-1"
    locked = browser.page(url)
    locked.wait("document.getElementById('model-name').textContent === 'needs an API key'")
    send(locked, "Go")
    locked.wait("document.querySelector('.failure button')")
    locked.click(".failure button")
    locked.type("sk-1", "#key")
    locked.press("Enter")
    locked.wait("document.getElementById('model-name').textContent === 'stub-model'")
    locked.evaluate("[...document.querySelectorAll('.failure button')].at(-1).click()")
    locked.wait(REPLIED)
    assert locked.evaluate("Object.values(sessionStorage)") == ["sk-1"]
    assert locked.evaluate("Object.values(localStorage).includes('sk-1')") is False
    assert "sk-1" not in locked.evaluate("import('/assets/api.js').then((m) => m.asCurl('/v1/models'))")


def test_a_link_fills_the_form_and_never_sends(browser: Browser, url: str, stub: StubApi) -> None:
    page = browser.page(f"{url}/#chat?prompt=Hello%20there&system=Be%20kind&temperature=0.5&send=1")
    page.wait("document.getElementById('prompt').value === 'Hello there'")
    assert page.evaluate("document.getElementById('system').value") == "Be kind"
    assert page.evaluate("document.getElementById('set-temperature').value") == "0.5"
    other = browser.page(f"{url}/#completion?prompt=Once")
    other.wait("document.getElementById('text').value === 'Once'")
    assert stub.bodies == []


def test_the_keyboard_is_enough(page: Page, stub: StubApi) -> None:
    page.press("?")
    page.wait("document.getElementById('help').open")
    page.press("2")
    assert page.evaluate("document.body.dataset.view") == "chat"
    page.press("Escape")
    page.wait("!document.getElementById('help').open")
    page.press("2")
    assert page.evaluate("document.activeElement.id") == "tab-completion"
    page.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.type("Go")
    page.press("Enter", modifiers=2)
    page.wait(
        "document.querySelectorAll('.token').length === 3 && document.querySelector('#completion-figures .share')"
    )
    page.evaluate("document.querySelector('.token').focus()")
    page.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.idx") == "1"
    assert "60.7 %" in page.text("#alternatives")
    page.press("Escape")
    page.evaluate("document.getElementById('tab-completion').focus()")
    page.press("ArrowLeft")
    assert page.evaluate("document.body.dataset.view") == "chat"
    page.press("s")
    assert page.evaluate("getComputedStyle(document.getElementById('settings')).display") == "none"


def test_every_control_has_a_name_and_can_be_reached(page: Page) -> None:
    unnamed = """[...document.querySelectorAll('button, input, select, textarea, a, summary')].filter((element) =>
        !(element.getAttribute('aria-label') || element.innerText?.trim() || element.labels?.length ||
          element.querySelector?.('img[alt]') || element.textContent.trim())).map((element) => element.outerHTML)"""
    assert page.evaluate(unnamed) == []
    assert (
        page.evaluate("[...document.querySelectorAll('[tabindex]')].some((element) => element.tabIndex > 0)") is False
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_switch(browser: Browser, url: str, scheme: str) -> None:
    page = browser.page(url, scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}
    page.evaluate("localStorage.clear()")
    assert page.evaluate(ground) == colours[scheme]
    page.press("t")
    assert page.evaluate(ground) == colours["light"]
    page.press("t")
    assert page.evaluate(ground) == colours["dark"]
    page.press("t")
    assert page.evaluate(ground) == colours[scheme]


def test_nothing_is_wider_than_the_screen(browser: Browser, url: str) -> None:
    page = browser.page(url)
    for width in (320, 390, 760, 1000, 1600):
        page.resize(width, 700)
        for view in ("chat", "completion"):
            page.click(f"#tab-{view}")
            button = f"document.querySelector('#view-{view} .primary').getBoundingClientRect().right"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert 0 < page.evaluate(button) <= width


def test_the_api_page_lists_searches_and_tries(browser: Browser, url: str) -> None:
    page = browser.page(f"{url}/docs")
    page.wait("document.querySelectorAll('.operation').length >= 3")
    page.press("/")
    page.type("completions")
    shown = "[...document.querySelectorAll('.operation')].filter((one) => !one.hidden).map((one) => one.id)"
    assert page.evaluate(shown) == ["post-v1-chat-completions", "post-v1-completions"]
    page.evaluate("location.hash = 'get-v1-models'")
    page.wait("document.querySelector('#get-v1-models .body')")
    assert f"curl {url}/v1/models" in page.text("#get-v1-models pre")
    page.click("#get-v1-models .primary")
    page.wait("document.querySelector('#get-v1-models .outcome pre').textContent.includes('stub-model')")
    assert "200" in page.text("#get-v1-models .outcome")
    assert page.complaints == []
