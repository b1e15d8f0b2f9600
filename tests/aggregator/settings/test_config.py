import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manta_swarm.aggregator.settings.config import RunConfig, load_run_file, template, write_run_file
from manta_swarm.aggregator.settings.sections import RunSection
from manta_swarm.automl.data.catalog import digits, load_dataset
from manta_swarm.automl.spaces.cost import cost_table, macs
from manta_swarm.automl.spaces.space import TINY, space_named
from manta_swarm.automl.training.settings import thin, usual
from manta_swarm.protocol.errors import UserError
from manta_swarm.protocol.exchange import MAX_AGE, Exchange, codec_named
from manta_swarm.protocol.manifest import TASKS, SignedManifest
from manta_swarm.protocol.private import PrivateData
from manta_swarm.protocol.rewards import architecture_cost
from manta_swarm.protocol.signing import Identity, peer_name, sha256
from manta_swarm.protocol.verdicts import AuditRules

OPERATOR = Identity(b"\x01" * 32)
AUDITOR = Identity(b"\x09" * 32)
STATE = sha256(b"state 0")

CHANGED: dict[str, dict[str, Any]] = {
    "run": {"name": "my-run.2", "algorithm": "model-parallel", "schedule": "shrinking", "seed": 2**63 - 1, "rounds": 7}
    | {"cohorts": "affinity", "data": "private"},
    "data": {"dataset": "folder-garden", "supernet": "classifier-base", "classes": ("rose", 't"lip', "über")},
    "round": {
        "target_batch": 33,
        "microbatch_samples": 3,
        "weight_cap": 12,
        "max_claim_samples": 99,
        "first_open_s": 12345.125,  # more digits than a short form has
        "min_open_s": 0.001,
        "max_open_s": 86400,
    },
    "optimizer": {
        "name": "sgd",
        "learning_rate": "0.1",
        "beta1": "0",
        "beta2": "0.5",
        "epsilon": "0",
        "weight_decay": "0",
        "warmup_percent": 0,
        "outer_rate": "0.7",
        "outer_momentum": "0",
    },
    "exchange": {"local_steps": 3, "codec": "topk-64-2", "residual_percent": 95, "max_rows": 1024, "first_min_exponent": -20},
    "rewards": {"pool": 1, "private_percent": 100},
    "trust": {
        "mode": "audited",
        "proven": (peer_name(OPERATOR.public_key),),
        "auditors": (peer_name(AUDITOR.public_key),),
        "proven_after": 10,
        "audit_percent": 6,
        "newcomer_percent": 11,
        "kept_rounds": 50,
        "pending_rounds": 119,
        "settle_s": 60.0,
    },
    "aggregator": {
        "evaluate_every": 5,
        "audit_share": 0.5,
        "audit_disk_gb": 0.5,
        "front_every": 7,
        "keep_snapshots": 1,
        "keep_bodies": 9,
        "witnesses": (peer_name(OPERATOR.public_key),),
        "data_root": "/data",
    },
}


def file_with(directory: Path, text: str) -> Path:
    path = directory / "run.toml"
    path.write_text(text)
    return path


