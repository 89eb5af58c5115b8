"""``python -m tools.generate`` writes all generated files; ``--check`` fails and names those that differ."""

import argparse
import sys
from pathlib import Path

from fdl_api import crd
from fdl_api.checks import page as checks
from tools.generate import chart, cli

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Write or compare the generated files; 1 when one differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file would change")
    check = parser.parse_args().check
    files = crd.generated(ROOT / "crds", ROOT / "docs" / "reference")
    if not check:
        _write(files)
    files |= chart.generated(ROOT)
    files[ROOT / "docs/reference/cli.md"] = cli.page()
    files[ROOT / "docs/reference/checks.md"] = checks.page()
    stale = sorted(path for path, text in files.items() if not path.exists() or path.read_text() != text)
    if not check:
        _write(files)
        return 0
    for path in stale:
        print(
            f"{path.relative_to(ROOT)} is not what its source says: run 'make generate' and commit it", file=sys.stderr
        )
    return 1 if stale else 0


def _write(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
