"""The networks: sizes of the papers, flat form, derivatives of first and second order, one's own by path."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn.functional import cross_entropy

from pipeline.errors import UserError
from pipeline.models import MODELS, FlatModel, build, source_files

GREY, COLOUR = (1, 28), (3, 32)


def images(shape: tuple[int, int], count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    channels, size = shape
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(count, channels, size, size, generator=generator, dtype=dtype)
    return X, torch.arange(count) % 10


def loss_of(model: FlatModel, X: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda w: cross_entropy(model.apply(w, X), y)


def double_backward(loss: Callable[[Tensor], Tensor], w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian-vector product by reverse mode alone."""
    w = w.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(w), w, create_graph=True)
    (h,) = torch.autograd.grad(g, w, v)
    return g.detach(), h


@pytest.mark.parametrize(
    ("name", "shape", "classes", "d"),
    [
        ("linear", GREY, 10, 7_850),
        ("mlp", GREY, 10, 159_010),
        ("mlp3", GREY, 10, 178_110),
        ("lenet5", GREY, 10, 61_706),
        ("lenet5", COLOUR, 10, 62_006),
        ("cnn", COLOUR, 10, 61_156 + 850),
        ("lenet_wide", COLOUR, 10, 797_962),
        ("lenet_wide", COLOUR, 100, 815_332),
        ("resnet18", COLOUR, 10, 11_181_642),
        ("resnet18", COLOUR, 100, 11_227_812),
    ],
)
def test_sizes_are_those_of_the_papers(name: str, shape: tuple[int, int], classes: int, d: int) -> None:
    model = build(name, *shape, classes)
    assert model.d == d == sum(model.sizes) == len(model.initial(0))
    assert [s.numel() for s in model.shapes] == model.sizes
    assert len(model.names) == len(model.sizes)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shape", [GREY, COLOUR])
def test_flat_form_is_the_network(name: str, shape: tuple[int, int]) -> None:
    model = build(name, *shape, 10)
    w = model.initial(3).double()
    X, y = images(shape, 2)
    network = model.module_with(w)
    logits = model.apply(w, X)
    assert logits.shape == (2, 10)
    torch.testing.assert_close(logits, network(X), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(cross_entropy(network(X), y), list(network.parameters()))
    expected = torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(grad(loss_of(model, X, y))(w), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_hessian_vector_products_forward_over_reverse_equal_double_backward(name: str) -> None:
    model = build(name, *COLOUR, 10)
    X, y = images(COLOUR, 2 if name == "resnet18" else 6)
    w = model.initial(0).double()
    v = torch.randn(model.d, generator=torch.Generator().manual_seed(2), dtype=w.dtype)
    loss = loss_of(model, X, y)
    g, h = double_backward(loss, w, v)
    g_forward, h_forward = jvp(grad(loss), (w,), (v,))
    assert (g - g_forward).norm() <= 1e-10 * g.norm()
    assert (h - h_forward).norm() <= 1e-10 * h.norm()
    assert h.norm() > 0


@pytest.mark.parametrize(("name", "options"), [("mlp", {"hidden": [5]}), ("cnn", {})])
def test_derivatives_agree_with_finite_differences(name: str, options: dict[str, list[int]]) -> None:
    model = build(name, 1, 16, 10, options)
    X, y = images((1, 16), 3)
    w = model.initial(0).double()
    v = torch.randn(model.d, generator=torch.Generator().manual_seed(2), dtype=w.dtype)
    v, eps = v / v.norm(), 1e-5
    loss = loss_of(model, X, y)
    g, h = double_backward(loss, w, v)
    assert g @ v == pytest.approx(((loss(w + eps * v) - loss(w - eps * v)) / (2 * eps)).item(), rel=1e-6)
    ahead, behind = grad(loss)(w + eps * v), grad(loss)(w - eps * v)
    assert (h - (ahead - behind) / (2 * eps)).norm() <= 1e-5 * h.norm()


@pytest.mark.parametrize("name", MODELS)
def test_vmap_over_models_and_minibatches(name: str) -> None:
    model = build(name, *GREY, 10)
    W = torch.stack([model.initial(seed) for seed in range(2)]).double()
    X, y = images(GREY, 4)
    X, y = X.view(2, 2, 1, 28, 28), y.view(2, 2)

    def loss(w: Tensor, X: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model.apply(w, X), y)

    together = vmap(grad(loss))(W, X, y)
    for i in range(2):
        torch.testing.assert_close(together[i], grad(loss)(W[i], X[i], y[i]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["linear", "mlp3", "lenet5"])
def test_every_client_s_own_parameters(name: str) -> None:
    """Logits and gradients of all clients together are those of one after the other."""
    model = build(name, *GREY, 10)
    X, _ = images(GREY, 12)
    X = X.view(3, 4, *X.shape[1:])
    W = torch.stack([model.initial(seed).double() for seed in range(3)]).requires_grad_()
    found = model.apply_each(W, X)
    expected = torch.stack([model.apply(w, x) for w, x in zip(W, X, strict=True)])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    slopes = [torch.autograd.grad(logits.square().sum(), W, retain_graph=True)[0] for logits in (found, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-10, atol=1e-12)


def test_networks_that_only_look_dense_are_not_taken_for_dense() -> None:
    def tied() -> nn.Module:
        layer = nn.Linear(4, 4)
        return nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer)

    def bare() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 4, bias=False))

    def leaky() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.LeakyReLU(0.2), nn.Linear(4, 4))

    X = torch.rand(3, 2, 1, 2, 2, dtype=torch.float64)
    for make in (tied, bare, leaky):
        model = FlatModel(make)
        W = torch.stack([model.initial(seed).double() for seed in range(3)])
        expected = torch.stack([model.apply(w, x) for w, x in zip(W, X, strict=True)])
        torch.testing.assert_close(model.apply_each(W, X), expected, rtol=1e-12, atol=1e-12)


