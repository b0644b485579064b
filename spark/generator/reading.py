"""Reading: a short text and a question that one of its sentences answers, or that none answers."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Message, Source, assistant, system, user
from spark.generator.relations import RELATIONS, draw_absent, draw_facts
from spark.generator.wording import dress

UNKNOWN = "The text does not say that."
_FORMS = (
    "Use the text to answer. Text: {t} Question: {q}", "Text: {t}\n\nQuestion: {q}", "Context: {t}\n\nQuestion: {q}", "Context:\n{t}\n\nQuestion: {q}\nAnswer:",
    "{t}\n\n{q}", "Read this text: {t}\n{q}", "Answer with the text.\n\n{t}\n\n{q}", "Question: {q}\n\nText: {t}", "Read this: {t} Now answer: {q}",
    "{q} Here is the text: {t}", "According to this text, {t}\n{q}", "Use the following context to answer the question.\n\nContext: {t}\n\nQuestion: {q}",
    "Given the text below, answer the question.\n\n{t}\n\n{q}", "Document: {t}\nQuestion: {q}", "Information: {t}\n\n{q}", "Passage: {t}\n\nQuestion: {q}",
    "Answer the question with the context.\n\nContext: {t}\n\nQuestion: {q}",
)  # fmt: skip
_SYSTEM = (
    "Use the text to answer. Text: {t}", "Context: {t}", "Answer with this text: {t}", "You answer questions about this text: {t}", "Text:\n{t}",
    "You are a helpful assistant. Use the following context to answer.\n\n{t}", "Documents:\n{t}", "Here is what you know: {t}",
    "Answer the question with the following context:\n{t}", "Use this information: {t}",
)  # fmt: skip


def make_reading(source: Source) -> Dialogue:
    """Two to five sentences and one question; two of the sentences tell the same of different subjects."""
    facts = draw_facts(source, source.choice(RELATIONS), source.choice((1, 2, 2, 3)))
    asked = source.choice(facts)
    others = [draw_facts(source, relation, 1)[0] for relation in source.sample(RELATIONS, source.randrange(4))]
    known = [fact.fields["p"] for fact in facts] + [fact.fields["v"] for fact in facts]
    others = [
        fact
        for fact in others
        if fact.relation is not asked.relation and fact.fields["p"] not in known and fact.fields["v"] not in known
    ]
    listed = source.sample(facts + others, len(facts + others))
    text = source.choice((" ", " ", "\n")).join(fact.text for fact in listed)
    if source.random() < 0.15 and not source.wants_new_phrasing:
        return _finish(source, text, draw_absent(source, facts, listed), assistant(UNKNOWN))
    question, answer = asked.draw_turn(source, source.random() < 0.35, [fact.text for fact in listed])
    return _finish(source, text, question, answer)


def _finish(source: Source, text: str, question: str, answer: Message) -> Dialogue:
    if source.random() < 0.3:
        messages: list[Message] = [system(source.pick_phrasing(_SYSTEM).format(t=text)), user(dress(source, question))]
    else:
        messages = [user(source.pick_phrasing(_FORMS).format(t=text, q=question))]
    return Dialogue("reading", [*messages, answer], [], source.used_new_phrasing, can_join=False)
