"""The order of a build: what is up to date, then each image and its archive, parents first."""

import shutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fdl_cli.images import dockerfile, engines, inputs, machine
from fdl_cli.images.base import Base
from fdl_cli.images.catalog import INPUTS_LABEL, NCCL_WHEEL, Image, find, reference
from fdl_cli.images.errors import ImageError
from fdl_cli.images.progress import Reporter, size_text
from fdl_cli.images.store import Record, Store
from fdl_cli.images.workshop import Options, Workshop


@dataclass(frozen=True, slots=True)
class Plan:
    """One image with everything that decides it."""

    image: Image
    files: tuple[inputs.InputFile, ...]
    build_args: Mapping[str, str]
    hash: str
    steps: int


def plan_image(
    image: Image, source: Path, *, parent_hash: str, base_identity: str, options: Options, version: str
) -> Plan:
    """Read an image's inputs and hash them.

    Raises:
        ImageError: a file that it copies is missing, or the caller has not said what the image needs.
    """
    arguments = {"VERSION": version} | _asked_for(image, options)
    text = (source / image.dockerfile).read_text(encoding="utf-8")
    files = tuple(inputs.collect(source, [image.dockerfile, *dockerfile.copied_paths(text)]))
    start = f"parent:{parent_hash}" if image.parent else base_identity
    settings = {"image": image.name, "base": start, **{f"arg:{key}": value for key, value in arguments.items()}}
    return Plan(image, files, arguments, inputs.inputs_hash(files, settings), dockerfile.count_steps(text))


def _asked_for(image: Image, options: Options) -> dict[str, str]:
    """Build arguments that only the caller knows."""
    if image.needs_torch_index:
        if not options.torch_index:
            raise ImageError(
                f"The image '{image.name}' takes torch from a package index that this repository does not name: "
                "give its address with --torch-index (the selector on pytorch.org shows it)."
            )
        return {"TORCH_INDEX": options.torch_index}
    if image.needs_nccl:
        if not NCCL_WHEEL.fullmatch(options.nccl):
            raise ImageError(
                f"The image '{image.name}' holds the NCCL of one wheel, and --nccl={options.nccl} names none: give the "
                "CUDA release of the trainer's torch and the wanted version, such as --nccl nvidia-nccl-cu12==2.28.9."
            )
        return {"NCCL": options.nccl}
    return {}


def project_version(source: Path) -> str:
    """``project.version`` of the checkout."""
    with (source / "pyproject.toml").open("rb") as text:
        return str(tomllib.load(text)["project"]["version"])


class Builder:
    """Builds images into a store. One use: :meth:`build`."""

    def __init__(self, source: Path, store: Store, reporter: Reporter, options: Options) -> None:
        """Args: source: root of the checkout. store: the archives. reporter: progress. options: what is asked for."""
        self._source = source
        self._store = store
        self._report = reporter
        self._options = options
        self._workshop = Workshop(source, store, reporter, options)
        self._hashes: dict[str, str] = {}

    def build(self, images: Sequence[Image]) -> dict[str, Path]:
        """Build what is not up to date, parents first, and return the archive of every image by name.

        Raises:
            ImageError: any step that cannot go on.
        """
        with self._store.lock(self._report.note):
            base = self._workshop.base()
            archives: dict[str, Path] = {}
            for image in images:
                plan = self._plan(image, base)
                self._hashes[image.name] = plan.hash
                record = None if self._options.force else self._store.record(image.name, plan.hash)
                if record is not None:
                    self._store.point(image.name, plan.hash)
                    self._report.note(f"{image.name}: up to date ({size_text(record.bytes)}, inputs {plan.hash})")
                else:
                    self._build_one(plan, base)
                archives[image.name] = self._store.archive(image.name, plan.hash)
            return archives

    def _plan(self, image: Image, base: Base) -> Plan:
        return plan_image(
            image,
            self._source,
            parent_hash=self._hashes.get(image.parent or "", ""),
            base_identity=base.identity,
            options=self._options,
            version=project_version(self._source),
        )

    def _build_one(self, plan: Plan, base: Base) -> None:
        """Build one image and publish its archive."""
        image, workshop = plan.image, self._workshop
        if image.parent is None:
            workshop.ensure_base(base)
            start = base.reference
        else:
            start = reference(image.parent)
            if workshop.label_of(start) != self._hashes[image.parent]:  # only its archive is left
                self._build_one(self._plan(find(image.parent), base), base)
        started = time.monotonic()
        log = workshop.fresh_log(image.name)
        counter = dockerfile.StepCounter(plan.steps + 1)  # the label with the inputs' hash is one more
        self._report.begin(image.name, counter.total + 1)

        def follow(line: str) -> None:
            step = counter.read(line)
            if step:
                self._report.step(step[0], dockerfile.short_step(step[1]))

        scratch = self._store.scratch / image.name
        request = self._request(plan, start, scratch)
        workshop.run_build(request, log, follow, f"the build of {image.name}")
        self._report.step(counter.total + 1, "writing the archive")
        made, layers = workshop.export(image.reference, scratch, log)
        seconds = time.monotonic() - started
        record = Record(
            name=image.name,
            reference=image.reference,
            inputs=plan.hash,
            engine=workshop.engine().name,
            base=base.identity,
            bytes=made.stat().st_size,
            layers=tuple((layer.digest, layer.bytes) for layer in layers),
            seconds=round(seconds, 1),
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        target = self._store.publish(made, record)
        shutil.rmtree(scratch)
        self._report.done(f"{image.name}: built in {seconds:.0f} s, {size_text(record.bytes)}, {target}")

    def _request(self, plan: Plan, start: str, scratch: Path) -> engines.BuildRequest:
        """Lay out context and secrets of a build."""
        here = machine.read_machine()
        context = scratch / "context"
        context.mkdir(parents=True)
        inputs.stage(self._source, plan.files, context)
        return engines.BuildRequest(
            reference=plan.image.reference,
            context=context,
            dockerfile=context / plan.image.dockerfile,
            build_args={"BASE_IMAGE": start, **plan.build_args, **here.proxies},
            labels={INPUTS_LABEL: plan.hash},
            secrets=machine.write_secrets(here, scratch / "secrets"),
            volumes=machine.local_find_links(here.pip),
            use_cache=not self._options.force,
        )
