"""One chat turn, as all families of endpoints ask for it: OpenAI's chat and responses, Anthropic's messages."""
