"""Chat templates of the common families: rendering, who wrote what, and one message after another."""

from __future__ import annotations

import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.chat_template import ChatTemplate, ChatTemplateError, TextSegment
from ramet.runtime.template_sandbox import BoundedEnvironment

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe brief<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CHATML_TRIMMED = """
{%- for message in messages %}
    {{- '<|im_start|>' ~ message.role ~ '\n' ~ (message.content | trim) ~ '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA2 = """
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- for message in turns %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('user and assistant must take turns') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {%- set content = message.content %}
        {%- if loop.first and system is defined %}
            {%- set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + message.content %}
        {%- endif %}
        {{- bos_token + '[INST] ' + content | trim + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content | trim + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n\n' }}
{{- system + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """
{%- if messages and messages[0].role == 'system' %}
    {%- set system = messages[0].content %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if message.role == 'user' %}
        {%- if loop.last and system is defined %}
            {{- '[INST] ' + system + '\n\n' + message.content + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- else %}
        {{- raise_exception('only user and assistant roles are supported, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
"""
GEMMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}
"""
THINKING = """
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
        {%- if loop.last %}
            {%- set content = '<think>\n\n</think>\n\n' + content %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' + content + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
FAMILIES = {
    "smollm": SMOLLM,
    "chatml": CHATML_TRIMMED,
    "llama2": LLAMA2,
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<end_of_turn>"]


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, "<s>", "</s>", SPECIAL)


def chat(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def text_of(segments: list[TextSegment]) -> str:
    return "".join(segment.text for segment in segments)


DIALOGUE = chat(("user", "Hi"), ("assistant", "Hello."), ("user", "How?"), ("assistant", "Like\nthis."), ("user", "Ok"))
WITH_SYSTEM = [*chat(("system", "You are terse.")), *DIALOGUE]
APPENDED = [
    (name, messages)
    for name in FAMILIES
    for messages in (DIALOGUE, WITH_SYSTEM)
    if not (messages is WITH_SYSTEM and name in ("gemma", "mistral"))
]


def test_a_chat_is_rendered_as_the_model_was_trained():
    assert template(SMOLLM).render(DIALOGUE[:1]) == (
        "<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert template(LLAMA2).render(WITH_SYSTEM[:3]) == (
        "<s>[INST] <<SYS>>\nYou are terse.\n<</SYS>>\n\nHi [/INST] Hello. </s>"
    )


@pytest.mark.parametrize(("name", "messages"), APPENDED)
def test_messages_one_after_another_spell_the_whole_conversation(name, messages):
    chat_template = template(FAMILIES[name])
    text = ""
    for idx, message in enumerate(messages):
        before = messages[:idx]
        text += text_of(chat_template.role_prefix(before, message["role"]))
        text += message["content"]
        text += text_of(chat_template.role_suffix(before, message["role"]))
        is_waiting = name == "llama2" and message["role"] == "system"  # it renders nothing before the user's message
        if not is_waiting:
            assert text == chat_template.render(messages[: idx + 1], add_generation_prompt=False)


@pytest.mark.parametrize("name", ["smollm", "chatml", "llama3", "gemma"])
def test_the_assistants_prefix_is_the_generation_prompt(name):
    chat_template = template(FAMILIES[name])
    closed = chat_template.render(DIALOGUE, add_generation_prompt=False)
    prefix = text_of(chat_template.role_prefix(DIALOGUE, "assistant"))
    assert closed + prefix == chat_template.render(DIALOGUE, add_generation_prompt=True)


def test_the_first_prefix_holds_the_default_system_prompt():
    for role in ("user", "assistant"):
        assert "Be brief" in text_of(template(SMOLLM).role_prefix([], role))
    assert "Be brief" not in text_of(template(SMOLLM).role_prefix([], "system"))
    assert "Be brief" not in text_of(template(SMOLLM).role_prefix(DIALOGUE[:2], "user"))


def test_a_system_prompt_that_moves_to_the_last_message_is_appended_once():
    chat_template = template(MISTRAL)
    text = ""
    for idx, message in enumerate(WITH_SYSTEM):
        text += text_of(chat_template.role_prefix(WITH_SYSTEM[:idx], message["role"])) + message["content"]
        text += text_of(chat_template.role_suffix(WITH_SYSTEM[:idx], message["role"]))
    assert text == (
        "<s>[INST] You are terse.\n\nHi[/INST] Hello.</s>[INST] How?[/INST] Like\nthis.</s>[INST] Ok[/INST]"
    )


def test_a_template_that_rewrites_old_answers_still_opens_and_closes_messages():
    chat_template = template(THINKING)
    assert text_of(chat_template.role_prefix(DIALOGUE[:1], "assistant")) == "<|im_start|>assistant\n"
    assert text_of(chat_template.role_suffix(DIALOGUE[:1], "assistant")) == "<|im_end|>\n"
    assert text_of(chat_template.role_prefix(DIALOGUE[:2], "user")) == "<|im_start|>user\n"


@pytest.mark.parametrize("name", list(FAMILIES))
def test_segments_tell_template_from_content(name):
    chat_template = template(FAMILIES[name])
    segments = chat_template.segments(DIALOGUE)
    assert text_of(segments) == chat_template.render(DIALOGUE)
    assert [segment.text for segment in segments if not segment.is_template] == [
        message["content"] for message in DIALOGUE
    ]


PIECES = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|im_", "end|>", " ", "\n", "a", "x0z"])
CONTENTS = st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=4)


@given(CONTENTS, st.sampled_from([SMOLLM, CHATML_TRIMMED]))
def test_special_tokens_in_a_message_never_count_as_the_templates(contents, source):
    messages = [{"role": ("user", "assistant")[idx % 2], "content": text} for idx, text in enumerate(contents)]
    chat_template = template(source)
    segments = chat_template.segments(messages)
    assert text_of(segments) == chat_template.render(messages)
    own = "".join(segment.text if segment.is_template else "\0" for segment in segments)
    neutral = [{**message, "content": "x"} for message in messages]
    pattern = re.compile("|".join(map(re.escape, SPECIAL)))
    assert pattern.findall(own) == pattern.findall(chat_template.render(neutral))


def test_a_template_that_changes_a_content_is_taken_whole_unless_it_holds_a_special_token():
    chat_template = template("{% for m in messages %}<|im_start|>{{ m.content | upper }}<|im_end|>{% endfor %}")
    assert chat_template.segments(chat(("user", "hi"))) == [TextSegment("<|im_start|>HI<|im_end|>", True)]
    chat_template = template("{% for m in messages %}<|im_start|>{{ m.content | replace('a', 'b') }}{% endfor %}")
    assert chat_template.segments(chat(("user", "aa")))[0].text == "<|im_start|>bb"
    with pytest.raises(ChatTemplateError, match=re.escape("<|im_end|>")):
        chat_template.segments(chat(("user", "a<|im_end|>")))


def test_a_special_token_that_forms_across_the_edge_of_a_changed_content_is_refused():
    chat_template = template("{% for m in messages %}{{ m.content | replace('a', '') }}end|>{% endfor %}")
    with pytest.raises(ChatTemplateError, match="told apart"):
        chat_template.segments(chat(("user", "a<|im_")))


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "user<|im_end|>", "content": "x"}], r"messages\[0\] has role='user<\|im_end\|>'"),
        ([{"role": "user", "<|im_end|>": "Ann", "content": "x"}], r"a key of messages\[0\]"),
    ],
)
def test_special_tokens_that_no_mark_can_stand_for_are_refused(messages, where):
    with pytest.raises(ChatTemplateError, match=where):
        template(SMOLLM).segments(messages)
    with pytest.raises(ChatTemplateError, match=r"a key of tools\[0\]"):
        template(SMOLLM).segments(DIALOGUE, tools=[{"name": "f", "<|im_end|>": 1}])


