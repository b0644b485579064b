"""Statements about persons, things and places: sentences, the questions they answer, the answers.

Shared by the memory and reading kinds. The last question of every list is held out of training.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spark.generator.dialogue import Message, Source, recall
from spark.generator.values import draw_first_name, draw_made, draw_value


@dataclass(frozen=True)
class Relation:
    """`p` is the subject, `v` the stated value, `k` a thing they share, as {p}, {v}, {k}."""

    subject: str
    value: str
    key: str
    sentences: tuple[str, ...]
    by_subject: tuple[str, ...]
    by_value: tuple[str, ...]
    answer: str


RELATIONS = (
    Relation("first", "color", "thing", ("{p} has a {v} {k}.", "The {k} of {p} is {v}.", "{p} bought a {v} {k}.", "{p}'s {k} is {v}."),
        ("What color is the {k} of {p}?", "Which color does the {k} of {p} have?", "What color is {p}'s {k}?", "Which color is {p}'s {k}?", "What is the color of {p}'s {k}?", "Tell me the color of {p}'s {k}.", "What color does {p}'s {k} have?"),
        ("Who has the {v} {k}?", "Who has a {v} {k}?", "Whose {k} is {v}?", "Who bought the {v} {k}?", "Who of them has the {v} {k}?"), "{p} has a {v} {k}."),
    Relation("first", "age", "", ("{p} is {v} years old.", "{p} is {v}.", "{p} turned {v} this year.", "The age of {p} is {v}."),
        ("How old is {p}?", "What is the age of {p}?", "What age is {p}?", "Tell me the age of {p}.", "Do you know how old {p} is?", "How many years old is {p}?", "Tell me how old {p} is."),
        ("Who is {v} years old?", "Who is {v}?", "Who turned {v}?", "Which of them is {v}?", "Who of them is {v} years old?"), "{p} is {v} years old."),
    Relation("first", "city", "", ("{p} lives in {v}.", "{p} is from {v}.", "{p} moved to {v}.", "The home of {p} is in {v}."),
        ("Where does {p} live?", "In which city does {p} live?", "Where is {p} from?", "Where is the home of {p}?", "Tell me where {p} lives.", "Which city does {p} live in?", "Do you know where {p} lives?"),
        ("Who lives in {v}?", "Who is from {v}?", "Who moved to {v}?", "Which of them lives in {v}?", "Who has a home in {v}?"), "{p} lives in {v}."),
    Relation("first", "food", "", ("{p} likes {v}.", "{p} loves {v}.", "{p} eats {v} every day.", "{p} always orders {v}."),
        ("What does {p} like?", "What does {p} eat?", "Which food does {p} like?", "What does {p} love?", "What does {p} like to eat?", "Tell me what {p} likes.", "Which food does {p} love?"),
        ("Who likes {v}?", "Who loves {v}?", "Who eats {v}?", "Which of them likes {v}?", "Who of them likes {v}?"), "{p} likes {v}."),
    Relation("first", "job", "", ("{p} works as a {v}.", "{p} has a job as a {v}.", "The job of {p} is {v}.", "{p} became a {v}."),
        ("What is the job of {p}?", "What does {p} do?", "What does {p} work as?", "Which job does {p} have?", "Tell me the job of {p}.", "What is {p}'s job?", "What does {p} do for work?"),
        ("Who works as a {v}?", "Who is the {v}?", "Who became a {v}?", "Which of them works as a {v}?", "Who has a job as a {v}?"), "{p} works as a {v}."),
    Relation("first", "room", "", ("{p} is in the {v}.", "{p} waits in the {v}.", "{p} went to the {v}.", "You can find {p} in the {v}."),
        ("Where is {p}?", "Where can I find {p}?", "In which room is {p}?", "Where does {p} wait?", "Tell me where {p} is.", "Where did {p} go?", "Do you know where {p} is?"),
        ("Who is in the {v}?", "Who waits in the {v}?", "Who went to the {v}?", "Which of them is in the {v}?", "Who can be found in the {v}?"), "{p} is in the {v}."),
    Relation("first", "day", "", ("{p} comes on {v}.", "{p} arrives on {v}.", "On {v} we see {p}.", "The visit of {p} is on {v}."),
        ("When does {p} come?", "On which day does {p} come?", "When do we see {p}?", "When does {p} arrive?", "Which day does {p} come?", "When is the visit of {p}?", "On which day does {p} arrive?"),
        ("Who comes on {v}?", "Who arrives on {v}?", "Who visits on {v}?", "Whom do we see on {v}?", "Which of them comes on {v}?"), "{p} comes on {v}."),
    Relation("thing", "room", "", ("The {p} is in the {v}.", "The {p} stands in the {v}.", "There is a {p} in the {v}.", "They keep the {p} in the {v}."),
        ("Where is the {p}?", "Where can I find the {p}?", "Where does the {p} stand?", "In which place is the {p}?", "Tell me where the {p} is.", "Where do they keep the {p}?", "Do you know where the {p} is?"),
        ("What is in the {v}?", "What stands in the {v}?", "What do they keep in the {v}?", "Which thing is in the {v}?", "What can I find in the {v}?"), "The {p} is in the {v}."),
    Relation("thing", "price", "", ("The {p} costs {v} dollars.", "The price of the {p} is {v} dollars.", "They sell the {p} for {v} dollars.", "You pay {v} dollars for the {p}."),
        ("How much is the {p}?", "What does the {p} cost?", "What is the price of the {p}?", "How much does the {p} cost?", "How many dollars is the {p}?", "Tell me the price of the {p}.", "How much do I pay for the {p}?"),
        ("What costs {v} dollars?", "Which thing costs {v} dollars?", "What do they sell for {v} dollars?", "What can I buy for {v} dollars?", "Which of them costs {v} dollars?"), "The {p} costs {v} dollars."),
    Relation("made", "clock", "", ("{p} opens at {v}.", "The shop {p} opens at {v}.", "{p} is open from {v}.", "At {v} {p} opens its doors."),
        ("When does {p} open?", "At what time does {p} open?", "What time does {p} open?", "From when is {p} open?", "Tell me when {p} opens.", "When are the doors of {p} open?", "Do you know when {p} opens?"),
        ("What opens at {v}?", "Which shop opens at {v}?", "Which place opens at {v}?", "Which of them opens at {v}?", "Which one opens at {v}?"), "{p} opens at {v}."),
    Relation("made", "year", "", ("{p} was founded in {v}.", "The founding year of {p} is {v}.", "{p} began in {v}.", "{p} has existed since {v}."),
        ("When was {p} founded?", "In which year was {p} founded?", "Since when has {p} existed?", "When did {p} begin?", "What year was {p} founded?", "Tell me when {p} was founded.", "In what year did {p} begin?"),
        ("What was founded in {v}?", "Which company was founded in {v}?", "What began in {v}?", "Which of them was founded in {v}?", "Which one was founded in {v}?"), "{p} was founded in {v}."),
    Relation("made", "person", "", ("{p} was founded by {v}.", "{v} is the head of {p}.", "{v} runs {p}.", "The owner of {p} is {v}."),
        ("Who runs {p}?", "Who founded {p}?", "Who is the head of {p}?", "Who is the owner of {p}?", "Who owns {p}?", "Tell me who runs {p}.", "Who is the boss of {p}?"),
        ("What does {v} run?", "Which company does {v} run?", "What does {v} own?", "Which of them does {v} run?", "Which company belongs to {v}?"), "{p} is run by {v}."),
    Relation("made", "number", "", ("{p} has {v} members.", "There are {v} people in {p}.", "{v} people work at {p}.", "{p} counts {v} members."),
        ("How many people are in {p}?", "How many members does {p} have?", "How many people work at {p}?", "How big is {p}?", "Tell me how many members {p} has.", "How many people does {p} have?", "What is the number of members of {p}?"),
        ("Which of them has {v} members?", "What has {v} members?", "Which one has {v} members?", "Which company has {v} people?", "Which company has {v} members?"), "{p} has {v} members."),
    Relation("made", "city", "", ("{p} is in {v}.", "{p} has its office in {v}.", "The office of {p} is in {v}.", "You find {p} in {v}."),
        ("Where is {p}?", "In which city is {p}?", "Where is the office of {p}?", "Where can I find {p}?", "Tell me where {p} is.", "Which city is {p} in?", "Where does {p} have its office?"),
        ("What is in {v}?", "Which company is in {v}?", "Which of them is in {v}?", "What can I find in {v}?", "Which one is in {v}?"), "{p} is in {v}."),
    Relation("made", "code", "", ("The code of {p} is {v}.", "{p} has the code {v}.", "{p}: code {v}.", "Use the code {v} for {p}."),
        ("What is the code of {p}?", "Which code does {p} have?", "What code do I use for {p}?", "Tell me the code of {p}.", "Which code belongs to {p}?", "What is the code for {p}?", "Give me the code of {p}."),
        ("What has the code {v}?", "Which of them has the code {v}?", "For what is the code {v}?", "Which one has the code {v}?", "What does the code {v} belong to?"), "The code of {p} is {v}."),
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One statement and the questions about it."""

    relation: Relation
    fields: dict[str, Any]
    text: str

    @property
    def answer(self) -> str:
        return fix_articles(self.relation.answer.format(**self.fields))

    def draw_question(self, source: Source, by_value: bool) -> str:
        wordings = self.relation.by_value if by_value else self.relation.by_subject
        return fix_articles(source.pick_phrasing(wordings).format(**self.fields))

    def draw_turn(self, source: Source, by_value: bool, statements: Sequence[str]) -> tuple[str, Message]:
        """Return a question and its answer with the source. This fact is one of `statements`."""
        question = self.draw_question(source, by_value)
        return question, recall(self.answer, str(self.fields["p" if by_value else "v"]), self.text, statements)


