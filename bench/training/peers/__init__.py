"""The programs of forked ranks: ``train(job)`` of each module, which mostly runs until it is killed."""

PROGRAMS = {
    "solo": "bench.training.peers.solo",
    "ddp": "bench.training.peers.ddp",
    "postlocal": "bench.training.peers.postlocal",
    "torchft": "bench.training.peers.fault_tolerant",
    "lighthouse": "bench.training.peers.lighthouse",
    "hivemind": "bench.training.peers.hive",
    "quality alone": "bench.training.quality.alone",
}
"""Module by kind of job."""
