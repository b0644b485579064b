"""Topics of sentences, from the words that belong to each of twelve topics."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.words import ANIMALS, CITIES, FOODS, NAMES, WEEKDAYS

TOPICS: dict[str, tuple[str, ...]] = {
    "sports": tuple("team match race goal player tennis football coach stadium medal score league champion tournament referee basketball marathon athlete final trophy hockey boxing baseball golf swimmer".split()),
    "weather": tuple("rain snow storm wind sunshine fog clouds thunder heat frost lightning ice forecast temperature drizzle hail breeze blizzard hurricane rainbow".split()),
    "food": (*FOODS[:40], "dinner", "lunch", "recipe", "dessert", "sauce", "bakery", "chef", "breakfast"),
    "travel": tuple("flight hotel passport suitcase airport journey ticket tourist luggage train vacation cruise visa guidebook harbor holiday island trip".split()),
    "money": tuple("bank price loan tax salary budget market debt coin rent cash credit dollar investment profit wallet mortgage insurance stock fee".split()),
    "health": tuple("doctor nurse hospital fever medicine pain dentist disease patient blood cough vaccine pill surgery headache clinic therapy flu".split()),
    "music": tuple("song guitar piano concert band drum melody violin singer orchestra album choir flute rhythm trumpet opera chorus tune".split()),
    "technology": tuple("computer software server robot network laptop internet database printer smartphone program keyboard browser processor app password website algorithm".split()),
    "animals": ANIMALS[:50],
    "politics": tuple("president election government minister vote law parliament senator mayor policy campaign treaty congress party embassy ambassador".split()),
    "science": tuple("experiment planet atom laboratory scientist telescope physics chemistry gravity molecule theory microscope fossil galaxy astronomer biology".split()),
    "school": tuple("teacher pupil homework lesson classroom student exam grade university college teachers textbook library essay diploma lecture".split()),
}  # fmt: skip
_FRAMES = (
    "the {w} was the talk of {c}", "{p} read a lot about the {w} and the {v}", "the {w} changed on {d}", "we talked about the {w}", "yesterday the {w} and the {v} were in the news",
    "{p} wants to know more about the {w}", "there was a {w} in {c}", "the {w} surprised {p}", "{p} told us about the {w} and the {v}", "the {w} in {c} was better than the {v}",
    "on {d} {p} saw the {w}", "I dreamed of the {w} and a {v}", "nobody in {c} expected the {w}", "the {v} comes first, then the {w}", "{p} and {q} wrote about the {w}", "after the {w} came the {v}",
    "a report from {c} describes the {w}, the {v} and the {u}", "my friend knows all about the {w}", "{p} asked me about the {v} and the {w}", "the {w} and the {v} are important", "people in {c} like the {w}",
    "is the {w} bigger than the {v}", "{p} forgot the {w}", "this year the {w} is new", "they showed the {w} on {d}", "the old {w}, the {v} and the new {u}",
)  # fmt: skip
_ASK = (
    "What is the topic of this sentence: {t}", "Topic: {t}", "Classify the topic: {t}", "What is this about? {t}", "Which topic fits this text: {t}", "Label the topic: {t}", "What topic is this: {t}",
    "Name the topic of: {t}", "What is the topic? {t}", "{t} What is the topic?", "{t}\nTopic?", "What is the subject of this text: {t}", "Which topic is this text about: {t}", "What is this text about: {t}",
    "Tell me the topic: {t}", "Find the topic of this sentence: {t}", "Say in one word what this is about: {t}", "Which subject fits this sentence: {t}", "What is the subject? {t}", "Which topic does this have: {t}",
    "Which subject does this text have: {t}",
)  # fmt: skip
_ASK_LISTED = (
    "Is this about {l}: {t}", "Is this about {l}? {t}", "Which topic is it, {l}: {t}", "Classify this text as {l}: {t}", "Choose the topic from {l}: {t}", "Topics: {l}. Which one fits? {t}",
    "{t} Is this about {l}?", "Label this as {l}: {t}", "Does this belong to {l}: {t}", "Which of these topics fits, {l}? {t}", "Pick a topic, {l}: {t}", "Is the topic of this text {l}: {t}",
    "Which topic fits this sentence best, {l}: {t}",
)  # fmt: skip


def place_text(wording: str, text: str) -> str:
    """`text` in its `wording`; where the question follows on the same line, with an end mark."""
    mark = "." if wording.startswith("{t} ") and text[-1].isalnum() else ""
    return wording.replace("{t}", text + mark)


def make_topic(source: Source) -> Dialogue:
    """One of twelve topics, in one word; the question may list some to choose from."""
    label = source.choice(list(TOPICS))
    first, second, third = source.sample(TOPICS[label], 3)
    text = sentence(source.choice(_FRAMES).format(
        w=first, v=second, u=third, p=source.choice(NAMES), q=source.choice(NAMES), c=source.choice(CITIES), d=source.choice(WEEKDAYS),
    )) + source.choice((".", ".", ".", "!", ""))  # fmt: skip
    if source.random() < 0.1:
        text = text.lower()
    if source.random() < 0.6:
        return ask("topic", source, place_text(source.pick_phrasing(_ASK), text), label)
    others = source.sample([topic for topic in TOPICS if topic != label], source.randrange(1, 4))
    listed = source.sample([label, *others], len(others) + 1)
    names = f"{', '.join(listed[:-1])} or {listed[-1]}"
    return ask("topic", source, place_text(source.pick_phrasing(_ASK_LISTED).replace("{l}", names), text), label)
