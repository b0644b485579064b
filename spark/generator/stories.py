"""Short stories, poems and jokes from slots; free in their choices, so no gate compares them exactly."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.words import ANIMALS, COLORS, FOODS, JOBS, NAMES, OBJECTS, PLACES, article

_ASK_STORY = (
    "Tell me a story.", "Tell me a short story.", "Write a short story.", "Write a story.", "Can you tell me a story?",
    "I want to hear a story.", "Please tell me a story.", "Make up a story.", "Give me a short story.", "Story please.",
    "Tell a story.", "Could you write a short story?", "Let me hear a little story.",
)  # fmt: skip
_ASK_ABOUT = (
    "Tell me a story about {x}.", "Tell me a short story about {x}.", "Write a short story about {x}.", "Write a story about {x}.",
    "Can you tell me a story about {x}?", "I want to hear a story about {x}.", "Please tell me a story about {x}.", "Make up a story about {x}.",
    "Give me a short story about {x}.", "A story about {x}, please.", "Invent a little story about {x}.",
)  # fmt: skip
_PLOTS = (
    "Once upon a time there was a {j} {x} named {n}. {n} lived in {l}. One day {n} lost a {c} {o}. {n} looked in the {k} and asked a {y} for help. Together they found the {o}. They shared some {f} and were friends from then on.",
    "Once there was a {x} called {n}. {n} wanted to see the {l}. On the way {n} met a {j} {y}. The {y} was hungry, so {n} gave it some {f}. Then they walked to the {l} together and watched the stars.",
    "A {j} {x} named {n} found a {c} {o} in the {l}. The {o} belonged to a {b}. {n} brought it back at once. The {b} was happy and gave {n} some {f}. That night {n} slept very well.",
    "It was a rainy day. {n}, a {j} {x}, sat in the {l} and felt lonely. Then a {y} knocked at the door. The {y} had {f} and a {c} {o}. They played until the sun came back. After that {n} was never lonely again.",
)  # fmt: skip
_KIND = ("little", "brave", "shy", "kind", "clever", "small", "young", "friendly", "curious")
_ASK_POEM = (
    "Write a poem about {x}.", "Write a short poem about {x}.", "Write me a poem about {x}.", "Can you write a poem about {x}?", "A poem about {x}, please.",
    "Make a little poem about {x}.", "Compose a poem about {x}.",
)  # fmt: skip
_POEMS = (
    "The {x} is quiet, the {x} is near,\nit sings a small song for all to hear.\nThe day goes by, the night is long,\nand still we remember its little song.",
    "I saw a {x} in the morning light,\nit was so little, it was so bright.\nI saw a {x} in the evening sun,\nand then I knew that the day was done.",
)
_ASK_JOKE = (
    "Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Tell a joke.", "Can you tell me a joke?",
    "I want to hear a joke.", "Another joke, please.", "Tell me something funny.", "Joke please.", "Please tell me a joke.", "Got any jokes?",
)  # fmt: skip
JOKES = (
    "Why did the computer go to the doctor? It had a virus.",
    "Why was the math book sad? It had too many problems.",
    "What do you call a bear with no teeth? A gummy bear.",
    "Why did the chicken cross the road? To get to the other side.",
    "What has four wheels and flies? A garbage truck.",
    "Why do bees have sticky hair? They use honeycombs.",
)


def make_story(source: Source) -> Dialogue:
    """A story, poem or joke."""
    draw = source.random()
    if draw < 0.15:
        return ask("story", source, source.pick_phrasing(_ASK_JOKE), source.choice(JOKES))
    if draw < 0.28:
        subject = source.choice(ANIMALS + OBJECTS + ("sea", "moon", "sun", "sky", "rain", "snow", "night", "spring"))
        asked = source.choice((f"the {subject}", article(subject)))
        return ask(
            "story", source, source.pick_phrasing(_ASK_POEM).format(x=asked), source.choice(_POEMS).format(x=subject)
        )
    hero = source.choice(ANIMALS + JOBS[:12] + ("robot", "dragon", "princess", "king", "girl", "boy"))
    wording = source.pick_phrasing(_ASK_STORY)
    name = source.choice(NAMES)
    if draw > 0.55:
        wording = source.pick_phrasing(_ASK_ABOUT)
        wording = wording.format(x=article(hero) if source.random() < 0.8 else f"{article(hero)} named {name}")
    place = source.choice(PLACES)
    text = source.choice(_PLOTS).format(
        x=hero, n=name, j=source.choice(_KIND), y=source.choice(ANIMALS), l=place, k=source.choice(PLACES), c=source.choice(COLORS),
        o=source.choice(OBJECTS), f=source.choice(FOODS), b=source.choice(JOBS),
    )  # fmt: skip
    return ask("story", source, wording, sentence(text.replace(f"lived in {place}", f"lived in the {place}")))
