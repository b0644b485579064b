"""All tasks. A node announces the slugs of those that it can load; the catalog lists models of others as well."""

from __future__ import annotations

from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration

TaskInput = TextGeneration | TextEmbeddings

TASKS: dict[str, type[TaskInput]] = {task.slug: task for task in (TextGeneration, TextEmbeddings)}


NATIVE_SCHEMAS = tuple(name for task in TASKS.values() for name in task.native_schemas)
