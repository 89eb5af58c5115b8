"""The programs that can build an image: which one is used, and what it is told."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from fdl_cli.images.errors import ImageError

EngineName = Literal["docker", "podman", "buildah"]
ENGINES: Final[tuple[EngineName, ...]] = ("docker", "podman", "buildah")
_PROBES: Final[dict[EngineName, list[str]]] = {
    "docker": ["docker", "version", "--format", "{{.Server.Version}}"],
    "podman": ["podman", "info", "--format", "{{.Version.Version}}"],
    "buildah": ["buildah", "--version"],
}
_PROBE_SECONDS: Final = 20


@dataclass(frozen=True, slots=True)
class Probe:
    """What was seen of one engine."""

    works: bool
    detail: str
    """Its version, or why it does not work."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to use."""

    engine: EngineName
    install: bool = False
    """True when the engine has to be installed first (with apt, as root)."""


def choose(requested: str, probes: Mapping[EngineName, Probe], can_install: bool) -> Choice:
    """Pick the engine: the requested one, else the first that works, else buildah by apt.

    Args:
        requested: an engine's name or ``auto``.
        probes: result of :func:`probe_all`. A docker client without its engine does not work.
        can_install: apt is there and this user may use it.

    Raises:
        ImageError: nothing can build; the text lists what was tried.
    """
    if requested != "auto":
        engine = next((name for name in ENGINES if name == requested), None)
        if engine is None:
            raise ImageError(f"There is no engine '{requested}': choose auto or one of {', '.join(ENGINES)}.")
        if probes[engine].works:
            return Choice(engine)
        if engine == "buildah" and can_install:
            return Choice(engine, install=True)
        raise ImageError(f"{engine} cannot build here: {probes[engine].detail}. Start it, or use --engine auto.")
    for engine in ENGINES:
        if probes[engine].works:
            return Choice(engine)
    if can_install:
        return Choice("buildah", install=True)
    tried = "; ".join(f"{engine}: {probes[engine].detail}" for engine in ENGINES)
    raise ImageError(
        f"No program here can build an image ({tried}). Start Docker or Podman, or install buildah "
        "(on Debian: apt-get install buildah mmdebstrap)."
    )


def probe_all() -> dict[EngineName, Probe]:
    """Ask each engine for its version, at most 20 s each."""
    return {engine: _probe(command) for engine, command in _PROBES.items()}


def _probe(command: list[str]) -> Probe:
    if shutil.which(command[0]) is None:
        return Probe(False, "not installed")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Probe(False, f"did not answer ({error})")
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        return Probe(False, last[0].strip().rstrip("."))
    return Probe(True, done.stdout.strip())


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """One image build in the words that every engine knows."""

    reference: str
    context: Path
    dockerfile: Path
    build_args: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files seen by single steps of the build and never stored in a layer."""
    volumes: Sequence[Path] = ()
    """Folders of this machine that steps may read at the same path (docker has no such thing and ignores them)."""
    use_cache: bool = True


@dataclass(frozen=True, slots=True)
class Engine:
    """Command lines of one engine. Holds nothing else: running them is :mod:`fdl_cli.images.runner`'s part."""

    name: EngineName
    storage: Path | None = None
    """buildah only: folder of its own storage, so that nothing of the user's is touched and all can be deleted."""
    runroot: Path | None = None
    driver: str = "overlay"

    def _start(self) -> list[str]:
        if self.name != "buildah":
            return [self.name]
        assert self.storage is not None and self.runroot is not None
        options = ["--root", str(self.storage), "--runroot", str(self.runroot), "--storage-driver", self.driver]
        return ["buildah", *options]

    def build(self, request: BuildRequest) -> list[str]:
        """Command that builds an image and tags it ``request.reference``."""
        command = [*self._start(), "bud" if self.name == "buildah" else "build"]
        if self.name == "docker":
            command += ["--progress=plain"]
        else:
            command += ["--format", "oci"]
        if self.name == "buildah" and self.driver != "vfs":  # with plain copies every kept step costs the whole tree
            command += ["--layers"]
        if self.name == "buildah":
            command += ["--isolation", "chroot"]
        if self.name != "docker":
            for folder in request.volumes:
                command += ["--volume", f"{folder}:{folder}:ro"]
        if not request.use_cache:
            command += ["--no-cache"]
        command += ["--network", "host", "--tag", request.reference, "--file", str(request.dockerfile)]
        for key, value in sorted(request.build_args.items()):
            command += ["--build-arg", f"{key}={value}"]
        for key, value in sorted(request.labels.items()):
            command += ["--label", f"{key}={value}"]
        for key, path in sorted(request.secrets.items()):
            command += ["--secret", f"id={key},src={path}"]
        return [*command, str(request.context)]

    def export(self, reference: str, target: Path) -> list[str]:
        """Command that writes an image out: docker an archive, the others a folder of uncompressed blobs.

        ``oci:`` and ``oci-archive:`` would compress every layer, which costs more than all else in a warm build.
        """
        if self.name == "docker":
            return ["docker", "save", "--output", str(target), reference]
        return [
            *self._start(),
            "push",
            "--quiet",
            "--disable-compression",
            "--format",
            "oci",
            reference,
            f"dir:{target}",
        ]

    def label(self, reference: str, key: str) -> list[str]:
        """Command that prints a label of an image in the engine's store, and fails where there is no such image."""
        labels = ".OCIv1.Config.Labels" if self.name == "buildah" else ".Config.Labels"
        ask = ["inspect", "--type", "image", "--format", f'{{{{index {labels} "{key}"}}}}', reference]
        return [*self._start(), *ask]

    def pull(self, reference: str) -> list[str]:
        """Command that fetches an image from a registry."""
        return [*self._start(), "pull", "--quiet", reference]

    def list_containers(self) -> list[str]:
        """buildah: working containers that an interrupted build left."""
        return [*self._start(), "containers", "--quiet"]

    def remove_containers(self, names: Sequence[str]) -> list[str]:
        """buildah: command that removes working containers."""
        return [*self._start(), "rm", *names]

    def prune(self) -> list[str]:
        """buildah: command that removes images without a name, with the layers that only they use."""
        return [*self._start(), "rmi", "--prune", "--force"]

    def probe_storage(self) -> list[str]:
        """buildah: a command that fails where the storage driver does not work."""
        return [*self._start(), "images", "--quiet"]


def contained(command: list[str]) -> list[str]:
    """Wrap a command so that nothing outlives it, whatever ends this program (a kill -9 included).

    As root: a process namespace that dies with its first process, and a mount namespace that takes the layers' mounts
    with it. Without root or without util-linux's tools the command runs as it is; rootless buildah makes its own
    namespaces.
    """
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        return command
    namespaces = ["unshare", "--fork", "--pid", "--mount", "--mount-proc", "--propagation", "private"]
    return ["setpriv", "--pdeathsig", "KILL", *namespaces, "--kill-child=KILL", *command]
