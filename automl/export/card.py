"""The model card of an exported folder: what the network is, how good, how to load it, and where it comes from. Pure text."""

import json
from collections.abc import Mapping

from manta_swarm.automl.data.dataset import STEREO
from manta_swarm.automl.data.names import OWN_IMAGES, OWN_PAIRS, SHARDS, UNKNOWN
from manta_swarm.automl.export.description import LOCAL, Description

_PIPELINES = {"classification": "image-classification", "stereo": "depth-estimation"}
_METRICS = {
    "accuracy": ("accuracy", "{:.2%}", "of the samples"),
    "epe": ("EPE", "{:.3f} px", "mean error of a disparity"),
    "d1": ("D1", "{:.2%}", "of the pixels, wrong by more than 3 px and 5 %"),
    "bad3": ("bad-3", "{:.2%}", "of the pixels, wrong by more than 3 px"),
}

_CARD = """\
---
{front_matter}
---

# {title}

{what}

- Input: {inputs}.
- Output: {output}.
- {macs:,.2f} M multiply-accumulates a sample, {num_weights:,} weights.
{presentation}- Architecture `{identity}`: `{text}`

## How good it is

On the {samples} held-out samples of `{dataset}` of its part "test": training does not see them, and a search does not choose by them.

| metric | value | |
|---|---|---|
{metrics}

`manta-search evaluate FOLDER` measures it again.
{int8}
## How to load it

```python
from pathlib import Path

from manta_swarm.automl.export import load_folder

network = load_folder(Path("FOLDER"))  # a torch.nn.Module
{call}
```

`config.json` says what the network is, `model.safetensors` holds its weights and the running statistics of its normalisations, under the
names of a plain `torch.nn.Module`. There is no code and no pickle in this folder.

## How it was made

Cut out of the supernet `{supernet}` after round {round} of its training, {trained}. Nothing was
fine-tuned: the statistics of the normalisations were measured anew, on up to {calibration} training samples of `{dataset}`.

| provenance | |
|---|---|
| run | `{run}` |
| state after round {round}, SHA-256 | `{state}` |
| {ledger} | `{ledger_root}` |
| data set, digest | `{dataset_digest}` |
| licence of the network, of the data set | {licences} |
| made with | {made_with} |
{ledger_note}"""

_NO_LEDGER = "\nNo tree head of a public log lay beside the snapshot, so its root is unknown: nothing here ties the state to a log.\n"


def card(description: Description) -> str:
    """Return the card as Markdown with YAML front matter."""
    value = json.loads(description.to_json())
    provenance = description.provenance
    channels, height, width = description.input_shape
    is_stereo = description.space.task == STEREO
    names = " and ".join(f"`{name}`" for name in description.input_names)
    colours = value["inputs"]["colours"]
    log_is_known = provenance.ledger_root != UNKNOWN
    return _CARD.format(
        front_matter=_front_matter(description),
        title=f"{description.supernet}, architecture {description.architecture.id[:8]}",
        what=(
            "A stereo network: how far each point of the left view is shifted in the right one."
            if is_stereo
            else f"An image classifier for the {description.space.num_classes} classes of `{description.dataset}`."
        ),
        inputs=f"{names}, {colours}, float32 (batch, {channels}, {height}, {width}), from 0 to 1",
        output=(
            f"`disparity`, float32 (batch, {height}, {width}), in pixels of the left view"
            if is_stereo
            else f"`probabilities`, float32 (batch, {description.space.num_classes}); they add up to 1"
        ),
        macs=value["macs"] / 1e6,
        num_weights=value["num_weights"],
        presentation=_presentation_lines(description),
        identity=description.architecture.id,
        text=description.architecture.text,
        samples=description.test_samples,
        dataset=description.dataset,
        metrics=_metric_rows(description.metrics),
        int8=_int8_lines(description),
        call=(
            f"disparity = network(left, right)  # both (batch, {channels}, {height}, {width})"
            if is_stereo
            else f"probabilities = network(image)  # (batch, {channels}, {height}, {width})"
        ),
        supernet=description.supernet,
        trained="on one computer" if provenance.run == LOCAL else "by volunteers' computers together",
        calibration=description.calibration_samples,
        round=provenance.round,
        run=provenance.run,
        state=provenance.state,
        ledger=f"public log, root at {provenance.ledger_size} entries" if log_is_known else "public log, root",
        ledger_root=provenance.ledger_root,
        dataset_digest=description.dataset_digest,
        licences=", ".join(_licences(description)),
        made_with=description.made_with,
        ledger_note="" if log_is_known else _NO_LEDGER,
    )