def fix_articles(text: str) -> str:
    """`text` with "an" where a vowel follows."""
    words = text.split(" ")
    for i in range(len(words) - 1):
        if words[i] in ("a", "A") and words[i + 1][:1].lower() in tuple("aeiou"):
            words[i] += "n"
    return " ".join(words)


def draw_facts(source: Source, relation: Relation, count: int) -> list[Fact]:
    """`count` sentences of one relation about different subjects with different values."""
    key = draw_value(source, "thing")
    subjects: list[Any] = []
    values: list[Any] = []
    while len(subjects) < count:
        subject, value = _draw_subject(source, relation.subject), draw_value(source, relation.value)
        if subject not in subjects and value not in values:
            subjects.append(subject)
            values.append(value)
    facts = []
    for subject, value in zip(subjects, values, strict=True):
        fields = {"p": subject, "v": value, "k": key}
        facts.append(Fact(relation, fields, fix_articles(source.choice(relation.sentences).format(**fields))))
    return facts


def _draw_subject(source: Source, kind: str) -> str:
    if kind == "first":
        return draw_first_name(source)
    if kind == "thing":
        return str(draw_value(source, "thing"))
    name = draw_made(source).title()
    return (
        f"{name} {source.choice(('Bank', 'Labs', 'Museum', 'Cafe', 'Club', 'Motors', 'School'))}"
        if source.random() < 0.3
        else name
    )


def draw_absent(source: Source, facts: list[Fact], stated: list[Fact]) -> str:
    """Return a question about a relation of `facts` and a subject that `stated` does not name."""
    relation = source.choice(facts).relation
    named = [fact.fields["p"] for fact in stated]
    while (other := draw_facts(source, relation, 1)[0]).fields["p"] in named:
        pass
    return other.draw_question(source, by_value=False)
