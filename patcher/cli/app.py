"""The commands of ``patcher``, one function each.

Nothing heavy is imported here: ``patcher --help`` must answer at once.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from patcher.cli import terminal

app = typer.Typer(
    name="patcher",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _set_debug(value: bool) -> None:
    terminal.debug = terminal.debug or value


Debug = Annotated[
    bool, typer.Option("--debug", callback=_set_debug, help="Show the traceback of an error.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of tables.", show_default=False)]


class Size(str, Enum):
    """Sizes of the demo."""

    small = "small"
    tiny = "tiny"


@app.callback()
def patcher_options(debug: Debug = False) -> None:
    """Train packed and padding-free batches correctly on hybrid models with TRL's SFTTrainer.

    \b
    Examples:
      patcher demo                      what packing does to a hybrid model, in minutes on a CPU
      patcher run train.py --epochs 1   an unmodified script, with the patch
      patcher check Qwen/Qwen3.5-4B     whether a model is safe to pack here
      patcher doctor                    what is installed, what is patched, what to mend

    \b
    Exit codes:
      0  done, and the answer is yes
      1  done, and the answer is no: documents mix, or something needs mending
      2  could not be done: bad usage, a missing file, an error (--debug shows the traceback)
    """  # noqa: D301 - click reads the backspace


@app.command()
def demo(
    *,
    output: Annotated[Path, typer.Option(help="Folder for the picture, the report and the tokenizer.")] = Path("demo"),
    steps: Annotated[int | None, typer.Option(min=2, help="Optimizer steps of each run; one epoch by default.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the split and the order of the documents.")] = 0,
    size: Annotated[Size, typer.Option(help="small takes minutes on two cores; tiny is a smoke test.")] = Size.small,
    plot: Annotated[bool, typer.Option(help="Write demo.png; needs matplotlib.")] = True,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what packing does to a small hybrid model.

    Trains it on real text, packed and padded, and compares. Writes demo.png and report.json into the output
    folder. Exits 1 if the patched model mixes documents.

    \b
    Examples:
      patcher demo
      patcher demo --output /tmp/demo --seed 1 --json
    """  # noqa: D301 - click reads the backspace
    from patcher.cli.demo import command

    raise typer.Exit(command.run(output, size.value, steps=steps, seed=seed, plot=plot, as_json=as_json))


@app.command()
def check(
    model: Annotated[str, typer.Argument(help="A model's folder, its config.json, or a hub id.")],
    *,
    weights: Annotated[
        bool, typer.Option("--weights/--no-weights", help="Use the model's weights where they are on this machine.")
    ] = True,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.", show_default=False)
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say whether a model is safe to pack here, found out by running it.

    Without weights a small random model of the same architecture is run, with every kind of layer. Nothing but a
    config is downloaded. Exits 0 if it packs, 1 if it would train padded, 2 on an error.

    \b
    Examples:
      patcher check ./my-model
      patcher check config.json --json
      patcher check Qwen/Qwen3.5-4B --no-weights
    """  # noqa: D301 - click reads the backspace
    from patcher.cli import check as command

    raise typer.Exit(command.run(model, weights=weights, trust_remote_code=trust_remote_code, as_json=as_json))


@app.command()
def verify(
    *,
    model: Annotated[str, typer.Option(help="A folder with a model's weights, or a hub id in the cache.")],
    data: Annotated[Path, typer.Option(help="Text (blank lines between documents), .jsonl, or a datasets folder.")],
    tokenizer: Annotated[str | None, typer.Option(help="A tokenizer's folder, if not the model's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Documents to verify with, from the start of the data.")] = 32,
    max_length: Annotated[int, typer.Option(min=2, help="Tokens of a row; longer documents are cut.")] = 1024,
    gradients: Annotated[bool, typer.Option(help="Compare gradients as well.")] = True,
    plot: Annotated[Path | None, typer.Option(help="Write a PNG here; needs matplotlib.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the model.", show_default=False)
    ] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare packed with alone, on your own model and data.

    Log-probabilities, loss and gradients of each document, against what rounding does to the same document in
    another batch shape, without the patch and with it. Exits 1 if a packed document is not what it is alone.

    \b
    Examples:
      patcher verify --model ./my-model --data documents.txt
      patcher verify --model ./my-model --data chats.jsonl --limit 8 --plot verify.png --json
    """  # noqa: D301 - click reads the backspace
    from patcher.cli import verify as command

    settings = command.Settings(model, data, tokenizer, limit, max_length, gradients, trust_remote_code)
    raise typer.Exit(command.run(settings, plot=plot, as_json=as_json))


@app.command()
def status(*, as_json: Json = False, debug: Debug = False) -> None:
    """Say what is patched, by which anchors.

    Imports the libraries that get patched. Exits 1 if a rewrite could not be made.
    """
    from patcher.cli import status as command

    raise typer.Exit(command.run(as_json=as_json))


@app.command()
def diff(
    rewrite: Annotated[str | None, typer.Argument(help="Name of one rewrite, as in patcher status; else all.")] = None,
    *,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show each rewritten function as a diff against upstream.

    \b
    Examples:
      patcher diff
      patcher diff sft-trainer | less
    """  # noqa: D301 - click reads the backspace
    from patcher.cli import diff as command

    raise typer.Exit(command.run(rewrite, as_json=as_json))


@app.command()
def doctor(*, as_json: Json = False, debug: Debug = False) -> None:
    """Say what is installed, what is patched, what is wrong, and how to mend it.

    Exits 1 if something has to be mended before packed training is right.
    """
    from patcher.cli.doctor import command

    raise typer.Exit(command.run(as_json=as_json))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A script, or the name of a module after -m.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    *,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT names a module, as for python -m.")] = False,
) -> None:
    """Run an unmodified script with the patch installed.

    Everything after SCRIPT belongs to the script: its options, its exit code, its signals.

    \b
    Examples:
      patcher run train.py --epochs 1
      patcher run -m trl.scripts.sft --help
      accelerate launch -m patcher run train.py --epochs 1
      torchrun --nproc-per-node 2 -m patcher run train.py --epochs 1
    """  # noqa: D301 - click reads the backspace
    from patcher.cli.launch import Launch, Target

    target = Target(script, tuple(arguments or ()), module=module)
    target.check()
    raise Launch(target)
