"""The table of refusals: HTTP status, error code and message of every way in which a request can be refused.

Stages raise `Refusal`; `envelope.py` renders it. Exceptions of other packages are translated by `refusal_of`.
docs/errors.md lists the same rows, and a test compares them.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass

from catalog.errors import InvalidModelId, SchemaViolation
from engine.protocol.events import FailureReason
from engine.protocol.fields import BadInput
from engine.protocol.rendering import OutputNotJson
from storage.errors import StoreError


@dataclass(frozen=True)
class Row:
    """One kind of refusal.

    `is_ai` marks failures of the AI run itself: their message carries `AiError: ` and their envelope `result: {}`.
    `should_retry` becomes `x-should-retry`: False stops clients that would repeat what cannot succeed.
    `closes`: the connection is closed, because the bytes that follow cannot be trusted.
    `field`: the field of the body at fault, if it is always the same; other rows name the field in their `detail`.
    `hint` names the remedy. It follows the message, except in Workers, which parse the message.
    """

    status: int
    code: int
    message: str
    is_ai: bool = False
    should_retry: bool | None = None
    closes: bool = False
    field: str | None = None
    hint: str = ""


_LISTING = "GET /client/v4/accounts/<account_id>/ai/models/search lists the models."
_HOW_TO_AUTHENTICATE = (
    "Send an API token as `Authorization: Bearer <token>`. "
    "`hearth up` prints one, and `hearth token create` creates more."
)


class Reason(enum.Enum):
    """The table. `{detail}` in a message is replaced by the Refusal's `detail`."""

    NO_ROUTE = Row(400, 7000, "No route for that URI")
    BASE_URL_WRONG = Row(
        404,
        7000,
        "No route for that URI",
        hint="The base URL for OpenAI clients is <origin>/v1, or for a certain account "
        "<origin>/client/v4/accounts/<account_id>/ai/v1.",
    )
    METHOD_NOT_ALLOWED = Row(405, 7001, "{detail} not supported for requested URI.")
    ACCOUNT_ID_MALFORMED = Row(404, 7003, "Could not route to {detail}, perhaps your object identifier is invalid?")
    HEAD_UNREADABLE = Row(400, 3003, "The request cannot be read as HTTP", closes=True)
    HEAD_INVALID = Row(400, 3003, "{detail}", closes=True)
    HEAD_SLOW = Row(408, 3007, "The head of the request did not arrive in time", should_retry=False, closes=True)
    VERSION_UNSUPPORTED = Row(505, 3003, "The HTTP version must be 1.1 or 1.0", closes=True)
    EXPECTATION_UNKNOWN = Row(417, 3003, "The Expect header must be 100-continue", closes=True)
    TARGET_TOO_LONG = Row(414, 3006, "The request target is longer than 8192 bytes", closes=True)
    HEADERS_TOO_LARGE = Row(
        431, 3006, "There are more than 100 headers, or they are larger than 32768 bytes", closes=True
    )
    CROWDED = Row(429, 971, "Too many unauthenticated connections from this address", should_retry=True, closes=True)
    CREDENTIAL_MALFORMED = Row(400, 9106, "Authentication failed (status: 400)", hint=_HOW_TO_AUTHENTICATE)
    CREDENTIAL_REPEATED = Row(400, 3003, "More than one Authorization header")
    CREDENTIAL_REFUSED = Row(401, 10000, "Authentication error", hint=_HOW_TO_AUTHENTICATE)
    METRICS_REFUSED = Row(
        401, 10000, "Authentication error", hint="Send HEARTH_METRICS_TOKEN as `Authorization: Bearer <token>`."
    )
    NOT_PERMITTED = Row(403, 10000, "Authentication error")
    TOKEN_EXCEEDED = Row(403, 10005, "A token must not grant more than it holds: {detail}")
    ADDRESS_REFUSED = Row(403, 10001, "This credential may not be used from this address")
    API_TOKEN_INVALID = Row(401, 1000, "Invalid API Token")
    CROSS_SITE = Row(403, 10004, "A request of a signed-in person must come from this platform's own pages")
    SIGN_IN_FAILED = Row(401, 10002, "The sign-in failed: {detail}")
    SIGN_IN_LIMITED = Row(429, 971, "Too many attempts to sign in, please wait", should_retry=False)
    SIGN_IN_FORBIDDEN = Row(403, 10003, "This platform has no role for you")
    ACCOUNT_BLOCKED = Row(403, 3023, "This account is blocked")
    OBJECT_UNKNOWN = Row(404, 7003, "Could not route to this path, perhaps your object identifier is invalid?")
    OBJECT_INVALID = Row(400, 1004, "{detail}")
    HEADER_INVALID = Row(400, 3003, "{detail}")
    QUERY_INVALID = Row(400, 3003, "{detail}")
    MODEL_ID_INVALID = Row(
        404,
        3042,
        "Invalid model name",
        field="model",
        hint="A model id has the form @cf/<author>/<model>. " + _LISTING,
    )
    MODEL_UNKNOWN = Row(400, 5007, "No such model {detail} or task", field="model", hint=_LISTING)
    MODEL_NOT_HERE = Row(400, 5007, "No such model {detail}", should_retry=False, field="model")
    MODEL_RETIRED = Row(
        410, 5028, "This model was deprecated on {detail}", is_ai=True, should_retry=False, field="model"
    )
    MODEL_DISABLED = Row(
        403, 5018, "This account is not allowed to access this model", is_ai=True, should_retry=False, field="model"
    )
    LORA_UNSUPPORTED = Row(405, 5005, "This model does not support LoRA", is_ai=True, field="lora")
    FINETUNE_UNKNOWN = Row(404, 3042, "No such finetune", field="lora")
    FINETUNE_INCOMPLETE = Row(400, 3039, "The finetune lacks files: {detail}", is_ai=True, field="lora")
    ALLOWANCE_USED = Row(
        429,
        3036,
        "you have used up your daily free allocation of {detail} neurons, please upgrade to a paid plan if you would "
        "like to continue usage.",
        is_ai=True,
        should_retry=False,
    )
    BUDGET_USED = Row(429, 3036, "The monthly budget of {detail} is used", is_ai=True, should_retry=False)
    BINDING_UNKNOWN = Row(
        405, 5019, "This version of the AI binding is not supported, please update", should_retry=False
    )
    RESPONSE_UNKNOWN = Row(404, 7003, "No response with this id is stored{detail}")
    BATCH_UNKNOWN = Row(404, 7003, "No batch with this request_id is stored")
    BATCH_UNSUPPORTED = Row(400, 5007, "No such model {detail} or task: it takes no batches", should_retry=False)
    BATCH_QUEUE_FULL = Row(
        429, 3040, "Too many requests of this account wait in batches, please try again later", should_retry=True
    )
    VERSION_CHANGED = Row(
        412,
        11004,
        "The object was changed since it was read",
        should_retry=False,
        hint="Read the object again and repeat the change with its new version.",
    )
    KEY_USED = Row(409, 11003, "This idempotency-key was already used with another request", should_retry=False)
    KEY_IN_USE = Row(409, 11003, "The first request with this idempotency-key is still running", should_retry=True)
    KEY_SPENT = Row(
        409,
        11003,
        "The request with this idempotency-key has completed, and its response is not stored",
        should_retry=False,
    )
    BODY_MISSING = Row(400, 3003, "The request has no body")
    BODY_TOO_LARGE = Row(413, 3006, "The request body is larger than {detail} bytes")
    BODY_INVALID = Row(400, 5004, "Invalid data: {detail}", is_ai=True)
    BODY_ENCODED = Row(415, 5004, "Content-Encoding is not supported", is_ai=True)
    BODY_SLOW = Row(408, 3007, "The request body did not arrive in time", should_retry=False)
    INPUT_BLOCKED = Row(
        400, 5004, "Invalid data: the model failed each time it was given this input", is_ai=True, should_retry=False
    )
    INPUT_INVALID = Row(400, 5006, "Bad input: Error: {detail}", is_ai=True)
    JSON_MODE_FAILED = Row(400, 5024, "JSON Mode couldn't be met", is_ai=True)
    PROMPT_TOO_LONG = Row(413, 3006, "The prompt is longer than the model's context{detail}", is_ai=True)
    RATE_LIMITED = Row(429, 971, "Rate limit of this API token exceeded, please wait", should_retry=True)
    TASK_RATE_LIMITED = Row(429, 3040, "Rate limit of this task exceeded, please wait", is_ai=True, should_retry=True)
    ACCOUNT_RATE_LIMITED = Row(429, 971, "Rate limit of this account exceeded, please wait", should_retry=True)
    CONCURRENCY_LIMITED = Row(
        429, 3040, "Too many calls of this {detail} at once, please wait", is_ai=True, should_retry=True
    )
    TOO_MANY_WAITING = Row(
        429,
        3040,
        "Too many calls of this {detail} are waiting for their first output, please wait",
        is_ai=True,
        should_retry=True,
    )
    TIMEOUT = Row(408, 3007, "Request timed out", is_ai=True, should_retry=False)
    ABORTED = Row(408, 3008, "The request was aborted before it was finished", is_ai=True)
    OUT_OF_CAPACITY = Row(429, 3040, "Capacity temporarily exceeded, please try again.", is_ai=True, should_retry=True)
    DRAINING = Row(503, 11001, "This gateway is shutting down, please try again", should_retry=True)
    DEPENDENCY_DOWN = Row(503, 11002, "A service that this request needs is not available, please try again")
    INTERNAL = Row(500, 11000, "Internal error")


