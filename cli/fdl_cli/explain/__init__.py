"""``fdl explain``: where the members of a run may go, and why not elsewhere."""
