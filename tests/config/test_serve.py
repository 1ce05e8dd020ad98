"""The key `serve` of a resource."""

import pytest

from plugwright.config import schema
from plugwright.config.effective_values import effective
from plugwright.config.schema import Config
from plugwright.errors import ConfigError
from plugwright.sdk.serve_settings import ServeMode, ServeSettings, Split, TaintSettings


def read(serve: str, name: str = "example.com/tape") -> Config:
    return schema.read("plugwright.yaml", f"resources:\n- name: {name}\n  mock: {{count: 2}}\n  serve: {serve}\n")


def serve_of(config: Config) -> ServeSettings:
    [plugin] = config.plugins()
    return plugin.serve


def test_a_resource_without_it_is_served_by_the_device_plugin_api() -> None:
    config = schema.read("plugwright.yaml", "resources: [{name: example.com/tape, mock: {count: 2}}]")
    assert serve_of(config).api is ServeMode.DEVICE_PLUGIN


@pytest.mark.parametrize("api", list(ServeMode))
def test_one_word_names_the_api(api: ServeMode) -> None:
    assert serve_of(read(api.value)) == ServeSettings(api=api, split=Split(keep_free=int(api is ServeMode.BOTH)))


def test_both_apis_keep_a_free_device_unless_the_file_splits_them() -> None:
    assert serve_of(read("both")).split.keep_free == 1
    assert serve_of(read("{api: both}")).split.keep_free == 1
    assert serve_of(read("{api: both, keepFree: 0}")).split.keep_free == 0
    assert serve_of(read("{api: both, split: {dra: 4}}")).split.keep_free == 0
    assert serve_of(read("dra")).split.keep_free == 0


def test_a_mapping_has_the_details() -> None:
    serve = "{api: both, driver: tapes.example.com, split: {dra: 4}, keepFree: 1, "
    serve += "taints: {effect: NoExecute, grace: 90, budget: 2}}"
    assert serve_of(read(serve)) == ServeSettings(
        api=ServeMode.BOTH,
        driver="tapes.example.com",
        split=Split(dra=4, keep_free=1),
        taints=TaintSettings(effect="NoExecute", grace=90.0, budget=2),
    )


def test_a_split_may_select_by_attributes() -> None:
    serve = serve_of(read("{api: both, split: {attributes: {model: [H100*, H200*], numa: 1}}}"))
    assert serve.split.attributes == {"model": ("H100*", "H200*"), "numa": ("1",)}


@pytest.mark.parametrize("api", list(ServeMode))
def test_specs_of_claims_are_where_the_host_has_them(api: ServeMode) -> None:
    """Also for a resource that claims no longer have: earlier ones may still hold devices."""
    text = f"host: {{cdi: /etc/cdi}}\nresources: [{{name: example.com/tape, mock: {{count: 2}}, serve: {api.value}}}]"
    assert serve_of(schema.read("plugwright.yaml", text)).cdi == "/etc/cdi"


@pytest.mark.parametrize(
    ("serve", "problem"),
    [
        ("maybe", "serve: must be one of device-plugin, dra, both, got 'maybe'"),
        ("{api: maybe}", "serve.api: must be one of device-plugin, dra, both, got 'maybe'"),
        ("7", "serve: expected"),
        ("{}", "serve: the key 'api' is missing"),
        ("{api: dra, drivr: x}", "serve: unknown key 'drivr': did you mean 'driver'?"),
        ("{api: device-plugin, driver: x.y}", "serve.driver: driver needs api: dra or both"),
        ("{api: dra, split: {dra: 1}}", "serve.split: split needs api: both"),
        ("{api: dra, keepFree: 1}", "serve.keepFree: keepFree needs api: both"),
        ("{api: both, split: {dra: 1, attributes: {a: b}}}", "split must have a number or attributes, got both"),
        ("{api: both, split: {dra: -1}}", "serve.split.dra"),
        ("{api: dra, driver: gpu.nvidia.com}", "NVIDIA's own DRA driver"),
        ("{api: dra, driver: ../x}", "driver must be a DNS name"),
        (
            "{api: dra, taints: {effect: noexecute}}",
            "serve.taints.effect: must be one of NoExecute, NoSchedule, None, got 'noexecute'",
        ),
        ("{api: dra, taints: {grace: -1}}", "serve.taints.grace"),
    ],
)
def test_what_cannot_be_followed_is_an_error_with_its_line(serve: str, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(serve)
    assert problem in str(raised.value)
    assert str(raised.value).startswith("plugwright.yaml:4: resources[0].serve")


def test_two_resources_cannot_have_one_driver() -> None:
    text = """resources:
- {name: example.com/tape, mock: {count: 1}, serve: dra}
- {name: example.com/disk, mock: {count: 1}, serve: {api: dra, driver: tape.example.com}}
"""
    with pytest.raises(ConfigError, match=r"yaml:3: .*driver tape.example.com is already that of example.com/tape"):
        schema.read("plugwright.yaml", text)


def test_a_name_that_the_machine_decides_has_no_driver_of_one_name() -> None:
    text = "resources: [{name: 'nvidia.com/{model}', nvidia: {}, serve: {api: dra, driver: a.b}}]"
    with pytest.raises(ConfigError, match="driver needs a literal resource name"):
        schema.read("plugwright.yaml", text)


def test_a_change_of_it_makes_another_plugin() -> None:
    before, after = read("device-plugin"), read("dra")
    [plugin] = before.plugins()
    [same] = read("device-plugin").plugins(before, {plugin.resource: plugin})
    [other] = after.plugins(before, {plugin.resource: plugin})
    assert same is plugin
    assert other is not plugin
    assert other.serve.api is ServeMode.DRA


def test_its_values_are_shown_with_their_lines() -> None:
    shown = {name: (value, source) for name, value, source in effective(read("{api: both, keepFree: 2}"))}
    assert shown["resources[0].serve.api"] == ("both", "plugwright.yaml:4")
    assert shown["resources[0].serve.keepFree"] == (2, "plugwright.yaml:4")
    assert shown["resources[0].serve.split.dra"] == (None, "default")


def test_it_is_in_the_schema_of_the_file() -> None:
    import msgspec

    [entry] = [kind for kind in msgspec.json.schema(schema.file_type())["$defs"].values() if "serve" in str(kind)][:1]
    assert entry
