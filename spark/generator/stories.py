"""Short stories, poems and jokes from slots; free in their choices, so no gate compares them exactly."""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

from spark.generator.dialogue import Dialogue, Source, ask, sentence
from spark.generator.greetings import draw_name
from spark.generator.wording import dress
from spark.words import ANIMALS, COLORS, FOODS, JOBS, OBJECTS, PLACES, article

_ASK_STORY = (
    "Tell me a story.", "Tell me a short story.", "Write a short story.", "Write a story.", "Can you tell me a story?",
    "I want to hear a story.", "Please tell me a story.", "Make up a story.", "Give me a short story.", "Story please.",
    "Tell a story.", "Could you write a short story?", "I want a story.", "Tell me a bedtime story.", "Write me a short story.", "Do you know a story?", "A short story, please.", "Let me hear a story.", "I would like a story.",
    "Please write a story.", "Invent a story.", "Tell me a little story.", "Write a tale.", "Tell me a tale.", "Story time!", "Write a very short story.", "Can you make up a story?", "I would like to hear a little story.", "Let me hear a little story.",
)  # fmt: skip
_ASK_ABOUT = (
    "Tell me a story about {x}.", "Tell me a short story about {x}.", "Write a short story about {x}.", "Write a story about {x}.",
    "Can you tell me a story about {x}?", "I want to hear a story about {x}.", "Please tell me a story about {x}.", "Make up a story about {x}.",
    "Give me a short story about {x}.", "A story about {x}, please.", "Write a bedtime story about {x}.", "Tell me a bedtime story about {x}.", "Invent a story about {x}.", "Write a tale about {x}.", "Write me a story about {x}.", "Do you know a story about {x}?",
    "I would like a story about {x}.", "Story about {x}", "Let me hear a story about {x}.", "Write a little story about {x}.", "Could you write a story about {x}?", "Tell a story with {x} in it.", "Write a very short story about {x}.", "Create a story about {x}.", "A short story with {x}, please.", "Can you make up a story about {x}?",
    "Write a one-sentence story about {x}.", "Please write a short story about {x}.", "Make up a little tale about {x}.", "Write a short story about {x} in the {k}.", "Tell me a story about {x} in the {k}.", "Invent a little story about {x}.",
)  # fmt: skip
_PLOTS = (
    "Once upon a time there was a {j} {x} named {n}. {n} lived in {l}. One day {n} lost {ac} {o}. {n} looked in the {k} and asked {ay} for help. Together they found the {o}. They shared some {f} and were friends from then on.",
    "Once there was {ax} called {n}. {n} wanted to see the {l}. On the way {n} met a {j} {y}. The {y} was hungry, so {n} gave it some {f}. Then they walked to the {l} together and watched the stars.",
    "A {j} {x} named {n} found {ac} {o} in the {l}. The {o} belonged to {ab}. {n} brought it back at once. The {b} was happy and gave {n} some {f}. That night {n} slept very well.",
    "It was a rainy day. {n}, a {j} {x}, sat in the {l} and felt lonely. Then {ay} knocked at the door. The {y} had {f} and {ac} {o}. They played until the sun came back. After that {n} was never lonely again.",
)  # fmt: skip
_HEROES = (
    "robot", "dragon", "princess", "king", "queen", "girl", "boy", "llama", "unicorn", "wizard", "witch", "knight", "ghost", "giant", "fairy", "alpaca", "dinosaur", "cloud", "computer", "astronaut",
    "detective", "pirate", "mermaid", "monster", "snowman", "hero", "child", "old man", "traveler", "inventor", "lighthouse keeper", "raccoon", "hippo", "gorilla", "phoenix", "shooting star",
)  # fmt: skip
_KIND = ("little", "brave", "shy", "kind", "clever", "small", "young", "friendly", "curious")
_ASK_POEM = (
    "Write a poem about {x}.", "Write a short poem about {x}.", "Write me a poem about {x}.", "Can you write a poem about {x}?", "A poem about {x}, please.",
    "Make a little poem about {x}.", "Write a haiku about {x}.", "I want a poem about {x}.", "Tell me a poem about {x}.", "Please write a poem about {x}.", "Write some verses about {x}.", "Poem about {x}", "Could you write a short poem about {x}?", "Give me a poem about {x}.", "Compose a short poem about {x}.",
    "Do you know a poem about {x}?", "Write a little poem about {x}.", "I would like a poem about {x}.", "Make a poem about {x}.", "Compose a poem about {x}.",
)  # fmt: skip
_POEMS = (
    "The {x} is quiet, the {x} is near,\nit sings a small song for all to hear.\nThe day goes by, the night is long,\nand still we remember its little song.",
    "I saw a {x} in the morning light,\nit was so little, it was so bright.\nI saw a {x} in the evening sun,\nand then I knew that the day was done.",
)
_ASK_JOKE = (
    "Tell me a joke.", "Tell me a joke", "Do you know a joke?", "Make me laugh.", "Say something funny.", "Tell a joke.", "Can you tell me a joke?",
    "I want to hear a joke.", "Another joke, please.", "Tell me something funny.", "Joke please.", "Please tell me a joke.", "Do you know any jokes?", "Tell me another joke.", "One more joke.", "Give me a joke.", "A joke, please.", "Tell me a good joke.", "I need a laugh.", "Know any jokes?", "Could you tell me a joke?", "Say a joke.", "Tell me a short joke.",
    "Do you have a joke for me?", "Do you have any jokes?", "Have you got a joke?", "Got any good jokes?",
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
        return ask(
            "story", source, dress(source, source.pick_phrasing(_ASK_JOKE), may_lower=True), source.choice(JOKES)
        )
    if draw < 0.28:
        subject = source.choice(ANIMALS + OBJECTS + ("sea", "moon", "sun", "sky", "rain", "snow", "night", "spring"))
        requested = source.choice((f"the {subject}", article(subject)))
        return ask(
            "story",
            source,
            source.pick_phrasing(_ASK_POEM).format(x=requested),
            source.choice(_POEMS).format(x=subject),
        )
    hero = source.choice(ANIMALS + JOBS[:12] + _HEROES)
    name, place = draw_name(source), source.choice(PLACES)
    wording = source.pick_phrasing(_ASK_STORY)
    if draw > 0.5:
        about = article(hero) if source.random() < 0.8 else f"{article(hero)} named {name}"
        wording = source.pick_phrasing(_ASK_ABOUT).format(x=about, k=place)
    friend, keeper, color = source.choice(ANIMALS), source.choice(JOBS), source.choice(COLORS)
    text = source.choice(_PLOTS).format(
        x=hero, n=name, j=source.choice(_KIND), y=friend, l=place, k=source.choice(PLACES), c=color, o=source.choice(OBJECTS), f=source.choice(FOODS),
        b=keeper, ax=article(hero), ay=article(friend), ab=article(keeper), ac=article(color),
    )  # fmt: skip
    story = sentence(text.replace(f"lived in {place}", f"lived in the {place}"))
    return ask("story", source, dress(source, wording), story)
