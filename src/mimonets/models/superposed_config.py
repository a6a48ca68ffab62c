"""The settings of superpose(): where a network carries superpositions, and how."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from mimonets._config import Config, size
from mimonets._messages import did_you_mean, short
from mimonets.models.builders import builder_problems

BindingName = Literal["hrr", "hadamard", "matrix", "tiles", "tied"]
UnbindingName = Literal["matrix", "classifier"]
BINDINGS: dict[BindingName, str] = {  # as a model card calls them
    "hrr": "circular convolution with a key per stream",
    "hadamard": "a key of signs per stream",
    "matrix": "a matrix per stream",
    "tiles": "laying them side by side as tiles",
    "tied": "giving each a lane of the features, with weights tied between lanes",
}


@dataclass(frozen=True, kw_only=True)
class SuperposedConfig(Config):
    """Where a network carries superpositions, and how inputs get in and out."""

    num_streams: int = size(2)  # inputs per superposition
    bind_after: str = ""  # the last module that sees every input by itself
    unbind_before: str = ""  # the first one that does so again
    # Circular convolution, sign keys, a matrix per stream; tiles, or lanes of a tied trunk
    binding: BindingName = "hrr"
    unbinding: UnbindingName | None = None  # per stream; None: a matrix; no keys: taken apart
    identity_start: bool = False  # matrices start near the identity, for pretrained networks
    unbinding_relu: bool = False  # ReLU after the unbinding matrices, as in MIMOConv
    trainable_keys: bool = True  # of hrr and matrix; signs (hadamard) stay what they are
    builder: str = ""  # what builds the network again when it is loaded, see register_builder
    builder_settings: Mapping[str, Any] = field(default_factory=dict)  # its arguments

    @property
    def is_plain(self) -> bool:
        """Whether nothing is bound: one stream, and no modules named."""
        return self.num_streams == 1 and not self.bind_after and not self.unbind_before

    def problems(self) -> list[str]:
        """List what is wrong with these settings, one sentence each."""
        found = super().problems()
        for name in ("bind_after", "unbind_before"):
            if not isinstance(getattr(self, name), str):
                found.append(f"{name}={short(getattr(self, name))} must be the name of a module.")
        if self.binding in ("tiles", "tied"):
            given = {"unbinding": self.unbinding, "identity_start": self.identity_start}
            given["unbinding_relu"] = self.unbinding_relu
            found += [
                f"{name}={value!r} is for keys, and binding={self.binding!r} has none: leave it "
                f"out."
                for name, value in given.items()
                if value
            ]
        elif self.unbinding == "classifier" and (self.unbinding_relu or self.identity_start):
            found.append(
                "unbinding_relu and identity_start are for unbinding='matrix': a classifier per "
                "stream has no matrix, leave them out."
            )
        return found + builder_problems(self.builder, self.builder_settings)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Read settings by name; refuse names that are none."""
        known = [setting.name for setting in fields(cls)]
        for name in settings:
            if name not in known:
                raise ValueError(
                    f"superpose() has no setting {name!r}{did_you_mean(name, known)}: it has "
                    f"{', '.join(known)}."
                )
        return cls(**settings)