def refusal(directory: Path, text: str) -> str:
    path = file_with(directory, text)
    with pytest.raises(UserError) as caught:
        load_run_file(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_template_with_other_settings_reads_back_as_them() -> None:
    changed = RunConfig.model_validate(CHANGED)
    for section, values in CHANGED.items():
        for name, value in values.items():
            assert getattr(getattr(changed, section), name) != getattr(getattr(RunConfig(), section), name), name
            assert getattr(getattr(changed, section), name) == value
    assert RunConfig(**tomllib.loads(template(changed))) == changed


@given(
    st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
    # What TOML can carry in one line: a run file with more than that has no use, and its manifest is refused.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")),
)
def test_every_number_and_text_survives_the_template(first_open_s: float, name: str) -> None:
    config = RunConfig.model_validate({"run": {"name": name}, "round": {"first_open_s": first_open_s}})
    assert RunConfig(**tomllib.loads(template(config))) == config


def test_every_key_is_in_the_template_and_explained_on_the_line_above_it_and_what_may_change_later_is_said() -> None:
    lines = template(RunConfig()).splitlines()
    (aggregator,) = (line for line in lines if line.startswith("[aggregator]"))
    assert "may change at any start" in aggregator
    for section_name, section_field in RunConfig.model_fields.items():
        assert any(line.split("#")[0].strip() == f"[{section_name}]" for line in lines), section_name
        assert section_field.annotation is not None
        for name, field in section_field.annotation.model_fields.items():
            assert field.description, name
            places = [place for place, line in enumerate(lines) if line.startswith(f"{name} = ")]
            assert any(lines[place - 1] == f"# {field.description}" for place in places), name


def test_a_file_may_leave_out_what_it_does_not_change(tmp_path: Path) -> None:
    assert load_run_file(file_with(tmp_path, "")) == RunConfig()
    assert load_run_file(file_with(tmp_path, "[run]\nrounds = 5\n")) == RunConfig(run=RunSection(rounds=5))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[run]\nronds = 5", "run.ronds"),
        ("[rund]\nrounds = 5", "rund"),
        ("[round]\nFIRST_OPEN_S = 5", "round.FIRST_OPEN_S"),
    ],
)
def test_an_unknown_key_is_named_and_the_file_with_all_keys_too(tmp_path: Path, text: str, key: str) -> None:
    message = refusal(tmp_path, text)
    assert f"{key}: " in message
    assert "manta-aggregator init" in message


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "algorithm", '"parallel"'),
        ("run", "schedule", '"growing"'),
        ("run", "cohorts", '"labels"'),
        ("run", "seed", "-1"),
        ("run", "rounds", "0"),
        ("data", "dataset", '"My Images"'),
        ("data", "supernet", '"classifier-tiny-3x100"'),  # the family is enough
        ("round", "target_batch", "1"),
        ("round", "microbatch_samples", "1"),
        ("round", "microbatch_samples", "65537"),
        ("round", "max_claim_samples", "0"),
        ("round", "weight_cap", "0"),
        ("round", "first_open_s", "0"),
        ("round", "first_open_s", "nan"),
        ("optimizer", "name", '"lion"'),
        ("optimizer", "learning_rate", "0.008"),  # a float has no canonical form: text, in quotes
        ("optimizer", "warmup_percent", "101"),
        ("exchange", "codec", '"fp16"'),
        ("exchange", "residual_percent", "101"),
        ("exchange", "residual_percent", "-1"),
        ("run", "rounds", "2199023255552"),
        ("exchange", "local_steps", "0"),
        ("exchange", "local_steps", "1025"),
        ("optimizer", "outer_rate", "0.9"),
        ("exchange", "max_rows", "0"),
        ("exchange", "max_rows", "1025"),
        ("exchange", "first_min_exponent", "-201"),
        ("exchange", "first_min_exponent", "95"),
        ("rewards", "pool", "0"),
        ("trust", "mode", '"closed"'),
        ("trust", "proven", '["nobody"]'),
        ("trust", "audit_percent", "0"),
        ("trust", "audit_percent", "101"),
        ("trust", "newcomer_percent", "0"),
        ("trust", "proven_after", "0"),
        ("trust", "kept_rounds", "0"),
        ("trust", "settle_s", "-1"),
        ("aggregator", "audit_share", "0"),
        ("aggregator", "audit_share", "1.1"),
        ("aggregator", "keep_snapshots", "0"),
        ("aggregator", "keep_bodies", "3"),
        ("aggregator", "evaluate_every", "-1"),
        ("aggregator", "front_every", "-1"),
    ],
)
def test_a_value_that_cannot_be_is_named(tmp_path: Path, section: str, key: str, value: str) -> None:
    assert f"{section}.{key}: " in refusal(tmp_path, f"[{section}]\n{key} = {value}\n")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("run", "rounds", "true"),
        ("round", "first_open_s", "true"),
        ("recipe", "augmentation", "[true, 0]"),
    ],
)
def test_true_is_no_number(tmp_path: Path, section: str, key: str, value: str) -> None:
    told = refusal(tmp_path, f"[{section}]\n{key} = {value}\n")
    assert f"run.toml, line 2: {section}.{key}: true and false are no numbers: give a number" in told


