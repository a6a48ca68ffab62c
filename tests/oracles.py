"""What several test files compare with: slow, obvious, straight from the paper."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mimonets.layers import running
from mimonets.models import DataMUXConv, DataMUXFormer, MIMOConv


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Differentiate a fixed random projection of the output with respect to every input."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*inputs)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(output.shape, generator=generator, dtype=output.dtype)
    return list(torch.autograd.grad((output * weights).sum(), inputs))


def circular_convolution_loops(x: Tensor, key: Tensor) -> Tensor:
    """Compute (x * a)_c = sum_j x_j a_(c-j), one term at a time, for two vectors."""
    dim = len(x)
    return torch.stack([sum(x[j] * key[(c - j) % dim] for j in range(dim)) for c in range(dim)])


def mimoconv_by_hand(model: MIMOConv, images: Tensor, active: int) -> Tensor:
    """Run a MIMOConv in evaluation mode group by group and stream by stream."""
    num_streams = model.num_streams
    rows = []
    for start in range(0, len(images), active):
        group = images[start : start + active]
        features = model.stem(group)
        superposition = torch.zeros_like(features[0])
        for stream in range(num_streams):
            x = features[stream % len(group)]
            key = model.binding.stream_keys[stream]
            bound = torch.zeros_like(x)
            for c in range(len(key)):
                for j in range(len(key)):
                    bound[c] += x[j] * (key[(c - j) % len(key)] if key.ndim == 1 else key[c, j])
            superposition = superposition + bound
        with running(len(group)):
            pooled = model.trunk(superposition.unsqueeze(0))[0]
        answers = [
            model.unbinding.weight[stream] @ pooled + model.unbinding.bias[stream]
            for stream in range(num_streams)
        ]
        if model.unbinding.relu:
            answers = [torch.relu(answer) for answer in answers]
        for index in range(len(group)):
            own = [answers[s] for s in range(num_streams) if s % len(group) == index]
            rows.append(model.classifier(torch.stack(own).mean(dim=0)))
    return torch.stack(rows)


def datamux_conv_by_hand(model: DataMUXConv, images: Tensor, active: int) -> Tensor:
    """Run a DataMUXConv group by group and stream by stream, with explicit convolutions."""
    config = model.config
    first, _, second, _ = model.multiplexing.layers
    demux = model.demultiplexing.linear
    rows = []
    for start in range(0, len(images), active):
        group = images[start : start + active]
        mixture = 0
        for stream in range(config.num_streams):
            x = group[stream % len(group)].unsqueeze(0)
            for layer, maps in ((first, config.mux_hidden), (second, config.mux_maps)):
                own = slice(stream * maps, (stream + 1) * maps)
                x = F.conv2d(x, layer.weight[own], padding=1).tanh()
            mixture = mixture + x
        x = mixture
        conv1, conv2, conv3, linear = (layer for layer in model.trunk if hasattr(layer, "weight"))
        x = F.max_pool2d(F.conv2d(x, conv1.weight, conv1.bias).tanh(), 2)
        x = F.max_pool2d(F.conv2d(x, conv2.weight, conv2.bias).tanh(), 2)
        x = F.conv2d(x, conv3.weight, conv3.bias).tanh()
        x = torch.tanh(linear.weight @ x.flatten() + linear.bias)
        answers = [
            torch.tanh(demux.weight[84 * s : 84 * (s + 1)] @ x + demux.bias[84 * s : 84 * (s + 1)])
            for s in range(config.num_streams)
        ]
        for index in range(len(group)):
            own = [answers[s] for s in range(config.num_streams) if s % len(group) == index]
            rows.append(model.classifier[0](torch.stack(own).mean(dim=0)).tanh())
    return torch.stack(rows)


def datamux_former_by_hand(
    model: DataMUXFormer, tokens: Tensor, mask: Tensor | None, active: int
) -> Tensor:
    """Run a DataMUXFormer group by group, stream by stream and token by token."""
    config, demux = model.config, model.demultiplexing
    keys, streams = model.multiplexing.stream_keys, range(config.num_streams)
    index = config.demux == "index"
    rows = []
    for start in range(0, len(tokens), active):
        group = slice(start, start + active)
        x, real = model.embedding(tokens[group], None if mask is None else mask[group])
        real = torch.ones(x.shape[:2], dtype=torch.bool) if real is None else real
        count, length, _ = x.shape
        mixture = []
        for place in streams if index else ():
            own, padding = demux.special.weight[place], demux.special.weight[-1]
            mixture.append(sum(keys[s] * (own if s == place else padding) for s in streams))
        for t in range(length):
            mixture.append(sum(keys[s] * x[s % count, t] * real[s % count, t] for s in streams))
        h = torch.stack(mixture).unsqueeze(0) / config.num_streams
        before = config.num_streams if index else 0
        seen = torch.cat([torch.ones(before, dtype=torch.bool), real.any(dim=0)]).unsqueeze(0)
        for block in model.blocks:
            h = block(h, seen)
        h = demux.norm(h[0])
        features = []
        for i in range(count):
            copies = []
            for s in (s for s in streams if s % count == i):
                if index:
                    weight = torch.cat([demux.of_token.weight, demux.of_prefix.weight], dim=1)
                    outputs = [
                        F.gelu(F.linear(torch.cat([token, h[s]]), weight, demux.of_token.bias))
                        for token in h[before:]
                    ]
                else:
                    own = slice(s * config.dim, (s + 1) * config.dim)
                    outputs = [
                        demux.shared(demux.inner_norm(F.gelu(demux.own.weight[own] @ token + bias)))
                        for token in h
                        for bias in [demux.own.bias[own]]
                    ]
                copies.append(model.summarise(torch.stack(outputs), real[i]))
            features.append(torch.stack(copies).mean(dim=0))
        rows += [model.readout(feature) for feature in features]
    return torch.stack(rows)
