"""The forms in which a problem can be put to a method.

A problem offers one or more of them, a family of methods solves one or more; a method fits a problem that offers a form
which it solves.

| form | offered by | what a method may ask |
|---|---|---|
| SHARED_MODEL | `WeightingProblem` | derivatives at one shared model w, and of the server's validation loss |
| COMMON_LOWER | `BilevelProblem` | derivatives of both levels, one lower variable for all clients |
| LOCAL_LOWER | `BilevelProblem`, `local_lower` | the same with a lower variable for each client |
| LOCAL_WEIGHTS | `WeightedLocalProblem` | clients' local steps, and what client weights are learned from |
| LOCAL_MEAN | `LocalProblem` | clients' local steps on the mean of their losses |
"""

from __future__ import annotations

from enum import Enum, auto


class Form(Enum):
    """One of them."""

    SHARED_MODEL = auto()
    COMMON_LOWER = auto()
    LOCAL_LOWER = auto()
    LOCAL_WEIGHTS = auto()
    LOCAL_MEAN = auto()


OFFERS: dict[str, tuple[Form, ...]] = {
    "client_weighting": (Form.SHARED_MODEL, Form.COMMON_LOWER, Form.LOCAL_WEIGHTS),
    "hyper_representation": (Form.COMMON_LOWER, Form.LOCAL_LOWER),
    "few_shot": (Form.LOCAL_LOWER,),
    "data_cleaning": (Form.COMMON_LOWER,),
    "loss_tuning": (Form.COMMON_LOWER,),
    "fair": (Form.COMMON_LOWER,),
    "consensus": (Form.LOCAL_MEAN,),
    "toy": (Form.SHARED_MODEL, Form.COMMON_LOWER),
}
"""Problem -> the forms it offers."""


def upper_on_clients(problem: str, cleaning_validation: str, clean_parts: bool) -> bool:
    """Whether the upper level lies on the clients' own validation parts, not on the server's validation set.

    cleaning_validation: problems.data_cleaning.validation; its auto means the clients' own where the scheme deals out
    clean ones (clean_parts).
    """
    if problem == "data_cleaning":
        return cleaning_validation == "clients" or (cleaning_validation == "auto" and clean_parts)
    return problem in ("hyper_representation", "few_shot", "loss_tuning", "fair")