def test_pooling_before_relu_changes_no_bit() -> None:
    model = build("lenet5", *GREY, 10)
    X, y = images(GREY, 8, torch.float32)
    X = (X * 3).round() / 3  # plenty of ties
    w, v = model.initial(0), model.initial(1)

    class Textbook(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = copy.deepcopy(model.module_with(w))

        def forward(self, X: Tensor) -> Tensor:
            c1, pool, relu, c2, *_, flatten, d1, r1, d2, r2, d3 = self.layers
            x = pool(relu(c2(pool(relu(c1(X))))))
            return d3(r2(d2(r1(d1(flatten(x))))))

    textbook = FlatModel(Textbook)
    for ours, theirs in zip(
        double_backward(loss_of(model, X, y), w, v),
        double_backward(loss_of(textbook, X, y), w, v),
        strict=True,
    ):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_initial_is_a_function_of_the_seed_alone(name: str) -> None:
    model = build(name, *GREY, 10)
    before = torch.random.get_rng_state()
    w = model.initial(5)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(w, build(name, *GREY, 10).initial(5))
    assert not torch.equal(w, model.initial(6))
    assert not w.requires_grad


def test_initial_is_torch_s_own_initialisation() -> None:
    w = build("lenet5", *GREY, 10).initial(0)
    assert w[:150].abs().max() <= 1 / 5  # uniform within 1 / sqrt(fan-in)
    assert w[:150].abs().max() > 0.9 / 5


def test_module_with_holds_a_copy() -> None:
    model = build("linear", *GREY, 10)
    w = model.initial(0)
    network = model.module_with(w)
    w.zero_()
    assert all(p.abs().sum() > 0 for p in network.parameters())
    assert all(p.requires_grad for p in network.parameters())
    assert next(model.module_with(w.double()).parameters()).dtype == torch.float64
    assert model.apply(w.double(), images(GREY, 2)[0]).dtype == torch.float64


def test_shared_parameters_are_one_part() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU())
            self.first = self.second = nn.Linear(4, 4)
            self.tied = nn.Linear(4, 4, bias=False)
            self.tied.weight = self.first.weight

        def forward(self, X: Tensor) -> Tensor:
            return self.tied(self.second(self.first(self.body(X))))

    model = FlatModel(Tied)
    assert model.d == 2 * 20
    w = model.initial(0).double()
    X, y = torch.rand(3, 1, 2, 2, dtype=w.dtype), torch.arange(3)
    network = model.module_with(w)
    torch.testing.assert_close(model.apply(w, X), network(X), rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(cross_entropy(network(X), y), list(network.parameters()))
    expected = torch.cat([g.flatten() for g in gradients])
    torch.testing.assert_close(grad(loss_of(model, X, y))(w), expected, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------------ mistakes and own models

OWN = """
import torch
from torch import nn
from own_layers.flatten import Flatten

NOT_CALLABLE = 3
def good(channels, image_size, classes, *, width=7):
    d = channels * image_size ** 2
    return nn.Sequential(Flatten(), nn.Linear(d, width), nn.Tanh(), nn.Linear(width, classes))
def two_arguments(channels, classes): ...
def raises(channels, image_size, classes): raise KeyError("oops")
def nothing(channels, image_size, classes): ...
def forward_fails(channels, image_size, classes): return nn.Linear(3, classes)
def shape(channels, image_size, classes): return good(channels, image_size, classes + 1)
class Pair(nn.Linear):
    def forward(self, X): return X, X
def pair(channels, image_size, classes): return Pair(2, 2)
def infinite(channels, image_size, classes):
    network = good(channels, image_size, classes)
    nn.init.constant_(network[3].bias, float("nan"))
    return network
def with_layer(layer, channels, image_size, classes):
    convolution = nn.Conv2d(channels, 4, 5)
    return nn.Sequential(convolution, layer, Flatten(), nn.Linear(4 * (image_size - 4) ** 2, classes))
def norm(*shape): return with_layer(nn.BatchNorm2d(4), *shape)
def mixing(*shape): return with_layer(nn.BatchNorm2d(4, track_running_stats=False), *shape)
def dropout(*shape): return with_layer(nn.Dropout(0.5), *shape)
def no_dropout(*shape): return with_layer(nn.Dropout(0.0), *shape)
def frozen(channels, image_size, classes):
    return good(channels, image_size, classes).requires_grad_(False)
def empty(channels, image_size, classes): return nn.Flatten()
def lazy(channels, image_size, classes): return nn.Sequential(Flatten(), nn.LazyLinear(classes))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with own models, entered but not yet importable."""
    (tmp_path / "own_models.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("import no_such_library\n")
    layers = tmp_path / "own_layers"
    layers.mkdir()
    (layers / "__init__.py").write_text("")
    (layers / "flatten.py").write_text("from torch.nn import Flatten\n")
    (layers / "nets.py").write_text("def net(*shape):\n    import own_models\n    return own_models.good(*shape)\n")
    (tmp_path / "own_unused.py").write_text("")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("own_models", "own_broken", "own_layers", "own_layers.flatten", "own_layers.nets"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_model_by_dotted_path(project: Path) -> None:
    model = build("own_models.good", *GREY, 10, {"width": 3})
    assert model.d == 784 * 3 + 3 + 3 * 10 + 10
    assert torch.equal(model.initial(1), build("own_models.good", *GREY, 10, {"width": 3}).initial(1))
    assert build("own_models.no_dropout", *GREY, 10).d > 0
    assert build("own_layers.nets.net", *GREY, 10).d > 0
    assert str(project) in sys.path


def test_source_files_are_those_the_own_model_imports(project: Path) -> None:
    def names(path: str) -> set[str]:
        return {file.relative_to(project).as_posix() for file in source_files(path)}

    own = {"own_models.py", "own_layers/__init__.py", "own_layers/flatten.py"}
    assert names("own_models.good") == own
    assert names("own_layers.nets.net") == own | {"own_layers/nets.py"}
    assert source_files("lenet5") == []
    assert [f.name for f in source_files("torch.nn.Identity")] == ["__init__.py"]
    with pytest.raises(UserError, match="importing 'nowhere' failed"):
        source_files("nowhere.net")


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("lenet", {}, ["model.name = 'lenet'", "linear, mlp, mlp3, lenet5", "Fix: write lenet5"]),
        ("zzz", {}, ["model.name = 'zzz'", "dotted path", "Fix: write"]),
        (
            "mlp",
            {"hiden": [3]},
            ["model.options = {'hiden': [3]}", "keys among hidden", "write hidden instead of"],
        ),
        ("mlp", {"depth": 3}, ["keys among hidden", "Fix: remove depth"]),
        ("linear", {"a": 3}, ["model.options", "linear has no options", "Fix: remove a"]),
        ("lenet5", {"channels": 3}, ["model.options", "Fix: remove channels"]),
        (
            "mlp",
            {"hidden": [0]},
            ["model.name = 'mlp'", "model.options = {'hidden': [0]}", "whole numbers >= 1"],
        ),
        ("mlp", {"hidden": 5}, ["model.options = {'hidden': 5}", "TypeError"]),
        ("resnet18", {"groups": 3}, ["model.options = {'groups': 3}", "divisible"]),
        (
            "nowhere.net",
            {},
            ["model.name = 'nowhere.net'", "No module named 'nowhere'", "Fix: put the module"],
        ),
        ("own_broken.net", {}, ["importing 'own_broken' failed", "no_such_library"]),
        (".net", {}, ["model.name = '.net'", "importing '' failed"]),
        ("own_models.god", {}, ["no function 'god'", "Fix: write own_models.good"]),
        ("own_models.zzzzzz", {}, ["no function 'zzzzzz'", "Fix: define zzzzzz there"]),
        ("own_models.NOT_CALLABLE", {}, ["no function 'NOT_CALLABLE'"]),
        (
            "own_models.two_arguments",
            {},
            ["cannot be called", "Fix: define it as (channels, image_size, classes"],
        ),
        ("own_models.good", {"depth": 1}, ["model.options = {'depth': 1}", "cannot be called", "'depth'"]),
        ("own_models.raises", {}, ["failed for 1 x 28 x 28 images and 10 classes", "KeyError: 'oops'"]),
        ("own_models.nothing", {}, ["returned NoneType, not a torch.nn.Module"]),
        ("own_models.forward_fails", {}, ["fails on images of shape [2, 1, 28, 28]", "Fix: make forward"]),
        ("own_models.shape", {}, ["answers two images with [2, 11]", "[batch, 10]"]),
        ("own_models.pair", {}, ["answers two images with tuple"]),
        ("own_models.infinite", {}, ["not finite"]),
        ("own_models.norm", {}, ["buffers 1.running_mean, 1.running_var", "nn.GroupNorm"]),
        ("own_models.mixing", {}, ["depend on the rest of the batch", "nn.GroupNorm"]),
        ("own_models.dropout", {}, ["it is random", "Fix: remove dropout"]),
        ("own_models.frozen", {}, ["parameter 1.weight has requires_grad = False"]),
        ("own_models.empty", {}, ["no parameters"]),
        pytest.param(
            *("own_models.lazy", {}, ["lazy layers", "explicit sizes"]),
            marks=pytest.mark.filterwarnings("ignore:Lazy modules"),
        ),
    ],
)
def test_mistakes_are_explained(project: Path, name: str, options: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        build(name, *GREY, 10, options)
    message = str(caught.value)
    assert message.startswith("model.")
    for part in [*parts, "Fix: "]:
        assert part in message


def test_images_too_small_for_the_network() -> None:
    with pytest.raises(UserError, match=r"lenet5.*8 x 8 are too small"):
        build("lenet5", 1, 8, 10)


def test_trying_a_model_leaves_the_global_generator_alone(project: Path) -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(UserError):
        build("own_models.dropout", *GREY, 10)
    build("lenet5", *GREY, 10)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["mlp", "mlp3", "cnn"])
def test_normalised_pixels(name):
    """The same network of (x - mean) / std, with as many parameters, in the same order."""
    plain, normalised = (build(name, 1, 28, 10, options) for options in ({}, {"normalise": [0.1307, 0.3081]}))
    assert (plain.sizes, plain.head) == (normalised.sizes, normalised.head)
    w, X = plain.initial(0), torch.rand(3, 1, 28, 28)
    assert torch.equal(w, normalised.initial(0))
    torch.testing.assert_close(normalised.apply(w, X), plain.apply(w, (X - 0.1307) / 0.3081))


@pytest.mark.parametrize("normalise", [[0.5], [0.5, 0.0], ["a", 1.0]])
def test_a_normalisation_that_is_none_is_refused(normalise):
    with pytest.raises(UserError, match=r"model\.options.*normalise must be \[mean, std\] with std > 0"):
        build("mlp", 1, 28, 10, {"normalise": normalise})
