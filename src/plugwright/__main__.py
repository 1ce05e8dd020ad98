"""The program `plugwright`, also as `python -m plugwright`: handles signals first, because commands load slowly."""

import sys

from plugwright.system.early_signals import end_on_interrupt, handle_early_signals
from plugwright.system.init_process import leave_init

__all__ = ["main"]

_NO_DAEMON = ("--check", "--once", "--print-config", "--help", "-h")


def main() -> None:
    arguments = sys.argv[1:]
    is_daemon = arguments[:1] == ["run"] or arguments[:2] == ["mps", "run"]
    if is_daemon and not any(argument.startswith(_NO_DAEMON) for argument in arguments):
        leave_init()
        handle_early_signals()
    else:
        end_on_interrupt()
    if arguments[:1] == ["run"]:
        from plugwright.cli.lean_start import serve_plainly

        if serve_plainly(arguments[1:]):
            return
    from plugwright.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
