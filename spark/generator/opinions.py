"""Opinions: adjectives, things, and clauses for products, films and places.

Data for the sentiment kind. All clauses are lower case and without a final period. A clause with {s} takes a noun of
its own domain. Knows no questions.
"""
# ruff: noqa: E501 - tables read better with many entries per line

from spark.words import NEGATIVE, POSITIVE


def _clauses(text: str) -> tuple[str, ...]:
    """The entries of `text`, which stand between slashes."""
    return tuple(entry for entry in (" ".join(part.split()) for part in text.split("/")) if entry)


NOUNS: dict[str, tuple[str, ...]] = {
    "product": tuple("""phone battery headset case charger cable screen speaker keyboard mouse camera laptop tablet printer sound microphone
        product item device earpiece volume reception quality design price delivery fit button car lamp watch bag shoe toy cover plug adapter
        software app signal clip package seller company website gadget unit color size material service support warranty""".split()),
    "film": tuple("""movie film plot acting story script director cast ending music dialogue comedy drama thriller show series scene character actor
        actress sequel picture humor romance documentary performance soundtrack action cartoon hero villain writing pacing book novel song""".split()),
    "place": tuple("""food service restaurant hotel room waiter staff meal soup pizza burger coffee breakfast dessert view bed bar cafe menu
        waitress chef trip museum beach garden steak salad sauce place atmosphere bathroom pool tour lunch dinner cake bread shop driver flight
        teacher lesson concert""".split()),
}  # fmt: skip

ADJECTIVES: dict[str, tuple[str, ...]] = {
    "positive": tuple(dict.fromkeys((*POSITIVE, *"""adorable admirable affordable appealing astonishing attractive authentic believable bold bright
        captivating clear compelling convenient convincing cool crisp cute dazzling decent durable dynamic easy effective efficient emotional
        engaging epic exceptional exciting exquisite extraordinary fair favorite fine flawless genius genuine glorious gorgeous graceful
        great handy happy heartwarming hilarious honest ideal imaginative innovative insightful intelligent intense interesting joyful light
        lively memorable moving neat original passionate phenomenal playful poetic polished powerful practical precious priceless
        pretty proud quick quality rich rewarding robust safe sensational sharp sincere sleek solid sophisticated spectacular stellar strong
        sturdy stylish sublime subtle super sweet tender thoughtful timeless top triumphant unforgettable unique useful valuable vivid
        warm welcoming well-made witty wonderful worthwhile worthy yummy""".split()))),
    "negative": tuple(dict.fromkeys((*NEGATIVE, *"""abysmal absurd amateurish appalling artificial atrocious bitter bloated bogus
        careless cheesy childish cliched contrived crappy creepy crude defective depressing difficult disappointed dishonest dismal dumb empty
        embarrassing excessive expensive fake false flat flawed flimsy foolish forced forgettable fragile generic gross half-hearted hard hollow
        horrid idiotic incoherent incomplete inconvenient ineffective inferior insulting intolerable irritating junky lackluster lame lifeless limited
        loose loud lukewarm mean meaningless mindless misleading monotonous muddy muffled obnoxious offensive outdated overlong
        overrated phony plain pointless pretentious repetitive repulsive rotten rubbish sappy scratchy shallow shameful shoddy sick sloppy
        smelly soggy soulless sour static stiff sticky superficial tacky terrible tiresome tired troublesome unacceptable unbearable
        undercooked uneven unfunny uninspired uninteresting unhappy unhelpful unoriginal unusable unwatchable upset useless vile vulgar weird
        wooden wrong""".split()))),
}  # fmt: skip

