"""Which images a command line means."""

import pytest

from fdl_cli.images.catalog import CATALOG, reference, select
from fdl_cli.images.errors import ImageError


def names(*given: str, variant: str = "cpu") -> list[str]:
    return [image.name for image in select(given, variant)]


def test_no_name_means_what_a_cluster_needs() -> None:
    assert names() == ["operator", "prober", "trainer-cpu", "examples"]


def test_a_gpu_variant_replaces_the_trainer_and_leaves_the_cpu_examples_out() -> None:
    assert names(variant="cuda") == ["operator", "prober", "trainer-cuda"]


def test_trainer_stands_for_the_trainer_of_the_variant() -> None:
    assert names("trainer", variant="rocm") == ["trainer-rocm"]


def test_a_parent_comes_first_and_once() -> None:
    assert names("examples", "trainer-cpu") == ["trainer-cpu", "examples"]


def test_every_parent_is_an_image_without_a_parent() -> None:
    parents = [CATALOG[image.parent] for image in CATALOG.values() if image.parent]
    assert parents
    assert all(parent.parent is None for parent in parents)


def test_an_unknown_name_is_refused_with_the_names_that_exist() -> None:
    with pytest.raises(ImageError, match=r"no image 'oprator': choose among operator, prober"):
        select(("oprator",), "cpu")


def test_an_unknown_variant_is_refused_with_the_variants_that_exist() -> None:
    with pytest.raises(ImageError, match=r"variant 'tpu': choose one of cpu, cuda, rocm"):
        select((), "tpu")


def test_the_reference_is_the_one_that_chart_and_examples_use() -> None:
    assert reference("operator") == "fdl.local/operator:dev"
