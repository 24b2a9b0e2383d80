"""Between the messages of ramet.proto and what GenerateJob takes and gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...answer_stream import Answer
from . import ramet_pb2 as pb

_NAMED_DEFAULTS = ("priority", "return_logprob", "return_text_in_logprobs", "top_logprobs_num")
_OPTIONAL = ("logprob_start_len", "rid", "cache_salt", "routing_key")


def fields_of(request: pb.GenerateRequest) -> dict[str, Any]:
    """What `/generate` would be asked."""
    fields: dict[str, Any] = {"sampling_params": _params_of(request.sampling_params)}
    prompt = request.WhichOneof("prompt")
    if prompt == "text":
        fields["text"] = request.text
    elif prompt == "input_ids":
        fields["input_ids"] = list(request.input_ids.ids)
    fields |= {name: getattr(request, name) for name in _NAMED_DEFAULTS}
    fields |= {name: getattr(request, name) for name in _OPTIONAL if request.HasField(name)}
    return fields


def _params_of(params: pb.SamplingParams) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for descriptor, value in params.ListFields():
        if descriptor.name == "logit_bias":
            found["logit_bias"] = dict(value)
        else:
            found[descriptor.name] = (
                list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
            )
    return found


def response_of(answer: Answer | list[Answer]) -> pb.GenerateResponse:
    """All samples of one prompt."""
    answers = answer if isinstance(answer, list) else [answer]
    meta = answers[0]["meta_info"]
    return pb.GenerateResponse(
        rid=meta["id"],
        samples=[_sample(each, idx, each["text"], each["output_ids"]) for idx, each in enumerate(answers)],
        prompt_logprobs=_logprobs(meta, "input"),
        usage=_usage(answers),
    )


@dataclass(slots=True)
class Deltas:
    """Makes answers that have the text so far into chunks that have what is new.

    Attributes:
        num_samples: of the prompt.
    """

    num_samples: int
    texts: dict[int, str] = field(default_factory=dict)
    num_ids: dict[int, int] = field(default_factory=dict)
    ended: dict[int, Answer] = field(default_factory=dict)

    def chunk_of(self, answer: Answer) -> pb.GenerateChunk | None:
        """None for one that says nothing new."""
        idx, meta = answer["index"], answer["meta_info"]
        is_last = "cached_tokens" in meta  # only a whole answer tells
        text = answer["text"].removeprefix(self.texts.get(idx, ""))
        token_ids = answer["output_ids"][self.num_ids.get(idx, 0) :]
        self.texts[idx], self.num_ids[idx] = answer["text"], len(answer["output_ids"])
        if not is_last:
            return pb.GenerateChunk(rid=meta["id"], delta=_delta(idx, text, token_ids)) if text or token_ids else None
        self.ended[idx] = answer
        chunk = pb.GenerateChunk(rid=meta["id"], delta=_sample(answer, idx, text, token_ids))
        if len(self.ended) == self.num_samples or meta["finish_reason"]["type"] == "abort":
            chunk.usage.CopyFrom(_usage(self.ended.values()))
            chunk.prompt_logprobs.extend(_logprobs(meta, "input"))
        return chunk


def _delta(idx: int, text: str, token_ids: Sequence[int]) -> pb.Sample:
    return pb.Sample(index=idx, text=_valid(text), token_ids=token_ids)


def _sample(answer: Answer, idx: int, text: str, token_ids: Sequence[int]) -> pb.Sample:
    meta = answer["meta_info"]
    sample = _delta(idx, text, token_ids)
    sample.finish_reason.CopyFrom(_finish_reason(meta["finish_reason"]))
    sample.logprobs.extend(_logprobs(meta, "output"))
    if "complete" in meta:
        sample.complete = meta["complete"]
    return sample


def _finish_reason(reason: dict[str, Any]) -> pb.FinishReason:
    found = pb.FinishReason(type=reason["type"], message=reason.get("message", ""))
    matched = reason.get("matched")
    if isinstance(matched, str):
        found.text = matched
    elif matched is not None:
        found.token_id = matched
    return found


def _usage(answers: Iterable[Answer]) -> pb.Usage:
    metas = [answer["meta_info"] for answer in answers]
    return pb.Usage(
        prompt_tokens=metas[0]["prompt_tokens"],
        completion_tokens=sum(meta["completion_tokens"] for meta in metas),
        cached_tokens=metas[0]["cached_tokens"],
    )


def _logprobs(meta: dict[str, Any], which: str) -> Iterator[pb.TokenLogprob]:
    items = meta.get(f"{which}_token_logprobs") or ()
    tops = meta.get(f"{which}_top_logprobs") or [()] * len(items)
    for item, top in zip(items, tops, strict=True):
        yield pb.TokenLogprob(**_logprob(item), top=[pb.TokenLogprob(**_logprob(each)) for each in top or ()])


def _logprob(item: Sequence[Any]) -> dict[str, Any]:
    logprob, token_id, text = item
    found = {"logprob": logprob, "token_id": token_id, "text": None if text is None else _valid(text)}
    return {name: value for name, value in found.items() if value is not None}


def _valid(text: str) -> str:
    """Protocol buffers hold UTF-8, which has no halves of surrogate pairs."""
    return text.encode("utf-8", "replace").decode("utf-8")