# what a noun does, by label: "the {s} ..."
VERBS: dict[str, tuple[str, ...]] = {
    "positive": _clauses("""works great / works perfectly / works well / works like a charm / works as described / does its job / does what it should /
        exceeded my expectations / is worth every penny / is worth the money / is worth seeing / is a great value / is a winner / is a joy / is a delight /
        is a treat / is a pleasure / is a masterpiece / is a gem / is a classic / is a must / is a must see / is a good buy / is the best / is top notch /
        is better than expected / is even better than I hoped / is easy to use / is easy to set up / lasts a long time / lasts all day / holds up well / fits perfectly /
        looks great / sounds great / feels solid / looks beautiful / sounds clear / impressed me / surprised me in a good way / made me smile / made me laugh /
        made my day / won my heart / is just right / is perfect for me / never fails / never lets me down / has never failed me / delivers / shines / stands out /
        is a success / is a triumph / keeps you on the edge of your seat / keeps you guessing / touched me deeply / moved me to tears / stays with you / is full of charm /
        is full of life / has a lot of heart / is nothing short of brilliant / is without any problems / arrived early and works / charges fast / is a big improvement /
        deserves an award / is one of a kind / is as good as it gets / could not be better / is second to none / is my favorite / is all I wanted / is a bargain"""),
    "negative": _clauses("""broke after a week / broke after one day / broke right away / fell apart / stopped working / stopped working after a month / does not work / never worked /
        did not work at all / doesn't work / won't turn on / does not fit / doesn't fit / does not hold a charge / dies too fast / dies after an hour / died within a week /
        is a waste of money / is a waste of time / is not worth it / is not worth the money / is not worth the price / is a joke / is a mess / is a disaster / is a failure / is garbage /
        is junk / is trash / is crap / is the worst / is a disappointment / is a let down / let me down / disappointed me / makes no sense / goes nowhere / drags on / drags / falls flat /
        fails / fails at everything / failed after two weeks / is too expensive / is too long / is too small / is too weak / is too slow / is hard to use / is hard to hear / is hard to follow /
        made me angry / made me sick / made me fall asleep / put me to sleep / bored me / ruined my day / ruined everything / annoyed me / lacks depth / lacks any charm / has no point / has no style /
        has many problems / has a lot of problems / keeps dropping calls / keeps crashing / keeps falling off / keeps freezing / cuts in and out / cracked at once / scratches easily / came broken /
        arrived broken / never arrived / was missing parts / sounds awful / looks cheap / feels cheap / smells bad / tastes like cardboard / tasted old / hurts my ears / could be better /
        should be avoided / leaves a lot to be desired / is not what I expected / is nothing like the picture / wasted my time / is a rip off / is barely usable / was cold and late / is painful to watch"""),
}  # fmt: skip

# whole clauses that need no noun, or bring their own
SAYINGS: dict[str, tuple[str, ...]] = {
    "positive": _clauses("""I love it / I love this {s} / I loved it / love this {s} / loved every minute of it / I really like this {s} / I like it a lot / I enjoyed it / I really enjoyed the {s} /
        I enjoyed every minute / highly recommended / highly recommend this {s} / I highly recommend it / I would recommend this to anyone / I recommend the {s} to everyone / would buy again /
        I would buy this {s} again / I will buy another one / I will be back / I will definitely come back / we can't wait to go back / I am very happy with it / I am happy with this {s} /
        I am very pleased with the {s} / very pleased / I am so glad I bought it / I am satisfied / very satisfied with this {s} / I am impressed / I was very impressed by the {s} / great {s} / great {s} for the price /
        good {s} at a good price / what a great {s} / best {s} ever / the best {s} I have ever had / one of the best / by far the best {s} / thumbs up / two thumbs up / five stars / 5 stars / ten out of ten / 10/10 /
        a must see / a must have / go see it / you will love it / you won't regret it / you can't go wrong with this {s} / everyone should try it / don't miss it / do not miss this {s} / it is a lot of fun /
        lots of fun / I had a great time / we had a wonderful time / I laughed out loud / I laughed until I cried / I could not stop laughing / I could watch it again and again / I couldn't put it down / I can not stop smiling /
        no complaints / I have no complaints / no problems at all / I have had no problems with it / no trouble / I have no regrets / nothing to complain about / money well spent / well worth it / well worth the price /
        well done / nicely done / thank you for such a good {s} / good job / great job / it made me happy / it does everything I need / my family loves it / my kids love it / my wife loves it / everyone loved it /
        it fits like a glove / setup was easy / shipping was fast / it arrived on time and in good shape / exactly what I wanted / just what I needed / it is better than my old one / it saved me / it is like new / I was pleasantly surprised /
        it's not bad / not bad at all / you can't beat the price / I can't say enough good things about it / nothing beats this {s} / I give it an A / worth it / so good / a real treat / pure joy / a feast for the eyes /
        smart and funny / beautifully made / wonderfully acted / superbly directed / well acted / well made / well written / well crafted / full of surprises / a perfect blend of humor and heart /
        the audience clapped / a rare film that makes you think / it warms the heart / an honest and moving story / a small miracle / crystal clear / good quality / great quality / excellent quality / good value /
        fast and friendly / always fresh / the staff made us feel welcome / they treated us well / delicious from start to finish / I would give it more stars if I could / keep up the good work / a true work of art"""),
    "negative": _clauses("""I hate it / I hate this {s} / I hated it / hated every minute of it / I did not like it / I didn't like the {s} / I don't like it / I do not like this {s} / I did not enjoy it / I couldn't enjoy the {s} /
        not recommended / I do not recommend it / I would not recommend this {s} / I can't recommend it / don't buy it / do not buy this {s} / don't buy this {s} / don't waste your money / don't waste your time / do not waste your time on this {s} /
        I want my money back / I want a refund / I asked for a refund / I returned it / I had to return it / I sent it back / I am returning this {s} / I threw it away / it went straight into the trash / I wish I had not bought it /
        I regret buying it / I regret this / big mistake / what a waste / what a waste of money / a waste of time / total waste / waste of money / save your money / stay away / stay away from this {s} / avoid this {s} / avoid at all costs /
        worst {s} ever / the worst {s} I have ever seen / one of the worst / by far the worst / bad {s} / poor {s} / very poor quality / bad quality / cheap junk / complete junk / total crap / what a piece of junk / thumbs down / one star / zero stars /
        I will never come back / I will never go back / we won't be back / never again / I would never buy this {s} again / I am very disappointed / very disappointed / so disappointed / disappointing / what a disappointment / I am not happy with it /
        I am not satisfied / I am not impressed / I was not impressed by the {s} / I am unhappy with the {s} / I am angry / I fell asleep / I almost fell asleep / I walked out / we left early / I could not finish it / I kept looking at my watch /
        I was bored / I was bored to tears / nobody laughed / not funny / not funny at all / there is nothing good about it / no good / not good / not good at all / nothing works / it never worked / it stopped working / it broke / it died /
        it lasted only two days / it worked for a week, then died / I can't hear anything / nobody can hear me / the sound cuts out / I had many problems with it / too many problems / nothing but trouble / I had to buy another one / it would not charge /
        it does not do what it says / not as described / not what I expected / not worth the price / not worth it / too expensive for what you get / they lied / they never answered / customer service was no help / they were rude to us / we waited for an hour /
        we waited forever / there was a hair in my soup / it made me sick / it gave me a headache / it hurts my ear / it is just bad / it is just not good / so bad / how could anyone like this / I expected more / I expected better / I can't believe I paid for this /
        I lost my money / it ruined the evening / it insults the audience / no plot / there is no story / nothing happens / it has no heart and no brain / it tries too hard / neither funny nor sad / neither smart nor funny / it runs out of ideas /
        badly acted / badly made / poorly made / poorly written / poorly acted / a tired old story / a boring mess / full of holes / it never gets going / as dull as it gets / less than the sum of its parts / a pale copy / more annoying than funny / lame and silly"""),
}  # fmt: skip