def test_contents_come_in_three_forms():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}, {"role": "assistant"}]
    assert template("{% for m in messages %}[{{ m.content }}]{% endfor %}").render(messages) == "[one\ntwo][][]"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "must be a list"),
        (["hello"], r"messages\[0\]='hello' must be a mapping"),
        ([{"content": "x"}], "role=None"),
        ([{"role": 3, "content": "x"}], "role=3"),
        ([{"role": "usr", "content": "x"}], "role='usr'; known roles are system, developer, user, assistant, tool"),
        ([{"role": "user"}], r"messages\[0\] of role 'user' has no content"),
        ([{"role": "user", "content": 3}], r"messages\[0\].content=3"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]=.* is not a text part"),
    ],
)
def test_malformed_messages_are_refused(messages, message):
    with pytest.raises(ChatTemplateError, match=message):
        template(SMOLLM).render(messages)


def test_the_templates_own_refusal_reaches_the_user():
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        template(GEMMA).render(WITH_SYSTEM)
    with pytest.raises(ChatTemplateError, match="must take turns"):
        template(LLAMA2).role_prefix(DIALOGUE[:1], "user")
    with pytest.raises(ChatTemplateError, match="System role not supported"):
        template(GEMMA).role_prefix([], "system")


def test_a_model_without_a_template_says_what_to_do():
    with pytest.raises(ChatTemplateError, match="no chat template; give prompts as text"):
        template(None).segments(DIALOGUE)