@pytest.mark.parametrize("data", [b"[run", b"[run]\nrounds = 5\nrounds = 6", b'[run]\nname = "\xff"'], ids=["no TOML", "twice", "no text"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "run.toml").write_bytes(data)
    with pytest.raises(UserError, match="cannot read"):
        load_run_file(tmp_path / "run.toml")


def test_a_file_without_an_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(UserError, match=r"run\.toml: it has more than 1048576 bytes"):
        load_run_file(tmp_path / "run.toml")


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = file_with(tmp_path, "mine")
    with pytest.raises(UserError, match="exists already"):
        write_run_file(path, RunConfig())
    assert path.read_text() == "mine"


ON_DIGITS = {name: values for name, values in CHANGED.items() if name not in ("data", "trust")}
NEAR = RunConfig.model_validate(
    {**ON_DIGITS, "run": {**ON_DIGITS["run"], "data": "shared"}}
)  # private data and affinity exclude each other
PRIVATE = RunConfig.model_validate({**ON_DIGITS, "run": {**ON_DIGITS["run"], "cohorts": "token"}})


@pytest.mark.parametrize("config", [RunConfig(), NEAR, PRIVATE], ids=["defaults", "near", "private"])
def test_the_manifest_says_what_the_run_file_says(config: RunConfig) -> None:
    manifest = SignedManifest.sign(config.manifest(OPERATOR, STATE, digits()), OPERATOR).open()
    assert (manifest.name, manifest.algorithm, manifest.schedule, manifest.cohorts, manifest.seed, manifest.num_rounds) == (
        config.run.name,
        config.run.algorithm,
        config.run.schedule,
        config.run.cohorts,
        config.run.seed,
        config.run.rounds,
    )
    assert (manifest.task, manifest.dataset, manifest.supernet) == ("classification", "digits", "classifier-tiny")
    assert manifest.data_digest == digits().digest
    assert manifest.initial_state == STATE
    assert manifest.microbatch_samples == config.round.microbatch_samples
    assert manifest.exchange == Exchange(
        codec=config.exchange.codec,
        residual_percent=config.exchange.residual_percent,
        local_steps=config.exchange.local_steps,
        max_rows=config.exchange.max_rows,
        target_batch=config.round.target_batch,
        max_claim_samples=config.round.max_claim_samples,
        weight_cap=config.round.weight_cap,
        first_min_exponent=config.exchange.first_min_exponent,
        first_open_ms=round(config.round.first_open_s * 1000),
        min_open_ms=round(config.round.min_open_s * 1000),
        max_open_ms=round(config.round.max_open_s * 1000),
    )
    assert manifest.optimizer.name == config.optimizer.name
    assert manifest.optimizer.learning_rate == config.optimizer.learning_rate
    assert (manifest.optimizer.outer_rate, manifest.optimizer.outer_momentum) == (
        config.optimizer.outer_rate,
        config.optimizer.outer_momentum,
    )
    assert manifest.reward_pool == config.rewards.pool
    assert manifest.cost_table() == dict(cost_table(TINY))
    assert manifest.operators == (OPERATOR.public_key,)


def audited(**sections: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate({"trust": {"mode": "audited"}, **sections})


def test_an_audited_run_says_so_in_its_manifest_and_an_open_one_nothing() -> None:
    exchange = {"local_steps": 4, "codec": "topk-256-4", "first_min_exponent": -20}  # which it may have
    assert audited(exchange=exchange, round={"max_claim_samples": 10_000}).manifest(OPERATOR, STATE, digits()).is_audited
    assert RunConfig().manifest(OPERATOR, STATE, digits()).audits == ()
    trust = CHANGED["trust"]
    manifest = SignedManifest.sign(RunConfig.model_validate({"trust": trust}).manifest(OPERATOR, STATE, digits()), OPERATOR).open()
    numbers = {name: value for name, value in trust.items() if name not in ("mode", "proven", "auditors", "settle_s")}
    assert manifest.audits == (AuditRules((AUDITOR.public_key,), proven=(OPERATOR.public_key,), **numbers),)


def test_an_operator_that_names_no_auditor_names_its_own_and_several_operators_name_theirs() -> None:
    rules = audited().manifest(OPERATOR, STATE, digits(), auditor=AUDITOR.public_key).audit_rules
    assert rules is not None
    assert rules.named == (AUDITOR.public_key,)
    keys = tuple(peer_name(Identity(bytes([number]) * 32).public_key) for number in (1, 2, 3, 4))
    several = {"operators": {"keys": keys, "etcd": ("http://127.0.0.1:2379",)}}
    with pytest.raises(UserError, match=r"one for each operator: manta-aggregator key --dir DIR/auditor prints"):
        audited(**several).manifest(OPERATOR, STATE, digits())
    named = {"trust": {"mode": "audited", "auditors": keys}}
    rules = RunConfig.model_validate(several | named).manifest(OPERATOR, STATE, digits()).audit_rules
    assert rules is not None
    assert (len(rules.named), rules.quorum) == (4, 3)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trust": {"mode": "audited", "pending_rounds": 62}}, "pending_rounds is at least kept_rounds"),
        ({"trust": {"mode": "audited", "pending_rounds": 118}}, "lying pays, 1.0 contributions .* make pending_rounds 119 at least"),
        ({"trust": {"mode": "audited", "audit_percent": 2}}, "lying pays, 14.9 contributions .* or audit_percent larger"),
        ({"run": {"data": "private"}}, "private data are nobody's but their peer's"),
    ],
)
def test_a_run_whose_audits_would_be_for_nothing_is_a_users_mistake(sections: dict[str, dict[str, Any]], words: str) -> None:
    for refuse in (
        lambda: audited(**sections).check(),
        lambda: audited(**sections).manifest(OPERATOR, STATE, digits()),
    ):
        with pytest.raises(UserError, match=words) as caught:
            refuse()
        assert "\n" not in str(caught.value)


