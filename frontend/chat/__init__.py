"""What a Conversation is made of: its history as tokens, its replies, its tools, and what to do when it is too long."""
