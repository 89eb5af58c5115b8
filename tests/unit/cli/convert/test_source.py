"""YAML with lines, laid over each other as floDl does it."""

from pathlib import Path

import pytest

from fdl_cli.convert.audit import audit
from fdl_cli.convert.source import Mapping, SourceError, overlay, parse, read


def test_each_key_knows_its_line() -> None:
    top = parse("cluster:\n  workers:\n    - host: a\n      path: /x\n", "f.yml")
    assert top.places["cluster"] == "f.yml:1"
    assert top["cluster"]["workers"][0].places == {"host": "f.yml:3", "path": "f.yml:4"}


def test_json_is_read_too() -> None:
    assert parse('{"cluster": {"workers": []}}', "f.json")["cluster"] == {"workers": []}


def test_a_key_given_twice_is_told_and_an_overridden_merge_is_not() -> None:
    top = parse("a: &a {x: 1}\nb:\n  <<: *a\n  x: 2\nb2: {y: 1, y: 2}\n", "f.yml")
    assert top["b"] == {"x": 2} and top["b"].twice == []
    assert top["b2"].twice == [("y", "f.yml:5")]
    twice = [each for each in audit(parse("ddp:\n  anchor: 1\n  anchor: 2\n", "f")).findings if "twice" in each.text]
    assert [(each.path, each.place) for each in twice] == [("ddp.anchor", "f:3")]


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{below}'] * 10)}]\n" for below, name in zip("abcdefg", "bcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is no YAML that can be read"),
        ("a: b: c", "line 1"),
        ("- a\n- b\n", "holds no keys"),
        ("just words", "holds no keys"),
        ("a: 1\n---\nb: 2\n", "is no YAML that can be read"),
        ("a: !!python/object:os.system x", "is no YAML that can be read"),
        ("a: &a {b: *a}", "is no YAML that can be read"),
        ("[" * 3000, "is no YAML that can be read"),
        ("a: !!int ''", "is no YAML that can be read"),
        ("a: !!bool x", "is no YAML that can be read"),
        ("a: !!timestamp x", "is no YAML that can be read"),
        ("a: !!seq x", "is no YAML that can be read"),
        ("a: \0", "is no YAML that can be read"),
        ("a: \x1b[2J", "is no YAML that can be read"),
        (BOMB, "more than 20000 keys and items"),
    ],
)
def test_what_is_no_configuration_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SourceError, match=sentence):
        parse(text, "f.yml")


def test_an_empty_file_has_no_keys() -> None:
    assert parse("# only a comment\n", "f.yml") == {}


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none.yml cannot be read: No such file"):
        read(tmp_path / "none.yml")
    (tmp_path / "big.yml").write_bytes(b"#" * (1 << 20) + b"##")
    with pytest.raises(SourceError, match="more than 1048576 bytes"):
        read(tmp_path / "big.yml")
    (tmp_path / "latin.yml").write_bytes("# Gerät".encode("latin-1"))
    with pytest.raises(SourceError, match="no UTF-8 text: byte 5"):
        read(tmp_path / "latin.yml")


def test_a_later_file_lies_over_an_earlier_one() -> None:
    base = parse("ddp: {anchor: 1, mode: cpu-sync}\ntraining: {epochs: 3}\ndocker: cuda\n", "fdl.yml")
    above = parse("ddp:\n  anchor: 5\ndocker: null\nentry:\n", "fdl.cluster.yml")
    laid = overlay(base, above)
    assert laid == {"ddp": {"anchor": 5, "mode": "cpu-sync"}, "training": {"epochs": 3}, "entry": None}
    assert isinstance(laid["ddp"], Mapping)
    assert laid["ddp"].places == {"anchor": "fdl.cluster.yml:2", "mode": "fdl.yml:1"}
