"""Where images are made: the engine, the base, and the commands run on them."""

import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fdl_cli.images import archive, engines
from fdl_cli.images import base as debian
from fdl_cli.images.catalog import INPUTS_LABEL
from fdl_cli.images.errors import ImageError
from fdl_cli.images.inputs import EPOCH
from fdl_cli.images.progress import Reporter, size_text
from fdl_cli.images.runner import run
from fdl_cli.images.store import Store

_BASE_IMAGE: Final = "base"
_QUICK: Final = 120.0
_PULL_SECONDS: Final = 180.0
_EXPORT_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asks for."""

    engine: str = "auto"
    base_image: str = ""
    """Reference of the base; empty: a registry's Debian, else mmdebstrap's."""
    force: bool = False
    """Build even what is up to date, without the engine's layer cache."""
    torch_index: str = ""
    nccl: str = ""
    """Wheel with the NCCL of a bridge, such as ``nvidia-nccl-cu12==2.28.9``."""
    limit: float = 3600.0
    """Seconds that one image may take."""


class Workshop:
    """Engine and base, each found (on Debian: installed, made) on first use. Needs the store's lock to be held."""

    def __init__(self, source: Path, store: Store, reporter: Reporter, options: Options) -> None:
        """Args: source: root of the checkout. store: the archives. reporter: progress. options: what is asked for."""
        self._source = source
        self._store = store
        self._report = reporter
        self._options = options
        self._engine: engines.Engine | None = None

    def base(self) -> debian.Base:
        """The base: given, remembered from an earlier build, a registry's, or mmdebstrap's."""
        if self._options.base_image:
            return debian.Base("given", self._options.base_image)
        path = self._store.root / "base.json"
        known = debian.remembered(path)
        if known is not None and (known.kind == "registry" or known == debian.made_base(debian.mirror_setting())):
            return known
        chosen = self._find_base()
        debian.remember(path, chosen)
        return chosen

    def _find_base(self) -> debian.Base:
        engine = self.engine()
        log = self.fresh_log(_BASE_IMAGE)
        self._report.note(f"Asking a registry for {debian.REGISTRY_BASE} (once) ...")
        try:
            self._run(engine.pull(debian.REGISTRY_BASE), log, limit=_PULL_SECONDS, what="the pull of the base image")
        except ImageError:
            self._report.note(
                f"No registry gave {debian.REGISTRY_BASE} (details in {log}): the base is made from Debian's packages."
            )
            return debian.made_base(debian.mirror_setting())
        return debian.Base("registry", debian.REGISTRY_BASE)

    def engine(self) -> engines.Engine:
        """The engine, ready to build; found (and on Debian installed) on first use."""
        if self._engine is not None:
            return self._engine
        choice = engines.choose(self._options.engine, engines.probe_all(), debian.can_install())
        if choice.install:
            self._install(["buildah"])
        if choice.engine != "buildah":
            self._engine = engines.Engine(choice.engine)
            return self._engine
        self._engine = self._buildah()
        return self._engine

    def _buildah(self) -> engines.Engine:
        """buildah on storage of its own. The run folder is new each time: it holds only counts of mounts."""
        runroot = self._store.scratch / "run"
        for driver in ("overlay", "vfs"):
            engine = engines.Engine("buildah", self._store.storage / driver, runroot / driver, driver)
            done = self._quiet(engine.probe_storage())
            if done is not None:
                left = (self._quiet(engine.list_containers()) or "").split()
                if left:  # of a build that was ended from outside
                    self._quiet(engine.remove_containers(left))
                return engine
        raise ImageError(
            f"buildah can keep images in {self._store.storage} neither by overlay nor by plain copies. "
            "Put the cache on another file system with FDL_CACHE."
        )

    def _install(self, packages: list[str]) -> None:
        """Install missing Debian packages and say so."""
        if not packages:
            return
        debian.require_install(packages)
        self._report.note(f"Installing with apt, because the build needs them: {', '.join(packages)}.")
        log = self.fresh_log("install")
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        self._report.begin("tools", 2)
        self._report.step(1, "apt-get update")
        self._run(["apt-get", "update", "-q"], log, limit=600, what="apt-get update", environment=quiet)
        self._report.step(2, f"apt-get install {' '.join(packages)}")
        install = ["apt-get", "install", "-qy", "--no-install-recommends", *packages]
        self._run(install, log, limit=900, what="the installation of build tools", environment=quiet)
        self._report.done(f"tools: installed {', '.join(packages)}")

    def ensure_base(self, chosen: debian.Base) -> None:
        """Have mmdebstrap's base in the engine's store."""
        if chosen.kind != "mmdebstrap":
            return
        recipe = debian.recipe_hash(debian.mirror_setting())
        if self.label_of(chosen.reference) == recipe:
            return
        self._install(debian.packages_to_install(need_buildah=False, need_mmdebstrap=True))
        started = time.monotonic()
        log = self.fresh_log(_BASE_IMAGE)
        self._report.begin(_BASE_IMAGE, 2)
        context = self._store.scratch / "base"
        context.mkdir()
        tree = self._store.root / f"base-{recipe}.tar"
        if not tree.is_file():
            self._report.step(1, "mmdebstrap: Debian trixie with Python (about a minute)")
            made = self._store.scratch / "base.tar"
            setting = {"TMPDIR": str(self._store.scratch), "SOURCE_DATE_EPOCH": str(EPOCH)}
            command = engines.contained(debian.mmdebstrap_command(made, debian.mirror_setting()))
            self._run(command, log, limit=self._options.limit, what="the making of the base", environment=setting)
            for old in self._store.root.glob("base-*.tar"):
                old.unlink()
            made.replace(tree)
        self._report.step(2, "storing the tree as an image")
        os.link(tree, context / "base.tar")
        shutil.copyfile(self._source / "images/base/Dockerfile", context / "Dockerfile")
        request = engines.BuildRequest(chosen.reference, context, context / "Dockerfile", labels={INPUTS_LABEL: recipe})
        self.run_build(request, log, _nothing, "the base image")
        shutil.rmtree(context)
        self._report.done(f"base: made in {time.monotonic() - started:.0f} s ({size_text(tree.stat().st_size)})")

    def label_of(self, name: str) -> str:
        """Hash of the inputs of an image in the engine's store; empty where it is not there."""
        output = self._quiet(self.engine().label(name, INPUTS_LABEL))
        return (output or "").strip().splitlines()[-1] if (output or "").strip() else ""

    def run_build(self, request: engines.BuildRequest, log: Path, follow: Callable[[str], None], what: str) -> None:
        """Run the engine's build command.

        Raises:
            ImageError: it failed; the text ends with its last lines.
        """
        setting = {"TMPDIR": str(self._store.scratch), "DOCKER_BUILDKIT": "1"}
        command = self._command(self.engine().build(request))
        limit = self._options.limit
        run(command, log, follow, limit=limit, what=what, environment=setting, on_second=self._report.tick)

    def export(self, reference: str, scratch: Path, log: Path) -> tuple[Path, list[archive.Layer]]:
        """Write an image out of the engine's store as an archive in ``scratch``; docker does not tell its layers."""
        engine = self.engine()
        made = scratch / "image.tar"
        what = f"the export of {reference}"
        if engine.name == "docker":
            self._run(engine.export(reference, made), log, limit=_EXPORT_SECONDS, what=what)
            return made, []
        folder = scratch / "exported"
        command = self._command(engine.export(reference, folder))
        self._run(command, log, limit=_EXPORT_SECONDS, what=what)
        return made, archive.write_archive(folder, made, reference)

    def _run(
        self, command: list[str], log: Path, *, limit: float, what: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Run a command whose output only the log needs."""
        run(command, log, _nothing, limit=limit, what=what, environment=environment, on_second=self._report.tick)

    def _command(self, command: list[str]) -> list[str]:
        """buildah works in this process tree and is contained; docker and podman have their own places."""
        return engines.contained(command) if command[0] == "buildah" else command

    def fresh_log(self, name: str) -> Path:
        """The log of that name, emptied."""
        log = self._store.log(name)
        log.unlink(missing_ok=True)
        return log

    def _quiet(self, command: list[str]) -> str | None:
        """Output of a short command, None where it fails."""
        lines: list[str] = []
        try:
            run(self._command(command), self._store.log("commands"), lines.append, limit=_QUICK, what=command[0])
        except ImageError:
            return None
        return "\n".join(lines)

    def _ticking(self, _line: str) -> None:
        self._report.tick()


def _nothing(_line: str) -> None:
    """For commands whose output only the log needs."""
