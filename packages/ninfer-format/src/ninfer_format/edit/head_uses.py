"""Uses of the output heads by a component that comes from another artifact.

The heads are the base's own: their format, and so their policy and activation scalar, may differ
from those of the artifact that the component was made with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ninfer_format.container.artifact import Artifact
from ninfer_format.container.schema import ActivationPolicy, Binding, Use
from ninfer_format.errors import ArtifactError

OUTPUT_HEAD = "text/output_head"
PROPOSAL_HEAD = "proposal/head"
_DRAFTERS = ("mtp", "dflash", "dflash2", "eagle3")
"""Components that draft tokens; the output head verifies what they draft."""
_PROPOSERS = ("mtp", "dflash", "dflash2")
"""Those among them that may draft with the reduced head."""


def head_uses(base: Artifact, donor: Artifact, component: str) -> Iterator[Use]:
    """The uses of the base's output heads with what the component computes.

    A base without a reduced head needs no use of it, whatever the donor has.

    Args:
        base: The artifact that gets the component.
        donor: The artifact that has it.
        component: Its id.

    Raises:
        ArtifactError: `reference`: the donor uses another parameter with the component, or does
            not say how the component meets the output head; a head has another size in the base;
            or the base's own uses of a head contradict each other.
    """
    place = f"{component}/final_hidden"
    found = [use for use in donor.directory.uses if _is_foreign(use, component)]
    for use in found:
        if use.parameter not in (OUTPUT_HEAD, PROPOSAL_HEAD) or use.input != place:
            raise ArtifactError(
                "reference",
                f"uses {use.parameter!r} at {use.input!r}, which cannot be copied",
                path=donor.path,
            )
    used = {use.parameter for use in found}
    if component in _DRAFTERS and OUTPUT_HEAD not in used:
        raise ArtifactError(
            "reference",
            "has no use of the output head for the component",
            path=donor.path,
            expected=f"a use of {OUTPUT_HEAD!r} at {place!r}",
            found="none",
        )
    if OUTPUT_HEAD in used:
        yield _head_use(base, donor, OUTPUT_HEAD, place)
    if PROPOSAL_HEAD in base.directory.bindings and component in _PROPOSERS:
        yield _head_use(base, donor, PROPOSAL_HEAD, place)


def _is_foreign(use: Use, component: str) -> bool:
    """Whether a parameter of another component meets what this component computes."""
    prefix = f"{component}/"
    return use.input.startswith(prefix) and not use.parameter.startswith(prefix)


def _head_use(base: Artifact, donor: Artifact, head: str, place: str) -> Use:
    if head in donor.directory.bindings:
        sizes = base.parameter_elements(head), donor.parameter_elements(head)
        if sizes[0] != sizes[1]:
            raise ArtifactError(
                "reference",
                f"{head!r} has another size than in {base.path}",
                path=donor.path,
                expected=f"{sizes[0]} elements",
                found=sizes[1],
            )
    return Use(head, place, *_common_choice(base, head))


def _common_choice(
    base: Artifact, head: str
) -> tuple[ActivationPolicy | None, Mapping[str, Binding]]:
    """Policy and auxiliaries that all uses of a head in the base agree on."""
    choices: list[tuple[ActivationPolicy | None, Mapping[str, Binding]]] = []
    for use in base.directory.uses:
        choice = (use.activation_policy, use.auxiliaries)
        if use.parameter == head and choice not in choices:
            choices.append(choice)
    if len(choices) != 1:
        found = "no use" if not choices else "uses with different policies or auxiliaries"
        raise ArtifactError(
            "reference",
            f"does not say how {head!r} is to be used",
            path=base.path,
            expected="uses that agree",
            found=found,
        )
    return choices[0]
