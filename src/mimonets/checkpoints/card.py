"""Model cards: what a trained model is, what it was trained on, how good it is and where it fails.

Mitchell et al., "Model cards for model reporting", FAT* 2019.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Everything a model card says. What is None or empty is left out.

    >>> card = ModelCard(name="digits", title="MIMOConv-10-1 (N=2)", accuracy={1: 0.99, 2: 0.98})
    >>> print(card.as_markdown().partition("## Accuracy")[2].strip())
    | active streams | accuracy |
    | --- | --- |
    | 1 | 99.0 % |
    | 2 | 98.0 % |
    """

    name: str
    title: str = ""  # the network, as the paper would name it
    summary: str = ""
    parameters: int | None = None
    inputs: str = ""  # what one input is, in words
    data: str = ""  # what it was trained and measured on
    recipe: str = ""  # the command that trains it
    accuracy: Mapping[int, float] | None = None  # active streams -> fraction right on test data
    spread: Mapping[int, float] | None = None  # active streams -> deviation over seeds
    usage: str = ""  # Python code that loads and calls it
    limits: tuple[str, ...] = ()  # what it must not be used for, and where it fails
    license: str = ""  # of the weights, as the Hugging Face Hub writes it, such as apache-2.0
    superposed: bool = True  # whether several inputs share a pass
    task: str = ""  # the Hub's pipeline_tag, such as image-classification
    datasets: tuple[str, ...] = ()  # as the Hub names them; the accuracy is of the first
    provenance: Mapping[str, Any] | None = None  # commit, seed, machine and so on

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read a record as JSON keeps it; what a card does not know is refused."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(record.keys() - known)
        if unknown:
            raise ValueError(f"A model card says nothing of {', '.join(unknown)}.")
        values = dict(record)
        for name in ("accuracy", "spread"):  # JSON has only text for keys
            if values.get(name) is not None:
                values[name] = {int(mode): value for mode, value in values[name].items()}
        for name in ("limits", "datasets"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)

    @classmethod
    def of(cls, model: Any, **record: Any) -> Self:
        """Fill in what the model itself knows."""
        spec = getattr(model, "input_spec", None)
        inputs = "" if spec is None else f"{spec.kind}, {' x '.join(map(str, spec.shape))}"
        known = {
            "name": type(getattr(model, "network", model)).__name__,
            "title": str(getattr(model, "title", type(model).__name__)),
            "summary": str(getattr(model, "summary", "")),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "inputs": inputs,
            "usage": str(getattr(model, "usage", "")),
            "superposed": getattr(model, "num_streams", 1) > 1,
            "task": "image-classification" if spec is not None and spec.kind == "image" else "",
        }
        return cls(**{**known, **record})

    def as_markdown(self) -> str:
        """Render the card, with the heading that the Hugging Face Hub reads."""
        facts = {
            "Network": self.title,
            "Parameters": "" if self.parameters is None else f"{self.parameters:,}",
            "Input": self.inputs,
            "Data": self.data,
            "Recipe": f"`{self.recipe}`" if self.recipe else "",
        }
        lines = [
            "---",
            *([f"license: {self.license}"] if self.license else []),
            "library_name: mimonets",
            *([f"pipeline_tag: {self.task}"] if self.task else []),
            *(["datasets:", *(f"- {name}" for name in self.datasets)] if self.datasets else []),
            *(["tags:", "- computation-in-superposition"] if self.superposed else []),
            *self._model_index(),
            "---",
            "",
            f"# {self.name}",
            "",
        ]
        if self.summary:
            lines += [self.summary, ""]
        lines += [f"* {name}: {value}" for name, value in facts.items() if value]
        shared = ": several inputs share one pass through the network" if self.superposed else ""
        lines += ["", f"Made with mimonets{shared}.", ""]
        if self.accuracy:
            lines += ["## Accuracy", "", "| active streams | accuracy |", "| --- | --- |"]
            lines += [f"| {mode} | {self._percent(mode)} |" for mode in sorted(self.accuracy)]
            lines += [""]
        if self.usage:
            lines += ["## How to load it", "", "```python", self.usage, "```", ""]
        if self.limits:
            lines += ["## Limits", "", *(f"* {limit}" for limit in self.limits), ""]
        if self.provenance:
            lines += ["## Where it comes from", ""]
            lines += [f"* {name}: {value}" for name, value in self.provenance.items()]
            lines += [""]
        return "\n".join(lines)

    def _model_index(self) -> list[str]:
        """Say the accuracy as the Hub reads it, one metric for every operating point."""
        if not (self.accuracy and self.task and self.datasets):
            return []
        lines = [
            "model-index:",
            f"- name: {self.name}",
            "  results:",
            f"  - task: {{type: {self.task}}}",
            f"    dataset: {{name: {self.datasets[0]}, type: {self.datasets[0]}, split: test}}",
            "    metrics:",
        ]
        for mode in sorted(self.accuracy):
            what = f"accuracy, {mode} {'input' if mode == 1 else 'inputs'} per pass"
            lines += ["    - type: accuracy", f"      name: {what}"]
            lines += [f"      value: {round(self.accuracy[mode], 6)}"]
        return lines

    @staticmethod
    def read_accuracy(markdown: str) -> dict[int, float]:
        """Read the accuracy of every mode from a card, to a tenth of a percent.

        >>> ModelCard.read_accuracy(ModelCard(name="a", accuracy={1: 0.99, 4: 0.9}).as_markdown())
        {1: 0.99, 4: 0.9}
        """
        table = markdown.partition("## Accuracy")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| (\d+) \| ([\d.]+)(?: ± [\d.]+)? % \|$", table, re.MULTILINE)
        return {int(mode): round(float(percent) / 100, 6) for mode, percent in rows}

    def _percent(self, mode: int) -> str:
        assert self.accuracy is not None
        spread = (self.spread or {}).get(mode)
        plus = "" if spread is None else f" ± {100 * spread:.1f}"
        return f"{100 * self.accuracy[mode]:.1f}{plus} %"
