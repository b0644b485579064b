"""The route of live speech: check the request, accept the WebSocket and run its session.

All checks of a call are made before the WebSocket is accepted, so that a refusal is an ordinary HTTP response.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from catalog.registry import Resolved
from engine.protocol.tasks.automatic_speech_recognition import AutomaticSpeechRecognition
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tasks.text_to_speech import TextToSpeech
from engine.protocol.tasks.voice_activity_detection import VoiceActivityDetection
from gateway import authentication
from gateway.call import WebSocketEndpoint
from gateway.errors import Reason, Refusal
from gateway.http.exchange import Exchange
from gateway.http.web_socket import CloseCode
from gateway.model_names import find_model, require_task
from gateway.request_headers import model_headers
from gateway.services import Services
from gateway.speech.node_calls import NodeCalls
from gateway.speech.options import SpeechOptions, model_of, read_options
from gateway.speech.session import Limits, Models, SpeechSession
from telemetry import metrics
from tenants.credentials.principal import Principal

Verify = Callable[[], Awaitable[Principal]]


async def _serve(
    services: Services, exchange: Exchange, principal: Principal, verify: Verify, path_model: str | None
) -> None:
    """Serve one WebSocket. Raises Refusal while it is not accepted."""
    exchange.check_web_socket()
    options = read_options(exchange)
    with services.admission.enter(principal.account_id) as slot:
        if not services.ledger.has_room:
            raise Refusal(Reason.DEPENDENCY_DOWN)
        models = await _find_models(services, principal, model_of(exchange, path_model), options)
        exchange.response_headers += model_headers(exchange, models.recognition)
        socket = exchange.accept_web_socket()
        slot.stop = lambda: socket.end(CloseCode.SERVICE_RESTART, "this gateway is shutting down")
        settings = services.settings
        limits = Limits(settings.web_socket_idle_s, settings.web_socket_max_s)
        calls = NodeCalls(services, principal, slot, exchange.request_id)
        with metrics.WEB_SOCKETS.track_inprogress():
            await SpeechSession(socket, calls, models, options, limits, verify).run()


LIVE_SPEECH = WebSocketEndpoint("Transcribe live speech over a WebSocket.", SpeechOptions, _serve)


async def _find_models(services: Services, principal: Principal, name: str, options: SpeechOptions) -> Models:
    """Return the models of a session. Raises Refusal and InvalidModelId."""

    async def find(name: str) -> Resolved:
        model = await find_model(services.registry, name)
        authentication.require_model(principal, model.requested_name, model.card.name)
        return model

    recognition = await find(name)
    require_task(recognition.card, AutomaticSpeechRecognition)
    chat = await find(options.chat_model) if options.chat_model else None
    if chat is not None:
        require_task(chat.card, TextGeneration)
    speech = await find(options.speech_model) if options.speech_model else None
    if speech is not None:
        require_task(speech.card, TextToSpeech)
    return Models(recognition, await _find_voice_activity(services), chat, speech)


async def _find_voice_activity(services: Services) -> Resolved:
    """Return the voice activity model. Raises Refusal that says how to add it."""
    name = services.settings.voice_activity_model
    try:
        model = await find_model(services.registry, name)
    except Refusal:
        detail = f"{name} or task: live speech needs this voice activity model. The operator adds it with "
        raise Refusal(Reason.MODEL_NOT_HERE, f"{detail}`hearth model add {name}`") from None
    require_task(model.card, VoiceActivityDetection)
    return model
