"""Variations of a question by hurried or polite people: openings, endings, missing punctuation and capitals.

A kind draws its core wording and varies it here, so that the model learns to recognize the question in any form. Knows
no particular kind.
"""

from spark.generator.dialogue import Source

OPENINGS = (
    "Please tell me: ", "Tell me, ", "Quick question: ", "I have a question. ", "One more question: ", "Hey, ",
    "Hello! ", "Hi! ", "Hi Spark, ", "Spark, ", "Hey Spark! ", "So, ", "Okay, ", "Now: ", "Next question: ",
    "Can you help me? ",
    "I need your help. ", "Good morning! ", "Excuse me, ", "Just curious: ", "Let me ask you: ", "A question: ",
    "Please help: ", "Thanks! ", "Great. ", "And now: ", "Help me with this: ", "Question: ", "I was wondering: ",
)  # fmt: skip
ENDINGS = (
    " Thanks.", " Thanks!", " Please.", " Thank you.", " Please tell me.", " I am curious.", " I would like to know.",
    " Thank you!", " Please help.", " I forgot.", " Do you know?", " Be quick.",
)  # fmt: skip


def dress(source: Source, question: str, may_lower: bool = False) -> str:
    """`question` as it is in half of all cases; else with an opening, an ending, or other marks.

    `may_lower` also allows it without any capital letter: only where the answer does not copy from the question.
    """
    draw = source.random()
    if draw < 0.5:
        return question
    if draw < 0.68:
        return source.choice(OPENINGS) + question
    if draw < 0.76:
        return question + source.choice(ENDINGS)
    bare = question.rstrip(".?!")
    if not bare:
        return question
    if draw < 0.84 or not may_lower:
        return bare
    if draw < 0.90:
        return question[0].lower() + question[1:]
    return bare.lower() if draw < 0.96 else question.lower()