class ClientLeft(Exception):
    """The client closed its connection."""


class Refusal(Exception):
    """A request that is refused. `detail` fills the row's message: a field, a limit or a validated name, never a value
    from the body, a credential or a library's text. The exception is a node's message about the caller's schema."""

    def __init__(
        self,
        reason: Reason,
        detail: str = "",
        *,
        retry_after_s: int | None = None,
        allow: str = "",
        suggestion: str = "",
    ) -> None:
        super().__init__(reason.name)
        self.reason = reason
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.allow = allow  # the route's methods, for METHOD_NOT_ALLOWED
        self.suggestion = suggestion  # precedes the row's hint

    @property
    def row(self) -> Row:
        return self.reason.value

    @property
    def message(self) -> str:
        """The message of the error response."""
        return f"AiError: {self.text}" if self.row.is_ai else self.text

    @property
    def message_with_hint(self) -> str:
        """The message, followed by what the caller can do."""
        advice = " ".join(text for text in (self.suggestion, self.row.hint) if text)
        return f"{self.message}. {advice}" if advice else self.message

    @property
    def text(self) -> str:
        """The message without the prefix of AI errors."""
        return self.row.message.replace("{detail}", self.detail)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the retry headers; every 429 and 503 has `retry-after` in whole seconds, jittered."""
        headers = []
        retry_after_s = self.retry_after_s
        if retry_after_s is None and self.row.status in (429, 503):
            retry_after_s = random.randint(1, 5)  # noqa: S311 - spreads clients, guards nothing
        if retry_after_s is not None:
            headers.append((b"retry-after", str(retry_after_s).encode()))
        if self.row.should_retry is not None:
            headers.append((b"x-should-retry", b"true" if self.row.should_retry else b"false"))
        if self.allow:
            headers.append((b"allow", self.allow.encode()))
        return headers


_FAILURES: dict[FailureReason, Reason] = {
    "invalid_input": Reason.INPUT_INVALID,
    "context_too_long": Reason.PROMPT_TOO_LONG,
    "out_of_capacity": Reason.OUT_OF_CAPACITY,
    "model_unavailable": Reason.OUT_OF_CAPACITY,
    "timeout": Reason.TIMEOUT,
    "aborted": Reason.ABORTED,
    "draining": Reason.OUT_OF_CAPACITY,
    "constraint_failed": Reason.JSON_MODE_FAILED,
    "internal": Reason.ABORTED,
}


def failure(reason: FailureReason, message: str = "", retry_after_s: int = 0) -> Refusal:
    """Return the refusal for a node's Failed. Only the message of `invalid_input` reaches the client: it names a
    field."""
    detail = message if reason == "invalid_input" else ""
    return Refusal(_FAILURES[reason], detail, retry_after_s=retry_after_s or None)


def refusal_of(error: Exception) -> Refusal | None:
    """Return the Refusal for an exception of another package; None if the exception is a bug."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InvalidModelId):
        return Refusal(Reason.MODEL_ID_INVALID)
    if isinstance(error, SchemaViolation) and error.code == Reason.LORA_UNSUPPORTED.value.code:
        return Refusal(Reason.LORA_UNSUPPORTED)
    if isinstance(error, SchemaViolation | BadInput):
        return Refusal(Reason.INPUT_INVALID, str(error))
    if isinstance(error, StoreError):
        return Refusal(Reason.DEPENDENCY_DOWN)
    if isinstance(error, OutputNotJson):
        return Refusal(Reason.JSON_MODE_FAILED)
    return None
