"""Word lists of the generator: common English words and names, by use.

All text of the tokenizer and the corpus comes from these lists, `generator/fact_table.py` and the templates beside it.
Pure data in a fixed order, so that one seed always gives the same text.
"""


def _words(text: str) -> tuple[str, ...]:
    """Return the distinct words of `text` in order of first appearance."""
    return tuple(dict.fromkeys(text.split()))


NAMES = _words("""
Alice Anna Amir Adam Aisha Alex Amy Andrew Arthur Ava Ben Bella Boris Bruno Carla Carlos Cathy Chen Chloe Clara
Daniel David Daisy Diana Diego Dora Dylan Edith Elena Eli Ella Emil Emily Emma Eric Ethan Eva Fatima Felix Finn Fiona
Frank Fred George Gina Grace Greta Gus Hana Hannah Harry Hassan Hugo Ian Ida Igor Ines Iris Isaac Ivan Ivy Jack Jacob
James Jana Jane Jasper Jenny Jim Joan Joe John Jonas Josh Julia Kai Karen Karl Kate Ken Kim Kira Lara Laura Leila Lena
Leo Liam Lily Linda Lisa Lola Louis Lucas Lucy Luis Luna Maja Marco Maria Mark Marta Martin Mary Max Maya Mei Mia Mike
Mila Milo Mina Mona Nadia Nancy Nathan Nick Nina Noah Nora Olga Oliver Olivia Omar Oscar Otto Pablo Paul Pedro Peter
Petra Priya Rachel Raj Ravi Rita Robert Rosa Ruby Ruth Ryan Sam Sara Sasha Simon Sofia Sonia Stella Steve Susan Tara
Theo Tim Tina Tom Tony Uma Vera Victor Viola Walter Wanda Will Yara Yuki Yusuf Zara Zoe
""")

CITIES = _words("""
Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki Copenhagen Warsaw Budapest Athens
Moscow Istanbul Cairo Nairobi Lagos Tokyo Seoul Beijing Shanghai Delhi Mumbai Bangkok Hanoi Jakarta Manila Singapore
Sydney Melbourne Auckland Toronto Montreal Vancouver Chicago Boston Seattle Denver Dallas Houston Miami Atlanta Austin
Portland Phoenix Detroit Lima Bogota Santiago Quito Havana Zurich Geneva Milan Naples Venice Florence Munich Hamburg
Cologne Frankfurt Barcelona Seville Porto Lyon Marseille Nice Brussels Amsterdam Rotterdam Glasgow Edinburgh Manchester
Liverpool Bristol Leeds Oxford Cambridge Krakow Riga Vilnius Tallinn Sofia Bucharest Belgrade Zagreb Dubai Doha Tehran
Baghdad Karachi Lahore Dhaka Osaka Kyoto Perth Brisbane Wellington
""")

COLORS = _words(
    "red blue green yellow orange purple pink brown black white grey golden silver violet crimson turquoise"
)

ANIMALS = _words("""
cat dog horse cow pig sheep goat duck hen rooster goose rabbit mouse rat fox wolf bear lion tiger elephant giraffe
zebra monkey snake frog turtle owl eagle crow pigeon parrot swan penguin dolphin whale shark fish crab bee ant spider
butterfly snail camel donkey deer squirrel hedgehog bat beaver otter badger lizard crocodile kangaroo koala panda
leopard moose seal octopus lobster sparrow robin falcon hamster pony puppy kitten lamb chick
""")

FOODS = _words("""
apple banana pear plum peach cherry grape lemon lime melon mango orange strawberry blueberry raspberry carrot potato
tomato onion garlic cabbage spinach lettuce cucumber pumpkin pepper bean pea corn mushroom broccoli celery bread butter
cheese milk cream yogurt egg rice pasta noodle soup stew salad pizza burger sandwich pie cake cookie muffin pancake
waffle honey jam sugar salt chocolate coffee tea juice water lemonade cocoa chicken beef pork ham bacon sausage fish
shrimp tofu oatmeal cereal toast omelette dumpling curry
""")

