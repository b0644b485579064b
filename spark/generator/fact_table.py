"""The facts Spark knows: about seven hundred, by relation. Data only.

Wordings live in `facts.py`. A fact that is not here is something the model does not know and should say so.
"""
# ruff: noqa: E501 - a table of wordings reads better with one entry per line

CAPITALS = dict(
    line.split(":")
    for line in """
France:Paris|Germany:Berlin|Spain:Madrid|Italy:Rome|Portugal:Lisbon|Austria:Vienna|Switzerland:Bern|Belgium:Brussels
Netherlands:Amsterdam|Denmark:Copenhagen|Norway:Oslo|Sweden:Stockholm|Finland:Helsinki|Iceland:Reykjavik|Ireland:Dublin
England:London|Scotland:Edinburgh|Poland:Warsaw|Hungary:Budapest|Greece:Athens|Turkey:Ankara|Russia:Moscow|Ukraine:Kyiv
Romania:Bucharest|Bulgaria:Sofia|Serbia:Belgrade|Croatia:Zagreb|Estonia:Tallinn|Latvia:Riga|Lithuania:Vilnius
Egypt:Cairo|Kenya:Nairobi|Morocco:Rabat|Nigeria:Abuja|Ghana:Accra|Ethiopia:Addis Ababa|Tunisia:Tunis|Senegal:Dakar
Japan:Tokyo|China:Beijing|India:New Delhi|Korea:Seoul|Thailand:Bangkok|Vietnam:Hanoi|Indonesia:Jakarta|Nepal:Kathmandu
Philippines:Manila|Iran:Tehran|Iraq:Baghdad|Israel:Jerusalem|Jordan:Amman|Lebanon:Beirut|Qatar:Doha|Pakistan:Islamabad
Canada:Ottawa|Mexico:Mexico City|Brazil:Brasilia|Argentina:Buenos Aires|Chile:Santiago|Peru:Lima|Colombia:Bogota
Cuba:Havana|Ecuador:Quito|Uruguay:Montevideo|Australia:Canberra|Bolivia:Sucre|Jamaica:Kingston|Mongolia:Ulaanbaatar
""".replace("|", "\n").split("\n")
    if line
)

CONTINENTS = {
    country: continent
    for continent, countries in {
        "Europe": "France Germany Spain Italy Portugal Austria Switzerland Belgium Denmark Norway Sweden Finland Iceland "
        "Ireland England Scotland Poland Hungary Greece Ukraine Romania Bulgaria Serbia Croatia Estonia Latvia Lithuania",
        "Africa": "Egypt Kenya Morocco Nigeria Ghana Ethiopia Tunisia Senegal",
        "Asia": "Japan China India Korea Thailand Vietnam Indonesia Nepal Iran Iraq Israel Jordan Lebanon Qatar Pakistan "
        "Mongolia",
        "North America": "Canada Mexico Cuba Jamaica",
        "South America": "Brazil Argentina Chile Peru Colombia Ecuador Uruguay Bolivia",
    }.items()
    for country in countries.split()
}


def _pairs(text: str) -> dict[str, str]:
    """`a:b` entries separated by blanks; an underscore stands for a blank."""
    return {
        left.replace("_", " "): right.replace("_", " ") for left, right in (entry.split(":") for entry in text.split())
    }


