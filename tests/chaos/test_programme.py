"""`make chaos` itself: cheap faults go through it to the table, and a promise that does not hold is seen and told."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from chaos.experiment import Cell, Experiment, Fault, Plan, Row, experiment
from chaos.faults import holders
from chaos.rig import Rig
from chaos.run import try_all

from chaos import catalogue, run, table

QUICK = Plan(quick=True)
PAGE = f"# Page\n\n{table.BEGIN}\n{table.END}\n\nafter\n"


def named(name: str) -> Experiment:
    return next(found for found in catalogue.EXPERIMENTS if found.name == name)


async def only(found: Experiment) -> Row:
    [row] = await try_all([found], QUICK)
    return row


@pytest.mark.parametrize("name", ["vanished", "directory", "descriptors", "huge-pods"])
async def test_a_fault_is_injected_and_observed(name: str) -> None:
    row = await only(named(name))
    assert not row.skipped
    assert row.recovered.text != "n/a", row
    assert row.lost.holds, row.lost


@asynccontextmanager
async def killed(rig: Rig) -> AsyncIterator[None]:
    """A fault that nothing can survive: what a broken promise looks like."""
    rig.daemon.send(signal.SIGKILL)
    await rig.daemon.ended(10)
    yield


async def test_a_promise_that_does_not_hold_is_told() -> None:
    row = await only(experiment(Fault("killed", "the daemon is killed", killed, truthful=False)))
    assert not row.holds
    assert not row.served.holds
    assert "the daemon has ended with -9" in row.recovered.text


async def test_releases_and_kubelet_that_come_and_go_leave_every_card_one_holder() -> None:
    life = await holders.search(300, seed=4)
    assert life.violations == []
    assert life.done["plugin_pod"] + life.done["claim_pod"] > 0


async def test_an_experiment_that_hangs_is_a_broken_promise() -> None:
    async def hang(_: Plan) -> Row:
        await asyncio.Event().wait()
        raise AssertionError

    row = await only(Experiment("hang", "it hangs", hang, limit=0.01))
    assert not row.holds
    assert "TimeoutError" in row.recovered.text


async def test_a_fault_that_cannot_be_made_here_is_left_out_with_the_reason() -> None:
    async def never(_: Plan) -> Row:
        raise AssertionError

    row = await only(Experiment("moon", "the moon falls", never, lambda: "needs a moon"))
    assert row.skipped == "needs a moon"
    assert row.holds
    assert "| the moon falls | not tried: needs a moon |" in table.render([row])


def test_every_fault_has_a_name_and_a_title_of_its_own() -> None:
    names = [found.name for found in catalogue.EXPERIMENTS]
    titles = [found.title for found in catalogue.EXPERIMENTS]
    assert len(set(names)) == len(names)
    assert len(set(titles)) == len(titles)


def test_rows_that_were_not_tried_again_stay_in_the_page() -> None:
    first = [Row("a", "one", served=Cell("old")), Row("b", "two", served=Cell("old"))]
    page = table.replace_between_markers(PAGE, first, ["one", "two"], "Seen: today.")
    page = table.replace_between_markers(page, [Row("a", "one", served=Cell("new"))], ["one", "two"], "Seen: later.")
    assert page.startswith("# Page\n")
    assert page.endswith("\n\nafter\n")
    assert [line.split(" | ")[:2] for line in page.splitlines() if line.startswith("| ")][2:] == [
        ["| one", "new"],
        ["| two", "old"],
    ]
    assert "Seen: later." in page
    assert "Seen: today." not in page


def test_a_broken_promise_is_bold_and_no_cell_breaks_the_table() -> None:
    [line] = table.render([Row("a", "one", lost=Cell("left | behind\nand torn", holds=False))]).splitlines()[2:]
    assert line == "| one | n/a | n/a | n/a | **left ¦ behind and torn** |"


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="must have"):
        table.replace_between_markers("# Page\n", [], [], "")


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_exit_status_says_whether_every_promise_holds(tmp_path: Path, holds: bool, code: int) -> None:

    page, numbers = tmp_path / "page.md", tmp_path / "rows.json"
    page.write_text(PAGE)
    options = run.parser().parse_args(["--write", str(page), "--json", str(numbers)])
    rows = [Row("gpus", next(f.title for f in catalogue.FAULTS if f.name == "gpus"), lost=Cell("seen", holds))]
    assert run.report(options, rows) == code
    assert "seen" in page.read_text()
    assert json.loads(numbers.read_text())[0]["name"] == "gpus"


async def test_an_unknown_fault_is_wrong_usage() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "chaos.run", "--only", "nonsense", stderr=asyncio.subprocess.PIPE
    )
    _, written = await process.communicate()
    assert process.returncode == 2
    assert b"no fault is called nonsense" in written