OBJECTS = _words("""
lamp chair table desk sofa bed shelf clock mirror carpet curtain pillow blanket door window key lock bag basket box
bottle bucket cup glass mug plate bowl fork knife spoon pan pot kettle oven stove fridge phone laptop camera radio
computer printer keyboard screen battery cable book notebook pen pencil eraser ruler paper envelope stamp letter card
newspaper map compass ball kite doll puzzle drum guitar piano violin flute trumpet bike car bus train boat ship plane
truck scooter helmet rope ladder hammer saw nail screw brush broom mop towel soap comb coat jacket shirt sweater dress
skirt scarf hat cap glove sock shoe boot belt ring necklace watch umbrella wallet purse suitcase backpack tent torch
candle lantern rug vase painting statue fan heater tractor wagon sled skate racket tablet calendar whistle needle thread
button ribbon barrel crate anchor paddle shovel rake
""")

PLACES = _words("""
garden park forest beach river lake mountain village town city school library museum market shop bakery kitchen office
station airport harbor hospital church castle farm field meadow valley island desert cave bridge road street square
tower mill barn stable cottage palace theater cinema hotel restaurant cafe bank factory garage attic cellar hall
playground stadium zoo port hill pond stream waterfall jungle swamp
""")

JOBS = _words("""
baker teacher doctor nurse farmer painter singer dancer writer pilot sailor driver cook gardener builder carpenter
plumber tailor barber butcher lawyer judge engineer scientist chemist librarian waiter actor musician poet soldier
fisherman shepherd miner mechanic electrician programmer designer photographer reporter editor clerk manager dentist
""")

VERBS = _words("""
walk run jump swim climb sing dance draw paint write read cook bake eat drink sleep dream think speak talk listen hear
see look watch find lose keep hold carry lift push pull throw catch kick open close start stop begin finish build break
fix make take give bring send buy sell pay save spend count measure weigh cut fold bend turn move stay leave arrive
travel visit meet greet help teach learn study practice play win fight hide seek follow lead call ask answer explain
describe show tell remember forget know believe hope wish want need like love hate fear laugh smile cry shout whisper
wait hurry rest work plan choose decide change grow plant water feed clean wash dry sweep polish repair collect gather
share join divide mix stir pour fill empty cover wrap tie pack load drive ride sail fly land float sink dig rise fall
shine burn freeze melt boil blow rain snow knock ring touch feel smell taste compare improve protect return replace
""")

ADJECTIVES = _words("""
big small large little tall short long wide narrow thick thin high low deep shallow heavy light fast slow quick early
late old young new ancient modern hot cold warm cool dry wet clean dirty hard soft smooth rough sharp dull bright dark
loud quiet full empty open closed strong weak rich poor cheap expensive easy difficult simple safe dangerous happy sad
angry calm brave shy kind cruel gentle polite rude honest clever wise silly funny serious lazy busy tired hungry thirsty
sleepy healthy sick clear cloudy sunny rainy windy snowy foggy sweet sour salty bitter fresh round square flat straight
curved public private common rare famous secret real false true right wrong left main whole single double several many
few first last next final important useful curious proud lonely careful patient friendly wooden plain tiny huge
""")

ABSTRACT = _words("""
time year month week day hour minute second morning evening night noon moment story poem song word sentence page list
number question reply idea thought reason cause effect result problem solution example lesson rule law right duty
price cost value money coin market trade gift prize goal game sport match race team player music art science history
nature weather season spring summer autumn winter sun moon star sky cloud wind storm thunder lightning fire smoke ash
ice frost earth ground soil sand stone rock metal iron gold steel wood leaf root branch flower seed grass tree bush
vine sea ocean wave shore coast tide north south east west air energy power force speed distance size shape circle
line point corner edge side top bottom middle center front back inside outside level step path way journey trip
holiday party meeting birthday wedding festival dinner lunch breakfast supper meal recipe language letter symbol sign
signal message news report note file folder code program network server model memory data test name family mother
father sister brother daughter son uncle aunt cousin friend neighbor guest child baby boy girl man woman person people
crowd group class pupil student king queen prince princess knight hero wizard giant dragon fairy ghost monster robot
heart hand arm leg foot head face eye ear nose mouth tooth tongue hair skin bone blood brain voice sound noise silence
light shadow color pattern picture dream wish hope joy fear anger love peace war health pain luck chance truth lie
secret mystery surprise success failure courage wisdom beauty freedom justice order chaos system machine engine wheel
tool weapon shield sword crown treasure jewel pearl diamond chain wall roof floor room house home building gate fence
yard nest cage trap net web
""")

