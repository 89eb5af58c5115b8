"""What all sentences for people have in common, for tests."""

MANY = 5
"""Words in a row that come again are a remedy, or a quotation, that two places have put into one message."""


def told_twice(text: str) -> str:
    """The first :data:`MANY` words in a row that a message has twice; empty where there are none."""
    spoken = [word.strip(".,;:()'\"").lower() for word in text.split()]
    seen: set[tuple[str, ...]] = set()
    for i in range(len(spoken) - MANY + 1):
        run = tuple(spoken[i : i + MANY])
        if run in seen:
            return " ".join(run)
        seen.add(run)
    return ""
