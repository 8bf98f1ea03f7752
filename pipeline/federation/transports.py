"""Sites without a network: in this process, or in processes of this machine behind pipes. For tests, and the plain
reference of what an engine must do."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.federation.hub import Contents

Answering = Callable[[bytes], bytes]


class InProcess:
    """sites: name -> what answers its questions."""

    def __init__(self, sites: dict[str, Answering]) -> None:
        self.sites = sites

    def present(self) -> set[str]:
        return set(self.sites)

    def ask(self, questions: Contents, timeout: float) -> tuple[Contents, dict[str, str]]:
        answers: Contents = {}
        missing: dict[str, str] = {}
        for site, question in questions.items():
            if site in self.sites:
                answers[site] = self.sites[site](question)
            else:
                missing[site] = "it is not there"
        return answers, missing
