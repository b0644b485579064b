"""Cities of the simulated PoPs besides those of `gateway.nodes.known_pops`: coordinates in degrees, and metropolitan
inhabitants in millions, rounded."""

from __future__ import annotations

from typing import NamedTuple

from gateway.nodes.known_pops import KNOWN_POPS

NUM_POPS = 330

# Inhabitants of the cities in KNOWN_POPS that are not near two million, in millions.
_LARGE = {
    "nrt": 37, "del": 32, "bom": 21, "gru": 22, "mex": 22, "cai": 21, "dac": 22, "kix": 19, "jfk": 19, "khi": 16,
    "eze": 15, "ist": 15, "mnl": 14, "los": 15, "lax": 13, "dme": 12, "cdg": 11, "cgk": 11, "icn": 10, "lim": 11,
    "lhr": 14, "blr": 12, "maa": 11, "hyd": 10, "bog": 11, "bkk": 10, "sgn": 9, "kul": 8, "ord": 9, "scl": 7,
    "mad": 7, "gig": 13, "dfw": 8, "iah": 7, "yyz": 6, "iad": 6, "sin": 6, "hkg": 7, "ruh": 7, "atl": 6, "mia": 6,
    "phl": 6, "bos": 5, "syd": 5, "mel": 5, "pnq": 7, "phx": 5, "sfo": 5, "jnb": 6, "cpt": 5, "bcn": 5, "sea": 4,
    "fra": 4, "ber": 5, "txl": 0, "ewr": 0, "sjc": 2, "kef": 0.3, "mle": 0.2, "hnl": 1, "lux": 0.6,
}  # fmt: skip