def test_a_gateway_is_refused_where_it_would_have_nothing_for_light_contributors() -> None:
    steps = {"exchange": {"local_steps": 4}}
    for sections, words in (
        ({"run": {"data": "private"}}, "data stay with their owners"),
        ({"trust": {"mode": "audited"}} | steps, "several local steps are audited"),
    ):
        with pytest.raises(UserError, match=words):
            RunConfig.model_validate(sections).check_gateway()
    RunConfig.model_validate({"trust": {"mode": "audited"}, "exchange": {"local_steps": 1}}).check_gateway()
    RunConfig.model_validate(steps).check_gateway()


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_usual_settings_that_make_a_run(task: str) -> None:
    config = RunConfig.usual(task)
    assert (config == RunConfig()) is (task == "classification")
    assert RunConfig(**tomllib.loads(template(config))) == config
    dataset = load_dataset(config.data.dataset)
    manifest = SignedManifest.sign(config.manifest(OPERATOR, STATE, dataset), OPERATOR).open()
    assert (manifest.task, space_named(manifest.supernet).task) == (task, task)
    assert (manifest.optimizer, manifest.num_rounds) == (usual(task).optimizer, usual(task).num_rounds)
    assert (manifest.exchange.local_steps, codec_named(manifest.exchange.codec).is_sparse) == (1, False)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_has_settings_for_little_traffic_that_make_a_run_of_as_many_updates(task: str) -> None:
    config = RunConfig.thin(task)
    assert RunConfig(**tomllib.loads(template(config))) == config
    manifest = SignedManifest.sign(config.manifest(OPERATOR, STATE, load_dataset(config.data.dataset)), OPERATOR).open()
    exchange, dense = manifest.exchange, RunConfig.usual(task)
    assert exchange.local_steps > 1
    assert codec_named(exchange.codec).is_sparse
    assert (exchange.codec, exchange.residual_percent) == (thin(task).codec, thin(task).residual_percent)
    assert manifest.num_rounds * exchange.local_steps >= dense.run.rounds
    assert exchange.target_batch <= dense.round.target_batch * exchange.local_steps
    assert config.plan(load_dataset(config.data.dataset)).local_steps == exchange.local_steps


def test_a_supernet_is_fitted_to_the_channels_and_classes_of_the_data() -> None:
    colours = replace(digits(), name="colours", num_classes=3)
    manifest = RunConfig().manifest(OPERATOR, STATE, colours)
    assert manifest.supernet == "classifier-tiny-1x3"
    assert manifest.cost_table() == dict(cost_table(space_named("classifier-tiny-1x3")))


def test_a_supernet_for_another_task_than_the_data_is_a_users_mistake() -> None:
    config = RunConfig.model_validate({"data": {"supernet": "stereo-tiny"}})
    with pytest.raises(UserError, match=r"stereo-tiny is for stereo, dataset digits for classification; .*init --task classification"):
        config.manifest(OPERATOR, STATE, digits())


def test_the_largest_space_fits_a_manifest() -> None:
    base = RunConfig.model_validate({"data": {"supernet": "classifier-base"}})
    many = replace(digits(), name="many", num_classes=100_000)
    manifest = SignedManifest.sign(base.manifest(OPERATOR, STATE, many), OPERATOR).open()
    assert manifest.supernet == "classifier-base-1x100000"
    largest = space_named(manifest.supernet).largest()
    assert architecture_cost(largest.text, manifest.cost_table()) == macs(largest, space_named(manifest.supernet))


