"""The command `kitlib`.

    kitlib run [key=value ...] [--config FILE]       train; the defaults run the shipped demo
    kitlib config [key=value ...] [--config FILE]    print the settings that a run would use, and where each came from
    kitlib inspect [RECORDING] [VIEW ...]            look into the queue of a run that goes on, or that is over
    kitlib doctor [FILE ...] [--address ADDRESS]     look at a queue and say what is wrong with it, and the way out

verl 0.9.1: trainer/main_ppo.py, whose words `key=value` work here too. An error that kitlib raises on purpose is
printed as its sentence and ends the command with status 2; Ctrl-C ends it with 130; anything else is a defect and
keeps its traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from kitlib import __version__
from kitlib.errors import KitError

EXIT_REFUSED, EXIT_INTERRUPTED, EXIT_UNREAD = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the return value is the exit status."""
    args = parse(argv)
    try:
        status = args.command(args) or 0
        sys.stdout.flush()
        return status
    except KitError as error:
        print(f"kitlib: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except BrokenPipeError:  # `kitlib doctor | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the last flush complains
        return EXIT_UNREAD
    except KeyboardInterrupt:
        print("kitlib: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The arguments; `overrides` may stand before and after options."""
    parser = argparse.ArgumentParser(prog="kitlib", description="A readable V1 trainer and the inspector of its queue.")
    parser.add_argument("--version", action="version", version=f"kitlib {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("run", help="train; the defaults run the shipped demo")
    train.set_defaults(command=run)
    show = commands.add_parser("config", help="print the settings that a run would use, and where each came from")
    show.set_defaults(command=print_config)
    show.add_argument("--yaml", action="store_true", help="as YAML that --config takes back, instead of a table")
    for command in (train, show):
        command.add_argument("overrides", nargs="*", metavar="key=value", help="such as data.train_batch_size=32")
        command.add_argument("--config", metavar="FILE", help="YAML with settings; words key=value win over it")

    see = commands.add_parser("inspect", help="look into the queue of a run that goes on, or that is over")
    see.set_defaults(command=run_inspect, overrides=[])
    add_inspect_arguments(see)
    look = commands.add_parser("doctor", help="look at a queue and say what is wrong with it, and the way out")
    look.set_defaults(command=run_doctor, overrides=[])
    add_doctor_arguments(look)

    args, rest = parser.parse_known_args(argv)
    options = [word for word in rest if word.startswith("-")]
    if options:
        parser.error(f"unknown option {options[0]}")
    args.overrides += rest
    return args


def run(args: argparse.Namespace) -> None:
    """`kitlib run`."""
    from rich.console import Console

    from kitlib.config import load_config

    config = load_config(args.overrides, args.config)  # before the slow imports: a typo is told at once
    from kitlib.run import train

    train(config, Console())


def add_inspect_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kitlib inspect`."""
    views = (
        "presence partitions groups staleness stages diff stage waiting timeline bytes config failure key field tokens"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="RECORDING|VIEW|key=value",
        help=f"a folder (default: the newest one below this), a setting of the run, or a view: {views}",
    )
    parser.add_argument("--address", help="of the Ray cluster of a live run; auto: the one on this machine")
    parser.add_argument("--values", action="store_true", help="of a live run: read tensors too, such as rewards")
    parser.add_argument("--config", metavar="FILE", help="YAML with the settings of a run that recorded none")
    parser.add_argument("--once", action="store_true", help="print and end, instead of following on the screen")
    parser.add_argument("--html", metavar="FILE", help="write one page instead of printing")
    parser.add_argument("--at", metavar="MOMENT", help="recorded moment: number, stage or stage:step; default: last")
    parser.add_argument("--stage", help="judge by the needs of this stage; default: the one that follows the moment")
    parser.add_argument("--partition", help="default: train")
    parser.add_argument("--key", help="one key, or a pattern for presence; of config: one setting")
    parser.add_argument("--field", help="one field, or a pattern for presence")
    parser.add_argument("--tokenizer", metavar="PATH", help="model folder for the text of tokens; default: the run's")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two looks")


def run_inspect(args: argparse.Namespace) -> int:
    """`kitlib inspect`."""
    from kitlib.inspector.command import run_inspect as run_it

    return run_it(args)


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `kitlib doctor`."""
    parser.add_argument(
        "files",
        nargs="*",
        metavar="FILE",
        help="a run, a recording, a snapshot or a case file; default: the newest run",
    )
    parser.add_argument("--case", action="store_true", help="FILEs are case files; prints one JSON object a line")
    parser.add_argument(
        "--check",
        action="store_true",
        help="seven questions about a run, settings first: FILE is its folder (default: the newest one), words "
        "key=value are the overrides that it was started with",
    )
    parser.add_argument("--address", help="of the Ray cluster of a run; auto: the one on this machine")
    parser.add_argument("--logs", metavar="PATH", help="with --check: a log or a folder of logs, such as Ray's")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.add_argument("--stage", help="the stage about to run; default: guessed from the queue")
    parser.add_argument("--config", metavar="FILE", help="YAML of the run's resolved config")
    parser.add_argument("--step", type=int, help="the trainer's global_steps")
    parser.add_argument("--no-values", action="store_true", help="leave out the rules that read values")


def run_doctor(args: argparse.Namespace) -> int:
    """`kitlib doctor`: status 1 if there is an error."""
    if args.check:
        return check(args)
    from kitlib.inspector.doctor.command import run_doctor as run_it

    return run_it(args)


def check(args: argparse.Namespace) -> int:
    """`kitlib doctor --check`: status 1 if one of the seven questions failed."""
    from kitlib.inspector.doctor.command import chosen_run, source_words
    from kitlib.run import check_run

    overrides = [word for word in args.files if "=" in word]
    folders = [word for word in args.files if "=" not in word] or ["."]
    run = chosen_run(folders[0])
    more = {"stage": args.stage, "global_steps": args.step, "shell": source_words(str(run), args.config)}
    answers = check_run(run, overrides=overrides, logs=args.logs, **more, **settings(args.config))
    print(answers.text(120))
    return 0 if answers.ok else 1


def settings(file: str | None) -> dict[str, Any]:
    """{"config": ..} of a file with settings, {} without one: a recording has its own."""
    if file is None:
        return {}
    from kitlib.config import load_config

    return {"config": load_config(file=file)}


def print_config(args: argparse.Namespace) -> None:
    """`kitlib config`."""
    from rich.console import Console

    from kitlib.config import load_config

    config = load_config(args.overrides, args.config)
    if args.yaml:
        sys.stdout.write(config.to_yaml())
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(config.table())


if __name__ == "__main__":
    sys.exit(main())
