"""Trace a module's loss, gradient and forecast as functions of one flat vector."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions
from torch.func import functional_call, grad_and_value
from torch.fx import traceback
from torch.fx.experimental.proxy_tensor import make_fx

from aggregator.extensions.authoring import emit_elementwise, emit_tensor, recurrent_operators  # noqa: F401 - enter their rules
from aggregator.extensions.authoring.decompositions import Lowering
from aggregator.extensions.authoring.emit import emit, expression
from aggregator.extensions.authoring.export_spec import ExportError
from edge_sdk.protocol.contract.manifest import Loss

# batch sizes for tracing that nothing else in the model has: equal sizes would be merged
EXAMPLE_BATCHES = (37, 41, 43, 47, 53, 59)
Shapes = Sequence[tuple[str, Sequence[int]]]


class Traced:
    """A module as functions of one flat vector, ready for export.

    Args:
        module: Takes ``[B, lookback, channels]``, returns a forecast an example; it is copied.
        sample: ``(lookback, channels)`` of one example.
        levels: Number of quantiles of each step, on a last axis; None for one value and no axis.

    Raises:
        ExportError: Buffers that training would change, parameters that are frozen or not float32,
            another size of the input, or a forecast of another shape or with random numbers.
    """

    def __init__(
        self, module: nn.Module, sample: tuple[int, int], horizon: int, levels: int | None = None
    ) -> None:
        self.module = copy.deepcopy(module).eval()
        self.sample, self.horizon = sample, horizon
        self.forecast = (horizon,) if levels is None else (horizon, levels)
        self.layers = layout(self.module)
        self._sizes = [(name, shape, torch.Size(shape).numel()) for name, shape in self.layers]
        self._check_output()
        _mark_modules(self.module)

    def _check_output(self) -> None:
        """Refuse a module that takes other inputs, returns another shape, or draws random numbers."""
        shape = (3, *self.sample)
        x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
        first, second = self._forecast(x, 0), self._forecast(x, 1)
        if tuple(first.shape) != (3, *self.forecast):
            names = "[batch, horizon, levels]" if len(self.forecast) > 1 else "[batch, horizon]"
            raise ExportError(
                f"forward must return {names} = {[3, *self.forecast]} for an input "
                f"{shape}; it returned {list(first.shape)}"
            )
        if not torch.equal(first.nan_to_num(), second.nan_to_num()):
            raise ExportError(
                "two forecasts of one input differ: forward draws random numbers also in evaluation; "
                "use nn.Dropout, or pass training=self.training to nn.functional.dropout"
            )

    def _forecast(self, x: Tensor, seed: int) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                out = self.module(x)
            except Exception as error:
                said = str(error).partition("\n")[0]
                raise ExportError(
                    f"forward fails for an input {tuple(x.shape)}, which is [batch, lookback, channels]: "
                    f"{type(error).__name__}: {said}; build the module for this size, or name with "
                    "--like the model whose window and features it was built for"
                ) from error
        if not isinstance(out, Tensor):
            raise ExportError(
                f"forward must return one tensor, not {type(out).__name__}; "
                "a recurrent layer returns its state beside its output: take the first"
            )
        return out

    @property
    def initial(self) -> Tensor:
        """Return the module's present parameters as one vector ``[P]``."""
        with torch.no_grad():
            return torch.cat([p.reshape(-1) for _, p in self.module.named_parameters()]).clone()

    @property
    def sizes(self) -> Sequence[tuple[str, int]]:
        """Return names and scalar counts of the layers, in order."""
        return [(name, size) for name, _, size in self._sizes]

    def weights(self, p: Tensor) -> dict[str, Tensor]:
        """Return the module's parameters from the flat vector."""
        ends = list(itertools.accumulate(size for _, _, size in self._sizes))
        return {
            name: p[end - size : end].view(tuple(shape))
            for (name, shape, size), end in zip(self._sizes, ends, strict=True)
        }

    def predict(self, p: Tensor, x: Tensor) -> Tensor:
        """Return the forecast ``[B, horizon]``, or ``[B, horizon, levels]``."""
        out: Tensor = functional_call(self.module, self.weights(p), (x,))
        return out

    def loss(self, loss: Loss, p: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(loss, error_of(self.predict(p, x), y))

    def gradient(self, loss: Loss) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return ``(p, x, y) -> (loss, g)``."""

        def of(p: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            def value_of(weights: dict[str, Tensor]) -> Tensor:
                return loss_of(loss, error_of(functional_call(self.module, weights, (x,)), y))

            grads, value = grad_and_value(value_of)(self.weights(p))
            return value, torch.cat([grads[name].reshape(-1) for name, _ in self.layers])

        return of

    def gradient_graph(self, loss: Loss) -> onnx.ModelProto:
        """Export ``p, x, y -> loss, g``, with recurrent layers unrolled."""
        examples = (self.initial, *self.example())
        graph = trace(self.gradient(loss), examples, Lowering("unrolled"), batched=(1, 2))
        return emit(graph, ("p", "x", "y"), ("loss", "g"))

    def forecast_graph(self) -> onnx.ModelProto:
        """Export ``p, x -> yhat``, with recurrent layers as single operators."""

        def of(p: Tensor, x: Tensor) -> tuple[Tensor]:
            return (self.predict(p, x),)

        examples = (self.initial, self.example()[0])
        graph = trace(of, examples, Lowering("native"), batched=(1,))
        return emit(graph, ("p", "x"), ("yhat",))

    def example(self, batch: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Draw inputs ``[B, lookback, channels]`` in 0 to 1 and targets ``[B, horizon]``."""
        draw = torch.Generator().manual_seed(seed)
        size = self._free_batch() if batch is None else batch
        x = torch.rand(size, *self.sample, generator=draw)
        return x, torch.rand(size, self.horizon, generator=draw)

    def _free_batch(self) -> int:
        taken = {*self.sample, *self.forecast, *(dim for _, shape in self.layers for dim in shape)}
        return next((size for size in EXAMPLE_BATCHES if size not in taken), 61)


def layout(module: nn.Module) -> Shapes:
    """Return names and shapes of the trained parameters, in model order.

    Raises:
        ExportError: Buffers that training would change, or parameters that are frozen, without a
            shape or not float32.
    """
    kept = list(module.state_dict(keep_vars=True))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = [name for name in kept if name not in parameters]
    if buffers:
        raise ExportError(
            f"buffers {', '.join(buffers)}: running statistics are neither trained nor averaged "
            "with the vector; use LayerNorm or GroupNorm instead of BatchNorm, and register "
            "constants with persistent=False"
        )
    if frozen := [name for name, parameter in parameters.items() if not parameter.requires_grad]:
        raise ExportError(
            f"parameters {', '.join(frozen)} have requires_grad=False, but devices train the whole "
            "vector; let them be trained, or register them with "
            "register_buffer(NAME, VALUE, persistent=False), which makes them constants of the graph"
        )
    for name, parameter in parameters.items():
        if nn.parameter.is_lazy(parameter):
            raise ExportError(
                f"parameter {name} has no shape yet; call the module once, or give sizes"
            )
        if parameter.dtype != torch.float32:
            raise ExportError(f"parameter {name} is {parameter.dtype}; only float32 is exchanged")
    if not parameters:
        raise ExportError("the module has no parameters")
    return [(name, tuple(p.shape) or (1,)) for name, p in module.named_parameters()]


def error_of(yhat: Tensor, y: Tensor) -> Tensor:
    """Return forecast minus target ``[B, horizon]``, for each level of quantiles."""
    return yhat - (y if yhat.dim() == y.dim() else y[:, :, None])


def loss_of(loss: Loss, error: Tensor) -> Tensor:
    """Return the mean loss of an error ``[B, horizon]``, or ``[B, horizon, levels]``."""
    if loss.levels is not None:
        return losses_of(loss, error).mean()
    if loss.name == "mse":
        return (error * error).mean()
    near = error.clamp(-(loss.delta or 1.0), loss.delta or 1.0)
    return (near * (error - 0.5 * near)).mean()


def losses_of(loss: Loss, error: Tensor) -> Tensor:
    """Return each example's own loss ``[B]``; their mean is ``loss_of``.

    ``pinball`` is the sum over horizon and levels of ``max(-q e, (1 - q) e)``, where ``e`` is
    forecast minus target; at ``e = 0`` the slope is taken to be zero.

    >>> loss = Loss("pinball", levels=(0.1, 0.5, 0.9))
    >>> told = torch.tensor([[[0.5, 1.0, 2.0]], [[1.0, 2.5, 3.0]], [[2.5, 2.5, 2.8]]])
    >>> error = error_of(told, torch.tensor([[1.0], [2.0], [3.0]]))
    >>> round(losses_of(loss, error).mean().item(), 6)
    0.36
    """
    if loss.levels is not None:
        levels = error.new_tensor(loss.levels)
        return ((1 - levels) * error.relu() + levels * (-error).relu()).sum((1, 2))
    if loss.name == "mse":
        return (error * error).mean(1)
    near = error.clamp(-(loss.delta or 1.0), loss.delta or 1.0)
    return (near * (error - 0.5 * near)).mean(1)


def trace(
    function: Callable[..., Any],
    examples: Sequence[Tensor],
    lowering: Lowering,
    batched: Sequence[int],
    open_sizes: Container[int] = (),
) -> fx.GraphModule:
    """Trace a function to aten operators, with a free batch size and all else fixed.

    Args:
        examples: One tensor an argument. Two that share memory would become one graph input.
        batched: Arguments with the batch on axis 0.
        open_sizes: Sizes of the examples that are free too, wherever they occur.

    Raises:
        ExportError: Aliased examples, a batch size that the module fixes, or control flow that
            depends on values.
    """
    if len({example.data_ptr() for example in examples}) < len(examples):
        raise ExportError("example inputs share memory: the graph would merge them into one input")

    def pinned(*args: Tensor) -> Any:  # noqa: ANN401
        for index, (tensor, example) in enumerate(zip(args, examples, strict=True)):
            sizes = list(zip(tensor.shape, example.shape, strict=True))[int(index in batched) :]
            for size, known in sizes:
                if known not in open_sizes:
                    int(size)  # a guard that this size is what it is: it becomes a constant
        with lowering:
            return function(*args)

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with traceback.preserve_node_meta():
            graph = make_fx(
                pinned, _DECOMPOSED, tracing_mode="symbolic", _allow_non_fake_inputs=True
            )(*examples)
    except ExportError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise ExportError(
            f"the module could not be traced: {str(error).splitlines()[0]} "
            "(forward must not branch on values, nor convert tensors to numbers)"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    _check_batch(graph, batched)
    return graph


def _check_batch(graph: fx.GraphModule, batched: Sequence[int]) -> None:
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for index in batched:
        if expression(inputs[index].meta["val"].shape[0]).is_Integer:
            raise ExportError(
                "the module fixes its batch size; take sizes from x.shape, never as numbers"
            )


def _mark_modules(module: nn.Module) -> None:
    for name, child in module.named_modules():
        path = f"{name or 'the module itself'} ({type(child).__name__})"
        child.register_forward_pre_hook(_Enter(path))
        child.register_forward_hook(_leave)


class _Enter:
    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, _module: nn.Module, _args: Any) -> None:  # noqa: ANN401
        _PATHS.append(self.path)
        traceback.current_meta["nn_module_stack"] = self.path


def _leave(_module: nn.Module, _args: Any, _out: Any) -> None:  # noqa: ANN401
    _PATHS.pop()
    if _PATHS:
        traceback.current_meta["nn_module_stack"] = _PATHS[-1]
    else:
        traceback.current_meta.pop("nn_module_stack", None)


_PATHS: list[str] = []

_NAMES = """
native_layer_norm native_layer_norm_backward gelu gelu_backward silu silu_backward elu elu_backward
leaky_relu leaky_relu_backward softplus softplus_backward hardtanh_backward hardsigmoid
hardsigmoid_backward hardswish hardswish_backward mish mish_backward log_sigmoid_forward
log_sigmoid_backward glu glu_backward _prelu_kernel _prelu_kernel_backward threshold
threshold_backward sigmoid_backward tanh_backward _softmax _softmax_backward_data _log_softmax
_log_softmax_backward_data logsumexp softshrink hardshrink logaddexp addcmul addcdiv lerp square
norm linalg_vector_norm mse_loss mse_loss_backward huber_loss huber_loss_backward smooth_l1_loss
smooth_l1_loss_backward index_select unfold
"""
# operators that torch decomposes into simpler ones; the emitter has rules for those only
_DECOMPOSED: Mapping[Any, Callable[..., Any]] = get_decompositions(
    [getattr(torch.ops.aten, name) for name in _NAMES.split()]
)