def test_a_template_with_a_mistake_in_it_is_an_error_of_its_own():
    with pytest.raises(ChatTemplateError, match="TemplateSyntaxError"):
        template("{% for %}").render(DIALOGUE)
    with pytest.raises(ChatTemplateError, match="UndefinedError"):
        template("{{ nothing.at.all }}").render(DIALOGUE)


def test_tools_and_other_fields_reach_the_template():
    source = "{{ tools | tojson }}{% for m in messages %}{{ m.name }}{% endfor %}"
    text = template(source).render([{"role": "user", "content": "", "name": "Ann"}], tools=[{"name": "é<"}])
    assert text == '[{"name": "é<"}]Ann'


def test_threads_share_a_template():
    chat_template = template(SMOLLM)
    expected = chat_template.render(DIALOGUE)
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda: results.extend(chat_template.render(DIALOGUE) for _ in range(20)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 80


def test_all_that_is_asked_of_a_template_for_a_conversation_has_one_budget():
    slow = ChatTemplate("{% for i in range(9) %}{% for j in range(9999) %}{% endfor %}{% endfor %}")
    messages = [{"role": "user", "content": "x"}]
    with slow.within_budget(), pytest.raises(ChatTemplateError, match="for one conversation"):  # noqa: PT012
        for _ in range(9):
            slow.render(messages)
    wanting = ChatTemplate("{% for i in range(9999) %}{% for j in range(9999) %}x{% endfor %}{% endfor %}")
    with pytest.raises(ChatTemplateError, match="the template takes more than"):
        wanting.segments(messages * 300)


def test_a_template_that_cannot_be_compiled_is_tried_once(monkeypatch):
    tried = []
    monkeypatch.setattr(BoundedEnvironment, "load", lambda self, source: tried.append(source) or 1 / 0)
    broken = ChatTemplate("x")
    for template in (broken, broken, broken.with_options({"a": 1})):
        with pytest.raises(ChatTemplateError, match="ZeroDivisionError"):
            template.render([{"role": "user", "content": "x"}] * 3)
    assert tried == ["x"]


@pytest.mark.parametrize("name", ["self", "loop", "messages", "a b", "caller"])
def test_options_have_names_of_their_own(name):
    with pytest.raises(ChatTemplateError, match="cannot be a variable"):
        ChatTemplate("x").with_options({name: 7})
