"""The methods beside fdl. Each module's ``train(job)`` runs until it is killed; imported only in its own process."""

PROGRAMS = {
    "solo": "bench.training.peers.solo",
    "ddp": "bench.training.peers.ddp",
    "postlocal": "bench.training.peers.postlocal",
    "torchft": "bench.training.peers.fault_tolerant",
    "lighthouse": "bench.training.peers.lighthouse",
    "hivemind": "bench.training.peers.hive",
}
"""Module by kind of job."""