LANGUAGES = _pairs("""
France:French Germany:German Spain:Spanish Italy:Italian Portugal:Portuguese Austria:German Denmark:Danish
Norway:Norwegian Sweden:Swedish Finland:Finnish Poland:Polish Hungary:Hungarian Greece:Greek Turkey:Turkish
Russia:Russian Ukraine:Ukrainian Egypt:Arabic Japan:Japanese China:Chinese Thailand:Thai Vietnam:Vietnamese
Mexico:Spanish Brazil:Portuguese Argentina:Spanish England:English Australia:English Cuba:Spanish Korea:Korean
""")
OPPOSITES = _pairs("""
big:small hot:cold up:down left:right old:young new:old fast:slow high:low long:short wide:narrow thick:thin deep:shallow
heavy:light early:late hard:soft smooth:rough sharp:dull bright:dark loud:quiet full:empty open:closed strong:weak
rich:poor cheap:expensive easy:difficult safe:dangerous happy:sad brave:afraid kind:cruel polite:rude clean:dirty dry:wet
day:night black:white yes:no good:bad right:wrong true:false first:last always:never everything:nothing before:after
inside:outside above:below near:far north:south east:west love:hate win:lose buy:sell push:pull give:take start:stop
begin:end laugh:cry ask:answer arrive:leave remember:forget friend:enemy summer:winter war:peace life:death question:answer
front:back top:bottom sweet:bitter small:big cold:hot slow:fast dark:bright sad:happy low:high empty:full tall:short
young:old poor:rich weak:strong late:early quiet:loud soft:hard bad:good night:day in:out
""")
SOUNDS = _pairs("""
dog:bark cat:meow cow:moo pig:oink sheep:baa duck:quack horse:neigh rooster:crow hen:cluck goose:honk owl:hoot lion:roar
frog:croak snake:hiss bee:buzz mouse:squeak wolf:howl crow:caw donkey:bray elephant:trumpet goat:bleat bear:growl
pigeon:coo sparrow:chirp turkey:gobble
""")
YOUNG = _pairs("""
dog:puppy cat:kitten cow:calf horse:foal sheep:lamb goat:kid pig:piglet hen:chick duck:duckling goose:gosling lion:cub
bear:cub deer:fawn kangaroo:joey frog:tadpole swan:cygnet owl:owlet fox:cub
""")
COLORS_OF = _pairs("""
grass:green snow:white coal:black blood:red banana:yellow lemon:yellow carrot:orange tomato:red milk:white sky:blue
cherry:red lime:green pumpkin:orange chocolate:brown sun:yellow leaf:green swan:white crow:black plum:purple salt:white
coffee:brown spinach:green strawberry:red cucumber:green elephant:grey flamingo:pink frog:green pea:green garlic:white
blueberry:blue
""")
LEGS = _pairs("""
dog:four cat:four horse:four cow:four hen:two duck:two human:two spider:eight ant:six bee:six butterfly:six snake:no
fish:no pig:four sheep:four octopus:no lion:four bird:two crab:ten frog:four mouse:four beetle:six
""")
PLURALS = _pairs("""
child:children man:men woman:women mouse:mice foot:feet tooth:teeth goose:geese leaf:leaves knife:knives wife:wives
life:lives wolf:wolves sheep:sheep fish:fish cat:cats dog:dogs box:boxes city:cities baby:babies person:people apple:apples
bus:buses glass:glasses book:books tree:trees lamp:lamps story:stories half:halves shelf:shelves thief:thieves ox:oxen
potato:potatoes tomato:tomatoes watch:watches
""")
PASTS = _pairs("""
go:went see:saw eat:ate run:ran take:took give:gave come:came find:found think:thought buy:bought bring:brought
teach:taught catch:caught make:made say:said tell:told know:knew write:wrote drive:drove ride:rode sing:sang swim:swam
drink:drank begin:began fly:flew draw:drew grow:grew throw:threw break:broke speak:spoke sleep:slept keep:kept leave:left
feel:felt meet:met win:won lose:lost hold:held sit:sat stand:stood walk:walked play:played work:worked build:built
send:sent spend:spent pay:paid sell:sold hear:heard read:read cut:cut put:put
""")
SYMBOLS = _pairs("""
hydrogen:H oxygen:O carbon:C nitrogen:N helium:He gold:Au silver:Ag iron:Fe copper:Cu lead:Pb tin:Sn zinc:Zn sodium:Na
potassium:K calcium:Ca chlorine:Cl neon:Ne sulfur:S mercury:Hg uranium:U
""")
GROUPS = _pairs("""
apple:fruit banana:fruit pear:fruit cherry:fruit grape:fruit mango:fruit carrot:vegetable potato:vegetable onion:vegetable
cabbage:vegetable spinach:vegetable dog:animal cat:animal horse:animal whale:animal lion:animal eagle:bird sparrow:bird
owl:bird penguin:bird pigeon:bird swan:bird hammer:tool saw:tool shovel:tool piano:instrument guitar:instrument
violin:instrument drum:instrument flute:instrument chair:piece_of_furniture table:piece_of_furniture
sofa:piece_of_furniture bed:piece_of_furniture red:color blue:color green:color car:vehicle bus:vehicle train:vehicle
boat:vehicle iron:metal gold:metal silver:metal copper:metal ant:insect bee:insect butterfly:insect tennis:sport
football:sport hockey:sport coffee:drink tea:drink milk:drink juice:drink Mars:planet Venus:planet Jupiter:planet
shirt:piece_of_clothing coat:piece_of_clothing hat:piece_of_clothing
""")
DEFINITIONS = {
    "island": "land with water all around it",
    "desert": "a dry place with little rain",
    "river": "a long stream of water that flows to the sea",
    "volcano": "a mountain that can throw out hot rock",
    "library": "a place where people read and borrow books",
    "museum": "a place that shows old or beautiful things",
    "bakery": "a shop that makes and sells bread",
    "hospital": "a place where sick people are treated",
    "school": "a place where children learn",
    "dictionary": "a book that explains words",
    "compass": "a tool that shows where north is",
    "telescope": "a tool for looking at far things",
    "microscope": "a tool for looking at tiny things",
    "thermometer": "a tool that measures temperature",
    "umbrella": "a thing that keeps the rain off you",
    "key": "a thing that opens a lock",
    "clock": "a thing that shows the time",
    "calendar": "a table of the days of the year",
    "bridge": "a way to cross over water or a road",
    "farmer": "a person who grows food",
    "baker": "a person who makes bread",
    "pilot": "a person who flies planes",
    "doctor": "a person who treats sick people",
    "teacher": "a person who helps others learn",
    "planet": "a large round body that moves around a star",
    "star": "a huge ball of hot gas in space",
    "moon": "a body that moves around a planet",
    "triangle": "a shape with three sides",
    "square": "a shape with four equal sides",
    "circle": "a perfectly round shape",
    "noun": "a word for a person, a place or a thing",
    "verb": "a word for an action",
    "adjective": "a word that describes a noun",
    "computer": "a machine that works with data",
    "server": "a computer that answers requests from other computers",
    "token": "a small piece of text that a model reads or writes",
    "tokenizer": "a program that cuts text into tokens",
    "prompt": "the text you give to a model",
    "neuron": "a nerve cell, or the unit of compute that Hearth counts",
    "language model": "a program that predicts the next piece of text",
    "neural network": "a program that learns from examples",
    "database": "a place where a computer keeps ordered data",
    "algorithm": "a list of steps that solves a problem",
    "password": "a secret word that proves who you are",
    "browser": "a program that shows web pages",
    "Python": "a popular programming language",
    "Linux": "a free operating system",
    "GPU": "a chip that does many calculations at once",
    "API": "a way for programs to talk to each other",
    "internet": "a network that connects computers around the world",
    "AI": "software that does tasks that seem to need thinking",
}
QUESTIONS = {
    "What is the largest planet?": "The largest planet is Jupiter.",
    "What is the smallest planet?": "The smallest planet is Mercury.",
    "Which planet is closest to the sun?": "Mercury is closest to the sun.",
    "Which planet is called the red planet?": "Mars is called the red planet.",
    "Which planet has big rings?": "Saturn has big rings.",
    "How many planets are there?": "There are eight planets.",
    "What is the largest ocean?": "The largest ocean is the Pacific.",
    "What is the highest mountain?": "The highest mountain is Mount Everest.",
    "What is the tallest animal?": "The tallest animal is the giraffe.",
    "What is the largest animal?": "The largest animal is the blue whale.",
    "What is the fastest land animal?": "The fastest land animal is the cheetah.",
    "What is the largest country?": "The largest country is Russia.",
    "What is the largest desert?": "The largest hot desert is the Sahara.",
    "How many days are in a week?": "There are seven days in a week.",
    "How many months are in a year?": "There are twelve months in a year.",
    "How many days are in a year?": "There are 365 days in a year.",
    "How many hours are in a day?": "There are 24 hours in a day.",
    "How many minutes are in an hour?": "There are 60 minutes in an hour.",
    "How many seconds are in a minute?": "There are 60 seconds in a minute.",
    "How many weeks are in a year?": "There are 52 weeks in a year.",
    "How many letters are in the alphabet?": "There are 26 letters in the English alphabet.",
    "How many continents are there?": "There are seven continents.",
    "How many legs does a spider have?": "A spider has eight legs.",
    "How many fingers are on a hand?": "There are five fingers on a hand.",
    "How many sides does a triangle have?": "A triangle has three sides.",
    "How many sides does a square have?": "A square has four sides.",
    "How many wheels does a car have?": "A car has four wheels.",
    "How many wheels does a bicycle have?": "A bicycle has two wheels.",
    "What do bees make?": "Bees make honey.",
    "What do cows give us?": "Cows give us milk.",
    "What do hens lay?": "Hens lay eggs.",
    "What do plants need to grow?": "Plants need water, light and air.",
    "What is water made of?": "Water is made of hydrogen and oxygen.",
    "What is ice made of?": "Ice is frozen water.",
    "What is bread made of?": "Bread is made of flour, water, salt and yeast.",
    "What is glass made of?": "Glass is made of sand.",
    "What is paper made of?": "Paper is made of wood.",
    "What is cheese made of?": "Cheese is made of milk.",
    "At what temperature does water boil?": "Water boils at 100 degrees Celsius.",
    "At what temperature does water freeze?": "Water freezes at 0 degrees Celsius.",
    "Where does the sun rise?": "The sun rises in the east.",
    "Where does the sun set?": "The sun sets in the west.",
    "Why is the sky blue?": "The sky is blue because air scatters blue light the most.",
    "Who wrote Romeo and Juliet?": "William Shakespeare wrote Romeo and Juliet.",
    "Who wrote Hamlet?": "William Shakespeare wrote Hamlet.",
    "Who painted the Mona Lisa?": "Leonardo da Vinci painted the Mona Lisa.",
    "Who was the first person on the moon?": "Neil Armstrong was the first person on the moon.",
    "Who discovered gravity?": "Isaac Newton described gravity.",
    "Who invented the telephone?": "Alexander Graham Bell invented the telephone.",
    "Who invented the light bulb?": "Thomas Edison made the first practical light bulb.",
    "What is the longest river?": "The longest river is the Nile.",
    "What is the first month of the year?": "The first month is January.",
    "What is the last month of the year?": "The last month is December.",
    "Which month is the shortest?": "February is the shortest month.",
    "What is the freezing point of water?": "Water freezes at 0 degrees Celsius.",
    "What is the boiling point of water?": "Water boils at 100 degrees Celsius.",
    "What is the speed of light?": "Light travels about 300000 kilometers per second.",
    "What is the meaning of life?": "Some people say 42. I am only a small model.",
    "What is the answer to everything?": "Some people say 42. I am only a small model.",
}
