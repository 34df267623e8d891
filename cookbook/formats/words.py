"""Words of a command in which addresses stand as "${NAME}": spelt for a shell, or filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator

from cookbook.deployment import Argument, Deployment, EnvVar, Process

SPECIAL = re.compile(r'([\\"$`])')

UNSURE = {
    "from_k3": "inferred from Kimi-K3, not stated for K3.1",
    "vllm_source": "read in vLLM's source",
    "inferred": "inferred, stated by nobody",
    "unknown": "unknown",
    "chosen": "our choice",
}


def quote(word: str, variables: tuple[str, ...] = ()) -> str:
    """A word that a POSIX shell reads as it is; only "${NAME}" of `variables` is expanded."""
    parts = _parts(word, variables)
    if not any(is_name for is_name, _ in parts):
        return shlex.quote(word)
    inner = "".join(f"${{{text}}}" if is_name else SPECIAL.sub(r"\\\1", text) for is_name, text in parts)
    return f'"{inner}"'


def filled(word: str, variables: tuple[str, ...], spell: Callable[[str], str]) -> str:
    """A word in which "${NAME}" of `variables` became `spell(NAME)`; anything else is left alone."""
    return "".join(spell(text) if is_name else text for is_name, text in _parts(word, variables))


def _parts(word: str, variables: tuple[str, ...]) -> list[tuple[bool, str]]:
    if not variables:
        return [(False, word)]
    names = "|".join(map(re.escape, dict.fromkeys(variables)))
    pieces = re.split(rf"\$\{{({names})\}}", word)
    return [(index % 2 == 1, piece) for index, piece in enumerate(pieces) if piece or index % 2]


def argument_words(argument: Argument) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The argv words of a flag, each with the addresses that may stand in it."""
    flag, *values = argument.words()
    yield flag, ()
    for value in values:
        yield value, argument.variables


def container_command(process: Process, spell: Callable[[str], str]) -> list[str]:
    """The whole command with every address filled in."""
    words = list(process.program)
    for argument in process.arguments:
        words += [filled(word, variables, spell) for word, variables in argument_words(argument)]
    return words


def variable_value(variable: EnvVar, spell: Callable[[str], str]) -> str:
    """The value of a variable with every address filled in."""
    return filled(variable.value, variable.variables, spell)


def comment(text: str) -> str:
    """A comment that cannot be broken out of."""
    return f"# {' '.join(text.split())}"


def header(deployment: Deployment) -> Iterator[str]:
    """Comments that every format begins with: the title, the image and how sure it is, and all notices."""
    yield comment(f"{deployment.title} ({deployment.recipe})")
    if deployment.image:
        basis = deployment.image.origin.basis
        yield comment(f"image: {deployment.image.tag}{'' if basis == 'stated' else f' ({basis})'}")
    else:
        yield comment("image: none is published or named by a source")
    for notice in deployment.notices:
        yield comment(f"{notice.kind}: {notice.text}")


def unsure(process: Process) -> Iterator[str]:
    """Comments: which flags and variables are not stated for this model."""
    for basis, words in UNSURE.items():
        names = [a.flag for a in process.arguments if any(origin.basis == basis for origin in a.origins)]
        names += [v.name for v in process.environment if v.origin.basis == basis]
        if names:
            yield comment(f"{words}: {', '.join(dict.fromkeys(names))}")
