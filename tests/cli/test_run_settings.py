"""A plain call of `plugwright run` is read without click, and means what click makes of it."""

from collections.abc import Mapping
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugwright.cli.run import run
from plugwright.cli.run_settings import CONFIG, SETTINGS, Kind, RunSetting, plain_call

TEXTS: dict[Kind, list[str]] = {
    Path: ["/a", "b/../c", "", "="],
    str: ["x", "a=b", "127.0.0.1:9400", ""],
    float: ["0", "1.5", "90s", "1e3", " 2 ", "-1", "soon", "nan", ""],
}
ADDRESSES = ["", ",", "10.0.0.7, gateway", "gateway"]


def texts(setting: RunSetting) -> list[str]:
    if isinstance(setting.kind, tuple):
        return [*setting.kind, setting.kind[0].upper(), ""]
    return TEXTS.get(setting.kind, ADDRESSES)


def made_by_click(words: list[str], environment: Mapping[str, str]) -> dict[str, object] | None:
    """What click makes of the call; None for one that it refuses, or that does something else than serve."""
    names = {"config": "path"}
    with pytest.MonkeyPatch.context() as patch:
        for setting in (CONFIG, *SETTINGS):
            for name in setting.envvars:
                patch.delenv(name, raising=False)
        for name, text in environment.items():
            patch.setenv(name, text)
        try:
            context = run.make_context("run", list(words))
        except (click.UsageError, click.exceptions.Exit):
            return None
    return {setting.name: context.params[names.get(setting.name, setting.name)] for setting in (CONFIG, *SETTINGS)}


_SETTING = st.sampled_from([CONFIG, *SETTINGS])
_TEXT = _SETTING.flatmap(lambda setting: st.tuples(st.just(setting), st.sampled_from(texts(setting))))


@st.composite
def words(draw: st.DrawFn) -> list[str]:
    setting, text = draw(_TEXT)
    flag = draw(st.sampled_from([setting.flag, "-c"])) if setting is CONFIG else setting.flag
    return [f"{flag}={text}"] if flag != "-c" and draw(st.booleans()) else [flag, text]


@given(
    calls=st.lists(words(), max_size=4),
    variables=st.dictionaries(st.sampled_from([name for setting in SETTINGS for name in setting.envvars]), st.just("")),
    more=st.lists(_TEXT, max_size=3),
)
def test_a_plain_call_means_what_click_makes_of_it(
    calls: list[list[str]], variables: dict[str, str], more: list[tuple[RunSetting, str]]
) -> None:
    environment = variables | {setting.envvars[-1]: text for setting, text in more}
    call = [word for pair in calls for word in pair]
    plain = plain_call(call, environment)
    if plain is not None:
        assert plain == made_by_click(call, environment)


def test_a_time_may_have_a_unit() -> None:
    settings = made_by_click(["--watchdog", "2m"], {})
    assert settings is not None
    assert settings["watchdog"] == 120.0


def test_the_calls_of_manifests_are_plain() -> None:
    assert plain_call([], {}) == made_by_click([], {})
    call = ["--config=/etc/plugwright/plugwright.yaml", "--listen", "0.0.0.0:9400", "--log-format", "json"]
    environment = {"NODE_NAME": "node-1", "PLUGWRIGHT_NODE_ADDRESSES": "10.0.0.7,gateway", "PLUGWRIGHT_WATCHDOG": "30"}
    plain = plain_call(call, environment)
    assert plain == made_by_click(call, environment)
    assert plain is not None
    assert (plain["node_name"], plain["watchdog"]) == ("node-1", 30.0)
    assert plain["node_addresses"] == ("10.0.0.7", "gateway")


@pytest.mark.parametrize(
    "call",
    [
        ["--help"],
        ["--check"],
        ["--once"],
        ["--print-config", "json"],
        ["tape.py:Tape"],
        ["--no-such-flag", "x"],
        ["--kubelet-dir"],
        ["--kubelet-dir", "--check"],
        ["-cplugwright.yaml"],
        ["--registration", "both"],
        ["--watchdog", "soon"],
        ["--watchdog", "-1"],
        ["--watchdog", "nan"],
    ],
)
def test_anything_else_is_left_to_click(call: list[str]) -> None:
    assert plain_call(call, {}) is None
    assert plain_call(["-c", "plugwright.yaml", *call], {}) is None


def test_a_wrong_variable_is_left_to_click() -> None:
    assert plain_call([], {"PLUGWRIGHT_REGISTRATION": "both"}) is None
