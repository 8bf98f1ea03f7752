"""A network as a function of ONE flat parameter vector w in R^d."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from pipeline.errors import UserError
from pipeline.seeds import key


@contextmanager
def _own_randomness(seed: int) -> Iterator[None]:
    """Inside, torch's global generator starts from ``seed``; outside, it is unchanged.

    Only the host's generator is touched: ``torch.manual_seed`` would also reseed the accelerators.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def _kernels(*, exact: bool, cudnn: bool) -> Iterator[None]:
    """exact: attention by the kernel that has second derivatives. cudnn: whose recurrent layers have none."""
    with ExitStack() as stack:
        if exact:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if not cudnn:
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


def _refusal(network: nn.Module) -> tuple[str, str] | None:
    """Why this network is no function of a flat vector, and what to do about it; None if it is one."""
    if any(isinstance(p, nn.UninitializedParameter) for p in network.parameters()):
        return "it has lazy layers, whose size is not known yet", "use the layers with explicit sizes"
    if away := [(name, p.device.type) for name, p in network.named_parameters() if p.device.type != "cpu"]:
        name, device = away[0]
        fix = "make its layers outside torch.device('meta')" if device == "meta" else "model.cpu()"
        return f"parameter {name} is on the device {device}, and the start is made on the CPU", fix
    buffers = [name for name, _ in network.named_buffers()]
    if buffers:
        some = ", ".join(buffers[:3]) + " ..." * (len(buffers) > 3)
        return (
            f"it keeps state besides its parameters (buffers {some})",
            "use nn.GroupNorm instead of batch normalisation, and compute constants in forward",
        )
    frozen = [name for name, p in network.named_parameters() if not p.requires_grad]
    if frozen:
        return f"parameter {frozen[0]} has requires_grad = False", "let every parameter be trained"
    if not any(True for _ in network.parameters()):
        return "it has no parameters", "return a network that can learn"
    return None


def _each(function: Callable[..., Tensor], *arguments: Tensor, one_pass: bool = True) -> Tensor:
    """The function of every client's row of the arguments. one_pass: whether that may be asked of the network.

    On a CPU one client after another: batched convolutions with a kernel per client are grouped ones, whose derivatives
    take up to half as long again there, and batched matrices gain little (LeNet-5 and the MLP, 10 clients x 32, one
    thread). `unbind`, since its backward is one stack, where that of rows taken one by one pads each to all of them.
    """
    if arguments[0].device.type == "cpu" or not one_pass:
        rows = zip(*(argument.unbind() for argument in arguments), strict=True)
        return torch.stack([function(*row) for row in rows])
    return vmap(function)(*arguments)


def _dense_layers(network: nn.Module) -> list[nn.Module] | None:
    """The layers of a network of Flatten, then Linear (with bias, nothing shared) and ReLU; None for any other."""
    layers = list(network) if type(network) is nn.Sequential else []
    if not layers or type(layers[0]) is not nn.Flatten or (layers[0].start_dim, layers[0].end_dim) != (1, -1):
        return None
    known = all(type(layer) in (nn.Linear, nn.ReLU) for layer in layers[1:])
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    complete = all(layer.bias is not None for layer in linear)
    return layers if known and complete and 2 * len(linear) == len(list(network.parameters())) else None