# clauses that say nothing of liking
FILLERS: dict[str, tuple[str, ...]] = {
    "product": _clauses("""I bought this {s} last month / I bought it for my {k} / I ordered the {s} on {d} / my {k} has one too / I use it every day / I use it at work / I got the {s} in {c} / it comes in a small box /
        I have had this {s} for a year / I have owned it for two weeks / it is my second {s} / it replaced my old {s} / I needed a new {s} / I use it with my {s} / it came with a {s} / I tried the {s} today / I got this as a gift / after a few days of use /
        I have tried several {s}s / I carry it in my bag / I use it in the car / I paid twenty dollars for it / it has two buttons / it is black / I plugged it in / I have used it for three months / I read the reviews first / I called the company"""),
    "film": _clauses("""the {s} is about a {k} in {c} / I saw the {s} on {d} / we watched it at home / I watched it with my {k} / it is about two brothers / it is the second part / it runs for two hours / the {s} was made in {c} / it takes place in {c} /
        a young {k} comes to {c} / I read the book before / it is based on a true story / the {s} starts with a wedding / a {k} looks for his daughter / the director made it in a year / it tells the story of a {k} / by the time the credits roll / from the first scene to the last /
        for fans of the {s} / as a {s} about love and war / the {s} follows a {k} / like other films of this kind / if you have seen the first one"""),
    "place": _clauses("""we went there on {d} / I ate there with my {k} / we stayed for two nights / it is in the middle of {c} / I had the {s} / we ordered the {s} / my {k} had the {s} / we came for lunch / it opens at noon / I visited it in {c} / we sat outside /
        we had a table for four / they have ten tables / I was there with friends / we paid with cash / I asked for the {s} / it was our first time here / we came with six people / it is next to the station / I go to {c} every year / we booked the {s} on {d}"""),
}  # fmt: skip
NEUTRAL: tuple[str, ...] = (
    _clauses("""the {s} arrived on {d} / the {s} is in the {l} / the {s} starts at noon / {p} has a {s} / the {s} is next to the {z} / the {s} costs ten dollars / there is a {s} in the {l} / {p} works in {c} /
    the {s} opens on {d} / the {s} has two parts / the {s} is made in {c} / {p} sent me the {s} / {p} lives in {c} / we went to {c} on {d} / the {s} comes in black and white / the {s} weighs two pounds / they moved the {s} to the {l} /
    the {s} was sold in {c} / {p} asked about the {s} / the {s} will be here on {d} / I put the {s} in the {l} / there were two of them / the meeting is on {d} / the {s} is ten years old / {p} took the {s} to the {l} / the train leaves at nine""")
)
