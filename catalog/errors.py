"""What can go wrong in the catalog.

    CatalogError
    ├── InvalidModelId     a text that no model can be called
    ├── CardError          a model card or manifest that cannot be read
    ├── SchemaViolation    a body that a task's schema does not admit
    ├── PublishError       a folder that must not become a model
    ├── PullError          a hub that did not give what it promised
    ├── AliasError         an alias that would lead nowhere
    └── FinetuneError      a finetune, or a file of one, that cannot be taken

Messages name files, fields and limits, never a caller's values.
"""

from __future__ import annotations


class CatalogError(Exception):
    """Base of everything the catalog raises on purpose."""


class InvalidModelId(CatalogError):
    """A text that no model can be called."""


class CardError(CatalogError):
    """A model card or manifest that cannot be read."""


class SchemaViolation(CatalogError):
    """A body that a task's schema does not admit.

    `message` is in the contract's dialect, without the `AiError: Bad input: Error: ` in front of it. `pointer` is the
    JSON pointer of the field at fault. `code` is the contract's error code: 5006, or 5005 for LoRA.
    """

    def __init__(self, message: str, pointer: str, code: int = 5006) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.code = code


class PublishError(CatalogError):
    """A folder that must not become a model."""


class PullError(CatalogError):
    """A hub that did not give what it promised."""


class AliasError(CatalogError):
    """An alias that would lead nowhere."""


class FinetuneError(CatalogError):
    """A finetune, or a file of one, that cannot be taken."""