COMMON = _words("""
the of and to in is you that it he was for on are as with his they I at be this have from or one had by but not what
all were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make him into has two more go no way could my than been who its now did get come made may part
over any after back only me our under also around another came work three must because does even place well such here
why things put too again off went great old men say where much before right still between own below country last never
us while along might both began got always those often together asked got show large until next hard example himself
it's don't once without second later miss idea enough above almost let sometimes soon being leave every seem ago
against upon its yes no please thanks thank sorry hello hi hey welcome goodbye bye okay sure maybe perhaps today
tomorrow yesterday tonight now then soon never ever just very quite really rather nearly already yet already else
instead however therefore although though unless whether since during through across toward behind beside beyond near
far away inside among within per via than like unlike except despite until anyone someone everyone nobody anything
something everything nothing anywhere somewhere everywhere nowhere whose whom whatever whenever wherever themselves
yourself myself itself ourselves doing going having being saying getting making taking coming seeing looking using
finding giving telling asking working trying leaving calling keeping letting beginning helping showing hearing playing
running moving living believing holding bringing happening writing sitting standing losing paying meeting including
continuing setting learning leading understanding watching following stopping creating speaking reading spending
growing opening walking winning teaching offering remembering considering appearing buying serving dying sending
building staying falling cutting reaching killing raising passing selling deciding returning explaining hoping
developing carrying breaking receiving agreeing supporting hitting producing eating covering catching drawing choosing
""")

