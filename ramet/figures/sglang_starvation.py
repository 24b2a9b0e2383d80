"""sglang-starvation: a request that shares nothing waits among requests that all hit the cache."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..runtime.policies.base import SchedulePolicy
from .comparison_policies import UnagedLongestPrefixMatch, all_policies
from .context import FigureContext
from .cost_model import A100_13B
from .figure import Figure, FigureResult
from .lengths import random_prompt
from .simulation import Arrival, Simulation, simulated_request

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREFIX_LEN, QUESTION_LEN, OUTPUT_LEN = 512, 32, 16
NUM_SLOTS, NUM_WAITING = 8, 16
COLD = "cold"


class HotStream:
    """Requests behind one prefix, a new one for each that ends, so that NUM_WAITING wait at all times; and a request
    that shares nothing, after a tenth of them."""

    def __init__(self, num_hot: int) -> None:
        self._rng = random.Random(3)
        self._prefix = random_prompt(PREFIX_LEN, self._rng)
        self._num_hot = num_hot
        self._num_submitted = 0

    def first(self) -> list[Arrival]:
        """What is there at the start."""
        return [self._hot(0.0) for _ in range(NUM_SLOTS + NUM_WAITING)]

    def next(self, time_s: float) -> Iterable[Arrival]:
        """What arrives when a request has ended."""
        if self._num_submitted == self._num_hot // 10:
            prompt = random_prompt(PREFIX_LEN + QUESTION_LEN, self._rng)
            yield Arrival(time_s, simulated_request(COLD, prompt, OUTPUT_LEN, routing_key=COLD))
        if self._num_submitted < self._num_hot:
            yield self._hot(time_s)

    def _hot(self, time_s: float) -> Arrival:
        self._num_submitted += 1
        prompt = self._prefix + random_prompt(QUESTION_LEN, self._rng)
        request_id = f"hot {self._num_submitted}"
        return Arrival(time_s, simulated_request(request_id, prompt, OUTPUT_LEN, routing_key="hot"))


def serve(policy: SchedulePolicy, num_hot: int) -> Simulation:
    """Run the whole stream under the policy."""
    simulation = Simulation(A100_13B, num_blocks=1024, max_num_seqs=NUM_SLOTS)
    simulation.engine.scheduler.policy = policy
    stream = HotStream(num_hot)
    # A tenth must be more than there is at the start, or the cold request would never come.
    assert num_hot // 10 > NUM_SLOTS + NUM_WAITING
    simulation.run(stream.first(), on_output=lambda _: stream.next(simulation.now_s))
    return simulation


def num_overtaking(simulation: Simulation) -> int:
    """How many requests arrived after the cold one and began before it."""
    arrived = list(simulation.records)
    later = set(arrived[arrived.index(COLD) + 1 :])
    began = list(dict.fromkeys(part.request_id for step in simulation.steps for part in step.parts))
    return sum(request_id in later for request_id in began[: began.index(COLD)])


def run(context: FigureContext) -> FigureResult:
    num_hot = context.pick(full=1000, quick=260)
    overtaking: dict[str, int] = {}
    rows = []
    for policy in all_policies().values():
        simulation = serve(policy, num_hot)
        overtaking[policy.name] = num_overtaking(simulation)
        waited_s = simulation.records[COLD].time_to_first_token_s
        hit_rate = f"{simulation.engine.metrics.cache_hit_rate:.1%}"
        rows.append((policy.name, overtaking[policy.name], round(waited_s, 2), hit_rate))
    unaged = UnagedLongestPrefixMatch.name
    return FigureResult(
        columns=("policy", "overtaken by", "time to first token s", "hit rate"),
        rows=tuple(rows),
        headline=f"the cold request is overtaken by {overtaking['lpm']} later ones under lpm, by "
        f"{overtaking[unaged]} of {num_hot - num_hot // 10} without aging",
        paper_value="cache-aware order can starve requests; left to future work",
        notes=(
            f"{num_hot} requests behind one prefix of {PREFIX_LEN} tokens, {NUM_SLOTS} running and {NUM_WAITING} "
            "waiting at all times; the cold one comes after a tenth of them.",
            f"Virtual time: {A100_13B.source}.",
        ),
        plot=lambda axes: draw(axes, overtaking),
    )


def draw(axes: Axes, overtaking: dict[str, int]) -> None:
    """How many overtake the cold request, a bar a policy."""
    axes.barh(list(overtaking), list(overtaking.values()))
    axes.invert_yaxis()
    axes.set_xscale("symlog")
    axes.set_xlabel("later arrivals that were served before the cold request")


FIGURE = Figure(
    name="sglang-starvation",
    system="SGLang",
    title="A cold request among hits",
    paper="SGLang (arXiv 2312.07104), sections 3 and 8",
    method="scheduler over a cost model",
    run=run,
)
