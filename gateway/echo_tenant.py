"""The account that the official SDK's own test files use: the one place that echoes, off unless a setting names it.

Those files call one text model with every task's input, which a model that checks its input refuses; here that id says
what it was asked. And where a name is wanted they write what it is the name of: they delete the account `account_id`,
tune the model `model` and bring it the file `file_name`; where there is a test tenant, the first word is taken for an
account's id, and in the tenant's account the others for a model and a file. Knows nothing of models or of nodes.
"""

from __future__ import annotations

from typing import Any

from gateway import envelope
from gateway.envelope import encode

ECHOING_MODEL = "@cf/meta/llama-3.1-8b-instruct"
WORD_FOR_AN_ACCOUNT = "account_id"
WORD_FOR_A_MODEL = "model"
WORD_FOR_A_FILE = "file_name"


class EchoTenant:
    """The account with this id; "" for none."""

    def __init__(self, account_id: str) -> None:
        self._account_id = account_id

    @property
    def words_for_accounts(self) -> frozenset[bytes]:
        """What stands in a path for an account's id beside ids."""
        return frozenset({WORD_FOR_AN_ACCOUNT.encode()} if self._account_id else ())

    def echoes(self, account_id: str | None, model: str | None) -> bool:
        """Whether a call of this account for this model is answered with its own input."""
        return model == ECHOING_MODEL and self._is(account_id)

    def tuned_model(self, account_id: str, model: str) -> str | None:
        """The model of a finetune that this account makes for the word: the one that echoes, which tunes to nothing."""
        return ECHOING_MODEL if model == WORD_FOR_A_MODEL and self._is(account_id) else None

    def ignores_file(self, account_id: str, file_name: str) -> bool:
        """Whether this account's file is taken and not kept: it makes no finetune usable."""
        return file_name == WORD_FOR_A_FILE and self._is(account_id)

    def _is(self, account_id: str | None) -> bool:
        return bool(account_id) and account_id == self._account_id


def echo(body: dict[str, Any]) -> bytes:
    """The answer: what was asked, as the text of a response."""
    return envelope.success({"response": encode(body).decode()})