MORE = _words("""
able account across act action active actor add address adult advice afraid afternoon age agree aim airport alarm
album alive alone alphabet amount anchor angle answer apartment appear apply area argue army arrow article artist
attack attention author average avoid award balance balloon band bar base basic bath battle beard beat become bedroom
behave bell bench benefit best better bicycle bill bird birth bit bite blade blame blind block board body bomb border
bored born borrow boss bother brain brand brass bread breath brick bright broad brought budget bug burst bush business
cabin calculate camp campus candy capital captain care career carpet cartoon cash cast cause ceiling cell century
ceremony certain champion channel chapter character charge chart check cheek cheer chest chief choice citizen claim
climate cloth clothes club coach coal coat cold collar college column comedy comfort command comment company complain
complete concert condition confirm connect consider contact contain content contest continue control cool copy corn
correct cotton cough council counter couple course court cousin cow crash crazy creature credit crime cross culture
curve custom customer cycle daily damage danger dare date dead deal dear debate debt defend degree delay deliver
demand department depend desert deserve design desire detail device diary dictionary diet difference digital dinner
direct director dirt discover discuss disease dish display document dollar dot doubt downtown draft drama drawer drop
drug dust eager earn economy education effort elbow elect electric element employ enemy enjoy enter entire entrance
equal equipment error escape especially event evidence exact exam excellent exchange excite exercise exist exit expect
experience expert express extra extreme fact fail fair faith fame fashion fat fault favorite feature fee fellow female
fever fiction figure film filter finger firm fit flag flame flavor flight flood flour focus folk food foreign form
formal former fortune forward frame free frequent fresh fruit fuel fun function fund furniture future gain
gallery gap gas general generation generous gentleman glad global glory glue goods government grade grain grand grant
gravity green ground growth guard guess guide guilty habit half handle happen harm harvest heat heaven height hell
hobby hole honor hook host human humor hundred hunt hurt husband image imagine impact improve inch include income
increase independent indeed index individual industry inform injury ink insect insist inspire instrument insurance
intelligent interest internet interview introduce invent invite item jail jewelry job joke journal judge jungle junior
jury keen kid kilometer kingdom kiss knee knowledge lab labor lack lady language lawn layer leather lecture legal
length lesson liberty license life limit link lion lip liquid literature load loan local locate log logic loss lot
lovely lucky luggage lunch lung magazine magic mail male manage manner march mark marry mass master material math
matter mayor mean meat media medical medicine member mental mention menu mess meter method metro midnight mile
military mind mineral minister minor minus mission mistake mobile mode monitor mood moral motion motor mouse
movie muscle mystery narrow nation native natural navy neck nerve nervous net nice nickname nobody normal northern
notice novel nuclear object observe obvious occur offer officer official oil operate opinion option orchestra ordinary
organize origin original owner oxygen pace package pain pair pale parent partner passenger passport past patient peak
penny percent perfect perform period permit photo phrase physical piece pill pilot pipe pity planet plastic platform
pleasure plenty plus pocket poem poet poetry poison pole police policy polite political pool popular population
position positive possible post pound powder practical praise prayer predict prefer prepare present president press
pretty prevent previous priest print prison private probable process product profit project promise proof proper
property propose prove provide pull pump punish pure purpose quality quantity quarter quiz radio rail range rate raw
ray react ready reality realize receipt receive recent recipe recognize record reduce refer reflect refuse regard
region regular relate relative relax release religion rely remain remove rent repeat require rescue research respect
response responsible retire reveal review reward rhythm rice risk river role romantic rope row royal rub rubber rule
rural rush sack sad safety salary sale salt sample satisfy sauce scale scene schedule scheme score scratch
scream screen script seat secretary section security select self senior sense separate series servant service session
settle shade shake shame sheet shelf shell shelter shift shine shock shoot shoulder shower shut sight silent silk
silly similar sin sir site situation skill sky slave slice slide slip slope smart smell smoke snake social society
soldier solid solve somebody soul source southern space spare special specific spell spirit spite split spoil spot
spread square stable staff stage stair stamp standard stare state station steal steam stick sting stock stomach store
straight strange stranger strategy stream stress stretch strict strike string structure struggle stuff stupid style
subject succeed sudden suffer suggest suit supply support suppose surface surround survey survive suspect swear
sweat swing switch sympathy talent tale target tax taxi tear technology telephone television temple tend tennis term
terrible text theme theory therefore thief thing thirty thousand thread threat throat thumb ticket tight till
tin tip title toe toilet tomato tone topic total touch tough tour tourist track tradition traffic trail training
transport treat trend trial tribe trick trouble trust try tube tune tunnel twice twin type typical ugly
uniform union unique unit universe university upper urban urgent usual vacation valley variety vast vegetable vehicle
verb version victim victory video view violence virus visible vision visitor vital vote wage wake wander warn waste
wealth weekend weight western wheat width wild window wine wing winner wire wonder wooden wool worry worth
wound wrist yard yellow youth zero zone algorithm bandwidth browser cache cluster compile container database debug
deploy docker function gateway hardware inference integer keyboard kernel latency library linux module parser password
pixel processor protocol prompt python query queue random request router runtime schema software stack string syntax
thread token transformer upload variable website worker
""")

