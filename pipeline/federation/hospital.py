"""A site's program: its settings and its data, and the site that answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.config.spec import override
from pipeline.data.scaling import Scaling
from pipeline.errors import UserError
from pipeline.federation import measuring, problems
from pipeline.federation.messages import Message
from pipeline.federation.privacy import Privacy
from pipeline.federation.samples import SiteSamples
from pipeline.federation.settings import SiteSettings
from pipeline.federation.site import Site, SiteTask
from pipeline.oracles.weighting import FusedOracle
from pipeline.params import Params
from pipeline.problems.toy import Toy


def site_of(settings: SiteSettings, folder: Path) -> Site:
    """The site with its data read. Raises UserError for what is wrong with either."""
    samples = SiteSamples.read(settings.data, folder)
    store, chosen = folder / settings.store, settings.privacy
    store.mkdir(parents=True, exist_ok=True)
    privacy = None
    if chosen.clip is not None:
        account = store / "privacy.json"
        privacy = Privacy(chosen.clip, chosen.noise, chosen.clip_numbers, chosen.delta, chosen.limit, account)

    def build(setup: Message) -> SiteTask:
        return _part(settings, samples, setup)

    return Site(settings.name, build, samples.describe, privacy, store)


def warm_up() -> None:
    """torch.func imports for seconds when it is first used: better before the server waits for an answer."""
    toy = Toy.generate(2)
    oracle, w = FusedOracle(toy), toy.initial(0)
    oracle.gradients(w, oracle.draw(0, torch.tensor([0]), 1))
    oracle.gradients_and_products(w, w, oracle.draw(0, torch.tensor([0]), 1))


def _part(settings: SiteSettings, samples: SiteSamples, setup: Message) -> SiteTask:
    """This site's part in the run that the server describes."""
    facts = setup.facts
    wanted: dict[str, Any] = facts["params"]
    for key in ("algorithm", "model.name", "problem"):
        if "." in str(wanted[key]) and wanted[key] not in settings.code:
            raise UserError(f"{key} = {wanted[key]!r} is code that this site does not run (site.yaml, `code`)")
    params = override(Params(), wanted)
    client = facts["sites"].index(settings.name)
    scaling = Scaling(**setup.tensors) if setup.tensors else None
    dtype = problems.dtype_of(params)
    own = samples.dealt(facts["apart"], params.seed, client)
    data = problems.site_data(own, client, facts["sizes"], facts["classes"], scaling, dtype)
    problem = problems.problem_of(params, data)
    context = problems.context_of(params, problem)
    floats = torch.bfloat16 if facts["payload"] == "bfloat16" else None
    figures = measuring.figures(measuring.alone(problem, client)) if facts["apart"] else None
    return SiteTask(params.method, context, frozenset([client]), floats, dtype, figures)
