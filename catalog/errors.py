"""Exceptions of the catalog. Their messages name files, fields and limits, but never contain values from a request."""

from __future__ import annotations


class CatalogError(Exception):
    """Base class of the catalog's exceptions."""


class InvalidModelId(CatalogError):
    """The text is not a valid model id."""


class CardError(CatalogError):
    """A model card or manifest cannot be read."""


class SchemaViolation(CatalogError):
    """A request body violates the task's schema.

    `message` follows the wire contract, without the prefix `AiError: Bad input: Error: `. `pointer` is the JSON
    pointer of the field. `code` is the contract's error code: 5006, or 5005 for LoRA.
    """

    def __init__(self, message: str, pointer: str, code: int = 5006) -> None:
        super().__init__(message)
        self.message = message
        self.pointer = pointer
        self.code = code


class PublishError(CatalogError):
    """A folder cannot be published as a model."""


class PullError(CatalogError):
    """A model hub sent an error, or files that differ from its listing."""


class AliasError(CatalogError):
    """An alias leads to no model."""


class FinetuneError(CatalogError):
    """A fine-tune, or one of its files, is invalid."""