EVERYDAY = _words("""
abandon abroad absence absent absolute absorb abstract accept access accident accompany accomplish accurate accuse
achieve acid acquire adapt addition adequate adjust admire admit adopt advance advantage adventure advertise affair
affect afford agency agenda agent aggressive agriculture ahead aid alike allow ally alter alternative altogether amaze
ambition ambulance amuse analysis analyze ancestor anniversary announce annual anticipate anxiety anxious apologize
apology apparent appeal appearance appetite applause appoint appreciate approach approve apron arch architect arise
armchair arrange arrest arrival artificial aside asleep aspect assemble assess assign assist assistant associate
assume assure atmosphere attach attempt attend attitude attract audience authority automatic available avenue aware
awake backward bacteria balcony ballet ban bandage bare barely bargain bark barrier basement basin basis batch bay
beam beast beg belief belly beloved beneath beverage bind biology biscuit bishop blank blast bleed blend bless blink
bloom bold bolt bond bonus boom boost booth bounce boundary bow bracelet bravery breast breathe breed breeze brief
broadcast bronze bruise bubble buddy buffalo bull bullet bunch bundle bureau buyer cafeteria campaign canal cancel
cancer candidate canvas capable capacity capture carriage cart carve casual catalog category cattle cautious cease
celebrate cement central champagne chapel charity charm chase chat cheat chef chemical chew childhood chimney chin
chip chorus cigarette circumstance circus civil clap classic classical classroom clay click client cliff climax clinic
clip closet clue coastal coffin coincidence collapse colleague collection colonel colony columnist combination combine
comic commerce commission commit committee communicate community companion compete competition complex complicated
compose composer compromise conceal concentrate concept concern conclude conclusion concrete conduct conference
confidence confident conflict confuse congress consequence conservative consist constant construct consult consume
contrast contribute convenient conversation convert convince cooperate cope copper core corporate correspond corridor
couch coward craft crane crawl creation creative crew crisp criminal crisis critic critical criticize crop crucial
cruise crush cupboard cure curiosity curl current curse cute dairy dam damp darkness dash dawn deadline deaf dealer
debut decade decay decent decision declare decline decorate decrease dedicate deeply defeat defense define definite
delicate delight democracy demonstrate deny departure deposit depress depth deputy derive descend descent desperate
destination destroy destruction detect detective determine develop development devil devote dialogue dignity dim
dimension dining dip diploma disagree disappear disappoint disaster discipline discount discourage discovery
discussion disgust dismiss disorder distant distinct distribute district disturb dive diverse divorce dizzy dock
dominate donate dose dozen drag drain dramatic drift drill drown drunk due dump durable duration dwell dynamic earnest
earring earthquake ease eastern echo ecology edit effective efficient elderly elevator eliminate elite embarrass
embassy emerge emergency emotion emperor emphasis empire employee employer enable encounter encourage endless engage
enormous ensure enterprise entertain enthusiasm entry environment envy epic episode equality era essay essential
establish estate estimate eternal ethnic evaluate eventually evident evil evolve exaggerate examine exceed exception
excess excitement exclude excuse execute executive exhausted exhibit exhibition existence expand expedition expense
experiment expertise explode exploit explore explosion export expose extend extension extent external extraordinary
eyebrow fabric facility factor faculty fade faint faithful fake familiar fancy fantasy farewell fascinate fatal favor
feather federal feedback fetch fiber fierce fifteen fighter finance financial fireplace fist flash flavour flee fleet
flesh flexible flock fluid foam forbid forecast forehead forever forgive formula forth fortunate foundation founder
fountain fraction fragile framework freezer frequency friction friendship frighten frown fruitful frustrate fry
fulfill fundamental funeral fur furious fury gallon gamble gang garment gasoline gaze gear gender gene genius genuine
gesture giggle glance glimpse gloomy goddess golf gossip govern grab graceful gradual graduate graph grasp grateful
grave greedy grief grill grip grocery guarantee guidance guilt gum gym hairdresser halt handful handsome handy hardly
harmony harsh hatch haunt hay headache headline headphones headquarters headset heal heap heartbeat heavily hedge heel
helicopter helpless hence heritage hesitate hidden highlight highway hint hire historic historical hockey holy
homeless homework honestly honesty hood hop horizon horn horror hostile household housing hug humble hunger hunter
hurricane hypothesis icon ideal identical identify identity ignore illegal illness illustrate imagination immediate
immediately immigrant immune imply import impose impossible impress impression incident indicate indoor infant
infection inferior infinite influence ingredient inhabitant initial injure inner innocent input insight inspect
install instance instant institution instruct insult intend intense intention interfere internal interpret interrupt
invasion invest investigate invisible involve irony isolate issue ivory jar jaw jazz jealous jeans jet juicy jumper
justify kidney kindness kit knit knot label landing landlord landscape lane largely laser lately laughter launch
laundry league lean leap legend leisure lend liberal lick lid lifetime lighthouse likely limb limp linen linger liquor
listener literally literary litter liver loaf lobby logical loneliness loose loudly lounge lover loyal lump luxury
lyrics machinery madness magnet maid mainly maintain majority makeup mall manual manufacture maple marble margin
marine marriage marvel mask massive mate mature maximum meaning meantime mechanical mechanism medal medium melody
membership memorial memorize mend merchant mercy mere merit merry microphone microscope mild millimeter million
minimum ministry minority mist mixture moan mob moderate modest moist monthly monument moonlight moreover mosquito
moss motel motive motorcycle mount multiple murder mutual naked nap neat necessary necessity neglect negotiate
neighborhood neither nephew newcomer niece nightmare noble nod nonsense normally nostalgia noun nowadays numb numerous
nut oak obey objective obligation obstacle obtain occasion occasionally occupy odd offend offense opera operation
opponent opportunity oppose opposite optimistic oral orbit organ organic organization orphan outcome outer outfit
outgoing outline output outrage overall overcome overlook overnight owe ownership oyster palm panel panic parade
paradise paragraph parallel parking partial participate particular partly partnership passage passion passive paste
pat patch patience patrol pause pave payment peaceful peanut pedestrian peel peer penalty pension perceive performance
perfume permanent permission persist personality perspective persuade pet phase phenomenon philosophy physician
physics pianist picnic pillar pinch pine pioneer pirate pistol pit pitch plague planner plantation playful plea plot
plow plug plunge poll pollution pop pope porch portion portrait possess possession possibility poster postpone
potential pottery poverty powerful precious precise prediction preference pregnant prejudice premier premium
preparation presence presentation preserve pressure pretend prevention previously pride primary primitive principal
principle priority privacy privilege procedure proceed proclaim production profession professional professor profile
profound progress prohibit prominent promote pronounce proportion proposal prospect prosper protection protein protest
province provoke psychology pub publication publicity publish punch punishment purchase puppet pursue qualify quest
questionable quit quote radar radical rage raid raft rally ranch rank rapid rarely rational readily realistic rear
rebel recall recession reckless recommend recover recovery recreation recruit recycle reflection reform refresh
refrigerator refuge refugee refund regret regulate rehearse reign reject relationship relevant relief religious
reluctant remark remedy remind remote renew represent reputation requirement resemble resent reserve resident resign
resist resolution resolve resort resource restore restrict retail retain retreat reunion revenge revenue reverse
revise revolution ridge rival roar roast rob robbery rocket romance rotten route routine ruin rumor runner rust sacred
sacrifice saddle sailing saint salmon satellite satisfaction savage scan scandal scar scarce scatter scenario scent
scholar scholarship scissors scope sculpture secondary sector secure seize seldom selfish senate sensation sensible
sensitive sequel sequence serial seriously severe sew shave shed sheer sheriff shiver shopping shortage shorts shove
shrink shrug sibling sigh significant sincere sip skeleton sketch ski skip skull slam slap sleeve slender slight slim
slogan sneeze soak soccer softly solar sole solo somewhat sore sorrow spark sparkle speaker specialist species
spectacular spectrum speculate spill spin splash sponsor spray sprinkle squeeze stability stake stall stamina starve
statement statistic status steady steak steep stem stereo stiff stimulate stool storage strain strand straw strength
strip stroke stubborn studio stumble submarine submit substance substantial substitute subtle suburb subway suck
suffering sufficient suitable sum summary summit superior supermarket surf surgeon surgery surprising surrender
suspend suspense suspicion sustain swallow swap swell swift symptom syrup tablespoon tackle tactic tag tail tame tank
tap tape teammate tease technical technique teenager temper temperature temporary tempt tenant tender tense tension
territory terror terrorist testify testimony thankful theft theirs thorough thoroughly thoughtful threaten thrill
thrive throne tickle tidy tissue tobacco toddler tolerate toll tomb toothbrush tornado torture toss tournament toxic
trace tragedy tragic trailer trait transfer transform transition translate translation transmit trash trauma tray
treatment treaty tremble tremendous trigger trim triumph tropical trousers truly turkey twelve twenty twist ultimate
unable uncertain undergo underground undoubtedly unemployed unexpected unfortunately unify unknown unlikely unlock
update upgrade upright upstairs upward usage utility utter vacuum vague vain valid vanilla vanish vary vein venture
venue verbal verdict verse vessel veteran vice villa villain violent virtual virtue visual vivid vocabulary volcano
volume volunteer vulnerable waist waitress walnut warehouse warmth warning warrant warrior wary waterproof wax weaken
wealthy weary weave weekly weep weird whip wicked widely widow widespread wilderness willing wink winery wipe wireless
withdraw witness worldwide worm worship worst wreck wrinkle yacht yawn yearly yell yeast yield yoga zip acting
amazingly audio charger charging cheaply clarity clearly complaint comfortably dialog disappointed disappointment
documentary earbuds earpiece ending expected filmmaker fits flaws impressed installed loved manages moments narrative
ordered packaging pleased poorly purchased quickly received reception recommended refused remake replacement returned
screenplay seller shipped shipping sitcom soundtrack stylish thriller warranty watched wasted weeks worked works
bought arrived broke stopped tried used wanted waited needed answered called charged died enjoyed fell felt failed
found gave hated heard held helped hoped kept knew laughed learned liked looked lost met missed moved opened paid
played ran sat seemed sent showed slept sold sounded spent spoke started stayed stood suggested talked tasted taught
told took turned understood visited walked won wore wrote years months days hours minutes dollars films movies books
phones songs friends children women problems words
""")

