"""One rank over all devices of its member: the model is sharded between processes of one node with torch's FSDP2.

To the run such a member is one rank. Its leading process does all that a rank does, and averages a whole copy of the
model in the host's memory; the others follow it: they hold shards, train their slices of each batch, and take part
when shards are gathered or handed out. docs/architecture.md says why it is so.
"""
