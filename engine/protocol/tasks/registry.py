"""All tasks. A node announces the slugs of those that it can load; the catalog lists models of others as well."""

from __future__ import annotations

from typing import get_args

from engine.protocol.tasks.automatic_speech_recognition import AutomaticSpeechRecognition
from engine.protocol.tasks.image_classification import ImageClassification
from engine.protocol.tasks.image_to_text import ImageToText
from engine.protocol.tasks.object_detection import ObjectDetection
from engine.protocol.tasks.summarization import Summarization
from engine.protocol.tasks.text_classification import TextClassification
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration
from engine.protocol.tasks.text_to_image import TextToImage
from engine.protocol.tasks.text_to_speech import TextToSpeech
from engine.protocol.tasks.translation import Translation
from engine.protocol.tasks.voice_activity_detection import VoiceActivityDetection

TaskInput = (
    TextGeneration
    | TextEmbeddings
    | TextClassification
    | Translation
    | Summarization
    | AutomaticSpeechRecognition
    | VoiceActivityDetection
    | ImageClassification
    | ImageToText
    | ObjectDetection
    | TextToSpeech
    | TextToImage
)

TASKS: dict[str, type[TaskInput]] = {task.slug: task for task in get_args(TaskInput)}

NATIVE_SCHEMAS = tuple(name for task in TASKS.values() for name in task.native_schemas)