@pytest.mark.parametrize(
    ("section", "key", "value", "words"),
    [
        ("run", "name", "My Run", "plain lower-case name"),
        ("run", "seed", 2**63, "seed"),
        ("round", "first_open_s", 0.0001, r"\[round\]: first_open_s is 0.0001, min_open_s 2 and max_open_s 600: "),
        ("round", "min_open_s", 61, "min_open_s 61 and max_open_s 600: first_open_s has to be between the two others"),
        ("round", "max_open_s", 86_401, "max_open_s 86401: .* max_open_s at most 86400, a day"),
        ("round", "min_open_s", 0.0004, "min_open_s 0.0004 .* min_open_s at least 0.001"),
        ("admission", "how", "list", "peers is empty: name some, as manta-peer identity prints them"),
        ("admission", "peers", [peer_name(OPERATOR.public_key)], 'how is "open": write "list", or leave peers empty'),
        ("round", "weight_cap", 31, "weight_cap is at least one microbatch"),
        ("round", "max_claim_samples", 255, "weight_cap is at most max_claim_samples"),
        ("exchange", "local_steps", 300, "max_claim_samples is at least one microbatch a local step, 9600"),
        ("round", "target_batch", 2**41, "target_batch is at least 1"),
        ("exchange", "max_rows", 1024, "sums over 1024 contributions of int16 need"),
        ("rewards", "pool", 2**49, "reward_pool"),
        ("optimizer", "learning_rate", "fast", "decimal"),
        ("optimizer", "beta1", "1", "betas"),
        ("optimizer", "epsilon", "0", "epsilon"),
        ("optimizer", "outer_rate", "0", "outer_rate is above 0"),
        ("optimizer", "outer_momentum", "1", "outer_momentum below 1"),
    ],
)
def test_values_that_make_no_manifest_are_a_users_mistake(section: str, key: str, value: Any, words: str) -> None:
    config = RunConfig.model_validate({section: {key: value}})
    with pytest.raises(UserError, match=words) as caught:
        config.manifest(OPERATOR, STATE, digits())
    assert "\n" not in str(caught.value)


def test_states_and_contributions_stay_for_as_long_as_they_may_be_judged() -> None:
    few = {"keep_snapshots": 3, "keep_bodies": 4}
    config = RunConfig.model_validate({"aggregator": few, "trust": {"mode": "audited", "kept_rounds": 50, "pending_rounds": 130}})
    assert config.bodies > 130
    assert config.snapshots > 130 + MAX_AGE  # the bases of the oldest contributions
    friends = RunConfig.model_validate({"aggregator": few})
    assert (friends.bodies, friends.snapshots) == (4, 3)


def test_a_taught_run_is_one_of_the_sandwich_and_says_so_in_its_manifest() -> None:
    taught = {"recipe": {"taught_percent": 40}}
    assert RunConfig.model_validate(taught).manifest(OPERATOR, STATE, digits()).recipe.taught_percent == 40
    with pytest.raises(UserError, match="taught_percent is for the schedule sandwich"):
        RunConfig.model_validate(taught | {"run": {"schedule": "shrinking"}}).manifest(OPERATOR, STATE, digits())
    with pytest.raises(UserError, match="learn from the largest network"):
        RunConfig.model_validate({"recipe": {"taught_percent": 100}}).check_gateway()
    RunConfig.model_validate(taught).check_gateway()


def private(**sections: dict[str, Any]) -> RunConfig:
    run = {"data": "private", **sections.pop("run", {})}
    return RunConfig.model_validate({"run": run, **sections})


def test_where_data_are_private_the_manifest_names_their_classes_and_caps_their_credit() -> None:
    manifest = SignedManifest.sign(private().manifest(OPERATOR, STATE, digits()), OPERATOR).open()
    assert (manifest.data, manifest.private) == ("private", (PrivateData(tuple("0123456789"), 0, 25),))
    assert manifest.data_digest == digits().digest  # what the operator measures by
    named = private(data={"classes": list("jihgfedcba")}, rewards={"private_percent": 7})
    photographs = replace(digits(), flips=True)
    assert named.manifest(OPERATOR, STATE, photographs).private == (PrivateData(tuple("jihgfedcba"), 1, 7),)
    assert RunConfig().manifest(OPERATOR, STATE, digits()).private == ()


def test_classes_that_do_not_fit_are_a_users_mistake() -> None:
    for config, dataset, says in (
        (private(data={"classes": ["a", "b"]}), digits(), "2 classes are named, the data set digits has 10"),
        (
            private(data={"classes": list("abcdefghi/")}),
            digits(),
            r"\[data\]: classes: a class needs a name that a folder can have, not '/'",
        ),
        (private(data={"classes": list("aacdefghij")}), digits(), "two classes have one name"),
        (
            private(data={"dataset": "layers", "supernet": "stereo-tiny"}),
            load_dataset("layers"),
            "is for labelled images; layers is a set for stereo",
        ),
    ):
        with pytest.raises(UserError, match=says):
            config.manifest(OPERATOR, STATE, dataset)
    with pytest.raises(UserError, match='write data = "private" in \\[run\\]'):
        RunConfig.model_validate({"data": {"classes": ["a", "b"]}}).check()