UNITS = _words("minutes hours days weeks meters kilometers grams kilos liters miles pounds dollars euros coins pages")

WEEKDAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = _words("January February March April May June July August September October November December")

POSITIVE = _words("""
good great excellent wonderful amazing fantastic brilliant lovely delightful superb perfect awesome beautiful charming
delicious fresh friendly helpful impressive pleasant outstanding marvelous terrific enjoyable fun funny clever smart
inspiring touching gripping fascinating reliable comfortable clean fast smooth elegant generous kind polite tasty
excellent splendid remarkable stunning refreshing satisfying magnificent incredible fabulous thrilling entertaining nice
""")
NEGATIVE = _words("""
bad terrible awful horrible poor dreadful disappointing boring dull ugly disgusting dirty rude slow broken useless
annoying unpleasant nasty weak stale cold bland noisy messy painful stupid silly tedious confusing frustrating
unreliable uncomfortable cheap lazy unfair sad mediocre lousy pathetic worthless miserable ridiculous disastrous
predictable tasteless overpriced clumsy shabby faulty
""")

LEXICON: tuple[str, ...] = tuple(
    dict.fromkeys(
        COLORS
        + ANIMALS
        + FOODS
        + OBJECTS
        + PLACES
        + JOBS
        + VERBS
        + ADJECTIVES
        + ABSTRACT
        + MORE
        + EVERYDAY
        + POSITIVE
        + NEGATIVE
    )
)
"""Every lower-case content word: what copy tasks and refusals draw from."""
VALUES: tuple[str, ...] = tuple(
    dict.fromkeys(NAMES + CITIES + COLORS + ANIMALS + FOODS + OBJECTS + PLACES + JOBS + WEEKDAYS + MONTHS)
)
"""What answers start with and JSON holds: each is one token of its own with and without a blank before it."""
NOUNS: tuple[str, ...] = tuple(dict.fromkeys(ANIMALS + FOODS + OBJECTS + PLACES + JOBS))


def article(noun: str) -> str:
    """Return `noun` with its indefinite article: "a lamp", "an owl"."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun
