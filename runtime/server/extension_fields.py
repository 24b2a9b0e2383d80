"""What the fields mean that the APIs' own references do not tell of. A field means the same wherever it is taken."""

from __future__ import annotations

from collections.abc import Mapping

_SPLIT = "a client that serves several users keeps them apart so"

EXTENSION_FIELDS: Mapping[str, str] = {
    "top_k": "Only the so many likeliest tokens may be chosen; -1 for all.",
    "min_p": "Only tokens may be chosen that are at least so likely as the likeliest, as a share of it.",
    "seed": "The same seed chooses the same tokens, whatever else the server does.",
    "repetition_penalty": "Above 1, tokens of the prompt and the answer become less likely to come again.",
    "min_tokens": "So many tokens come before anything may end the answer.",
    "stop_token_ids": "Tokens that end the answer, beside the model's own.",
    "ignore_eos": "The model's own end of text does not end the answer; it goes on to the limit of tokens.",
    "skip_special_tokens": "Special tokens are left out of the text.",
    "include_stop_str_in_output": "The stop string that ended the answer is part of it.",
    "use_beam_search": "Not served over HTTP: take best_of.",
    "best_of": "So many samples are made, and the n likeliest given.",
    "cache_salt": f"Cached prefixes are shared only with requests of the same key and salt; {_SPLIT}.",
    "extra_key": "Another name of cache_salt.",
    "priority": "For the schedule policy `priority`: lower numbers are served earlier.",
    "routing_key": "For the schedule policy `routing-key`: requests with the same key run after each other.",
    "rid": "Your name for the request: POST /abort_request with it ends the request.",
    "request_id": "Another name of rid.",
    "return_token_ids": "The answer has the token ids of the prompt and of the text beside the text.",
    "return_tokens_as_token_ids": "Logprobs name tokens as `token_id:N`, not by their text.",
    "regex": r"The whole answer matches it, in Python's syntax; \d is any digit of Unicode unless it begins with (?a).",
    "ebnf": "The whole answer belongs to this grammar, in GBNF (`root ::= ...`) or Lark (`start: ...`).",
    "choices": "The answer is one of these texts.",
    "json_schema": "The answer is JSON that this schema allows; an object or its text.",
    "guided_json": "vLLM's name of json_schema.",
    "guided_regex": "vLLM's name of regex.",
    "guided_choice": "vLLM's name of choices: the answer is one of these texts.",
    "guided_grammar": "vLLM's name of ebnf.",
    "structured_outputs": "vLLM's form of a constraint: an object with json, regex, choice, grammar or json_object.",
    "on_incomplete": "Where the limit of tokens cuts a constrained answer: `return` it, `close` it before, or `raise`.",
    "add_special_tokens": "The model's token for the beginning of a text comes first, if it has one.",
    "add_generation_prompt": "The prompt ends with the beginning of the assistant's message.",
    "continue_final_message": "The last message is the assistant's, and the answer goes on with it.",
    "chat_template": "A template to use instead of the model's, where the server was started so that it may be.",
    "chat_template_kwargs": "Further variables for the chat template.",
    "num_healable_chars": "So many characters at the end of the prompt may be taken back and generated again, by "
    "tokens that span the boundary of prompt and answer.",
    "return_token_strs": "The answer has the text of each token too.",
    "segments": "A prompt in pieces: special tokens that a text spells count as such only where is_template is true.",
    "is_template": "The text is a chat template's: special tokens that it spells are meant.",
    "at_start": "The segments begin a text, so that what a tokenizer puts before one comes first.",
    "return_logprob": "The answer has the logprobs of its tokens.",
    "logprob_start_len": "From which token of the prompt on there are logprobs; -1 for none of the prompt.",
    "top_logprobs_num": "How many of the likeliest tokens are listed beside each.",
    "return_text_in_logprobs": "Each token among the logprobs comes with its text.",
    "input_ids": "The prompt as token ids, instead of text.",
    "sampling_params": "How tokens are chosen: max_new_tokens, temperature, top_p, stop, regex, json_schema and so on.",
}
"""By name; short."""


def describe(properties: Mapping[str, dict[str, object]]) -> None:
    """Writes them into the properties of a JSON schema that say nothing of themselves. Mutates these."""
    for name, schema in properties.items():
        if name in EXTENSION_FIELDS:
            schema.setdefault("description", EXTENSION_FIELDS[name])