def metric_texts(metrics: Mapping[str, float]) -> str:
    """Return figures as one line of text, like "EPE 1.250 px, D1 12.00%, bad-3 13.00%"."""
    return ", ".join(f"{_METRICS[name][0]} {_METRICS[name][1].format(figure)}" for name, figure in metrics.items())


def _licences(description: Description) -> tuple[str, str]:
    """Return the licences of the network and of the data set; unknown where nobody said."""
    told = description.presentation
    return (UNKNOWN, UNKNOWN) if told is None else (told.licence, told.dataset_licence)


def _presentation_lines(description: Description) -> str:
    """Return how a picture becomes an input, and where the names of the classes are."""
    told = description.presentation
    if told is None:
        return ""
    side = told.preparation.kept_side
    first = "" if side is None else f"{side} x {side} pixels of whole levels, then\n  "
    crop = f"{told.preparation.crop}, {first}brought to the size of the input"
    how = f"{crop},\n  averaged over boxes where it shrinks, bilinear where it grows"
    scale = f"levels divided by {told.preparation.white}, nothing subtracted"
    names = "- Classes: `id2label` in `config.json` has their names, in the order of the output.\n" if told.class_titles else ""
    return f"- How a picture becomes an input: {how};\n  {scale}.\n{names}"


def _int8_lines(description: Description) -> str:
    """Return how the network with numbers of 8 bits compares."""
    int8 = description.int8
    if int8 is None:
        return ""
    rows = [
        f"| {_METRICS[name][0]} | {_METRICS[name][1].format(figure)} | {_METRICS[name][1].format(int8.metrics[name])} |"
        for name, figure in description.metrics.items()
    ]
    latency = int8.latency
    return (
        f"\nWith weights and activations of 8 bits, scaled by {int8.calibration_samples} training samples; the same held-out samples:\n\n"
        "| | fp32 | int8 |\n|---|---|---|\n" + "\n".join(rows) + "\n"
        f"| one sample | {latency.fp32_ms:.3g} ms | {latency.int8_ms:.3g} ms |\n\n"
        f"Both by {latency.runtime} with threads: {latency.threads}, on this device: {latency.device}.\n"
    )


def _metric_rows(metrics: Mapping[str, float]) -> str:
    rows = [(_METRICS[name][0], _METRICS[name][1].format(figure), _METRICS[name][2]) for name, figure in metrics.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _front_matter(description: Description) -> str:
    """Return YAML; every text in it is written as a JSON string, which YAML reads as it is."""
    metrics = [{"type": name, "value": figure} for name, figure in description.metrics.items()]
    licence, _ = _licences(description)
    lines = {
        "library_name": "manta-swarm",
        "license": licence,
        **({} if description.dataset.startswith((OWN_IMAGES, OWN_PAIRS, SHARDS)) else {"datasets": [description.dataset]}),
        "pipeline_tag": _PIPELINES[description.space.task],
        "tags": ["once-for-all", "manta", description.space.task, description.supernet],
        "model-index": [
            {
                "name": f"{description.supernet}-{description.architecture.id[:8]}",
                "results": [
                    {
                        "task": {"type": _PIPELINES[description.space.task]},
                        "dataset": {"type": description.dataset, "name": description.dataset, "split": "test"},
                        "metrics": metrics,
                    }
                ],
            }
        ],
    }
    return "\n".join(f"{name}: {json.dumps(value)}" for name, value in lines.items())
