"""Text of images in documents: one call of an image-to-text model for each image, with limits, budgets and usage."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import msgspec

from catalog.registry import Resolved
from engine.protocol.tasks.image_to_text import ImageToText
from gateway import authentication
from gateway.admission import ConcurrencySlot
from gateway.errors import Refusal
from gateway.inference.run import RUN
from gateway.model_names import find_model
from gateway.pipeline import run_item
from gateway.request_context import RequestContext
from gateway.services import Services
from tenants.credentials.principal import Principal


@dataclass
class ImageReader:
    """Reads images with one model, for one request of a client."""

    services: Services
    principal: Principal
    slot: ConcurrencySlot
    request_id: str
    model: Resolved
    num_calls: int = 0

    @classmethod
    async def find(
        cls, services: Services, principal: Principal, slot: ConcurrencySlot, request_id: str
    ) -> ImageReader | None:
        """Return a reader with the model of the settings; None if this model is not published, or if the caller may
        not run it."""
        try:
            model = await find_model(services.registry, services.settings.document_image_model)
            authentication.require_model(principal, model.requested_name, model.card.name)
        except Refusal:
            return None
        if model.card.task_slug != ImageToText.slug:
            return None
        return cls(services, principal, slot, request_id, model)

    async def read(self, file: bytes) -> str:
        """Return the text or the description of an image. Raises Refusal."""
        self.num_calls += 1
        context = RequestContext(
            services=self.services,
            endpoint=RUN,
            request_id=f"{self.request_id}-{self.num_calls}",
            principal=self.principal,
            model=self.model,
            slot=self.slot,
            ledger=self.services.ledger,
            started_s=self.services.clock.monotonic_s(),
            num_bytes_in=len(file),
        )
        body = {"image": base64.b64encode(file).decode()}
        response = await run_item(context, body, lambda _calls: None)
        return str(msgspec.json.decode(response.body)["description"]).strip()
