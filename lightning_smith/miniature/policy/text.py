"""The policy's tokenizer and chat template, read from a Hugging Face folder without transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from lightning_smith.core.errors import UserError

Messages = Sequence[dict[str, str]]


class ChatText:
    """Text of conversations as tokens, and tokens as text."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            template = (folder / "chat_template.jinja").read_text()
        except Exception as error:  # tokenizers raises plain Exception
            raise UserError(f"{folder} has no readable tokenizer and chat template ({error})") from None
        # The settings with which transformers renders chat templates.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(template)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a text, in which special tokens may stand."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_chat(self, messages: Messages) -> tuple[int, ...]:
        """Prompt tokens of a conversation, up to where the policy starts to write."""
        return self.encode(self._template.render(messages=list(messages), add_generation_prompt=True))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def piece(self, token: int) -> str:
        """Return the text of one token, special or not."""
        return self._tokenizer.decode([token], skip_special_tokens=False)
