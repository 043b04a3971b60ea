import dataclasses
import json
import zipfile

import pytest
from typer.testing import CliRunner

import replacements
from patcher.rewriting import Anchor, Edit, Rewrite, edit_source
from tools import _wheels, drift, drift_families, drift_report, drift_scan
from tools.drift_scan import ABSENT, FOUND, LOST, MISS

REWRITE = Rewrite(
    name="work",
    package="thing",
    target="thing.mod:work",
    edits=(
        Edit(
            "check",
            (Anchor("if $X is None: ...", level="body"), Anchor("if not $X: ...", level="body")),
            text="__patcher__.a()",
        ),
        Edit("extra", (Anchor("print($...)"),), text="__patcher__.b()", required=False, lost="the extra"),
        Edit("end", action="append", text="__patcher__.c()"),
    ),
    calls=dict.fromkeys("abc", "json:loads"),
)
SOURCE = "def work(x):\n    if x is None:\n        x = 1\n    print(x)\n"


def outcomes(source):
    return [(f.status, f.outcome) for f in drift_scan.scan_source(source, REWRITE, "1.0")]


def test_each_edit_is_reported_with_the_alternative_that_matched():
    assert outcomes(SOURCE) == [(FOUND, "anchor 0"), (FOUND, "anchor 0"), (FOUND, "append")]
    assert outcomes(SOURCE.replace("x is None", "not x"))[0] == (FOUND, "anchor 1")


def test_an_optional_edit_without_a_place_is_lost_and_not_a_miss():
    assert outcomes(SOURCE.replace("print(x)", "pass"))[1] == (LOST, "no place")


def test_a_miss_has_its_nearest_candidate_and_leaves_the_other_edits_judged():
    found = drift_scan.scan_source(SOURCE.replace("is None", "is not None"), REWRITE, "1.0")
    assert [f.status for f in found] == [MISS, FOUND, FOUND]
    assert "+ if x is not None:" in found[0].detail
    assert found[0].candidates[0]["text"] == "if x is not None:"


def test_an_anchor_that_stands_twice_is_a_miss():
    twice = SOURCE + "    if x is None:\n        x = 2\n"
    assert outcomes(twice)[0] == (MISS, "AnchorError")


def test_a_patched_source_reads_as_already_there():
    assert {outcome for _, outcome in outcomes(edit_source(SOURCE, REWRITE).text)} == {"already there"}


def write_wheel(folder, version, source):
    path = folder / "wheels" / "thing" / f"thing-{version}-py3-none-any.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing/mod.py" if source is not None else "thing/other.py", source or "")
    return path


def test_a_wheel_without_the_module_is_a_miss(tmp_path):
    found = drift_scan.scan("thing", "1.0", write_wheel(tmp_path, "1.0", None), [REWRITE])
    assert [(f.status, f.outcome) for f in found] == [(MISS, "no module")] * 3


@pytest.fixture
def thing(monkeypatch, tmp_path):
    """A package of three releases, the last of which lost an anchor, in the cache."""
    monkeypatch.setattr(replacements, "REWRITES", (dataclasses.replace(REWRITE, since="1.0"),))
    write_wheel(tmp_path, "0.9", None)
    for version in ("1.0", "1.1"):
        write_wheel(tmp_path, version, SOURCE)
    write_wheel(tmp_path, "1.2", SOURCE.replace("is None", "is not None"))
    return ["--package", "thing", "--offline", "--cache", str(tmp_path)]


def run(*arguments):
    return CliRunner().invoke(drift.app, list(arguments))


def test_the_scan_exits_with_1_on_a_required_miss_and_shows_it(thing, tmp_path):
    result = run(*thing, "--out", str(tmp_path / "out"))
    assert result.exit_code == 1
    assert "+ if x is not None:" in result.output
    assert "1.0 – 1.1 (2)" in (tmp_path / "out" / "drift.md").read_text("utf-8")
    assert len(json.loads((tmp_path / "out" / "drift.json").read_text("utf-8"))["findings"]) == 9


def test_the_scan_passes_where_every_anchor_stands(thing):
    assert run(*thing, "--to", "1.1").exit_code == 0


def test_latest_looks_at_the_newest_alone(thing):
    found = json.loads(run(*thing, "--latest", "--json").stdout)["findings"]
    assert {f["version"] for f in found} == {"1.2"}


def test_a_package_is_scanned_because_a_rewrite_changes_it(thing, tmp_path):
    found = json.loads(run("--offline", "--cache", str(tmp_path), "--json").stdout)["findings"]
    assert {(f["package"], f["version"]) for f in found} == {("thing", "1.0"), ("thing", "1.1"), ("thing", "1.2")}


def test_a_rewrite_is_not_asked_of_releases_before_its_first(thing, monkeypatch):
    later = dataclasses.replace(REWRITE, name="later", since="1.2")
    monkeypatch.setattr(replacements, "REWRITES", (dataclasses.replace(REWRITE, since="1.0"), later))
    found = json.loads(run(*thing, "--json").stdout)["findings"]
    assert {f["version"] for f in found if f["column"].startswith("later")} == {"1.2"}
    assert {f["version"] for f in found} == {"1.0", "1.1", "1.2"}


def test_each_rewrite_says_from_which_release_on():
    assert all(rewrite.since for rewrite in replacements.REWRITES)


