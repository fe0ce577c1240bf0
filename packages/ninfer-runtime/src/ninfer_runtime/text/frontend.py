"""The text side of a model, built from the resources of its artifact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ninfer_format.errors import ArtifactError
from ninfer_runtime.engine.request import PreparedPrompt, PromptInput, RequestOptions
from ninfer_runtime.errors import StartupError
from ninfer_runtime.sampling.params import SamplingParams, preset
from ninfer_runtime.text.output import OutputSession
from ninfer_runtime.text.prompt import PromptRenderer
from ninfer_runtime.text.template import ChatTemplate
from ninfer_runtime.text.tokenizer import Tokenizer
from ninfer_runtime.text.tokenizer_json import TOKENIZER, TOKENIZER_CONFIG, read_object

if TYPE_CHECKING:
    from ninfer_format import Artifact

CHAT_TEMPLATE = "chat_template.jinja"
GENERATION_CONFIG = "generation_config.json"

_COMPONENT = "text"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")


class Frontend:
    """Prepares prompts and opens outputs for one model.

    Args:
        resources: Bytes of a checkpoint's text files by file name; ``tokenizer.json`` is needed,
            ``tokenizer_config.json``, ``chat_template.jinja`` and ``generation_config.json`` are
            used if they are there.
        chat_template: File with a template to use instead of the model's own.
        is_moe: The model's feed-forward layers are mixtures of experts.

    Attributes:
        tokenizer: The tokenizer.
        stop_token_ids: Tokens by which the model ends its output.

    Raises:
        ArtifactError: A resource is missing or malformed.
        StartupError: ``chat_template``: the file cannot be read or has a syntax error.
    """

    def __init__(
        self,
        resources: Mapping[str, bytes],
        *,
        chat_template: Path | None = None,
        is_moe: bool = False,
    ) -> None:
        if TOKENIZER not in resources:
            raise ArtifactError("reference", f"component {_COMPONENT!r} has no {TOKENIZER}")
        self._is_moe = is_moe
        self.tokenizer = Tokenizer.from_resources(
            resources[TOKENIZER], resources.get(TOKENIZER_CONFIG)
        )
        config = _read_optional(TOKENIZER_CONFIG, resources)
        special_tokens = _special_tokens(config)
        self.stop_token_ids = _stop_token_ids(
            self.tokenizer, _read_optional(GENERATION_CONFIG, resources), special_tokens
        )
        if chat_template is None:
            template = _own_template(resources, config)
        else:
            template = _template_file(chat_template)
        prefix: tuple[int, ...] = ()
        if config.get("add_bos_token") and "bos_token" in special_tokens:
            prefix = tuple(self.tokenizer.encode_with_controls(special_tokens["bos_token"]))
        self._renderer = PromptRenderer(self.tokenizer, template, special_tokens, prefix)

    @classmethod
    def from_artifact(cls, artifact: Artifact, chat_template: Path | None = None) -> Frontend:
        """Build the frontend of an artifact's text component.

        Args:
            artifact: Holds the resources.
            chat_template: File with a template to use instead of the artifact's own.

        Raises:
            ArtifactError: As the class.
            StartupError: As the class.
        """
        roles = (TOKENIZER, TOKENIZER_CONFIG, CHAT_TEMPLATE, GENERATION_CONFIG)
        resources = {
            role: artifact.resource(_COMPONENT, role)
            for role in roles
            if artifact.has_resource(_COMPONENT, role)
        }
        component = artifact.directory.components.get(_COMPONENT)
        is_moe = component is not None and "num_experts" in component.config
        try:
            return cls(resources, chat_template=chat_template, is_moe=is_moe)
        except ArtifactError as error:
            raise ArtifactError(error.category, str(error), path=artifact.path) from error

    def prepare(self, prompt: PromptInput) -> PreparedPrompt:
        """Make the tokens of a prompt.

        Raises:
            RequestError: ``invalid_prompt``: it is empty or contradictory, has ids that are no
                tokens, or the template refuses it.
        """
        return self._renderer.render(prompt)

    def open_output(self, prompt: PreparedPrompt, options: RequestOptions) -> OutputSession:
        """Begin the output of a request.

        Raises:
            UsageError: A stop string is empty.
        """
        return OutputSession(self.tokenizer, prompt, options, self.stop_token_ids)

    def sampling_preset(self, thinking: bool) -> SamplingParams:
        """Return how tokens are drawn unless a caller asks otherwise.

        Args:
            thinking: The output starts in the reasoning channel.
        """
        return preset(self._is_moe, thinking)


def _read_optional(role: str, resources: Mapping[str, bytes]) -> dict[str, Any]:
    return read_object(role, resources[role]) if role in resources else {}


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the tokens that the tokenizer configuration names; each is a string or an object."""
    named = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            named[name] = content
    return named


def _stop_token_ids(
    tokenizer: Tokenizer, generation: Mapping[str, Any], special_tokens: Mapping[str, str]
) -> tuple[int, ...]:
    """Return the ids in ``generation_config.json``, or else the tokenizer's end-of-text token."""
    declared = generation.get("eos_token_id")
    if declared is None:
        end = tokenizer.token_id(special_tokens.get("eos_token", ""))
        if end is None:
            raise ArtifactError(
                "schema",
                f"neither {GENERATION_CONFIG} has an eos_token_id "
                f"nor {TOKENIZER_CONFIG} an eos_token: nothing would end the output",
            )
        return (end,)
    ids = declared if isinstance(declared, list) else [declared]
    if not ids or not all(type(i) is int and 0 <= i < tokenizer.public_tokens for i in ids):
        raise ArtifactError(
            "schema",
            f"{GENERATION_CONFIG}: eos_token_id",
            expected=f"an id or a list of ids in 0..{tokenizer.public_tokens - 1}",
            found=declared,
        )
    return tuple(ids)


def _own_template(resources: Mapping[str, bytes], config: Mapping[str, Any]) -> ChatTemplate | None:
    """Compile the model's template: its own file, or else what the tokenizer's file holds."""
    role, source = TOKENIZER_CONFIG, config.get("chat_template")
    if CHAT_TEMPLATE in resources:
        role = CHAT_TEMPLATE
        try:
            source = resources[CHAT_TEMPLATE].decode()
        except UnicodeDecodeError as error:
            raise ArtifactError("schema", f"{role} is not UTF-8 ({error})") from error
    if isinstance(source, list):
        named = (item for item in source if isinstance(item, dict))
        source = next((i.get("template") for i in named if i.get("name") == "default"), None)
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate(source)
    except StartupError as error:
        raise ArtifactError("schema", f"{role}: {error}") from error


def _template_file(path: Path) -> ChatTemplate:
    try:
        source = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(
            "chat_template", f"the chat template cannot be read ({error})", path=str(path)
        ) from error
    return ChatTemplate(source, path=str(path))
