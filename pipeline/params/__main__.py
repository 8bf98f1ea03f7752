"""Write everything that is derived from the registries, or with --check fail if it is out of date."""

import sys

from pipeline.params.listing import written


def main() -> None:
    for path, text in written().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is out of date. Fix: .venv/bin/python -m pipeline.params")


if __name__ == "__main__":
    main()
