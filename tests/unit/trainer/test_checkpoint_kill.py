"""A writer that is killed with SIGKILL at any moment leaves the newest published checkpoint loadable."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from fdl_trainer.checkpoint import newest_valid

WRITERS = """
    import os, sys, torch
    from pathlib import Path
    from fdl_trainer.checkpoint import Snapshot, newest_valid
    from fdl_trainer.writer import Writer

    def say(*words):
        # One write a line, so that a kill cannot cut a line, whatever PYTHONUNBUFFERED says.
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    def write_for_ever(root):
        writer = Writer(root, keep=2, writer="pod/0", on_saved=lambda saved: say(saved.window),
                        on_failed=lambda failed: os._exit(1))
        found, _ = newest_valid(root)
        window = 0 if found is None else found.window
        while True:
            window += 1
            writer.submit(Snapshot(window, window, 1, {"w": torch.full((300_000,), window)}, {}, {}, "x"))
            writer.settle(window)
            writer.wait(60)

    for _ in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            write_for_ever(Path(sys.argv[1]))
        say("child", child)
        _, status = os.waitpid(child, 0)
        say("ended", os.waitstatus_to_exitcode(status))
"""
"""Imports torch once and forks a writer for each line that it reads."""
KILLS = 20


def test_a_loadable_checkpoint_exists_after_each_kill(tmp_path: Path) -> None:
    rng = random.Random(1)
    newest = 0
    interrupted = 0
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITERS), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for _ in range(KILLS):
            parent.stdin.write("go\n")
            parent.stdin.flush()
            child, published = 0, 0
            while not (child and published):
                words = parent.stdout.readline().split()
                assert words[0] != "ended", words
                child, published = (int(words[1]), published) if words[0] == "child" else (child, int(words[0]))
            time.sleep(rng.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            while (words := parent.stdout.readline().split())[0] != "ended":
                published = int(words[0])
            assert int(words[1]) == -signal.SIGKILL
            assert published > newest
            newest = published
            found, problems = newest_valid(tmp_path)
            assert problems == []
            assert found is not None
            assert found.window >= newest
            assert int(found.model()["w"][0]) == found.window
            newest = found.window
            interrupted += any(path.name.startswith(".tmp-") for path in tmp_path.iterdir())
        parent.stdin.close()
        assert parent.wait(60) == 0
    assert interrupted > 0, "no kill met a write in work: the test proves nothing"
