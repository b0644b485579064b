"""Labels: the sentiment of a sentence (positive, negative, neutral) and its topic."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.words import CITIES, FOODS, NAMES, NEGATIVE, PLACES, POSITIVE, WEEKDAYS

_SUBJECTS = (
    "movie", "film", "book", "soup", "pizza", "hotel", "room", "service", "waiter", "staff", "food", "concert", "song",
    "game", "phone", "laptop", "camera", "car", "trip", "museum", "garden", "restaurant", "coffee", "cake", "show", "play",
    "actor", "story", "ending", "plot", "music", "price", "delivery", "product", "lesson", "teacher", "meal", "bed", "view",
    "beach", "train", "flight", "shop", "driver", "doctor", "app", "website", "screen", "battery", "sound",
)  # fmt: skip
_STRENGTH = ("", "", "", "very ", "really ", "so ", "quite ", "absolutely ", "truly ", "simply ")
_ADJECTIVE_FRAMES = (
    "The {s} was {r}{a}.", "The {s} is {r}{a}.", "What a {a} {s}!", "This {s} is {r}{a}.", "I found the {s} {r}{a}.",
    "The {s} and the {z} were {r}{a}.", "My {s} is {r}{a}.", "It was a {a} {s}.", "Such a {a} {s}!", "{p} said the {s} was {r}{a}.",
    "We had a {a} {s} in {c}.", "The {s} in {c} was {r}{a}.", "Everything was {r}{a}.", "the {s} was {r}{a}", "{A} {s}.",
    "The {s} was {r}{a} and {b}.", "A {r}{a}, {b} {s}.", "On {d} the {s} was {r}{a}.", "{A} and {b}.", "I think this {s} is {r}{a}.",
)  # fmt: skip
_PHRASES = {
    "positive": (
        "I love this {s}.", "I really enjoyed the {s}.", "I would buy this {s} again.", "Best {s} ever!", "I am happy with the {s}.",
        "I recommend the {s}.", "The {s} made me smile.", "The {s} made my day.", "I had a great time.", "This {s} works perfectly.",
        "I love it!", "I like the {s} a lot.", "The {s} was not bad at all.", "Well done!", "I will come back.", "Highly recommended!",
        "I can not stop smiling.", "The {s} is worth every penny.", "I am so glad I bought this {s}.", "What a joy!",
    ),
    "negative": (
        "I hate this {s}.", "I did not like the {s}.", "I would never buy this {s} again.", "Worst {s} ever!", "I am unhappy with the {s}.",
        "I do not recommend the {s}.", "The {s} made me angry.", "The {s} ruined my day.", "I had a bad time.", "This {s} does not work.",
        "I hate it!", "The {s} was a waste of time.", "The {s} was not good.", "I want my money back.", "I will never come back.",
        "The {s} broke after one day.", "I regret buying this {s}.", "The {s} is a waste of money.", "What a disaster!", "Do not buy this {s}.",
    ),
    "neutral": (
        "The {s} arrived on {d}.", "I bought the {s} in {c}.", "The {s} is in the {l}.", "The {s} starts at noon.", "{p} has a {s}.",
        "The {s} is next to the {z}.", "We went to {c} on {d}.", "The {s} costs ten dollars.", "There is a {s} in the {l}.", "{p} works in {c}.",
        "The {s} opens on {d}.", "I saw the {s} on {d}.", "The {s} has two parts.", "The {s} is made in {c}.", "{p} sent me the {s}.",
    ),
}  # fmt: skip
_ASK_SENTIMENT = (
    "What is the sentiment of this sentence: {t}", "Classify the sentiment: {t}", "Is this positive or negative: {t}",
    "Sentiment: {t}", "Positive, negative or neutral? {t}", "Label the sentiment of this review: {t}",
    "What is the sentiment of this text? {t}", "Classify this review as positive, negative or neutral: {t}",
    "Is this review positive or negative? {t}", "Tell me the sentiment: {t}", "{t} Is this positive or negative?",
    "{t} What is the sentiment?", "How does this sound, positive or negative: {t}", "Rate the sentiment of: {t}",
    "Classify the sentiment of this sentence as positive or negative: {t}", "Is the writer happy? Label the sentiment: {t}",
    "Which sentiment does this text have: {t}",
)  # fmt: skip


def draw_opinion(source: Source, label: str) -> str:
    """A sentence with the sentiment `label`."""
    frames = _PHRASES[label]
    words = POSITIVE if label == "positive" else NEGATIVE
    if label != "neutral" and source.random() < 0.7:
        frames = _ADJECTIVE_FRAMES
    adjective = source.choice(words)
    return source.choice(frames).format(
        s=source.choice(_SUBJECTS), z=source.choice(_SUBJECTS), a=adjective, b=source.choice(words), A=sentence(adjective),
        r=source.choice(_STRENGTH), p=source.choice(NAMES), c=source.choice(CITIES), d=source.choice(WEEKDAYS), l=source.choice(PLACES),
    )  # fmt: skip


def make_sentiment(source: Source) -> Dialogue:
    """positive, negative or neutral."""
    label = source.choices(("positive", "negative", "neutral"), (42, 42, 16))[0]
    text = draw_opinion(source, label)
    if label != "neutral" and source.random() < 0.2:
        text += " " + draw_opinion(source, label)
    if source.random() < 0.25:
        text = f"'{text}'"
    return ask("sentiment", source, source.pick_phrasing(_ASK_SENTIMENT).format(t=text), label)


_TOPICS = {
    "sports": (
        "team",
        "match",
        "race",
        "goal",
        "player",
        "tennis",
        "football",
        "coach",
        "stadium",
        "medal",
        "score",
        "league",
    ),
    "weather": (
        "rain",
        "snow",
        "storm",
        "wind",
        "sunshine",
        "fog",
        "clouds",
        "thunder",
        "heat",
        "frost",
        "lightning",
        "ice",
    ),
    "food": FOODS[:40],
    "travel": (
        "flight",
        "hotel",
        "passport",
        "suitcase",
        "airport",
        "journey",
        "ticket",
        "tourist",
        "beach",
        "luggage",
        "train",
    ),
    "money": ("bank", "price", "loan", "tax", "salary", "budget", "market", "debt", "coin", "rent", "cash", "credit"),
    "health": (
        "doctor",
        "nurse",
        "hospital",
        "fever",
        "medicine",
        "pain",
        "dentist",
        "disease",
        "patient",
        "exam",
        "blood",
    ),
    "music": ("song", "guitar", "piano", "concert", "band", "drum", "melody", "violin", "singer", "orchestra", "album"),
    "technology": (
        "computer",
        "phone",
        "software",
        "server",
        "robot",
        "network",
        "laptop",
        "internet",
        "database",
        "printer",
    ),
}
_TOPIC_FRAMES = (
    "The {w} was the talk of {c}.", "{p} read a lot about the {w} and the {v}.", "The {w} changed on {d}.", "We talked about the {w}.",
    "Yesterday the {w} and the {v} were in the news.", "{p} wants to know more about the {w}.", "There was a {w} in {c}.", "The {w} surprised {p}.",
)  # fmt: skip
_ASK_TOPIC = (
    "What is the topic of this sentence: {t}", "Topic: {t}", "Classify the topic: {t}", "What is this about? {t}",
    "Which topic fits this text: {t}", "Label the topic: {t}", "What topic is this: {t}", "Name the topic of: {t}",
    "Which subject does this text have: {t}",
)  # fmt: skip


def make_topic(source: Source) -> Dialogue:
    """One of eight topics, from the words that belong to it."""
    label = source.choice(list(_TOPICS))
    text = source.choice(_TOPIC_FRAMES).format(
        w=source.choice(_TOPICS[label]),
        v=source.choice(_TOPICS[label]),
        p=source.choice(NAMES),
        c=source.choice(CITIES),
        d=source.choice(WEEKDAYS),
    )
    return ask("topic", source, source.pick_phrasing(_ASK_TOPIC).format(t=text), label)
