"""A deployment cut down to a CPU, and the list of what was replaced or left out, each with its reason.

Pure: it is told what the machine has and never looks. A flag of the catalog that the rehearsal has no rule for is an
error, so nothing is left out in silence.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from cookbook.catalog import Catalog
from cookbook.catalog.schema import RehearsalEntry, Rule
from cookbook.deployment import Argument, Claim, Deployment, EnvVar, Frozen, Notice, Origin, Process
from cookbook.errors import CatalogError, InputError
from cookbook.evidence import Substitution
from cookbook.layers import OVERRIDES

__all__ = ["Cpu", "Rehearsal", "rehearse", "threads_bind"]

NOTICE = "Rehearsed on a CPU with a small model: no number here is a number of the hardware."
LAYER = "rehearsal"


class Cpu(Frozen):
    """What a rehearsal may use of this machine.

    Attributes:
        cores: Numbers of the CPU cores that this process may run on, ascending.
        port: A free TCP port.
        model: Folder of the small model.
    """

    cores: tuple[int, ...]
    port: int
    model: Path


class Rehearsal(Frozen):
    """The deployment that runs here, and how it differs from the one for the hardware."""

    deployment: Deployment
    substitutions: tuple[Substitution, ...]


def threads_bind(cores: tuple[int, ...], groups: int) -> str:
    """The cores of each worker, as VLLM_CPU_OMP_THREADS_BIND takes them, for example "0,1|2,3"."""
    share = len(cores) // groups
    return "|".join(",".join(map(str, cores[group * share : (group + 1) * share])) for group in range(groups))


def rehearse(deployment: Deployment, catalog: Catalog, cpu: Cpu) -> Rehearsal:
    """Cut `deployment` down to this machine.

    Returns:
        The deployment with the small model, and the list of substitutions in the order of the command.

    Raises:
        InputError: It has several processes.
        CatalogError: A flag or variable of the catalog has no rule.
    """
    if len(deployment.processes) > 1:
        raise InputError(
            f"{deployment.title} has {len(deployment.processes)} processes, and a rehearsal starts one so far.",
            "Rehearse a recipe of one node.",
        )
    rules = catalog.rehearsal
    substitutions = [
        Substitution(what="model", original=deployment.model, replacement=rules.model.name, reason=rules.model.reason)
    ]
    processes = []
    for process in deployment.processes:
        rehearsed, changes = _process(process, rules, cpu)
        processes.append(rehearsed)
        substitutions += changes
    if deployment.image:
        substitutions.append(
            Substitution(
                what="image",
                original=deployment.image.tag,
                replacement=f"vLLM {rules.engine.version} in this Python environment",
                reason="The image is for GPUs.",
            )
        )
    substitutions.append(
        Substitution(
            what="max_tokens of long answers",
            original=str(catalog.model.max_tokens),
            replacement=str(rules.max_tokens.value),
            reason=rules.max_tokens.reason,
        )
    )
    claims, left_out = _claims(deployment, processes[0], rules)
    return Rehearsal(
        deployment=deployment.model_copy(
            update={
                "model": str(cpu.model),
                "served_model_name": rules.model.name,
                "image": None,
                "processes": tuple(processes),
                "claims": claims,
                "notices": (Notice(kind="rehearsal", text=NOTICE), *deployment.notices),
            }
        ),
        substitutions=(*substitutions, *left_out),
    )


def _process(process: Process, rules: RehearsalEntry, cpu: Cpu) -> tuple[Process, list[Substitution]]:
    wanted = int(str(process.value("--tensor-parallel-size") or 1))
    groups = 2 if wanted > 1 and len(cpu.cores) > 1 else 1
    values: dict[str, JsonValue] = {
        "{tensor_parallel}": groups,
        "{port}": cpu.port,
        "{threads_bind}": threads_bind(cpu.cores, groups),
    }
    changes: list[Substitution] = []

    arguments = []
    for argument in process.arguments:
        rule = _rule(rules.args, argument.flag, argument.origins)
        if rule.keep:
            arguments.append(argument)
            continue
        new = _fill(rule.replace, values)
        original = " ".join(argument.words()[1:]) or "on"
        replacement = None if rule.drop else str(new)
        if replacement != original:
            changes.append(
                Substitution(what=argument.flag, original=original, replacement=replacement, reason=rule.reason)
            )
        if not rule.drop:
            arguments.append(Argument(flag=argument.flag, value=new, origins=(_origin(rule.reason),)))
    present = {argument.flag for argument in arguments}
    for flag, addition in rules.added_args.items():
        if flag not in present or flag == "--served-model-name":
            arguments = [argument for argument in arguments if argument.flag != flag]
            arguments.append(Argument(flag=flag, value=addition.value, origins=(_origin(addition.reason),)))
            changes.append(
                Substitution(what=flag, original="", replacement=str(addition.value or "on"), reason=addition.reason)
            )

    environment = []
    for variable in process.environment:
        rule = _rule(rules.env, variable.name, (variable.origin,))
        if rule.drop:
            changes.append(
                Substitution(what=variable.name, original=variable.value, replacement=None, reason=rule.reason)
            )
        else:
            environment.append(variable)
    for name, addition in rules.added_env.items():
        value = str(_fill(addition.value, values))
        environment.append(EnvVar(name=name, value=value, origin=_origin(addition.reason)))
        changes.append(Substitution(what=name, original="", replacement=value, reason=addition.reason))

    return (
        process.model_copy(
            update={
                "program": (*process.program[:-1], str(cpu.model)),
                "arguments": tuple(arguments),
                "environment": tuple(environment),
                "port": cpu.port,
                "devices": 0,
            }
        ),
        changes,
    )


def _rule(rules: dict[str, Rule], name: str, origins: tuple[Origin, ...]) -> Rule:
    if name in rules:
        return rules[name]
    if all(origin.layer == OVERRIDES for origin in origins):
        return Rule(keep=True)
    section = "args" if name.startswith("--") else "env"
    raise CatalogError(
        "rehearsal.yaml",
        f"{section}.{name}",
        "has no rule.",
        "Say whether a rehearsal keeps, replaces or drops it, and why.",
    )


def _fill(value: JsonValue, values: dict[str, JsonValue]) -> JsonValue:
    return values.get(value, value) if isinstance(value, str) else value


def _origin(reason: str) -> Origin:
    return Origin(layer=LAYER, why=reason, basis="chosen")


def _claims(
    deployment: Deployment, process: Process, rules: RehearsalEntry
) -> tuple[tuple[Claim, ...], list[Substitution]]:
    """No published figure is about a CPU: the KV cache is held against the small model's arithmetic instead."""
    left_out = [
        Substitution(
            what=f"claim {claim.name}",
            original=f"{claim.value:g} {claim.unit}",
            replacement=None,
            reason="A CPU cannot show it; the same check is made against the arithmetic of the small model.",
        )
        for claim in deployment.claims
    ]
    groups = int(str(process.value("--tensor-parallel-size") or 1))
    bytes_per_element = 1 if str(process.value("--kv-cache-dtype") or "auto").startswith("fp8") else 2
    gib = next(v.value for v in process.environment if v.name == "VLLM_CPU_KVCACHE_SPACE")
    tokens = int(float(gib) * 2**30 * groups / (rules.kv_elements_per_token * bytes_per_element))
    claim = Claim(
        name="kv_cache_tokens",
        statement=(
            f"{gib} GiB for each of {groups} workers, at {rules.kv_elements_per_token // groups} elements of "
            f"{bytes_per_element} byte(s) a token and worker, hold {tokens:,} tokens of the small model."
        ),
        value=tokens,
        unit="tokens",
        tolerance=0.01,
        basis="chosen",
        source="cpu_measurement",
    )
    return (claim,), left_out