def test_releases_that_were_not_read_stay_in_the_files(thing, tmp_path, monkeypatch):
    out = tmp_path / "out"
    run(*thing, "--out", str(out))
    whole = json.loads((out / "drift.json").read_text("utf-8"))
    write_wheel(tmp_path, "1.2", SOURCE)
    run(*thing, "--latest", "--out", str(out))
    again = json.loads((out / "drift.json").read_text("utf-8"))
    assert [(f["version"], f["column"]) for f in again["findings"]] == [
        (f["version"], f["column"]) for f in whole["findings"]
    ]
    assert {f["status"] for f in whole["findings"]} == {FOUND, MISS}
    assert {f["status"] for f in again["findings"]} == {FOUND}
    assert "1.0 – 1.2 (3)" in (out / "drift.md").read_text("utf-8")
    monkeypatch.setattr(replacements, "REWRITES", (dataclasses.replace(REWRITE, name="renamed", since="1.0"),))
    run(*thing, "--latest", "--out", str(out))
    last = json.loads((out / "drift.json").read_text("utf-8"))["findings"]
    assert {(f["version"], f["column"].partition(":")[0]) for f in last} == {("1.2", "renamed")}


def test_an_empty_scan_does_not_pass(thing):
    assert run(*thing, "--from", "9").exit_code == 1


def test_a_release_that_cannot_be_fetched_does_not_pass(thing, monkeypatch):
    monkeypatch.setattr(_wheels, "releases", lambda *_: ["1.0", "1.1", "3.0"])
    real = _wheels.fetch

    def fetch(package, version, cache):
        if version == "3.0":
            raise _wheels.WheelError("no wheel of thing 3.0")
        return real(package, version, cache)

    monkeypatch.setattr(_wheels, "fetch", fetch)
    result = run(*[word for word in thing if word != "--offline"])
    assert result.exit_code == 1
    assert "no wheel of thing 3.0" in result.output


def test_a_range_over_several_packages_is_refused():
    assert run("--from", "1.0").exit_code == 2


@dataclasses.dataclass
class Row:
    name: str
    module: str
    mixers: tuple[str, ...]
    ops: tuple[str, ...]


ROW = Row("fam", "fam.modeling", ("FamMixer",), ("causal_conv1d", "ssd"))
KERNELS = {"conv_fn": ("causal_conv1d",), "scan_fn": ("ssd",), "fused_fn": ()}


def family(source):
    return [(status, outcome) for _, status, outcome, _ in drift_families.examine(source, ROW, KERNELS)]


def test_a_family_that_a_release_lacks_is_absent():
    assert {status for status, _ in family(None)} == {ABSENT}


def test_ops_reached_through_globals_of_the_module():
    source = "from k import conv_fn\nif x:\n    from k import scan_fn\nelse:\n    scan_fn = None\n"
    source += "class FamMixer:\n    def forward(self, x):\n        return scan_fn(conv_fn(x))\n"
    assert family(source) == [(FOUND, "global"), (FOUND, "global")]


def test_a_kernel_that_is_called_but_not_bound_in_the_module_is_no_dispatch_point():
    source = "class FamMixer:\n    def forward(self, x):\n        return k.scan_fn(conv_fn(x))\n"
    assert family(source) == [(MISS, "no dispatch"), (MISS, "no dispatch")]


def test_ops_reached_through_attributes_and_inherited_methods():
    source = "class Base:\n    def __init__(self):\n        self.conv_fn = conv_fn\n        self.scan_fn = scan_fn\n"
    assert family(source + "class FamMixer(Base):\n    pass\n") == [(FOUND, "attribute"), (FOUND, "attribute")]


def test_the_kernel_method_alone_decides_where_there_is_a_pair():
    source = "class FamMixer:\n    def cuda_kernels_forward(self, x):\n        return conv_fn(x)\n"
    source += "    def slow_forward(self, x):\n        return scan_fn(x)\n"
    assert family(source) == [(FOUND, "methods"), (MISS, "no dispatch")]


def test_a_convolution_called_in_line():
    source = "scan_fn = 1\nclass FamMixer:\n    def __init__(self):\n        self.conv = nn.Conv1d(1, 1, 4)\n"
    source += "    def forward(self, x):\n        return scan_fn(self.conv(x))\n"
    assert family(source) == [(FOUND, "in line"), (FOUND, "global")]


def test_a_convolution_class_of_the_module_is_known_to_be_padded():
    source = "scan_fn = 1\nclass FamConv(nn.Conv1d):\n    pass\n"
    source += "class FamMixer:\n    def __init__(self):\n        self.conv = FamConv(1)\n"
    source += "    def forward(self, x):\n        return scan_fn(self.conv(x))\n"
    assert family(source) == [(LOST, "padded"), (FOUND, "global")]


def test_a_renamed_mixer_is_a_miss_that_names_what_is_there():
    found = list(drift_families.examine("class FamMixer2:\n    pass\n", ROW, KERNELS))
    assert {status for _, status, _, _ in found} == {MISS}
    assert "FamMixer2" in found[0][3]


def test_rows_are_merged_only_while_neighbours_are_alike():
    finding = drift_scan.Finding("p", "1", "c", FOUND, "anchor 0")
    versions = {v: {"c": dataclasses.replace(finding, outcome=o)} for v, o in zip("1234", "aaba", strict=True)}
    assert [label for label, _ in drift_report.rows(versions, every=False)] == ["1 – 2 (2)", "3", "4"]
    assert len(drift_report.rows(versions, every=True)) == 4
