"""All tasks. A node announces the slugs of those that it can load; the catalog lists models of others as well."""

from __future__ import annotations

from engine.protocol.tasks.task import Task
from engine.protocol.tasks.text_embeddings import TextEmbeddings
from engine.protocol.tasks.text_generation import TextGeneration

TaskInput = TextGeneration | TextEmbeddings

TASKS: dict[str, type[TaskInput]] = {task.slug: task for task in (TextGeneration, TextEmbeddings)}


def task_of(slug: str) -> type[Task]:
    """Return the task with this slug. Raises KeyError."""
    return TASKS[slug]
