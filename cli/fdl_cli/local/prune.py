"""Freeing what the cache holds and nothing uses any more."""

import json
import os
import shutil
from pathlib import Path

from fdl_cli.local import build, images, state
from fdl_cli.local.paths import STATE_ROOT, ClusterPaths, cache_root, image_store

_SNAPSHOTS = "members/*/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/*/fs"


def layers_in_use(state_root: Path, store: Path) -> set[str]:
    """Names of the layers that nodes of any cluster link to."""
    links = [p.readlink() for p in state_root.glob(f"*/{_SNAPSHOTS}") if p.is_symlink()]
    return {link.parent.name for link in links if link.parent.parent == store / "layers"}


def unused_layers(state_root: Path, store: Path) -> list[Path]:
    """Folders of unpacked layers that no node links to."""
    used = layers_in_use(state_root, store)
    return sorted(p for p in (store / "layers").glob("*") if p.name not in used)


def _size(folder: Path) -> int:
    seen: dict[tuple[int, int], int] = {}
    for root, _, files in os.walk(folder):
        for name in files:
            info = (Path(root) / name).lstat()
            seen[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(seen.values())


def _broken_images(store: Path) -> list[Path]:
    """Images some layer of which is gone: they have to be unpacked again."""
    return [
        image
        for image in (store / "images").glob("*")
        if not all((store / "layers" / chain).is_dir() for chain in _chains(image))
    ]


def _chains(image: Path) -> list[str]:
    diffs = json.loads((image / "config.json").read_text())["rootfs"]["diff_ids"]
    return images.chain_ids(diffs)


def prune() -> int:
    """Removes unused layers, and programs of other pins that no cluster runs; returns the bytes freed."""
    store, cache = image_store(), cache_root()
    freed = 0
    with build.exclusive(store / "lock"):
        for folder in unused_layers(STATE_ROOT, store):
            freed += _size(folder)
            shutil.rmtree(folder)
        for folder in _broken_images(store):
            shutil.rmtree(folder)
    records = [state.load(ClusterPaths(name)) for name in state.clusters()]
    kept = {Path(r.bin) for r in records if r is not None}
    kept |= {found for found in (build.find_bin(), build.find_bin(clients_only=True)) if found is not None}
    with build.exclusive(cache / "build.lock"):
        wanted = {inode for folder in kept if folder.is_dir() for inode in _inodes(folder)}
        for folder in (cache / "bin").glob("*"):
            if folder not in kept:
                shutil.rmtree(folder)
        for folder in (cache / "parts").glob("*"):
            if not wanted & _inodes(folder):
                freed += _size(folder)
                shutil.rmtree(folder)
    return freed


def _inodes(folder: Path) -> set[int]:
    return {p.stat().st_ino for p in folder.rglob("*") if p.is_file()}
