"""Text of images in documents: a call of each image model for each image, with limits, budgets and usage."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from catalog.registry import Resolved
from documents.messages import NO_TEXT
from engine.protocol.tasks.image_to_text import ImageToText
from engine.protocol.tasks.object_detection import ObjectDetection
from gateway import authentication
from gateway.admission import ConcurrencySlot
from gateway.errors import Reason, Refusal
from gateway.inference.run import RUN
from gateway.model_names import find_model
from gateway.pipeline import run_item
from gateway.request_context import RequestContext
from gateway.services import Services
from tenants.credentials.principal import Principal


@dataclass
class ImageReader:
    """Reads images for one request of a client: text and descriptions with image-to-text models, and the names of
    objects with object detection models."""

    services: Services
    principal: Principal
    slot: ConcurrencySlot
    request_id: str
    models: Sequence[Resolved]
    num_calls: int = 0

    @classmethod
    async def find(
        cls, services: Services, principal: Principal, slot: ConcurrencySlot, request_id: str
    ) -> ImageReader | None:
        """Return a reader with those models of the settings that are published and that the caller may run; None if
        there is no such model."""
        models = []
        for name in services.settings.document_image_models.split(","):
            try:
                model = await find_model(services.registry, name.strip())
                authentication.require_model(principal, model.requested_name, model.card.name)
            except Refusal:
                continue
            if model.card.task_slug in (ImageToText.slug, ObjectDetection.slug):
                models.append(model)
        return cls(services, principal, slot, request_id, models) if models else None

    async def read(self, file: bytes, *, is_page: bool) -> str:
        """Return the text, the description and the objects of an image. Objects are not searched in a scanned page.
        Raises Refusal, also for a scanned page if there is no image-to-text model."""
        if is_page and all(model.card.task_slug == ObjectDetection.slug for model in self.models):
            raise Refusal(Reason.INPUT_INVALID, NO_TEXT)
        texts = []
        for model in self.models:
            if model.card.task_slug == ObjectDetection.slug:
                texts += [] if is_page else [_list_objects(await self._run(model, file))]
            else:
                texts.append(str((await self._run(model, file))["description"]).strip())
        return "\n\n".join(filter(None, texts))

    async def _run(self, model: Resolved, file: bytes) -> Any:
        """Return the result of one call. Raises Refusal."""
        self.num_calls += 1
        context = RequestContext(
            services=self.services,
            endpoint=RUN,
            request_id=f"{self.request_id}-{self.num_calls}",
            principal=self.principal,
            model=model,
            slot=self.slot,
            ledger=self.services.ledger,
            started_s=self.services.clock.monotonic_s(),
            num_bytes_in=len(file),
        )
        body = {"image": base64.b64encode(file).decode()}
        response = await run_item(context, body, lambda _calls: None)
        return msgspec.json.decode(response.body)


def _list_objects(found: Sequence[dict[str, Any]]) -> str:
    """Return the labels of detected objects with their numbers, or an empty text if there is no object."""
    counts = Counter(each["label"] for each in found)
    labels = [label if count == 1 else f"{label} ({count})" for label, count in counts.most_common()]
    return f"Objects: {', '.join(labels)}" if labels else ""