class FlatModel:
    """A network as the function (w, X) -> logits.

    d: length of w. names, shapes, sizes: its parts, in the order of ``named_parameters``; a parameter that
    the network uses in several places is there once. The device and the floating point are those of w and X; a
    mixed model computes in bfloat16, and what goes in and comes out is not.
    one_pass: whether clients can go through it together (`pipeline.models.trial`, for this and the next two).
    exact_kernels: whether attention takes the kernel that has second derivatives. no_products: why there are no
    Hessian-vector products; "" if there are.
    Works under the transformations of ``torch.func``, forward over reverse included, and double backward.
    """

    def __init__(self, make: Callable[[], nn.Module], label: str = "network") -> None:
        """make: builds the network with fresh random parameters. label: what errors call it."""
        self._make, self._label, self._mixed = make, label, False
        self.one_pass, self.exact_kernels, self.no_products = True, False, ""
        with _own_randomness(0):
            self._network = make()
        refusal = _refusal(self._network)
        if refusal is not None:
            reason, fix = refusal
            raise UserError(f"{label} cannot be used: {reason}. Fix: {fix}.")
        parameters = dict(self._network.named_parameters())
        self.names = list(parameters)
        self.shapes = [p.shape for p in parameters.values()]
        self.sizes = [p.numel() for p in parameters.values()]
        self.d = sum(self.sizes)
        self._dense = _dense_layers(self._network)
        # Every place that holds a parameter, and which one. Listing them here makes sharing safe: the way of
        # functional_call itself (tie_weights) leaves its own values behind in a module used under two names.
        index = {id(p): i for i, p in enumerate(parameters.values())}
        self._places = {
            name: index[id(p)]
            for prefix, module in self._network.named_modules()
            for name, p in module.named_parameters(prefix, recurse=False, remove_duplicate=False)
        }

    @cached_property
    def head(self) -> int:
        """How many parameters the last layer has, if the network is a body and a linear layer: they are the last
        entries of w. 0 if it is not (no linear layer at the end, nothing before it, or parameters in other places
        too)."""
        holders = [m for m in self._network.modules() if any(True for _ in m.parameters(recurse=False))]
        own = [id(p) for p in holders[-1].parameters(recurse=False)]
        parameters = [id(p) for p in self._network.parameters()]
        places = list(self._places.values())
        is_last = isinstance(holders[-1], nn.Linear) and own == parameters[-len(own) :] and len(own) < len(parameters)
        alone = all(places.count(i) == 1 for i in range(len(parameters) - len(own), len(parameters)))
        return sum(self.sizes[-len(own) :]) if is_last and alone else 0

    @cached_property
    def _body_parts(self) -> int:
        """How many of the parameters belong to the body."""
        count, body = 0, self.d - self.head
        while sum(self.sizes[:count]) < body:
            count += 1
        return count

    @cached_property
    def _body(self) -> nn.Module:
        """The network with nothing in the place of its last layer."""
        body = copy.deepcopy(self._network)
        holders = [name for name, m in body.named_modules() if any(True for _ in m.parameters(recurse=False))]
        parent, _, name = holders[-1].rpartition(".")
        setattr(body.get_submodule(parent), name, nn.Identity())
        return body

    def after(self, layer: Callable[[], nn.Module]) -> FlatModel:
        """The same network behind a layer without parameters: as many parameters, in the same order."""
        model = FlatModel(lambda: nn.Sequential(layer(), self._make()), self._label)
        model.one_pass, model.exact_kernels, model.no_products = self.one_pass, self.exact_kernels, self.no_products
        return model.mixed if self._mixed else model

    @property
    def mixed(self) -> FlatModel:
        """The same network in mixed precision: faster where the processor multiplies bfloat16, and less exact."""
        return self._with(mixed=True)

    @property
    def exact(self) -> FlatModel:
        """The same network in the floating point of w alone, as it is evaluated and served."""
        return self._with(mixed=False)

    def _with(self, *, mixed: bool) -> FlatModel:
        if mixed == self._mixed:
            return self
        model = copy.copy(self)
        model._mixed = mixed
        return model

    def _within(self, value: Tensor) -> Tensor:
        """As the network computes with it. Not torch.autocast, which passes over convolutions under ``vmap``."""
        return value.bfloat16() if self._mixed else value

    @property
    def convolutional(self) -> bool:
        """Whether the network has convolutions."""
        return any(isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d) for m in self._network.modules())

    def initial(self, seed: int) -> Tensor:
        """[d]: the network's own random initialisation; equal seeds give equal vectors."""
        with _own_randomness(key(seed, "model")):
            return nn.utils.parameters_to_vector(self._make().parameters()).detach()

    def parts(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters by name, as views of w [d].

        ONE split: its backward is one concatenation, where d-long zero padding of every slice would cost
        fifty times as much for ResNet-18.
        """
        return {
            name: part.view(shape)
            for name, part, shape in zip(self.names, w.split(self.sizes), self.shapes, strict=True)
        }

    def apply(self, w: Tensor, X: Tensor) -> Tensor:
        """Logits [B, classes] of the images X [B, C, H, W] under the parameters w [d]."""
        return self._call(list(self.parts(w).values()), X)

    def apply_halves(self, x: Tensor, y: Tensor, X: Tensor) -> Tensor:
        """Logits [B, classes] with the body's parameters x [d - head] and the last layer's y [head].

        The same as `apply` of both in one vector, but a derivative by y makes no pass through the body.
        """
        count = self._body_parts
        pieces = (*x.split(self.sizes[:count]), *y.split(self.sizes[count:]))
        return self._call([piece.view(shape) for piece, shape in zip(pieces, self.shapes, strict=True)], X)

    def apply_each(self, W: Tensor, X: Tensor) -> Tensor:
        """Logits [n, B, classes] of client i's images X[i] under the client's own parameters W[i]; W [n, d].

        Dense networks by batched matrix products, which cost half as much as `vmap` where the network is small.
        """
        layers = self._dense
        if layers is None:
            return _each(self.apply, W, X, one_pass=self.one_pass)
        parts = iter(self._within(W).split(self.sizes, dim=1))
        values = self._within(X)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                weight = next(parts).unflatten(1, layer.weight.shape)
                values = torch.baddbmm(next(parts)[:, None], values, weight.mT)
            else:
                values = values.flatten(2) if isinstance(layer, nn.Flatten) else values.relu()
        return values.to(W.dtype)

    def apply_halves_each(self, X: Tensor, Y: Tensor, images: Tensor) -> Tensor:
        """The same with each client's own body X[i] and last layer Y[i]; X [n, d - head], Y [n, head]."""
        return _each(self.apply_halves, X, Y, images, one_pass=self.one_pass)

    def features(self, x: Tensor, X: Tensor) -> Tensor:
        """What the body with the parameters x [d - head] hands to the last layer, [B, features]."""
        count = self._body_parts
        pieces = zip(x.split(self.sizes[:count]), self.shapes[:count], strict=True)
        return self._call([piece.view(shape) for piece, shape in pieces], X, self._body)

    def features_each(self, X: Tensor, images: Tensor) -> Tensor:
        """[n, B, features] of client i's images under its own body X[i]; X [n, d - head]."""
        return _each(self.features, X, images, one_pass=self.one_pass)

    def _call(self, parts: list[Tensor], X: Tensor, network: nn.Module | None = None) -> Tensor:
        """network: instead of the whole one, what the first parameters alone belong to."""
        values = {name: self._within(parts[i]) for name, i in self._places.items() if i < len(parts)}
        off = X.is_cuda and self._recurrent
        with _kernels(exact=self.exact_kernels, cudnn=not off) if self.exact_kernels or off else nullcontext():
            found: Tensor = functional_call(network or self._network, values, (self._within(X),), tie_weights=False)
        return found.to(parts[0].dtype) if self._mixed else found

    @cached_property
    def _recurrent(self) -> bool:
        return any(isinstance(m, nn.RNNBase) for m in self._network.modules())

    def body_with(self, x: Tensor) -> nn.Module:
        """A plain network from images to features, holding a copy of the body's parameters x [d - head]."""
        return self._filled(self._body, x, self._body_parts)

    def module_with(self, w: Tensor) -> nn.Module:
        """A plain network holding a copy of w, with w's device and dtype, to export or evaluate."""
        return self._filled(self._network, w, len(self.names))

    def _filled(self, network: nn.Module, values: Tensor, count: int) -> nn.Module:
        """A copy of the network with these values of its first `count` parameters, which are all it has."""
        module = copy.deepcopy(network).to(values)
        with torch.no_grad():
            for name, part in zip(self.names, values.split(self.sizes[:count]), strict=False):
                parameter = module.get_parameter(name)
                parameter.copy_(part.view_as(parameter))
        return module
