"""Write params.schema.json (`python -m pipeline.params`), or with --check tell whether it is up to date."""

import json
import sys
from pathlib import Path

from pipeline.params.reading import schema

PATH = Path("params.schema.json")


def main() -> None:
    text = json.dumps(schema(), indent=2) + "\n"
    if "--check" not in sys.argv[1:]:
        PATH.write_text(text)
    elif not PATH.is_file() or PATH.read_text() != text:
        sys.exit(f"{PATH} is out of date. Fix: .venv/bin/python -m pipeline.params")


if __name__ == "__main__":
    main()