# city, country, latitude, longitude, inhabitants in millions
_OTHERS = """
Shanghai CN 31.2 121.5 28;Beijing CN 39.9 116.4 21;Guangzhou CN 23.1 113.3 14;Shenzhen CN 22.5 114.1 13
Chongqing CN 29.6 106.5 9;Tianjin CN 39.1 117.2 11;Chengdu CN 30.7 104.1 9;Wuhan CN 30.6 114.3 8
Xian CN 34.3 108.9 8;Hangzhou CN 30.3 120.2 8;Nanjing CN 32.1 118.8 8;Qingdao CN 36.1 120.4 6
Zhengzhou CN 34.7 113.6 6;Shenyang CN 41.8 123.4 7;Kunming CN 25.0 102.7 4;Xiamen CN 24.5 118.1 4
Kolkata IN 22.6 88.4 15;Ahmedabad IN 23.0 72.6 8;Surat IN 21.2 72.8 7;Jaipur IN 26.9 75.8 4
Lucknow IN 26.8 80.9 4;Kanpur IN 26.4 80.3 3;Nagpur IN 21.1 79.1 3;Kochi IN 10.0 76.3 3
Indore IN 22.7 75.9 3;Patna IN 25.6 85.1 2;Chandigarh IN 30.7 76.8 1;Coimbatore IN 11.0 77.0 3
Bhubaneswar IN 20.3 85.8 1;Guwahati IN 26.1 91.7 1;Visakhapatnam IN 17.7 83.2 2;Lahore PK 31.5 74.3 13
Islamabad PK 33.7 73.0 4;Faisalabad PK 31.4 73.1 4;Peshawar PK 34.0 71.5 2;Chittagong BD 22.4 91.8 5
Kabul AF 34.5 69.2 4;Tehran IR 35.7 51.4 9;Mashhad IR 36.3 59.6 3;Baghdad IQ 33.3 44.4 7
Basra IQ 30.5 47.8 1;Erbil IQ 36.2 44.0 1;Ankara TR 39.9 32.9 5;Izmir TR 38.4 27.1 3
Amman JO 32.0 35.9 2;Beirut LB 33.9 35.5 2;Damascus SY 33.5 36.3 2;Muscat OM 23.6 58.4 2
Dammam SA 26.4 50.1 1;AbuDhabi AE 24.5 54.4 2;Baku AZ 40.4 49.9 2;Tashkent UZ 41.3 69.2 3
Almaty KZ 43.2 76.9 2;Astana KZ 51.2 71.4 1;Bishkek KG 42.9 74.6 1;Ulaanbaatar MN 47.9 106.9 2
Busan KR 35.2 129.1 3;Daegu KR 35.9 128.6 2;Nagoya JP 35.2 136.9 9;Fukuoka JP 33.6 130.4 6
Sapporo JP 43.1 141.4 3;Sendai JP 38.3 140.9 2;Hiroshima JP 34.4 132.5 2;Naha JP 26.2 127.7 1
Kaohsiung TW 22.6 120.3 2;Taichung TW 24.1 120.7 3;Macau MO 22.2 113.5 0.7;Cebu PH 10.3 123.9 3
Davao PH 7.1 125.6 2;Danang VN 16.1 108.2 1;Haiphong VN 20.9 106.7 2;PhnomPenh KH 11.6 104.9 2
Vientiane LA 18.0 102.6 0.7;Yangon MM 16.8 96.2 5;ChiangMai TH 18.8 99.0 1;Penang MY 5.4 100.3 2
JohorBahru MY 1.5 103.7 2;Surabaya ID -7.3 112.7 6;Medan ID 3.6 98.7 4;Bandung ID -6.9 107.6 8
Makassar ID -5.1 119.4 2;Denpasar ID -8.7 115.2 1;Thimphu BT 27.5 89.6 0.2;Adelaide AU -34.9 138.6 1
Canberra AU -35.3 149.1 0.5;Hobart AU -42.9 147.3 0.2;Wellington NZ -41.3 174.8 0.4;Christchurch NZ -43.5 172.6 0.4
Suva FJ -18.1 178.4 0.2;Noumea NC -22.3 166.5 0.2;PortMoresby PG -9.4 147.2 0.4;Guam GU 13.5 144.8 0.2
Papeete PF -17.5 -149.6 0.1;Kinshasa CD -4.3 15.3 16;Luanda AO -8.8 13.2 9;Abidjan CI 5.3 -4.0 6
Kano NG 12.0 8.5 4;Abuja NG 9.1 7.5 4;PortHarcourt NG 4.8 7.0 3;Khartoum SD 15.5 32.6 6
Kampala UG 0.3 32.6 4;Kigali RW -1.9 30.1 1;Lusaka ZM -15.4 28.3 3;Harare ZW -17.8 31.1 2
Maputo MZ -26.0 32.6 2;Antananarivo MG -18.9 47.5 4;PortLouis MU -20.2 57.5 0.2;Durban ZA -29.9 31.0 3
Gaborone BW -24.7 25.9 0.3;Windhoek NA -22.6 17.1 0.4;Mombasa KE -4.0 39.7 1;Djibouti DJ 11.6 43.1 0.6
Mogadishu SO 2.0 45.3 3;Algiers DZ 36.8 3.1 3;Oran DZ 35.7 -0.6 1;Annaba DZ 36.9 7.8 0.4
Rabat MA 34.0 -6.8 2;Tripoli LY 32.9 13.2 1;Alexandria EG 31.2 29.9 6;Bamako ML 12.6 -8.0 3
Ouagadougou BF 12.4 -1.5 3;Lome TG 6.1 1.2 2;Cotonou BJ 6.4 2.4 1;Douala CM 4.1 9.7 4
Libreville GA 0.4 9.5 0.9;Conakry GN 9.6 -13.6 2;Freetown SL 8.5 -13.2 1;Monrovia LR 6.3 -10.8 2
Praia CV 14.9 -23.5 0.2;Reunion RE -20.9 55.5 0.3;SaintPetersburg RU 59.9 30.3 6;Yekaterinburg RU 56.8 60.6 2
Novosibirsk RU 55.0 82.9 2;Kazan RU 55.8 49.1 1;Krasnoyarsk RU 56.0 92.9 1;Khabarovsk RU 48.5 135.1 0.6
Vladivostok RU 43.1 131.9 0.6;RostovOnDon RU 47.2 39.7 1;Minsk BY 53.9 27.6 2;Odesa UA 46.5 30.7 1
Lviv UA 49.8 24.0 0.7;Kharkiv UA 50.0 36.2 1;Chisinau MD 47.0 28.9 0.7;Krakow PL 50.1 19.9 1
Wroclaw PL 51.1 17.0 0.6;Gdansk PL 54.4 18.6 1;Poznan PL 52.4 16.9 0.5;Brno CZ 49.2 16.6 0.4
Bratislava SK 48.1 17.1 0.6;Ljubljana SI 46.1 14.5 0.3;Sarajevo BA 43.9 18.4 0.4;Skopje MK 42.0 21.4 0.5
Tirana AL 41.3 19.8 0.6;Pristina XK 42.7 21.2 0.2;Podgorica ME 42.4 19.3 0.2;Thessaloniki GR 40.6 22.9 1
Nicosia CY 35.2 33.4 0.3;Valletta MT 35.9 14.5 0.4;Naples IT 40.9 14.3 3;Turin IT 45.1 7.7 2
Palermo IT 38.1 13.4 1;Bologna IT 44.5 11.3 1;Lyon FR 45.8 4.8 2;Bordeaux FR 44.8 -0.6 1
Toulouse FR 43.6 1.4 1;Lille FR 50.6 3.1 1;Nantes FR 47.2 -1.6 1;Nice FR 43.7 7.3 1
Strasbourg FR 48.6 7.8 0.8;Valencia ES 39.5 -0.4 2;Seville ES 37.4 -6.0 2;Bilbao ES 43.3 -2.9 1
Malaga ES 36.7 -4.4 1;LasPalmas ES 28.1 -15.4 0.6;Porto PT 41.2 -8.6 2;Cologne DE 50.9 7.0 2
Leipzig DE 51.3 12.4 1;Hanover DE 52.4 9.7 1;Nuremberg DE 49.5 11.1 1;Bremen DE 53.1 8.8 0.7
Dresden DE 51.1 13.7 0.8;Rotterdam NL 51.9 4.5 2;Antwerp BE 51.2 4.4 1;Gothenburg SE 57.7 12.0 1
Malmo SE 55.6 13.0 0.7;Bergen NO 60.4 5.3 0.4;Trondheim NO 63.4 10.4 0.2;Aarhus DK 56.2 10.2 0.4
Tampere FI 61.5 23.8 0.4;Birmingham GB 52.5 -1.9 4;Glasgow GB 55.9 -4.3 2;Leeds GB 53.8 -1.5 2
Bristol GB 51.5 -2.6 1;Belfast GB 54.6 -5.9 0.7;Cardiff GB 51.5 -3.2 1;Cork IE 51.9 -8.5 0.3
Basel CH 47.6 7.6 0.5;Linz AT 48.3 14.3 0.5;Graz AT 47.1 15.4 0.4;ClujNapoca RO 46.8 23.6 0.4
Timisoara RO 45.7 21.2 0.4;Varna BG 43.2 27.9 0.3;SanDiego US 32.7 -117.2 3;SanAntonio US 29.4 -98.5 3
Austin US 30.3 -97.7 2;Charlotte US 35.2 -80.8 3;Tampa US 28.0 -82.5 3;Orlando US 28.5 -81.4 3
Jacksonville US 30.3 -81.7 2;Pittsburgh US 40.4 -80.0 2;Columbus US 40.0 -83.0 2;Cleveland US 41.5 -81.7 2
Cincinnati US 39.1 -84.5 2;Indianapolis US 39.8 -86.2 2;KansasCity US 39.1 -94.6 2;Omaha US 41.3 -96.0 1
Milwaukee US 43.0 -87.9 2;Memphis US 35.1 -90.0 1;NewOrleans US 30.0 -90.1 1;OklahomaCity US 35.5 -97.5 1
Albuquerque US 35.1 -106.7 0.9;ElPaso US 31.8 -106.5 0.9;Sacramento US 38.6 -121.5 2;Boise US 43.6 -116.2 0.8
Richmond US 37.5 -77.4 1;Norfolk US 36.9 -76.3 2;Raleigh US 35.8 -78.6 2;Baltimore US 39.3 -76.6 3
Buffalo US 42.9 -78.9 1;Anchorage US 61.2 -149.9 0.4;Ottawa CA 45.4 -75.7 1;Winnipeg CA 49.9 -97.1 0.8
Edmonton CA 53.5 -113.5 1;Halifax CA 44.6 -63.6 0.5;QuebecCity CA 46.8 -71.2 0.8;Saskatoon CA 52.1 -106.7 0.3
Guadalajara MX 20.7 -103.3 5;Monterrey MX 25.7 -100.3 5;Tijuana MX 32.5 -117.0 2;Merida MX 21.0 -89.6 1
Puebla MX 19.0 -98.2 3;GuatemalaCity GT 14.6 -90.5 3;SanSalvador SV 13.7 -89.2 2;Tegucigalpa HN 14.1 -87.2 1
Managua NI 12.1 -86.3 1;SanJoseCR CR 9.9 -84.1 2;Havana CU 23.1 -82.4 2;Kingston JM 18.0 -76.8 1
SantoDomingo DO 18.5 -69.9 4;SanJuan PR 18.5 -66.1 2;PortAuPrince HT 18.5 -72.3 3;PortOfSpain TT 10.7 -61.5 0.5
Bridgetown BB 13.1 -59.6 0.1;Willemstad CW 12.1 -68.9 0.1;Caracas VE 10.5 -66.9 3;Maracaibo VE 10.6 -71.6 2
Medellin CO 6.2 -75.6 4;Cali CO 3.5 -76.5 3;Barranquilla CO 11.0 -74.8 2;Quito EC -0.2 -78.5 2
Arequipa PE -16.4 -71.5 1;LaPaz BO -16.5 -68.1 2;SantaCruz BO -17.8 -63.2 2;Asuncion PY -25.3 -57.6 3
Montevideo UY -34.9 -56.2 2;Cordoba AR -31.4 -64.2 2;Rosario AR -32.9 -60.7 1;Mendoza AR -32.9 -68.8 1
Concepcion CL -36.8 -73.1 1;Antofagasta CL -23.7 -70.4 0.4;BeloHorizonte BR -19.9 -43.9 6;Brasilia BR -15.8 -47.9 5
Salvador BR -13.0 -38.5 4;Fortaleza BR -3.7 -38.5 4;Recife BR -8.1 -34.9 4;PortoAlegre BR -30.0 -51.2 4
Curitiba BR -25.4 -49.3 4;Manaus BR -3.1 -60.0 2;Belem BR -1.5 -48.5 2;Goiania BR -16.7 -49.3 3
Campinas BR -22.9 -47.1 3;Florianopolis BR -27.6 -48.5 1;Vitoria BR -20.3 -40.3 2;Natal BR -5.8 -35.2 2
Georgetown GY 6.8 -58.2 0.2;Paramaribo SR 5.9 -55.2 0.2;Cayenne GF 4.9 -52.3 0.1;Nuuk GL 64.2 -51.7 0.1
"""


class City(NamedTuple):
    """A simulated PoP."""

    pop: str
    country: str
    latitude: float
    longitude: float
    inhabitants: float  # millions


def cities() -> list[City]:
    """Return NUM_POPS cities: those of the known PoP codes, and the largest of the others."""
    found = [
        City(pop, known.country, known.latitude, known.longitude, float(_LARGE.get(pop, 2)))
        for pop, known in KNOWN_POPS.items()
        if _LARGE.get(pop) != 0
    ]
    others = []
    for row in _OTHERS.replace("\n", ";").split(";"):
        if row:
            name, country, latitude, longitude, inhabitants = row.split()
            others.append(City(name.lower(), country, float(latitude), float(longitude), float(inhabitants)))
    others.sort(key=lambda city: (-city.inhabitants, city.pop))
    return (found + others)[:NUM_POPS]
