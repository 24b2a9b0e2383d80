"""The first program of the README: one shared beginning, a choice, three branches, three cities at once."""

from ramet import function, gen, select, user


@function
def portrait(s, city):
    s += user(f"Tell me about the city of {city}.")
    with s.assistant():
        s += f"{city} is a city in " + select("continent", choices=["Africa", "Asia", "Europe"])
        topics = s.fork(3)
        for topic, name in zip(topics, ["food", "sights", "history"]):
            topic += f". As for its {name}," + gen("about", max_tokens=20, temperature=0.0, stop=".")
        topics.join()


for state in portrait.run_batch([{"city": "Cairo"}, {"city": "Paris"}, {"city": "Tokyo"}]):
    print(state["continent"], state["about"])
    print([f"{meta.num_cached_tokens}/{meta.num_prompt_tokens} cached" for meta in state.metas("about")])
