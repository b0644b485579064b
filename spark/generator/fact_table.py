"""The facts Spark knows: about nine hundred, by relation. Data only.

Wordings are in `facts.py`. The model should say that it does not know facts that are not here.
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
Slovakia:Bratislava|Slovenia:Ljubljana|Albania:Tirana|Malta:Valletta|Cyprus:Nicosia|Luxembourg:Luxembourg|Monaco:Monaco
Wales:Cardiff|Belarus:Minsk|Armenia:Yerevan|Georgia:Tbilisi|Algeria:Algiers|Libya:Tripoli|Sudan:Khartoum|Uganda:Kampala
Rwanda:Kigali|Zambia:Lusaka|Zimbabwe:Harare|Angola:Luanda|Mali:Bamako|Madagascar:Antananarivo|Saudi Arabia:Riyadh
Syria:Damascus|Kuwait:Kuwait City|Oman:Muscat|Afghanistan:Kabul|Bangladesh:Dhaka|Malaysia:Kuala Lumpur|Singapore:Singapore
Cambodia:Phnom Penh|Laos:Vientiane|New Zealand:Wellington|Venezuela:Caracas|Paraguay:Asuncion|Panama:Panama City
Costa Rica:San Jose|Guatemala:Guatemala City|Fiji:Suva|South Korea:Seoul|the United States:Washington
the United Kingdom:London|the Czech Republic:Prague
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
Netherlands:Dutch Romania:Romanian Bulgaria:Bulgarian Iceland:Icelandic Serbia:Serbian Croatia:Croatian Estonia:Estonian
Latvia:Latvian Lithuania:Lithuanian Morocco:Arabic Iraq:Arabic Jordan:Arabic Iran:Persian Israel:Hebrew Mongolia:Mongolian
Chile:Spanish Peru:Spanish Colombia:Spanish Uruguay:Spanish Ecuador:Spanish Jamaica:English
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
young:old poor:rich weak:strong late:early quiet:loud soft:hard bad:good night:day in:out down:up light:heavy narrow:wide
thin:thick shallow:deep rough:smooth dull:sharp closed:open cheap:expensive difficult:easy dangerous:safe afraid:brave
cruel:kind rude:polite dirty:clean wet:dry white:black no:yes wrong:right false:true last:first never:always nothing:everything
after:before outside:inside below:above far:near south:north west:east hate:love lose:win sell:buy pull:push take:give
stop:start end:begin cry:laugh leave:arrive forget:remember enemy:friend winter:summer peace:war death:life back:front
bottom:top bitter:sweet tall:short
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
send:sent spend:spent pay:paid sell:sold hear:heard read:read cut:cut put:put do:did get:got have:had become:became
fall:fell forget:forgot choose:chose wear:wore fight:fought lend:lent
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
DAYS_IN = {
    month: "28 or 29" if month == "February" else "30" if month in ("April", "June", "September", "November") else "31"
    for month in "January February March April May June July August September October November December".split()
}
HOMES = _pairs("""
bird:nest bee:hive spider:web ant:anthill rabbit:burrow bear:den lion:den horse:stable dog:kennel cow:barn pig:sty hen:coop
""")
PRODUCTS = _pairs("""
bread:flour,_water,_salt_and_yeast glass:sand paper:wood cheese:milk wine:grapes chocolate:cocoa butter:cream ice:water
flour:wheat juice:fruit tofu:soybeans yogurt:milk wool:the_hair_of_sheep leather:animal_skin
""")
WORKPLACES = _pairs("""
teacher:school doctor:hospital nurse:hospital baker:bakery librarian:library farmer:farm cook:kitchen waiter:restaurant
mechanic:garage actor:theater judge:court chemist:laboratory scientist:laboratory miner:mine
""")
AUTHORS = {
    "Romeo and Juliet": "William Shakespeare", "Hamlet": "William Shakespeare", "Macbeth": "William Shakespeare",
    "Oliver Twist": "Charles Dickens", "A Christmas Carol": "Charles Dickens", "Pride and Prejudice": "Jane Austen",
    "Emma": "Jane Austen", "Frankenstein": "Mary Shelley", "Dracula": "Bram Stoker", "Don Quixote": "Miguel de Cervantes",
    "War and Peace": "Leo Tolstoy", "Moby Dick": "Herman Melville", "The Hobbit": "J. R. R. Tolkien",
    "Alice in Wonderland": "Lewis Carroll", "Treasure Island": "Robert Louis Stevenson", "Peter Pan": "J. M. Barrie",
    "Faust": "Johann Wolfgang von Goethe", "The Divine Comedy": "Dante", "The Jungle Book": "Rudyard Kipling",
    "Tom Sawyer": "Mark Twain", "1984": "George Orwell", "Animal Farm": "George Orwell", "Robinson Crusoe": "Daniel Defoe",
    "The Odyssey": "Homer", "The Little Prince": "Antoine de Saint-Exupery", "Harry Potter": "J. K. Rowling",
}  # fmt: skip

_ONE_OFF = """
The largest planet is Jupiter.|What is the largest planet?|Which planet is the largest?|What is the biggest planet?|Which planet is the biggest of all?|Name the largest planet.|What is the largest planet in the solar system?
The smallest planet is Mercury.|What is the smallest planet?|Which planet is the smallest?|Name the smallest planet.|Which is the smallest planet of all?|What is the smallest planet in the solar system?
Mercury is closest to the sun.|Which planet is closest to the sun?|What planet is nearest to the sun?|Which planet is next to the sun?|Name the planet closest to the sun.
Mars is called the red planet.|Which planet is called the red planet?|What is the red planet?|Which planet is red?|Which planet is known as the red planet?
Saturn has big rings.|Which planet has big rings?|Which planet has rings?|What planet is known for its rings?|Name the planet with the big rings.
There are eight planets.|How many planets are there?|What is the number of planets?|How many planets does the solar system have?|How many planets go around the sun?
The largest ocean is the Pacific.|What is the largest ocean?|Which ocean is the largest?|What is the biggest ocean?|Name the largest ocean.|Which ocean is the biggest in the world?
The highest mountain is Mount Everest.|What is the highest mountain?|Which mountain is the highest?|What is the tallest mountain in the world?|Name the highest mountain.|What is the highest mountain on Earth?
The tallest animal is the giraffe.|What is the tallest animal?|Which animal is the tallest?|Name the tallest animal.|What is the tallest animal in the world?
The largest animal is the blue whale.|What is the largest animal?|Which animal is the largest?|What is the biggest animal?|Name the biggest animal in the world.|Which animal is the biggest of all?
The fastest land animal is the cheetah.|What is the fastest land animal?|Which animal runs the fastest?|What is the fastest animal on land?|Which land animal is the fastest?|Name the fastest land animal.
The largest country is Russia.|What is the largest country?|Which country is the largest?|What is the biggest country in the world?|Name the largest country.|Which country is the biggest?
The smallest country is Vatican City.|What is the smallest country?|Which country is the smallest?|Name the smallest country.|What is the smallest country in the world?
The largest hot desert is the Sahara.|What is the largest desert?|Which desert is the largest?|What is the biggest hot desert?|Name the largest desert.|What is the largest hot desert in the world?
The largest continent is Asia.|What is the largest continent?|Which continent is the largest?|What is the biggest continent?|Name the largest continent.
The longest river is the Nile.|What is the longest river?|Which river is the longest?|Name the longest river.|What is the longest river in the world?
There are seven days in a week.|How many days are in a week?|How many days does a week have?|How many days are there in a week?|A week has how many days?|What is the number of days in a week?
There are twelve months in a year.|How many months are in a year?|How many months does a year have?|How many months are there in a year?|A year has how many months?
There are 365 days in a year.|How many days are in a year?|How many days does a year have?|How many days are there in a year?|A year has how many days?
There are 24 hours in a day.|How many hours are in a day?|How many hours does a day have?|How many hours are there in a day?|A day has how many hours?
There are 60 minutes in an hour.|How many minutes are in an hour?|How many minutes does an hour have?|How many minutes are there in an hour?|An hour has how many minutes?
There are 60 seconds in a minute.|How many seconds are in a minute?|How many seconds does a minute have?|How many seconds are there in a minute?|A minute has how many seconds?
There are 52 weeks in a year.|How many weeks are in a year?|How many weeks does a year have?|How many weeks are there in a year?|A year has how many weeks?
There are four seasons in a year.|How many seasons are in a year?|How many seasons are there?|How many seasons does a year have?
There are 100 years in a century.|How many years are in a century?|How many years does a century have?|How long is a century?|A century has how many years?
There are ten years in a decade.|How many years are in a decade?|How many years does a decade have?|How long is a decade?
There are 100 centimeters in a meter.|How many centimeters are in a meter?|How many centimeters does a meter have?|A meter has how many centimeters?
There are 1000 meters in a kilometer.|How many meters are in a kilometer?|How many meters does a kilometer have?|A kilometer has how many meters?
There are 1000 grams in a kilogram.|How many grams are in a kilogram?|How many grams does a kilogram have?|A kilogram has how many grams?
There are twelve in a dozen.|How many are in a dozen?|How much is a dozen?|How many eggs are in a dozen?
There are 26 letters in the English alphabet.|How many letters are in the alphabet?|How many letters does the alphabet have?|How many letters are there in the English alphabet?|What is the number of letters in the alphabet?
A is the first letter of the alphabet.|What is the first letter of the alphabet?|Which letter is the first in the alphabet?|Name the first letter of the alphabet.
Z is the last letter of the alphabet.|What is the last letter of the alphabet?|Which letter is the last in the alphabet?|Name the last letter of the alphabet.
There are seven continents.|How many continents are there?|What is the number of continents?|How many continents does the Earth have?|How many continents are on Earth?
There are seven colors in a rainbow.|How many colors are in a rainbow?|How many colors does a rainbow have?|How many colors are there in the rainbow?
There are five fingers on a hand.|How many fingers are on a hand?|How many fingers does a hand have?|How many fingers do you see on one hand?
A triangle has three sides.|How many sides does a triangle have?|How many sides are there in a triangle?|How many sides has a triangle?
A square has four sides.|How many sides does a square have?|How many sides are there in a square?|How many sides has a square?
A car has four wheels.|How many wheels does a car have?|How many wheels are on a car?|How many wheels has a car?
A bicycle has two wheels.|How many wheels does a bicycle have?|How many wheels are on a bicycle?|How many wheels does a bike have?
Bees make honey.|What do bees make?|What do bees produce?|What does a bee make?|Who makes honey?
Cows give us milk.|What do cows give us?|What do we get from cows?|What does a cow give us?|Which animal gives us milk?
Hens lay eggs.|What do hens lay?|What does a hen lay?|Which animals lay eggs for us?|Who lays eggs?
Plants need water, light and air.|What do plants need to grow?|What do plants need?|What does a plant need to grow?|What do plants need to live?
Water is made of hydrogen and oxygen.|What is water made of?|What is in water?|What does water consist of?|Which elements are in water?
The formula of water is H2O.|What is the formula of water?|What is the chemical formula of water?|What is H2O the formula of?
Water boils at 100 degrees Celsius.|At what temperature does water boil?|What is the boiling point of water?|When does water boil?|At how many degrees does water boil?|How hot is boiling water?
Water freezes at 0 degrees Celsius.|At what temperature does water freeze?|What is the freezing point of water?|When does water freeze?|At how many degrees does water freeze?
The sun rises in the east.|Where does the sun rise?|Where does the sun come up?|In which direction does the sun rise?
The sun sets in the west.|Where does the sun set?|Where does the sun go down?|In which direction does the sun set?
The sky is blue because air scatters blue light the most.|Why is the sky blue?|Why does the sky look blue?|Why do we see a blue sky?|What makes the sky blue?|Explain why the sky is blue.
The Earth moves around the sun.|What does the Earth move around?|Does the sun move around the Earth?|Which moves around which, the sun or the Earth?
The sun is a star.|What kind of star is closest to us?|Is the sun a planet or a star?|What is the closest star to the Earth?
Leonardo da Vinci painted the Mona Lisa.|Who painted the Mona Lisa?|Who made the Mona Lisa?|Who is the painter of the Mona Lisa?|Which artist painted the Mona Lisa?
Vincent van Gogh painted The Starry Night.|Who painted The Starry Night?|Who is the painter of The Starry Night?|Which artist painted The Starry Night?
Neil Armstrong was the first person on the moon.|Who was the first person on the moon?|Who first walked on the moon?|Who was the first man on the moon?|Who walked on the moon first?
Isaac Newton described gravity.|Who discovered gravity?|Who described gravity?|Who found the law of gravity?
Albert Einstein described relativity.|Who discovered relativity?|Who described relativity?|Whose theory is relativity?
Alexander Graham Bell invented the telephone.|Who invented the telephone?|Who made the first telephone?|Who is the inventor of the telephone?|Who built the first telephone?
Thomas Edison made the first practical light bulb.|Who invented the light bulb?|Who made the first light bulb?|Who is the inventor of the light bulb?
Johannes Gutenberg invented the printing press.|Who invented the printing press?|Who made the first printing press?|Who is the inventor of the printing press?
Tim Berners-Lee invented the World Wide Web.|Who invented the World Wide Web?|Who invented the web?|Who is the inventor of the World Wide Web?
George Washington was the first president of the United States.|Who was the first president of the United States?|Who was the first US president?|Who was the first American president?
The first month is January.|What is the first month of the year?|Which month is the first?|Name the first month of the year.|Which month does the year start with?
The last month is December.|What is the last month of the year?|Which month is the last?|Name the last month of the year.|Which month does the year end with?
February is the shortest month.|Which month is the shortest?|What is the shortest month?|Which month has the fewest days?|Name the shortest month.
The first day of the week is Monday.|What is the first day of the week?|Which day is the first of the week?|Name the first day of the week.
The last day of the week is Sunday.|What is the last day of the week?|Which day is the last of the week?|Name the last day of the week.
Light travels about 300000 kilometers per second.|What is the speed of light?|How fast is light?|How fast does light travel?|Tell me the speed of light.
The Eiffel Tower is in Paris.|Where is the Eiffel Tower?|In which city is the Eiffel Tower?|Which city has the Eiffel Tower?|Where can I see the Eiffel Tower?
Big Ben is in London.|Where is Big Ben?|In which city is Big Ben?|Which city has Big Ben?|Where can I see Big Ben?
The Colosseum is in Rome.|Where is the Colosseum?|In which city is the Colosseum?|Which city has the Colosseum?|Where can I see the Colosseum?
The Great Wall is in China.|Where is the Great Wall?|In which country is the Great Wall?|Which country has the Great Wall?
The Statue of Liberty is in New York.|Where is the Statue of Liberty?|In which city is the Statue of Liberty?|Which city has the Statue of Liberty?
The pyramids of Giza are in Egypt.|Where are the pyramids?|In which country are the pyramids of Giza?|Where are the pyramids of Giza?
You mix blue and yellow to get green.|How do you make green?|Which colors make green?|What do you mix to get green?
You mix red and yellow to get orange.|How do you make orange?|Which colors make orange?|What do you mix to get orange?
You mix red and blue to get purple.|How do you make purple?|Which colors make purple?|What do you mix to get purple?
Pi is about 3.14159.|What is pi?|What is the value of pi?|How much is pi?|Tell me the value of pi.
The heart pumps blood.|What does the heart do?|What is the heart for?|What pumps blood?
We see with our eyes.|What do we see with?|What are eyes for?|What do people see with?
We hear with our ears.|What do we hear with?|What are ears for?|What do people hear with?
We smell with our nose.|What do we smell with?|What is a nose for?|What do people smell with?
Some people say 42. I am only a small model.|What is the meaning of life?|What is the answer to everything?|What is the sense of life?|What is the answer to life?
"""
QUESTIONS: dict[tuple[str, ...], str] = {
    tuple(wordings): answer for answer, *wordings in (line.split("|") for line in _ONE_OFF.strip().split("\n"))
}
"""Facts that no relation holds: the wordings of the question -> the answer."""
